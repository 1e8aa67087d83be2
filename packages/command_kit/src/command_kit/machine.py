"""This machine's resources for a run: free disk, and memory within the limits that containers and batch systems set.

psutil says what memory can be had without swapping, and Linux of each control group, in which containers and jobs of
batch systems run, its limit and its use. A group's page cache counts as free, since the kernel gives it up.

`webtext doctor` and `gpt2 doctor` show a line for each thing looked at. A line says what was found and, where something
needed is missing, what to do about it. Nothing is changed and nothing is sent anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit.colours import BOLD, GREEN, YELLOW, Paint
from command_kit.parsing import version_of


def available_cores() -> int:
    """The cores that this process may use: where the system binds it to some, these, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores(root: Path = Path("/")) -> int:
    """The cores of these, each once where it runs several threads; all where the system does not say.

    Matrix products keep a core's units busy with one thread: a second one only takes its turn.
    """
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    try:
        siblings = {
            (root / f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list").read_text() for n in numbers
        }
    except OSError:
        return available_cores()
    return len(siblings) or available_cores()


_UNLIMITED = 1 << 60
"""Control groups of the first version call so much, or more, no limit."""


@dataclass(frozen=True)
class Disk:
    """The file system of a folder.

    Attributes:
        name: what two folders on one file system have in common.
        free: bytes that may still be written.
    """

    name: str
    free: int


class Machine:
    """The machine that a command runs on.

    Args:
        root: the folder in which `proc` and `sys` are looked for.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def disk_of(self, place: object) -> Disk | None:
        """The disk on which a folder lies, or will lie, or None where that is not known (a URL)."""
        if not isinstance(place, Path):
            return None
        there = next(folder for folder in [place.absolute(), *place.absolute().parents] if folder.exists())
        return Disk(str(there.stat().st_dev), shutil.disk_usage(there).free)

    def available_memory(self) -> int:
        """Bytes of memory that this process and its children may take."""
        import psutil

        return max(0, min(psutil.virtual_memory().available, *self._of_groups(), sys.maxsize))

    def _of_groups(self) -> Iterator[int]:
        """The memory that each control group that this process is in, and each around it, leaves free."""
        groups = self._root / "sys/fs/cgroup"
        try:
            lines = (self._root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                mount, limit, usage = groups, "memory.max", "memory.current"
            elif "memory" in controllers.split(","):
                mount, limit, usage = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            else:
                continue
            folder = mount / path.strip("/")
            # A container may show its own group as the root, under another path than the process sees.
            for group in [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]:
                # No such file, or "max": no limit here.
                with contextlib.suppress(OSError, ValueError):
                    most = int((group / limit).read_text(encoding="ascii"))
                    if most < _UNLIMITED:
                        yield most - int((group / usage).read_text(encoding="ascii")) + _page_cache(group)


def _page_cache(group: Path) -> int:
    """Bytes that a control group holds of files, which the kernel gives up when memory is wanted."""
    entries = dict(line.split()[:2] for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    names = ("total_inactive_file", "total_active_file")
    if names[0] not in entries:
        names = ("inactive_file", "active_file")
    return sum(int(entries.get(name, 0)) for name in names)


GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is, in a word or two.
        found: what was found.
        advice: what is wrong and what to do; empty where all is well. A missing optional part is no reason for one.
    """

    name: str
    found: str
    advice: str = ""


def shown(checks: Sequence[Check]) -> str:
    """A line for each check: `ok` or `!`, its name, what was found, and the advice; in standard output's colours."""
    paint = Paint.of(sys.stdout)
    width = max(len(check.name) for check in checks)
    return "\n".join(
        f"{paint('! ', YELLOW, BOLD) if check.advice else paint('ok', GREEN)}  {check.name:<{width}}  "
        f"{check.found}{'; ' if check.found and check.advice else ''}{check.advice}"
        for check in checks
    )


def values(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks for `--json`: name -> `found` and `advice`."""
    return {check.name: {"found": check.found, "advice": check.advice} for check in checks}


def cores_check() -> Check:
    """Processor cores, and the kind of processor."""
    cores = available_cores()
    return Check("cores", f"{cores} to use, {platform.machine()}, {platform.system()}")


def memory_check(machine: Machine, needed: int, what: str) -> Check:
    """Memory that is free; `what` is the work that takes `needed` bytes."""
    free = machine.available_memory()
    advice = f"{what} takes {needed / GIB:.1f} GiB" if free < needed else ""
    return Check("memory", f"{free / GIB:.1f} GiB free", advice)


def disk_check(machine: Machine, folder: Path, needed: int, what: str) -> Check:
    """Disk that is free where outputs of the present folder go; `what` is the work that takes `needed` bytes."""
    disk = machine.disk_of(folder)
    assert disk is not None  # it is no URL
    advice = f"{what} takes {needed / GIB:.0f} GiB: work on a larger disk" if disk.free < needed else ""
    return Check("disk", f"{disk.free / GIB:.1f} GiB free in the present folder", advice)


def bytecode_check(package: str) -> Check:
    """Whether Python finds an installed package compiled, or may keep what it compiles."""
    spec = importlib.util.find_spec(package)
    place = Path(spec.cached) if spec is not None and spec.cached else None
    if place is None or place.is_file():
        return Check("bytecode", "kept with the packages")
    folder = next(parent for parent in place.parents if parent.exists())
    if os.access(folder, os.W_OK) and not sys.dont_write_bytecode:
        return Check("bytecode", "kept from the first import on")
    reason = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else f"{folder} can't be written"
    return Check(
        "bytecode",
        f"none of the packages, and {reason}",
        "each process compiles all that it imports: install with UV_COMPILE_BYTECODE=1 (`./uvw sync` in a checkout)",
    )


def packages_check(name: str, wanted: dict[str, str], *, how: str) -> Check:
    """The check of optional distributions, `wanted` (name -> what for): which there are, and `how` to get others."""
    there = [f"{one} {version}" for one in wanted if (version := version_of(one))]
    missing = [f"{one} for {use}" for one, use in wanted.items() if version_of(one) is None]
    parts = [", ".join(there)] if there else []
    if missing:
        parts.append(f"not installed: {', '.join(missing)} ({how})")
    return Check(name, "; ".join(parts))
