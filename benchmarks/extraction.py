"""Extractors next to each other on pages of which people have said what their main text is.

    ./uvw run --group peers benchmarks/extraction.py FOLDER ...

Folders are as `tools/extraction_pages.py` says. `learned` is measured on pages of domains that it has not learned from,
in five folds, and in a row of its own without the whole folder; it is timed with the parameters of the package. The
first table has a column for each folder and language, the second the kinds of pages where a folder has them, the third
which kind `learned` takes them for.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chromerag
import html_text
import justext
import numpy as np
import readability
import trafilatura

from machine import describe, save
from pages import write_tables
from webtext_prep.extraction.extractors import EXTRACTORS
from webtext_prep.text.decoding import readable

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

import learn_extraction
from extraction_pages import ReviewedPage, match_of_set

PACKAGES = (
    *("trafilatura", "chromerag", "newspaper3k", "resiliparse", "readability-lxml", "html-text", "justext"),
    *("lxml", "lightgbm"),
)
_MARKDOWN_LINK = re.compile(r"\]\([^()\s]*\)")


def ours(name: str) -> Callable[[ReviewedPage], str]:
    """An extractor of `--extractor`."""
    return lambda page: EXTRACTORS[name](page.html, page.url, None).text


def by_trafilatura(**settings: Any) -> Callable[[ReviewedPage], str]:
    """trafilatura with other settings than ours."""
    return lambda page: trafilatura.extract(readable(page.html, None), url=page.url or None, **settings) or ""


def by_readability(page: ReviewedPage) -> str:
    """readability's part of the page, by html-text."""
    return str(html_text.extract_text(readability.Document(readable(page.html, None)).summary()))


def by_chromerag(page: ReviewedPage) -> str:
    """ChromeRAG's Markdown without the addresses of its links, which no other text has, nor front matter."""
    found = chromerag.ChromeRAG(enable_schema=False).extract(readable(page.html, None), page.url or None)
    return _MARKDOWN_LINK.sub("]", found.markdown)


def by_justext(page: ReviewedPage) -> str:
    """What jusText holds for text, with its English words."""
    parts = justext.justext(readable(page.html, None).encode(), justext.get_stoplist("English"), encoding="utf-8")
    return "\n".join(part.text for part in parts if not part.is_boilerplate)


def peers() -> dict[str, Callable[[ReviewedPage], str]]:
    """All that are measured, by the name that the table gives them."""
    return {
        "`learned`": ours("learned"),
        "`trafilatura` (fast)": ours("trafilatura"),
        "trafilatura": by_trafilatura(include_comments=False),
        "ChromeRAG": by_chromerag,
        "trafilatura with comments": by_trafilatura(),
        "trafilatura, favor_recall": by_trafilatura(favor_recall=True),
        "`newspaper`": ours("newspaper"),
        "`resiliparse`": ours("resiliparse"),
        "readability-lxml": by_readability,
        "jusText": by_justext,
        "html-text (whole page)": lambda page: str(html_text.extract_text(readable(page.html, None))),
    }


def extracted_by(name: str, pages: list[ReviewedPage]) -> tuple[dict[str, str], float]:
    """What `extracted` gives of one of the peers, in a process that has read nothing else."""
    extract = peers()[name]
    extract(pages[0])  # what it imports and fills is not timed
    texts = {}
    begin = time.process_time()
    for page in pages:
        try:
            texts[page.key] = extract(page)
        except Exception:  # what an extractor can't read has no text
            texts[page.key] = ""
    return texts, time.process_time() - begin


def extracted(name: str, pages: list[ReviewedPage]) -> tuple[dict[str, str], float]:
    """The text of each page by one of the peers, and the processor time of all in seconds, on all cores."""
    count = min(len(pages), os.cpu_count() or 1)
    parts = [(name, pages[at::count]) for at in range(count)]
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        found = pool.starmap(extracted_by, parts)
    return {key: text for texts, _ in found for key, text in texts.items()}, sum(seconds for _, seconds in found)


