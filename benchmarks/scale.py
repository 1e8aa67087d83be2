"""How long, how much memory and how much disk each stage takes for a large corpus, by the table of estimates.

    ./uvw run benchmarks/scale.py        reads results/real_corpus.json and results/scale.json, writes docs/scale.md

All figures but those of `real_corpus.py` and `scale_run.py` are what a run states before it starts (`Stage.needs`).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from pages import RESULTS
from webtext_prep.cli import find_stages
from webtext_prep.documents.folders.sampling import USUAL_RATIO, Sample
from webtext_prep.running.estimates import readable

DOCS = Path(__file__).resolve().parents[1] / "docs"
CORES = (2, 16, 64)
WORKERS = 16
URL_BYTES = 65
"""Of a line in a list of URLs."""
DOCUMENT_BYTES = 5_000
"""Of text: the mean of OpenWebText."""
FOUND = 8 / 23
"""Documents for each URL, as in OpenWebText: the rest is gone, is not text, or is blocked."""
SUBMISSIONS = 4
"""For each URL, most of a low score."""
READ = {
    "urls": ("submissions", 1_600, 10.0),
    "blacklist": ("URLs", URL_BYTES, USUAL_RATIO),
    "download": ("URLs", URL_BYTES, USUAL_RATIO),
    "extract": ("pages", 110_000, 4.0),
}
"""By stage: what it reads, bytes of each, and how many of them a compressed byte holds; others read documents."""
PLAN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("urls", {}), ("blacklist", {}), ("download", {}), ("download", {"extractor": "resiliparse"}),
    ("extract", {"extractor": "resiliparse"}), ("merge", {}), ("clean", {}), ("dedup", {}),
    ("dedup", {"shingle": "char:5"}), ("dedup-passages", {}), ("decontaminate", {"evaluation": (__file__,)}),
    ("tokenize", {}),
)  # fmt: skip
"""The stages, with settings that matter."""
CORPORA = (40 * 10**9, 10**12)
"""Bytes of text."""


def sample_of(stage: str, text: int) -> Sample:
    """What a stage reads on the way to a corpus of so many bytes of text."""
    unit, size, ratio = READ.get(stage, ("documents", DOCUMENT_BYTES, USUAL_RATIO))
    documents = text / DOCUMENT_BYTES
    count = {"documents": 1.0, "pages": 1.0, "URLs": 1 / FOUND, "submissions": SUBMISSIONS / FOUND}[unit] * documents
    return Sample(*map(round, (count * size / ratio, count * size, count * size / ratio, count)))


def table(text: int) -> list[str]:
    """The lines of one corpus' table."""
    cores = " | ".join(f"{cores} cores" for cores in CORES)
    lines = [
        f"| stage | a second and core | {cores} | memory, {WORKERS} workers | output | files between phases |",
        "|---" * (len(CORES) + 5) + "|",
    ]
    for stage, settings in PLAN:
        sample = sample_of(stage, text)
        needs = find_stages()[stage](**settings).needs(sample, WORKERS)
        label = ", ".join([stage, *(value for value in settings.values() if isinstance(value, str))])
        rate = f"{sample.documents / needs.seconds:,.0f} {READ.get(stage, ('documents',))[0]}"
        times = " | ".join(_short(needs.seconds / cores / 3600) for cores in CORES)
        figures = " | ".join(readable(size) for size in (needs.memory, needs.output, needs.scratch))
        lines.append(f"| {label} | {rate} | {times} | {figures} |")
    return lines


def _short(value: float) -> str:
    minutes = math.ceil(60 * value)
    return f"{value:,.0f} h" if value >= 10 else f"{value:.1f} h" if minutes > 90 else f"{minutes} min"


def measured(sizes: dict[str, Any]) -> list[str]:
    """The lines of a table: what each size took, what `plan` had said, and how it grows."""
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


