"""Pages of which people have said what their main text is, and how well an extractor's text matches that.

A folder has `html/NAME.html.gz` and its truth, in one of two forms:

- `truth/NAME.json`, an object for each page: `url`, `page_type`, `main_content` (and `with`, `without`), as the Web
  Content eXtraction Benchmark has them (WCXB; M. Foley 2026, CC BY 4.0);
- `truth.json`, one object from NAME.html.gz to what is known of each page: its `url` or `host`, its `language`, and its
  `text` in paragraphs, as the corpus DAnIEL has it (annotated again by Lejeune and Zhu), or segments that must (`with`)
  and must not (`without`) be in the text, as trafilatura's evaluation has them, or its `page_type` alone.

Of a page with a text F1 is of words: `\\w+` in lower case, counted as often as they occur; of writing without spaces
each character is a word. Of segments it is over all of them: found ones that must be there are true positives; in them
a line end is as good as a space, as at a `<br>`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from webtext_prep.urls.urls import domain_of

FOLDS = 5
_CHARACTER = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CHARACTER}]|[^\W{_CHARACTER}]+")
_PARAGRAPH = re.compile(r"</?p>")


@dataclass(frozen=True)
class ReviewedPage:
    """A page and what is known of its main text.

    Attributes:
        folder: the name of the set that it is of.
        name: of its files.
        url: where it was found; "" where nobody knows.
        kind: article, forum, product, ...; "" where nobody has said.
        language: its name; "" where nobody has said.
        html: its bytes.
        text: its main text; None where only segments are known.
        wanted, unwanted: segments that an extractor should find, and that it should leave out.
    """

    folder: str
    name: str
    url: str
    kind: str
    language: str
    html: bytes
    text: str | None
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What no other page of any set is called."""
        return f"{self.folder}/{self.name}"

    @property
    def group(self) -> str:
        """Its set, or its set and language where its set says them: what decides as much as any other group."""
        return " ".join((self.folder, self.language)).strip()

    @property
    def domain(self) -> str:
        """The domain that it was found on, or its name."""
        return domain_of(self.url) or self.name

    @property
    def fold(self) -> int:
        """Its part of FOLDS, by the domain: pages of one site never lie in two."""
        return part_of(self.domain, FOLDS)


def part_of(domain: str, parts: int, at: int = 0) -> int:
    """One of so many parts, by the bytes of a hash that begin `at`."""
    return int.from_bytes(hashlib.sha256(domain.encode()).digest()[at : at + 8], "big") % parts


def reviewed_pages(folder: Path) -> Iterator[ReviewedPage]:
    """All pages of a folder, by name."""
    known: dict[str, dict[str, Any]]
    if (folder / "truth.json").exists():
        known = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    else:
        files = (folder / "truth").glob("*.json")
        known = {f"{file.stem}.html.gz": json.loads(file.read_text(encoding="utf-8")) for file in files}
    for file, says in sorted(known.items()):
        text = says.get("main_content", says.get("text"))
        yield ReviewedPage(
            folder.resolve().name,
            file.removesuffix(".html.gz"),
            says.get("url") or (f"http://{says['host']}/" if "host" in says else ""),
            says.get("page_type", ""),
            says.get("language", ""),
            gzip.decompress((folder / "html" / file).read_bytes()),
            None if text is None else _PARAGRAPH.sub("", text),
            tuple(says.get("with") or ()),
            tuple(says.get("without") or ()),
        )


def words_of(text: str) -> list[str]:
    """The words that count."""
    return _WORD.findall(text.lower())


def one_line(text: str) -> str:
    """The text with single spaces for its white space."""
    return " ".join(text.split())


@dataclass(frozen=True)
class Match:
    """How well texts match what was reviewed: shares of words, or of segments."""

    f1: float
    precision: float
    recall: float


def _match(common: int, found: int, wanted: int) -> Match:
    precision, recall = common / max(1, found), common / max(1, wanted)
    return Match(2 * precision * recall / max(1e-9, precision + recall), precision, recall)


def match(text: str, reviewed: str) -> Match:
    """Of an extracted text and the reviewed one. Two empty ones match."""
    found, wanted = Counter(words_of(text)), Counter(words_of(reviewed))
    if not found and not wanted:
        return Match(1.0, 1.0, 1.0)
    return _match((found & wanted).total(), found.total(), wanted.total())


def match_of_set(pages: Iterable[ReviewedPage], texts: Mapping[str, str]) -> Match:
    """Of all pages of a set, given their texts by `key`: the mean of its pages', or that of all their segments."""
    chosen = list(pages)
    matches = [match(texts[page.key], page.text) for page in chosen if page.text is not None]
    if matches:
        return Match(*(float(np.mean([getattr(one, part) for one in matches])) for part in Match.__annotations__))
    found = {page.key: one_line(texts[page.key]) for page in chosen}
    right = sum(one_line(segment) in found[page.key] for page in chosen for segment in page.wanted)
    wrong = sum(one_line(segment) in found[page.key] for page in chosen for segment in page.unwanted)
    return _match(right, right + wrong, sum(len(page.wanted) for page in chosen))
