"""Extractors next to each other on pages with human-reviewed main text: a table for docs/benchmarks.md.

    ./uvw run --group extraction benchmarks/extraction.py FOLDER

FOLDER is as `extraction_pages.py` says. F1 is of words. `learned` is measured on pages of domains that it has not
learned from, in five folds, and timed with the parameters of the package. The last row takes, for each page, the best
of all the others: what choosing among them could give. A second table has the kinds of pages that `learned` tells.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import html_text
import justext
import numpy as np
import readability
import trafilatura

import learn_extraction
from extraction_pages import Match, ReviewedPage, match, reviewed_pages
from machine import describe, save, write_tables
from webtext_prep.extraction.extractors import EXTRACTORS, warm_up
from webtext_prep.text.decoding import readable

PACKAGES = ("trafilatura", "newspaper3k", "resiliparse", "readability-lxml", "html-text", "justext", "lxml", "lightgbm")


def ours(name: str) -> Callable[[ReviewedPage], str]:
    """An extractor of `--extractor`."""
    warm_up(name)
    return lambda page: EXTRACTORS[name](page.html, page.url, None).text


def by_trafilatura(**settings: Any) -> Callable[[ReviewedPage], str]:
    """trafilatura with other settings than ours."""
    return lambda page: trafilatura.extract(readable(page.html, None), url=page.url or None, **settings) or ""


def by_readability(page: ReviewedPage) -> str:
    """readability's part of the page, by html-text."""
    return str(html_text.extract_text(readability.Document(readable(page.html, None)).summary()))


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
        "trafilatura with comments": by_trafilatura(),
        "trafilatura, favor_recall": by_trafilatura(favor_recall=True),
        "`newspaper`": ours("newspaper"),
        "`resiliparse`": ours("resiliparse"),
        "readability-lxml": by_readability,
        "jusText": by_justext,
        "html-text (whole page)": lambda page: str(html_text.extract_text(readable(page.html, None))),
    }


def extracted(extract: Callable[[ReviewedPage], str], pages: list[ReviewedPage]) -> tuple[dict[str, str], float]:
    """The text of each page, and the processor time of all in seconds."""
    texts = {}
    begin = time.process_time()
    for page in pages:
        try:
            texts[page.name] = extract(page)
        except Exception:  # what an extractor can't read has no text
            texts[page.name] = ""
    return texts, time.process_time() - begin


def share_of(passages: list[tuple[str, str]]) -> float:
    """Of (passage, text), how many are in their text, white space aside."""
    return float(np.mean([" ".join(passage.split()) in " ".join(text.split()) for passage, text in passages]))


def row_of(name: str, pages: list[ReviewedPage], texts: dict[str, str], seconds: float | None) -> dict[str, Any]:
    """A row of the table."""
    matches = {page.name: match(texts[page.name], page.text) for page in pages}
    kinds: dict[str, list[Match]] = defaultdict(list)
    for page in pages:
        kinds[page.kind].append(matches[page.name])
    row = {
        "extractor": name,
        **{
            part: float(np.mean([getattr(found, part) for found in matches.values()])) for part in Match.__annotations__
        },
        "wanted": share_of([(passage, texts[page.name]) for page in pages for passage in page.wanted]),
        "unwanted": share_of([(passage, texts[page.name]) for page in pages for passage in page.unwanted]),
        "kinds": {kind: float(np.mean([found.f1 for found in kinds[kind]])) for kind in sorted(kinds)},
    }
    if seconds is not None:
        row |= {"pages a second": len(pages) / seconds, "kB a page": np.mean([len(page.html) for page in pages]) / 1e3}
    return row


def as_markdown(rows: list[dict[str, Any]], pages: list[ReviewedPage]) -> str:
    """The table of docs/benchmarks.md."""
    kinds = sorted(rows[0]["kinds"])
    counts = {kind: sum(page.kind == kind for page in pages) for kind in kinds}
    heads = ["", "F1", "precision", "recall", "wanted", "unwanted", *(f"{kind} ({counts[kind]})" for kind in kinds)]
    heads.append("pages a second")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        shares = [row[name] for name in ("f1", "precision", "recall", "wanted", "unwanted")]
        cells = [f"{value:.3f}" for value in (*shares, *row["kinds"].values())]
        rate = f"{row['pages a second']:,.0f}" if "pages a second" in row else ""
        lines.append(f"| {row['extractor']} | {' | '.join(cells)} | {rate} |")
    return "\n".join(lines)


def kinds_of(pages: list[ReviewedPage], found: dict[str, str]) -> dict[str, dict[str, int]]:
    """Of each kind how many of its pages are taken for which."""
    names = sorted({page.kind for page in pages})
    counts = {name: dict.fromkeys(names, 0) for name in names}
    for page in pages:
        if found[page.name]:
            counts[page.kind][found[page.name]] += 1
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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--folds", type=Path, help="what learn_extraction.py --folds has written, instead of learning")
    arguments = parser.parse_args()
    pages = list(reviewed_pages(arguments.folder))
    with tempfile.TemporaryDirectory() as folder:
        folds = arguments.folds or Path(folder) / "folds.json"
        if arguments.folds is None:
            learn_extraction.write_folds(arguments.folder, folds)
        by_folds = json.loads(folds.read_text(encoding="utf-8"))
    unseen = {name: text for name, (text, _) in by_folds.items()}
    rows, best = [], {}
    for name, extract in peers().items():
        texts, seconds = extracted(extract, pages)
        texts = unseen if name == "`learned`" else texts
        rows.append(row_of(name, pages, texts, seconds))
        print(f"{name}: F1 {rows[-1]['f1']:.3f}, {rows[-1]['pages a second']:.0f} pages a second", flush=True)
        for page in pages:
            found = match(texts[page.name], page.text).f1
            if found >= best.get(page.name, (-1.0, ""))[0]:
                best[page.name] = (found, texts[page.name])
    rows.append(row_of("the best for each page", pages, {name: text for name, (_, text) in best.items()}, None))
    kinds = kinds_of(pages, {name: kind for name, (_, kind) in by_folds.items()})
    save("extraction", {"machine": describe(*PACKAGES), "pages": len(pages), "rows": rows, "kinds": kinds})
    write_tables("extraction.py", f"{as_markdown(rows, pages)}\n\n{kinds_as_markdown(kinds)}\n")


if __name__ == "__main__":
    main()
