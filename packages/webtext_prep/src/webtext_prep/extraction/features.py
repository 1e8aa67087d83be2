"""The features of each block of a page before anyone decides whether it is main text: numbers, one row a block.

They say how a block is written (its length, stops, links), what it lies in (the elements around it: their text, names
and landmarks), where it stands (on the page, after its heading, in the part with most of the prose, where paragraphs
are densest), its likeness to others on the page, its neighbours, and the page as a whole. Only PHRASES and LABELS are
words of one language.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.extraction.blocks import LANDMARKS, TAGS, Blocks
from webtext_prep.extraction.feature_kernels import (
    ALIKE,
    AROUND,
    CONTEXT_LEVELS,
    CONTEXT_REACHES,
    CONTEXT_SHARES,
    DENSEST,
    H1,
    HEADING,
    HOLDER,
    LEVELS,
    NEIGHBOURS,
    NO_PARAGRAPH,
    OF_RUN,
    OF_TEXT,
    PAGE,
    PART,
    PLACE,
    PROSE,
    REACHES,
    SAID,
    SHARES,
    TEXT,
    WHERE,
    WITHIN,
    Floats,
    P,
    listed,
    rows_of,
)
from webtext_prep.extraction.names import HINT_BITS
from webtext_prep.text.compiled import BYTES, compiled, inner

PHRASES = listed("""
©|all rights reserved|privacy policy|terms of|copyright|cookie|newsletter|subscribe|sign up|your email|follow us
share this|related articles|related posts|related products|you may also|read next|recommended|affiliate|powered by
""")
"""What hardly ever stands in the main text."""
_LABELS = listed("""
read more|learn more|show more|load more|view all|see all|see more|reply|share|like|quote|report|sign in|log in|login
sign up|subscribe|next|previous|back to top|add to cart|buy now|shop now|menu|search|home|contact us|about us|download
click here|get started|copy link|print|follow|edit|close|view more|book a demo|add to wishlist|quick view|permalink
advertisement
""")
LABELS = frozenset(_LABELS)
"""Whole blocks that are there to be clicked."""
DOCUMENTATION = listed("""
sphinx|readthedocs|docusaurus|mkdocs|gitbook|doxygen|mediawiki|highlight|prism
""")
"""Names of programs that make documentation, as its pages have them in their HTML."""
FORUMS = ("discourse", "vbulletin", "phpbb", "xenforo", "nodebb", "flarum", "invision", "stackexchange", "viewtopic")
SHOPS = listed("""
shopify|woocommerce|magento|bigcommerce|add-to-cart|addtocart|add_to_cart|itemprop="price
""")
SCHEMAS = listed("""
Article|NewsArticle|BlogPosting|Product|QAPage|DiscussionForumPosting|ItemList|Question
""")
"""Kinds of things of schema.org that pages say they are about."""
_SCHEMAS = {
    '"@type"': re.compile(r'"@type"\s*:\s*\[?\s*"(\w+)"'),
    'itemtype="http': re.compile(r'itemtype="https?://schema\.org/(\w+)"'),
}
"""What names a thing of schema.org, by how that begins."""
NAMES = sorted(("<img", "<form", "<li", "<td", "<code", "<pre", *DOCUMENTATION, *FORUMS, *SHOPS))
"""What is counted in the HTML of a page."""
_BEGINS = np.zeros((256, 256), bool)
for _name in NAMES:
    for _first in {_name[0], _name[0].upper()}:
        _BEGINS[ord(_first), [ord(_name[1]), ord(_name[1].upper())]] = True
_NAME_TABLES = (
    np.frombuffer("".join(NAMES).encode(), np.uint8),
    np.cumsum([0, *map(len, NAMES)]),
    np.searchsorted([ord(name[0]) for name in NAMES], np.arange(257)),
    _BEGINS,
)
URLS = {
    "forum": r"forum|thread|topic|/t/|discuss|community|questions?/|/r/|viewtopic|showthread|board|answers|comments",
    "product": r"/products?/|/p/|/dp/|/itm/|/item|/pd/|-p-\d|/sku|\.html?$",
    "collection": r"/collections?/|/categor|/c/|/shop|/browse|/b/|catalog|/department|/store|/cat/|/l/",
    "documentation": r"docs?[./]|/docs?/|/api|/guide|/manual|/reference|/learn|/tutorial|wiki|developer|help|support",
    "article": r"blog|/news|/article|/20\d\d/|/story|/post|magazine|guide|how-to|what-is|best-|tips",
    "service": r"service|solution|/pricing|/features|platform|/about|product|software|contact",
    "listing": r"/tag|/search|/list|/directory|/top|rank|/events|/jobs|/schedule|results|/archive|/author|/page/",
}
"""What URLs of a kind of page look like."""
_URLS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in URLS.items()]


_LEVELS = [TAGS[f"h{level}"] for level in range(1, 7)]
_KINDS = np.zeros(len(TAGS) + 1, np.int64)
_KINDS[_LEVELS] |= HEADING | NO_PARAGRAPH
_KINDS[TAGS["button"]] |= NO_PARAGRAPH
# What holds paragraphs; text in them directly is one.
_KINDS[[0, *(TAGS[tag] for tag in ("div", "section", "article", "main", "td", "body"))]] |= HOLDER
_KINDS[TAGS["h1"]] |= H1
_KINDS[TAGS["p"]] |= P

MEANS = listed("""
words|stops|link share|ends a sentence|title words|alike|around 3 alike|in <table>|in <pre>|label|phrase
""")
"""Features of blocks whose means say something of the page."""


@dataclass(frozen=True)
class Features:
    """The features of a page's blocks.

    Attributes:
        names: of the features.
        rows: (blocks, names), float32.
        words: of each block.
        page_begins: number of the first feature that is of the page, the same for all its blocks.
    """

    names: list[str]
    rows: npt.NDArray[np.float32]
    words: Floats
    page_begins: int

    @property
    def of_page(self) -> tuple[list[str], npt.NDArray[np.float32]]:
        """(names, values) of the page as a whole: its own, and MEANS of its blocks, by words and by blocks.

        Not the length of its HTML: a page without decoration is an article as well.
        """
        columns = self.rows[:, _MEANT]
        # Not by `@`, whose last digits differ between machines.
        means = ((self.words[:, None] * columns).sum(axis=0) / self.words.sum(), columns.mean(axis=0))
        values = np.concatenate((self.rows[0, self.page_begins :], *means)).astype(np.float32)
        return [*OF_PAGES, *(f"{name} by {unit}" for unit in ("words", "blocks") for name in MEANS)], values


@inner
def _small(byte: int) -> int:
    """A letter of ASCII as a small one."""
    return byte | 32 if 65 <= byte <= 90 else byte


@compiled(types.int64[::1](BYTES, BYTES, types.int64[::1], types.int64[::1], types.boolean[:, ::1]))
def _counts(data: Any, names: Any, ends: Any, by_first: Any, begins: Any) -> Any:
    """How often each name stands in bytes, in whatever case. Those that begin with byte b are `by_first[b]` up to
    `by_first[b + 1]`; `begins[b, c]` is whether one begins with both bytes."""
    counts = np.zeros(len(ends) - 1, np.int64)
    for at in range(len(data) - 1):
        if not begins[data[at], data[at + 1]]:
            continue
        first = _small(data[at])
        for name in range(by_first[first], by_first[first + 1]):
            begin, length = ends[name], ends[name + 1] - ends[name]
            matched = 1
            while (
                matched < length and at + matched < len(data) and _small(data[at + matched]) == names[begin + matched]
            ):
                matched += 1
            counts[name] += matched == length
    return counts


def counts_of_names(html: str) -> dict[str, int]:
    """How often each of NAMES stands in a page, in whatever case; one pass instead of thirty."""
    data = np.frombuffer(html.encode("utf-8", "replace"), np.uint8)
    return dict(zip(NAMES, _counts(data, *_NAME_TABLES).tolist(), strict=True))


def page_features(html: str, url: str) -> dict[str, float]:
    """What the page says as a whole, by name."""
    count_of = counts_of_names(html)
    types = [found for sign, pattern in _SCHEMAS.items() if sign in html for found in pattern.findall(html)]
    path = url.partition("://")[2].partition("/")[2].partition("?")[0]
    last = path.rstrip("/").rpartition("/")[2]
    return {
        "images": np.log1p(count_of["<img"]),
        "forms": count_of["<form"],
        "list items": np.log1p(count_of["<li"]),
        "cells": np.log1p(count_of["<td"]),
        "code": np.log1p(count_of["<code"] + count_of["<pre"]),
        "documentation": sum(count_of[name] > 0 for name in DOCUMENTATION),
        "forum": sum(count_of[name] > 0 for name in FORUMS),
        "shop": sum(count_of[name] > 0 for name in SHOPS),
        **{f"schema {name}": min(3, types.count(name)) for name in SCHEMAS},
        **{f"url {kind}": float(pattern.search(url) is not None) for kind, pattern in _URLS},
        "url length": len(last),
        "url dashes": last.count("-"),
        "url depth": path.count("/"),
        "url query": float("?" in url),
    }


def _said(texts: list[str], title: str) -> npt.NDArray[np.float64]:
    """What each text says, as numbers: the last SAID features of TEXT."""
    found = np.zeros((SAID, len(texts)))
    phrases, labels, titles, copies, all_copies = found
    joined = "\0".join(texts).lower()
    begins = np.cumsum([0, *(len(text) + 1 for text in texts)])
    for phrase in PHRASES:
        at = joined.find(phrase)
        while at >= 0:
            phrases[min(len(texts) - 1, int(np.searchsorted(begins, at, "right")) - 1)] = 1
            at = joined.find(phrase, at + len(phrase))
    lower = joined.split("\0")
    labels[:] = [text in LABELS for text in lower]
    title_words = frozenset(title.lower().split())
    for number, text in enumerate(lower):
        if len(texts[number]) < 300 and not title_words.isdisjoint(words := text.split()):
            titles[number] = sum(map(title_words.__contains__, words)) / min(len(words), len(title_words))
    seen = Counter(texts)
    all_copies[:] = [seen[text] for text in texts]
    if len(seen) < len(texts):
        before: Counter[str] = Counter()
        for number, text in enumerate(texts):
            copies[number] = before[text]
            before[text] += 1
    return np.ascontiguousarray(found.T)


def _names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of features of blocks, and those of pages, in the order of `rows_of`."""
    of_blocks = (
        *(*TEXT, *PLACE, *ALIKE),
        *(f"around {level} {name}" for level in LEVELS for name in AROUND),
        *(name.replace("part", f"part {share}") for share in SHARES for name in PART),
        *(*DENSEST, *PROSE),
        *(f"{name} at {by:+d}" for name in NEIGHBOURS for by in WHERE),
        *(f"{name} within {reach}" for reach in REACHES for name in WITHIN),
        *(f"{where} {name}" for name in HINT_BITS for where in ("near", "in", "middle")),
        *(f"in <{name}>" for name in LANDMARKS),
        "html length",
    )
    of_pages = (*PAGE, *(f"page {name}" for name in HINT_BITS), *(f"page <{name}>" for name in LANDMARKS))
    return of_blocks, (*of_pages, *page_features("", ""))