def real() -> list[str]:
    """The part about the real corpus, as far as it was measured."""
    path = RESULTS / "real_corpus.json"
    if not path.exists():
        return []
    result = json.loads(path.read_bytes())
    sizes = result["sizes"]
    stages = {
        number: {"plan": found["plan"], "stages": {name: row for name, row in found.items() if "disk" in row}}
        for number, found in sizes.items()
    }
    corpus = sizes[max(sizes, key=int)]["corpus"]
    counts = [
        f"| {name[:-1]} | {', '.join(f'{what} {count:,}' for what, count in corpus[name].items())} |"
        for name in ("packages", "languages", "generators")
    ]
    lines = [
        "## Debian's documentation",
        "",
        REAL.format(pages=corpus["pages"], size=readable(corpus["html"]), **result["machine"]),
    ]
    lines += ["| | pages |", "|---|---|", *counts, "", *measured(stages), ""]
    ranked = sorted(sizes.values(), key=lambda found: -found["corpus"]["pages"])
    compared = next((found["compare"] for found in ranked if "compare" in found), None)
    if compared:
        titles = ("CPU", "clock", "memory", "dropped", "precision", "recall")
        lines += [COMPARED.format(**compared), f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for name, row in compared["tools"].items():
            figures = f"{_taken(row)} | {row['dropped']:,} | {row['precision']:.4f} | {row['recall']:.4f}"
            lines.append(f"| {name} | {figures} |")
        lines.append("")
    grown = next((found["growth"] for found in ranked if "growth" in found), [])
    if grown:
        lines += [GROWN, "| | CPU | clock | memory | dropped |", "|---|---|---|---|---|"]
        for row in grown:
            lines.append(f"| {row['documents']:,} pages by {row['generator']} | {_taken(row)} | {row['dropped']:,} |")
        lines.append("")
    return lines


def _taken(row: dict[str, float]) -> str:
    return f"{row['cpu']:,.0f} s | {row['wall']:,.0f} s | {row['memory']:,.0f} MB"


REAL = """\
{pages:,} pages of some 40 documentation packages of Debian 12, {size} of HTML, and parts of them, through one stage
after another (`benchmarks/real_corpus.py`; {processor}, cores: {cores}): manuals of installation for nine
architectures in twenty languages, and references by some twenty generators. In brackets is what `webtext plan` had
said. Other programs ran on the machine meanwhile: by the clock it took longer than on an idle one.
"""

COMPARED = """\
Near-duplicates among the {documents:,} documents that `clean` left of fewer pages, beside datatrove
{versions[datatrove]}, text-dedup {versions[text-dedup]} and the similarity of all pairs. Precision is the share of the
dropped documents to which one that was kept is similar, recall the share of the similar pairs of which at least one
went.
"""

GROWN = """\
How `dedup` grows on pages of one template: those by the generator with the most, of any length, and parts of them.
"""

MEASURED = """\
Documents of 3 kB, of which a tenth are near-duplicates and a hundredth hold a passage of an evaluation text, through
one stage after another with all cores (`benchmarks/scale_run.py`). In brackets is what `webtext plan` had said.
"""

TEXT = """\
---
hide: [toc]
---

# Scale

What each stage takes for a large corpus, by the table from which a run says so before it starts
([plan](guide/plan.md)). `benchmarks/scale.py` makes this page.

- A document has {document:,} bytes of text, a line of a list of URLs {url} bytes. Of 23 million URLs 8 million become
  documents. Both are as in OpenWebText.
- For each URL `urls` reads {submissions} submissions, in dumps that are compressed 10 to 1.
- `extract` reads archives of those documents' pages, 27,500 bytes each.
- `download` is the time of extraction. A slow network, and delays between two pages of one host, come on top.
- Files are compressed {ratio} to 1, but for token files.
- Times assume all cores, and disks that keep up.

{tables}
## How it grows

Every stage reads its input up to three times, in order. Where time grows as n log n (`dedup`, `dedup-passages`,
`tokenize`), the logarithm is not felt. Memory does not grow with the corpus, but for some 16 bytes a document in two
files that are mapped into memory: dedup's search for connected documents and tokenize's table of documents. More cores
do more tasks at once, and tasks of a phase do not wait for one another.
"""


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(description="Write docs/scale.md.").parse_args()
    sizes = json.loads((RESULTS / "scale.json").read_bytes())["sizes"]
    parts = [*real(), "## Two sizes through every stage", "", MEASURED, *measured(sizes), ""]
    for text in CORPORA:
        urls = text / DOCUMENT_BYTES / FOUND
        parts += [f"## {urls / 1e6:,.0f} million URLs, {readable(text)} of text", "", *table(text), ""]
    page = TEXT.format(
        document=DOCUMENT_BYTES, submissions=SUBMISSIONS, url=URL_BYTES, ratio=USUAL_RATIO, tables="\n".join(parts)
    )
    (DOCS / "scale.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
