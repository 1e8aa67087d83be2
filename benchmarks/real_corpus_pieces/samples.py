"""What there is to read of a finished road: files for people, in `read/` of its folder.

documents/NNN.txt and .html    200 documents by generator and language: what extraction made of a page, and the page
largest.txt, smallest.txt      100 of each, of what extraction made, and of what `clean` kept
dropped.txt                    100 pairs that dedup took for near-duplicates, as differences of their lines
near.txt                       100 pairs a little less alike, both kept (where `compare` has been)
passages.txt                   the 50 passages most often cut
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from real_corpus_pieces.packages import Page, body_of
from real_corpus_pieces.road import Road, read_all
from webtext_prep.documents.formats.lines import read_lines

DRAWN, EXTREMES, PAIRS, PASSAGES = 200, 100, 100, 50
SHOWN = 600
"""Characters of the beginning and of the end of a long text."""
MOST_LINES = 30
RULE = "=" * 100


def draw(road: Road, folder: Path, pages: Sequence[Page]) -> dict[str, int]:
    """Write all of them, and return how many of each there are."""
    place = road.folder / "read"
    shutil.rmtree(place, ignore_errors=True)
    (place / "documents").mkdir(parents=True)
    found = {"documents": _documents(road, folder, pages, place / "documents")}
    for step in ("extract", "clean"):
        ranked = sorted((len(document.text), document.url, document.text) for document in read_all(road.place(step)))
        for name, some in (("largest", ranked[::-1][:EXTREMES]), ("smallest", ranked[:EXTREMES])):
            entries = (f"{url} ({size:,} characters)\n{_shown(text)}" for size, url, text in some)
            found[f"{name}, {step}"] = _write(place / f"{name}-{step}.txt", entries)
    texts = {document.url: document.text for document in read_all(road.place("clean"))}
    drops = sorted(_rows(road.place("dedup") / "dropped"), key=lambda row: _hash(row["url"]))[:PAIRS]
    pairs = [(row["duplicate_of"], row["url"], row["similarity"]) for row in drops]
    found["dropped"] = _write(place / "dropped.txt", (_pair(texts, *pair) for pair in pairs))
    near = road.folder / "duplicates" / "near.json"
    if near.exists():
        chosen = sorted(json.loads(near.read_bytes()), key=lambda pair: _hash(pair[0]))[:PAIRS]
        found["near"] = _write(place / "near.txt", (_pair(texts, *pair) for pair in chosen))
    found["passages"] = _write(place / "passages.txt", _passages(road))
    return found


def _documents(road: Road, folder: Path, pages: Sequence[Page], place: Path) -> int:
    """Documents drawn in turn from each generator and language, with their pages."""
    texts = {document.url: document for document in read_all(road.place("extract"))}
    groups: dict[tuple[str, str], list[Page]] = defaultdict(list)
    for page in sorted(pages, key=lambda page: _hash(page.url)):
        if page.url in texts:
            groups[page.generator, page.language].append(page)
    turns = itertools.zip_longest(*(groups[key] for key in sorted(groups)))
    drawn = list(itertools.islice((page for turn in turns for page in turn if page is not None), DRAWN))
    for number, page in enumerate(drawn):
        document = texts[page.url]
        head = f"{page.url}\n{page.generator or '?'}, {page.language or '?'}, {document.metadata}\n{RULE}\n"
        (place / f"{number:03}.txt").write_text(head + document.text, encoding="utf-8")
        (place / f"{number:03}.html").write_bytes(body_of(folder, page))
    return len(drawn)


def _passages(road: Road) -> Iterator[str]:
    """The passages that were cut most often, each by its first words."""
    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, Any]] = {}
    for line in read_lines(road.place("dedup-passages") / "passages.jsonl.zst"):
        row = json.loads(line)
        counts[row["match"]] += 1
        examples.setdefault(row["match"], row)
    for match, count in counts.most_common(PASSAGES):
        row = examples[match]
        yield f"{count:,} times, such as in {row['url']} and {row['duplicate_of']}\n{match}"


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.jsonl.zst")):
        yield from map(json.loads, read_lines(file))


def _pair(texts: dict[str, str], first: str, second: str, similarity: float) -> str:
    """How two documents differ, line by line."""
    sides = [texts[re.sub(r"#piece-[\d-]+$", "", url)].splitlines() for url in (first, second)]
    lines = [line for line in difflib.unified_diff(*sides, lineterm="", n=0) if not line.startswith(("---", "+++"))]
    more = f"\n... {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
    shown = "\n".join(line[:300] for line in lines[:MOST_LINES])
    return f"{similarity:.3f}, {len(sides[0])} and {len(sides[1])} lines\n{first}\n{second}\n{shown}{more}"


def _shown(text: str) -> str:
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}\n[...]\n{text[-SHOWN:]}"


def _write(path: Path, entries: Iterable[str]) -> int:
    """Write entries one below the other, and return how many they are."""
    written = list(entries)
    path.write_text("".join(f"{entry}\n{RULE}\n" for entry in written), encoding="utf-8")
    return len(written)


def _hash(url: str) -> bytes:
    return hashlib.blake2b(url.encode(), digest_size=8).digest()