OF_BLOCKS, OF_PAGES = _names()
_MEANT = [OF_BLOCKS.index(name) for name in MEANS]
OF_CONTEXT = (
    *("odds", *(f"likely at {by:+d}" for by in WHERE)),
    *(f"likely within {reach}" for reach in CONTEXT_REACHES),
    *OF_TEXT,
    *(f"{what} around {level}" for level in CONTEXT_LEVELS for what in ("likely", "text")),
    *OF_RUN,
    *(f"{what} text {share}" for share in CONTEXT_SHARES for what in ("in", "likely in")),
)
"""The names of a block's context by one forest."""


def features_of(blocks: Blocks, html: str, url: str, title: str) -> Features:
    """The features of a page's blocks, of which there must be one."""
    page = [np.log1p(len(html)), *page_features(html, url).values()]
    rows, words = rows_of(
        np.frombuffer("".join(blocks.texts).encode("utf-8", "replace"), np.uint8),
        np.array([len(text) for text in blocks.texts]),
        _said(blocks.texts, title),
        np.array([blocks.link_characters, blocks.links, blocks.bold_characters]),
        blocks.element,
        blocks.places,
        _KINDS,
        len(HINT_BITS),
        len(LANDMARKS),
        len(OF_BLOCKS) + len(OF_PAGES),
        np.array(page, np.float64),
    )
    return Features([*OF_BLOCKS, *OF_PAGES], rows, words, len(OF_BLOCKS))
