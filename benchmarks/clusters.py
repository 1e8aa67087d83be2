"""The machines on which `invariance.py` runs an engine, and how their workers and nodes are killed.

A cluster of this machine comes from the tests: a Ray of two nodes. What is killed is killed by SIGKILL, which leaves
nothing the time to put anything in order.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from command_kit import available_cores

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "webtext_prep" / "support"
sys.path.append(str(SUPPORT))

from processes import descendants  # noqa: E402
from ray_nodes import RayNodes  # noqa: E402

KINDS = ("workers", "node", "command")
NODES = 2


class Machines:
    """Where an engine runs its tasks; this class itself is a cluster of the user's, of which nothing is killed.

    Args:
        engine: its name.
        flags: what its commands are given beside `--engine`.
    """

    kinds: tuple[str, ...] = ("command",)
    """What can be killed there."""

    def __init__(self, engine: str, flags: list[str]) -> None:
        self.engine, self.flags = engine, flags

    def arguments(self) -> list[str]:
        """What each command is given for this engine."""
        return ["--engine", self.engine, *self.flags]

    def kill(self, kind: str, command: int, source: random.Random) -> bool:
        """Kill a worker, a node or the command (by its process id); False if there is none now."""
        assert kind == "command"
        return _kill(command)

    def close(self) -> None:
        """End what was started."""


class ThisMachine(Machines):
    """Local processes: a node is the command with all its processes."""

    kinds = KINDS

    def kill(self, kind: str, command: int, source: random.Random) -> bool:
        """See `Machines.kill`."""
        if kind == "command":
            return super().kill(kind, command, source)
        if kind == "node":
            return _kill(command, group=True)
        workers = [pid for pid in descendants(command) if _is_fork_of_server(pid)]
        return bool(workers) and _kill(source.choice(sorted(workers)))


class OwnRay(Machines):
    """A Ray of two nodes, the second of which is killed and replaced."""

    kinds = KINDS

    def __init__(self, engine: str, flags: list[str], workers: int) -> None:
        super().__init__(engine, flags)
        cores = max(1, workers // NODES)
        self._nodes = RayNodes(cores)
        self._nodes.add()
        self.flags = [*flags, "--ray-address", self._nodes.address]

    def kill(self, kind: str, command: int, source: random.Random) -> bool:
        """See `Machines.kill`."""
        if kind == "command":
            return super().kill(kind, command, source)
        if kind == "node":
            self._nodes.kill()
            self._nodes.add()
            return True
        workers = self._nodes.at_work()
        return bool(workers) and _kill(source.choice(sorted(workers)))

    def close(self) -> None:
        """See `Machines.close`."""
        self._nodes.stop()


def machines_for(engine: str, flags: list[str], workers: int, *, ours: bool) -> Machines:
    """The machines of an engine.

    Args:
        engine: its name.
        flags: what its commands are given.
        workers: how many tasks are to run at once; 0 for as many as there are cores.
        ours: whether they are processes of this machine, or a cluster that is there.
    """
    if not ours:
        return Machines(engine, [*flags, *(["--workers", str(workers)] if workers else [])])
    workers = workers or max(2, available_cores())
    if engine == "local":
        return ThisMachine(engine, [*flags, "--workers", str(workers)])
    return OwnRay(engine, flags, workers)


def stop_all(process: subprocess.Popen[str]) -> None:
    """End a command with all its processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill(pid: int, *, group: bool = False) -> bool:
    try:
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _is_fork_of_server(pid: int) -> bool:
    """Whether a process is a worker: the fork server of `multiprocessing` has forked it."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return b"multiprocessing.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False
