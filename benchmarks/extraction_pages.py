"""Pages with human-reviewed main text, and how well a text matches it.

A folder has `html/ID.html.gz` and `truth/ID.json` with `url`, `page_type` and `main_content`, as the Web Content
eXtraction Benchmark (WCXB; M. Foley 2026, CC BY 4.0) has them. F1 is its own: of words (`\\w+`, lower case), counted as
often as they occur.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from webtext_prep.urls.urls import domain_of

FOLDS = 5
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class ReviewedPage:
    """A page and its main text.

    Attributes:
        name: of its files.
        url: where it was found; "" where nobody knows.
        kind: article, forum, product, ...
        html: its bytes.
        text: its main text.
        wanted, unwanted: passages that an extractor should find, and that it should leave out.
    """

    name: str
    url: str
    kind: str
    html: bytes
    text: str
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    @property
    def fold(self) -> int:
        """Its part of FOLDS, by the domain: pages of one site never lie in two."""
        domain = domain_of(self.url) or self.name
        return int.from_bytes(hashlib.sha256(domain.encode()).digest()[:8], "big") % FOLDS


def reviewed_pages(folder: Path) -> Iterator[ReviewedPage]:
    """All pages of a folder, by name."""
    for path in sorted((folder / "truth").glob("*.json")):
        says = json.loads(path.read_text(encoding="utf-8"))
        html = gzip.decompress((folder / "html" / f"{path.stem}.html.gz").read_bytes())
        passages = (tuple(says.get("with") or ()), tuple(says.get("without") or ()))
        yield ReviewedPage(path.stem, says.get("url") or "", says["page_type"], html, says["main_content"], *passages)


def words_of(text: str) -> list[str]:
    """The words that count."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Match:
    """How well a text matches the reviewed one: shares of words."""

    f1: float
    precision: float
    recall: float


def match(text: str, reviewed: str) -> Match:
    """Of an extracted text and the reviewed one. Two empty ones match."""
    found, wanted = Counter(words_of(text)), Counter(words_of(reviewed))
    if not found and not wanted:
        return Match(1.0, 1.0, 1.0)
    common = (found & wanted).total()
    if not common:
        return Match(0.0, 0.0, 0.0)
    precision, recall = common / found.total(), common / wanted.total()
    return Match(2 * precision * recall / (precision + recall), precision, recall)
