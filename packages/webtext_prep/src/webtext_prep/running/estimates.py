"""What each stage takes, a row a stage, and whether a run that takes as much fits this machine.

All that is said before a run comes from one table: its disk and memory (`Stage.needs`), the checks of a pipeline,
`webtext plan`, and docs/scale.md. Times are processor time of one core of an Intel Xeon, and like memory and the files
between phases measured by `benchmarks/data.py` and `benchmarks/scale_run.py`. Disk and memory are what is enough: no
stage is taken to drop documents, but for those of which most drop something.

What a run needs follows from its row and a sample of its input. It is compared with what there is on the disks of
output and state, and with the memory that this process may take, and a run that will not fit ends before it starts.
What an interrupted run has written already is not needed again. An estimate is no promise: `--no-space-check` goes on.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit.charts.numbers import short
from command_kit.machine import Machine
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

PROCESS_BYTES = 100 << 20
"""Memory of a process that has little to do."""
GROWTH = 10
"""Bytes of memory for a byte of the input, in a process that has more to do, up to what the table says."""
MB = 10**6


@dataclass(frozen=True)
class Costs:
    """A row of the table: what a stage takes.

    Attributes:
        seconds: processor time for one document, URL, submission or page
        size: of so many bytes, decompressed.
        memory: bytes of a process, at most.
        written: bytes of shards for a byte of the same shards read, both in the format that is written.
        files: bytes of other files (tokens, an index) for a byte of text read.
        scratch: bytes of files between phases, at their most, for a byte of text read.
        text: bytes of text written for a byte of text read.
        kept: documents written for one read.
        least: bytes of a process however small its input is.
        window: bytes of memory that a compressed file may ask for.
        page: bytes of memory for each page of a shard, where a process knows all of these.
        each: processor time for each document or page besides, however small.
    """

    seconds: float
    size: int = 3_000
    memory: int = PROCESS_BYTES
    written: float = 1.0
    files: float = 0.0
    scratch: float = 0.0
    text: float = 1.0
    kept: float = 1.0
    least: int = PROCESS_BYTES
    window: int = 0
    page: int = 0
    each: float = 0.0


# Of 23 million URLs, 6 in 10 give a page, with 5,000 bytes of text (OpenWebText); of a page's HTML 8% are text. Half of
# the pages that are gone are archived, with 110,000 bytes of HTML, and 28,000 compressed. What a page takes beside its
# bytes is fitted to pages of 26 kB (documentation of Debian) and of 300 kB (web pages of seven kinds).
TABLE = {
    "urls": Costs(1 / 110_000, 1_600, 250 * MB, written=0.22, scratch=0.022, text=0.022, kept=0.25, window=2 << 30),
    "blacklist": Costs(1 / 200_000, 65, 210 * MB, written=1.1, scratch=0.8),
    "download": Costs(0.6 / 60, 65, 400 * MB, written=50.0, scratch=18.0, text=46.0, kept=0.6, least=400 * MB),
    "rescue": Costs(0.01, 65, 400 * MB, written=0.0, files=215.0, scratch=215.0, text=850.0, kept=0.5, least=400 * MB),
    "extract": Costs(1 / 230, 110_000, 640 * MB, written=0.12, text=0.08, least=400 * MB, each=1 / 210),
    "merge": Costs(1 / 13_400, memory=200 * MB, scratch=0.42, page=160),
    "clean": Costs(1 / 5_300, memory=200 * MB),
    "train-filter": Costs(1 / 1_900, memory=400 * MB, written=0.0, scratch=0.4),
    "filter": Costs(1 / 9_800, memory=400 * MB),
    "dedup": Costs(1 / 7_900, memory=640 * MB, scratch=0.42),
    "dedup-passages": Costs(1 / 2_100, memory=630 * MB, scratch=0.62),
    "decontaminate": Costs(1 / 8_500, memory=290 * MB),
    "train-tokenizer": Costs(1 / 1_670, memory=500 * MB, written=0.0, scratch=0.25),
    "tokenize": Costs(1 / 21_000, memory=480 * MB, written=0.0, files=0.55, scratch=0.55, text=0.55, least=200 * MB),
    "merge-tokens": Costs(1 / 300_000, written=0.0, files=1.0),
    "index-tokens": Costs(1 / 2_300, memory=600 * MB, written=0.0, files=2.05, scratch=0.05, least=220 * MB),
    "export": Costs(1 / 1_500, memory=240 * MB, scratch=0.01),
}
"""By the name of the stage."""
OTHERS = Costs(1 / 10_000)
"""A stage of somebody else's."""
SETTINGS: dict[tuple[str, str, Any], dict[str, Any]] = {
    ("download", "extractor", "resiliparse"): {"seconds": 0.6 / 420},
    ("download", "extractor", "trafilatura"): {"seconds": 0.6 / 82},
    ("download", "extractor", "newspaper"): {"seconds": 0.6 / 16},
    ("download", "save_pages", True): {"written": 750.0, "scratch": 280.0},
    ("extract", "extractor", "resiliparse"): {"seconds": 1 / 590, "each": 1 / 730},
    ("extract", "extractor", "trafilatura"): {"seconds": 1 / 100, "each": 1 / 105},
    ("extract", "extractor", "newspaper"): {"seconds": 1 / 42, "each": 1 / 62},
    ("clean", "language_detector", "py3langid"): {"seconds": 1 / 2_200},
    ("clean", "language", "any"): {"seconds": 1 / 14_000},
    ("export", "card", False): {"seconds": 1 / 7_000},
    ("dedup", "shingle", "char:5"): {"seconds": 1 / 3_000, "memory": 760 * MB},
}
"""By stage, setting and value: what it changes in the row."""


