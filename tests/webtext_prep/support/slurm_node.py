"""A node for jobs of `slurm_stand_in.py` that has imported everything already, and runs each job in a fork of itself.

    python slurm_node.py SOCKET              the node; it ends with its standard input
    python slurm_node.py SOCKET FOLDER       what a job's script calls instead of `clusters.slurm_job`

Python and the libraries of a stage take most of a second to start, and a stage of seven phases has seven jobs.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def running(place: Path) -> Iterator[None]:
    """A node that listens at a socket."""
    node = subprocess.Popen(
        [sys.executable, __file__, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert node.stdout is not None
    assert node.stdin is not None
    try:
        assert node.stdout.readline() == b"ready\n"
        yield
    finally:
        node.stdin.close()
        node.stdout.close()
        node.wait()


def script(place: Path, folder: str) -> str:
    """The script of a job."""
    return f"#!/bin/sh\nexec {sys.executable} -IS {__file__} {place} {folder}\n"


def listen(place: str) -> None:
    """Be the node."""
    import importlib

    from webtext_prep import cli
    from webtext_prep.running.clusters import slurm_job as job

    importlib.import_module("obstore")
    for stage in cli.find_stages().values():
        for name in getattr(stage, "preload", ()):
            importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            asked = json.loads(connection.makefile().readline())
            os.environ.clear()
            os.environ.update(asked["environment"])
            number, cores = (int(os.environ[f"SLURM_{name}"]) for name in ("ARRAY_TASK_ID", "CPUS_ON_NODE"))
            code = 1
            try:
                code = job.run(Path(asked["folder"]), number, cores)
            finally:
                connection.sendall(bytes([code]))
                os._exit(0)
        connection.close()


def ask(place: str, folder: str) -> int:
    """Have the node run a job; its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        connection.sendall(json.dumps({"folder": folder, "environment": dict(os.environ)}).encode() + b"\n")
        return (connection.recv(1) or b"\x01")[0]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(*sys.argv[1:]))
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # The node is the main thread, so that what fails ends it, for the test to see.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    listen(sys.argv[1])
