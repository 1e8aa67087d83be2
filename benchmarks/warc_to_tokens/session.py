"""A command with all the processes that it starts: what each of its steps took, and a kill in the middle of one."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import Usage, adopt_orphans, memory_of, processes_of_session

TICK = os.sysconf("SC_CLK_TCK")
INTERVAL = 0.1


@dataclass
class Session:
    """A command that was run, or killed.

    Attributes:
        total: what it took.
        steps: what each step took, by its name, as far as it came.
        status: its exit code, -9 where it was killed.
        output: what it wrote.
    """

    total: Usage
    steps: dict[str, Usage] = field(default_factory=dict)
    status: int = 0
    output: str = ""
    peak: float = 0.0
    """The most memory since the last step ended, in MB."""


def run(
    command: Sequence[str | Path],
    folder: Path,
    *,
    steps: Sequence[str] = (),
    is_done: Callable[[str], bool] = lambda step: False,
    kill: tuple[str, Callable[[], bool], float] | None = None,
    limit: float = 3600,
    environment: dict[str, str] | None = None,
) -> Session:
    """Run a command in a folder, and say what it took.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        steps: what it does one after another.
        is_done: whether a step has ended.
        kill: a step, what tells that it is at work, and the seconds after that at which all processes get SIGKILL.
        limit: seconds after which it is killed in any case.
        environment: variables beside those of this process.
    """
    adopt_orphans()
    # Without its bytecode on disk, Python compiles numba again in each process: that is not what users have.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    log = folder / "output.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, env=variables | (environment or {}),
        )  # fmt: skip
        found = Session(Usage(0, 0))
        ended = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(process.pid, found, start, steps, is_done, kill, limit, ended), daemon=True
        )
        watcher.start()
        found.status = process.wait()
        ended.set()
        watcher.join()
        kill_session(process.pid)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-process.pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found.total.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found.total.wall = time.monotonic() - start
    _close(found, steps, is_done, found.total.cpu, found.total.wall)
    found.output = log.read_text(encoding="utf-8", errors="replace")
    return found


def _watch(
    session: int, found: Session, start: float, steps: Sequence[str], is_done: Callable[[str], bool],
    kill: tuple[str, Callable[[], bool], float] | None, limit: float, ended: threading.Event,
) -> None:  # fmt: skip
    """Look ten times a second what the processes have taken, and close each step that has ended."""
    began = None
    while not ended.wait(INTERVAL):
        processes = list(processes_of_session(session))
        now = time.monotonic()
        held = sum(map(memory_of, processes))
        found.peak, found.total.peak = max(found.peak, held), max(found.total.peak, held)
        # The last one is closed at the very end: of processes that have ended nothing can be read.
        if len(found.steps) < len(steps) - 1 and is_done(steps[len(found.steps)]):
            _close(found, steps[:-1], is_done, sum(map(_cpu_of, processes)), now - start)
        if kill is not None and began is None and kill[1]():
            began = now
        is_late = now - start > limit
        if is_late or (kill is not None and began is not None and now - began >= kill[2]):
            kill_session(session)


def _close(found: Session, steps: Sequence[str], is_done: Callable[[str], bool], cpu: float, wall: float) -> None:
    """Note the next step, and those that ended in the same moment with nothing of their own."""
    while len(found.steps) < len(steps) and is_done(steps[len(found.steps)]):
        so_far = list(found.steps.values())
        own = Usage(cpu - sum(step.cpu for step in so_far), wall - sum(step.wall for step in so_far), found.peak)
        found.steps[steps[len(found.steps)]], found.peak = own, 0.0


def _cpu_of(process: Path) -> float:
    """CPU seconds of a process and of those of its children that have ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15])) / TICK
    return 0.0


def kill_session(session: int) -> None:
    """Kill every process of a session, which has begun here."""
    for process in list(processes_of_session(session)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)


def as_json(session: Session) -> dict[str, Any]:
    """What is kept of it."""

    def rounded(usage: Usage) -> dict[str, float]:
        return {"cpu": round(usage.cpu, 2), "wall": round(usage.wall, 2), "peak": round(usage.peak)}

    return {**rounded(session.total), "steps": {name: rounded(usage) for name, usage in session.steps.items()}}