@dataclass(frozen=True)
class Needs:
    """What a run of a stage takes, and what it leaves at most; about.

    Attributes:
        output: bytes of the finished output.
        scratch: bytes of the files between phases, at their most, on top of the whole output.
        memory: bytes of all its processes together, at their most.
        documents: how many documents (or other units that the stage counts) come in,
        kept: and how many are left.
        text: bytes of text that is left.
        seconds: processor time.
        others: sentences on what else it needs, of other people's servers, say.
    """

    output: int
    scratch: int = 0
    memory: int = 0
    documents: int = 0
    kept: int = 0
    text: int = 0
    seconds: float = 0.0
    others: tuple[str, ...] = ()

    def beside(self, other: Needs) -> Needs:
        """The same, but that what another stage leaves is left, too."""
        output, kept, text = self.output + other.output, self.kept + other.kept, self.text + other.text
        return dataclasses.replace(self, output=output, kept=kept, text=text)

    def as_input(self) -> Sample:
        """The output as the input of another stage, before there is any."""
        return Sample(self.output, self.text, self.output, self.kept)


def costs_of(name: str, settings: object) -> Costs:
    """The row of a stage with such settings."""
    row = TABLE.get(name, OTHERS)
    for (stage, field, value), changes in SETTINGS.items():
        if stage == name and getattr(settings, field) == value:
            row = dataclasses.replace(row, **changes)
    return row


def needs_of(row: Costs, sample: Sample, workers: int) -> Needs:
    """What a stage needs for input like `sample`, with so many tasks at once."""
    memory = max(row.least, min(row.memory, PROCESS_BYTES + GROWTH * sample.text))
    window = min(row.window, sample.text) if sample.is_compressed else 0
    return Needs(
        round(row.written * sample.written + row.files * sample.text),
        round(row.scratch * sample.text),
        workers * (memory + window),
        sample.documents,
        round(row.kept * sample.documents),
        round(row.text * sample.text),
        row.seconds * sample.text / row.size + row.each * sample.documents,
    )


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
        documents = f" for some {about(self.needs.documents)} {self.unit}" if self.needs.documents else ""
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


def about(count: int) -> str:
    """A count with the three digits that an estimate has: 12345 -> `12,300`, 23412001 -> `23.4M`."""
    return short(count) if count >= 100_000 else f"{round(count, -max(0, len(str(count)) - 3)):,}"
