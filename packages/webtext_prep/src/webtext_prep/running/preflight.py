"""The disk and memory that a run will need, said before it starts, and the end of one that will not fit.

What a stage takes follows from a sample of its input (`running/estimates.py`); here that is compared with what there is
on the disks of output and state, and with the memory that this process may take. What an interrupted run has written
already is not needed again. An estimate is no promise: `--no-space-check` goes on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from command_kit.machine import Machine
from webtext_prep.errors import InputError
from webtext_prep.running.estimates import Needs
from webtext_prep.storage.locations import Location

WORTH_SAYING = 100_000_000
"""Bytes of disk from which on the estimate is shown,"""
MEMORY_WORTH_SAYING = 0.5
"""or this share of the memory."""


@dataclass(frozen=True)
class DiskUse:
    """One disk that a run writes to.

    Attributes:
        folders: which are written there: the output, the state, or both.
        needed: bytes that the run will take there.
        written: how many of them an earlier run has written.
        free: bytes that are free there now.
    """

    folders: tuple[Location, ...]
    needed: int
    written: int
    free: int

    @property
    def missing(self) -> int:
        """Bytes that there are too few."""
        return max(0, self.needed - self.written - self.free)


@dataclass(frozen=True)
class Estimate:
    """Needs of a run, and what there is.

    Attributes:
        stage: its name.
        unit: what it counts.
        needs: its needs.
        places: the disks of this machine that it writes to.
        memory: bytes that may be taken.
    """

    stage: str
    unit: str
    needs: Needs
    places: tuple[DiskUse, ...]
    memory: int

    @property
    def is_worth_saying(self) -> bool:
        """Whether the run takes enough of the machine for anybody to want to know."""
        memory = self.needs.memory > MEMORY_WORTH_SAYING * self.memory
        return memory or self.needs.output + self.needs.scratch >= WORTH_SAYING

    def sentence(self) -> str:
        """One line: disk and memory, what there is of them, and for how many documents."""
        parts = []
        for place in self.places:
            where = f" for {' and '.join(map(str, place.folders))}" if len(self.places) > 1 else ""
            written = f", {readable(place.written)} of it written" if place.written >= WORTH_SAYING else ""
            parts.append(f"{readable(place.needed)} of disk{where} ({readable(place.free)} free{written})")
        if not self.places:
            parts.append(f"{readable(self.needs.output + self.needs.scratch)} of storage")
        if self.needs.memory:
            there = f" ({readable(self.memory)} available)"
            parts.append(f"{readable(self.needs.memory)} of memory{there}")
        documents = f" for some {_rounded(self.needs.documents):,} {self.unit}" if self.needs.documents else ""
        return f"{self.stage}: needs about {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}{documents}"

    def announce(self, *, is_checked: bool) -> None:
        """Say on standard error what the run needs of this machine, if it is much, and of others.

        Raises InputError if it does not fit, unless that is not to be checked.
        """
        problem = self.problem() if is_checked else None
        if problem is not None:
            raise InputError(problem)
        if self.is_worth_saying:
            print(self.sentence(), file=sys.stderr)
        for sentence in self.needs.others:
            print(sentence, file=sys.stderr)

    def problem(self) -> str | None:
        """The sentence for a run that does not fit, or None if it does."""
        place = next((place for place in self.places if place.missing), None)
        if place is not None:
            where = " and ".join(map(str, place.folders))
            written = f", {readable(place.written)} of it written already" if place.written else ""
            return (
                f"{self.stage} needs about {readable(place.needed)} of disk for {where}{written}, and "
                f"{readable(place.free)} are free there: free some space, choose a larger disk with --output or "
                "--state, or give --no-space-check to try it all the same."
            )
        if self.needs.memory > self.memory:
            return (
                f"{self.stage} needs about {readable(self.needs.memory)} of memory, and {readable(self.memory)} are "
                "available: give fewer --workers, stop what else runs here, or give --no-space-check to try it all "
                "the same."
            )
        return None


def compare(
    stage: str,
    unit: str,
    needs: Needs,
    *,
    output: Location,
    state: Path,
    written: tuple[int, int] = (0, 0),
    machine: Machine | None = None,
) -> Estimate:
    """Needs, and what a machine has.

    Args:
        stage: its name.
        unit: what it counts.
        needs: its needs.
        output: where the output lies; a URL's space is not known and not checked.
        state: the folder that the files between phases lie in.
        written: bytes of the output and of files between phases that are there already.
        machine: this one by default.
    """
    machine = machine or Machine()
    disks: dict[str, DiskUse] = {}
    for place, needed, there in ((output, needs.output, written[0]), (state, needs.scratch, written[1])):
        disk = machine.disk_of(place)
        if disk is None or not (needed or there):
            continue
        # What was written beyond the need of its kind makes no room for the other kind.
        there = min(there, needed)
        found = disks.get(disk.name, DiskUse((), 0, 0, disk.free))
        is_within = any(isinstance(place, Path) and place.is_relative_to(str(folder)) for folder in found.folders)
        folders = found.folders if is_within else (*found.folders, place)
        disks[disk.name] = DiskUse(folders, found.needed + needed, found.written + there, disk.free)
    return Estimate(stage, unit, needs, tuple(disks.values()), machine.available_memory())


def readable(size: float) -> str:
    """Bytes as people say them: `3.1 GB`, of 10^9 bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _rounded(count: int) -> int:
    """With three digits that count: it is an estimate."""
    digits = max(0, len(str(count)) - 3)
    return round(count, -digits)
