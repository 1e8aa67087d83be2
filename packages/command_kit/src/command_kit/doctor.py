"""What `webtext doctor` and `gpt2 doctor` share: one line for each thing looked at, and the machine's own lines.

A line says what was found and, where something needed is missing, what to do about it. Nothing is changed and
nothing is sent anywhere.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit.colours import BOLD, GREEN, YELLOW, Paint
from command_kit.cores import available_cores
from command_kit.machine import Machine
from command_kit.shell import version_of

GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is, in a word or two.
        found: what was found.
        advice: what is wrong and what to do; empty where all is well. What is only optional is no reason for one.
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
    """The same for `--json`: name -> `found` and `advice`."""
    return {check.name: {"found": check.found, "advice": check.advice} for check in checks}


def cores_check() -> Check:
    """Processor cores, and the kind of processor."""
    cores = available_cores()
    return Check("cores", f"{cores} to use, {platform.machine()}, {platform.system()}")


def memory_check(machine: Machine, needed: int, what: str) -> Check:
    """Memory that is free; `what` is the work that takes `needed` bytes."""
    free = machine.available_memory()
    if free is None:
        return Check("memory", "the system does not say how much is free")
    advice = f"{what} takes {needed / GIB:.1f} GiB" if free < needed else ""
    return Check("memory", f"{free / GIB:.1f} GiB free", advice)


def disk_check(machine: Machine, folder: Path, needed: int, what: str) -> Check:
    """Disk that is free where outputs of the present folder go; `what` is the work that takes `needed` bytes."""
    disk = machine.disk_of(folder)
    assert disk is not None  # it is no URL
    advice = f"{what} takes {needed / GIB:.0f} GiB: work on a larger disk" if disk.free < needed else ""
    return Check("disk", f"{disk.free / GIB:.1f} GiB free in the present folder", advice)


def packages_check(name: str, wanted: dict[str, str], *, how: str) -> Check:
    """Which of the optional distributions `wanted` (name -> what it is for) are installed, and `how` to get others."""
    there = [f"{one} {version}" for one in wanted if (version := version_of(one))]
    missing = [f"{one} for {use}" for one, use in wanted.items() if version_of(one) is None]
    parts = [", ".join(there)] if there else []
    if missing:
        parts.append(f"not installed: {', '.join(missing)} ({how})")
    return Check(name, "; ".join(parts))
