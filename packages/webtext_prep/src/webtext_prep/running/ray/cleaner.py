"""Removes what a Ray of one machine leaves when the process that started it is gone, whatever ended that.

    python cleaner.py FOLDER PID

It waits for the end of its standard input, which process PID holds open as long as it lives; then it kills all others
that have a file of Ray's FOLDER open, and removes the folder. Ray ends its processes one second after it has asked them
to, on a busy machine too soon for them to end theirs; and those of a driver that was killed are never asked. They
change their command lines, so they are known by their logs. Where there is no /proc, Ray's own ways have to do.

Run as a file, by an interpreter that imports nothing of ours: it costs some 10 MB for as long as that Ray runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 20.0
"""How long processes may take to end, and the folder to be removed."""
PAUSE_SECONDS = 0.05


def started(folder: str) -> subprocess.Popen[bytes]:
    """Have the Ray of a folder cleared away when this process closes the standard input of the new one, or dies."""
    return subprocess.Popen(
        [sys.executable, "-IS", __file__, folder, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it does not hear the Ctrl-C of a terminal
    )


def holders(folder: Path, *spared: int) -> list[int]:
    """The processes that have a file of a folder open, but for some."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) not in spared and any(
                file.readlink().is_relative_to(folder) for file in (process / "fd").iterdir()
            ):
                found.append(int(process.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def clean(folder: Path, spared: int) -> None:
    """Kill those processes, and remove the folder once they are gone."""
    deadline = time.monotonic() + SECONDS
    while (left := holders(folder, spared, os.getpid())) and time.monotonic() < deadline:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(PAUSE_SECONDS)
    while folder.exists() and time.monotonic() < deadline:  # one that ends on its own may still write
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
