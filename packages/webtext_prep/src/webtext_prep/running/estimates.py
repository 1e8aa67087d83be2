"""What each stage takes, a row a stage: bytes written for bytes read, memory of a process, seconds a document.

All that is said before a run comes from this table: its disk and memory (`Stage.needs`), the checks of a pipeline,
`webtext plan`, and docs/scale.md. Times are processor time of one core of an Intel Xeon, and like memory and the files
between phases measured by `benchmarks/data.py` and `benchmarks/scale_run.py`. Disk and memory are what is enough: no
stage is taken to drop documents, but for those of which most drop something.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from webtext_prep.documents.folders.sampling import Sample

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


# Of 23 million URLs, 6 in 10 give a page, with 5,000 bytes of text (OpenWebText); of a page's HTML 8% are text. Half of
# the pages that are gone are archived, with 110,000 bytes of HTML, and 28,000 compressed.
TABLE = {
    "urls": Costs(1 / 110_000, 1_600, 250 * MB, written=0.22, scratch=0.022, text=0.022, kept=0.25, window=2 << 30),
    "blacklist": Costs(1 / 200_000, 65, 210 * MB, written=1.1, scratch=0.8),
    "download": Costs(0.6 / 60, 65, 400 * MB, written=50.0, scratch=18.0, text=46.0, kept=0.6, least=400 * MB),
    "rescue": Costs(0.01, 65, 400 * MB, written=0.0, files=215.0, scratch=215.0, text=850.0, kept=0.5, least=400 * MB),
    "extract": Costs(1 / 57, 110_000, 400 * MB, written=0.12, text=0.08, least=400 * MB),
    "merge": Costs(1 / 13_400, memory=200 * MB, scratch=0.42, page=160),
    "clean": Costs(1 / 5_300, memory=400 * MB),
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
    ("extract", "extractor", "resiliparse"): {"seconds": 1 / 400},
    ("extract", "extractor", "trafilatura"): {"seconds": 1 / 90},
    ("extract", "extractor", "newspaper"): {"seconds": 1 / 20},
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
        row.seconds * sample.text / row.size,
    )