def row_of(name: str, pages: list[ReviewedPage], texts: dict[str, str], seconds: float | None) -> dict[str, Any]:
    """A row of the tables."""
    groups = {"folders": "folder", "languages": "language", "kinds": "kind"}
    row: dict[str, Any] = {"extractor": name}
    for title, attribute in groups.items():
        values = sorted({getattr(page, attribute) for page in pages} - {""})
        found = {
            value: match_of_set([page for page in pages if getattr(page, attribute) == value], texts)
            for value in values
        }
        row[title] = {value: asdict(one) for value, one in found.items()}
    if seconds is not None:
        row |= {"pages a second": len(pages) / seconds, "kB a page": np.mean([len(page.html) for page in pages]) / 1e3}
    return row


def as_markdown(rows: list[dict[str, Any]], title: str, *, with_parts: bool = False) -> str:
    """A table with F1 of each of these groups; of sets of pages also with precision, recall and speed, if asked for."""
    names = list(rows[0][title])
    heads = [name + (" (precision, recall)" if with_parts else "") for name in names]
    heads += ["pages a second"] if with_parts else []
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row in rows:
        cells = []
        for name in names:
            found = row[title][name]
            parts = f" ({_share(found['precision'])}, {_share(found['recall'])})" if with_parts else ""
            cells.append(f"{_share(found['f1'])}{parts}")
        if with_parts:
            cells.append(f"{row['pages a second']:,.0f}" if "pages a second" in row else "")
        lines.append(f"| {row['extractor']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def kinds_of(pages: list[ReviewedPage], found: dict[str, str]) -> dict[str, dict[str, int]]:
    """Of each kind how many of its pages are taken for which."""
    names = sorted({page.kind for page in pages})
    counts = {name: dict.fromkeys(names, 0) for name in names}
    for page in pages:
        if found[page.key]:
            counts[page.kind][found[page.key]] += 1
    return counts


def kinds_as_markdown(kinds: dict[str, dict[str, int]]) -> str:
    """The table of kinds: a row for what a page is, a column for what it is taken for."""
    lines = [f"| is, taken for | {' | '.join(kinds)} | recall | precision |", "|---" * (len(kinds) + 3) + "|"]
    for name, row in kinds.items():
        recall = row[name] / max(1, sum(row.values()))
        precision = row[name] / max(1, sum(of[name] for of in kinds.values()))
        lines.append(f"| {name} | {' | '.join(map(str, row.values()))} | {recall:.2f} | {precision:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    arguments = parser.parse_args()
    # In one order, however they are given: what is learned depends on it a little.
    examples = learn_extraction.examples_of(sorted(arguments.folders, key=lambda folder: folder.name))
    pages = [example.page for example in examples]
    by_folds = learn_extraction.unseen(examples, lambda page: page.fold)
    rows = []
    if len(arguments.folders) > 1:
        others = learn_extraction.unseen(examples, lambda page: page.folder)
        rows.append(row_of("`learned`, of other sets", pages, {key: text for key, (text, _) in others.items()}, None))
    for name in peers():
        texts, seconds = extracted(name, pages)
        texts = {key: text for key, (text, _) in by_folds.items()} if name == "`learned`" else texts
        rows.append(row_of(name, pages, texts, seconds))
        print(f"{name}: {rows[-1]['pages a second']:.0f} pages a second", flush=True)
    kinds = kinds_of([page for page in pages if page.kind], {key: kind for key, (_, kind) in by_folds.items()})
    save("extraction", {"machine": describe(*PACKAGES), "pages": len(pages), "rows": rows, "kinds": kinds})
    tables = [as_markdown(rows, "folders", with_parts=True)]
    tables += [as_markdown(rows, title) for title in ("languages", "kinds") if rows[0][title]]
    if kinds:
        tables.append(kinds_as_markdown(kinds))
    write_tables("extraction.py", "\n\n".join(tables))


if __name__ == "__main__":
    main()
