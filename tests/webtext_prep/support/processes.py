"""Waiting for other processes, and looking at them."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60
"""Seconds after which a test no longer believes that something will happen."""


def until(happened: Callable[[], object], what: str) -> None:
    """Return as soon as `happened()`; fail if that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and was not waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """The processes that `pid` started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = set(), [pid]
    while todo:
        todo += (new := children.get(todo.pop(), []))
        found |= set(new)
    return found
