"""The features of each block of a page before anyone decides whether it is main text: numbers, one row a block.

They say how a block is written (its length, stops, links), what it lies in (the elements around it: their text, names
and landmarks), where it stands (on the page, after its heading, in the part with most of the prose, where paragraphs
are densest), its likeness to others on the page, its neighbours, and the page as a whole. Only PHRASES and LABELS are
words of one language.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import BYTES, compiled, inner
from webtext_prep.extraction.learned.blocks import LANDMARKS, TAGS, Blocks
from webtext_prep.extraction.learned.names import HINT_BITS

Floats = npt.NDArray[np.float64]


def _listed(text: str) -> tuple[str, ...]:
    """What stands between the bars and line ends of a text."""
    return tuple(text.strip().replace("\n", "|").split("|"))


PHRASES = _listed("""
©|all rights reserved|privacy policy|terms of|copyright|cookie|newsletter|subscribe|sign up|your email|follow us
share this|related articles|related posts|related products|you may also|read next|recommended|affiliate|powered by
""")
"""What hardly ever stands in the main text."""
_LABELS = _listed("""
read more|learn more|show more|load more|view all|see all|see more|reply|share|like|quote|report|sign in|log in|login
sign up|subscribe|next|previous|back to top|add to cart|buy now|shop now|menu|search|home|contact us|about us|download
click here|get started|copy link|print|follow|edit|close|view more|book a demo|add to wishlist|quick view|permalink
advertisement
""")
LABELS = frozenset(_LABELS)
"""Whole blocks that are there to be clicked."""
DOCUMENTATION = _listed("""
sphinx|readthedocs|docusaurus|mkdocs|gitbook|doxygen|mediawiki|highlight|prism
""")
"""Names of programs that make documentation, as its pages have them in their HTML."""
FORUMS = ("discourse", "vbulletin", "phpbb", "xenforo", "nodebb", "flarum", "invision", "stackexchange", "viewtopic")
SHOPS = _listed("""
shopify|woocommerce|magento|bigcommerce|add-to-cart|addtocart|add_to_cart|itemprop="price
""")
SCHEMAS = _listed("""
Article|NewsArticle|BlogPosting|Product|QAPage|DiscussionForumPosting|ItemList|Question
""")
"""Kinds of things of schema.org that pages say they are about."""
_SCHEMAS = {
    '"@type"': re.compile(r'"@type"\s*:\s*\[?\s*"(\w+)"'),
    'itemtype="http': re.compile(r'itemtype="https?://schema\.org/(\w+)"'),
}
"""What names a thing of schema.org, by how that begins."""
NAMES = sorted(("<img", "<form", "<li", "<td", "<code", "<pre", *DOCUMENTATION, *FORUMS, *SHOPS, *_SCHEMAS))
"""What is counted in the HTML of a page."""
_BEGINS = np.zeros(1 << 15, bool)
for _name in NAMES:
    _BEGINS[functools.reduce(lambda begin, sign: begin << 5 | ord(sign) & 31, _name[:3], 0)] = True
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


def _are(*numbers: int) -> npt.NDArray[np.bool_]:
    """Of each number of an element whether it is one of these."""
    return np.isin(np.arange(len(TAGS) + 1), numbers)


_LEVELS = [TAGS[f"h{level}"] for level in range(1, 7)]
HEADINGS = _are(*_LEVELS)
NO_PARAGRAPHS = _are(*_LEVELS, TAGS["button"])
HOLDERS = _are(0, *(TAGS[tag] for tag in ("div", "section", "article", "main", "td", "body")))
"""Elements that hold paragraphs; text in them directly is one."""
PARAGRAPH_CHARACTERS = 25
CHARACTERS_A_WORD = 5
"""A text of shorter words, as of writing without spaces, counts as if they had so many."""
DENSE_LEVELS = 6
"""How far up the score of the elements around a block is looked at."""
LONG_WORDS = 15
"""Words that make a block a paragraph."""
PROSE_WORDS = 12
"""Words that make a block prose, if it is not half links."""
SHARES = (0.5, 0.8, 0.95)
"""The innermost element with this share of all prose is where the main text is looked for."""
LEVELS = (1, 2, 3, 5, 7)
"""How far up the elements around a block are described; 1 is the parent of its own."""
FAR = -999.0
"""A distance to something that is not there."""

_CLASSES = np.zeros((256, 6), np.int64)
"""Bytes that are: the first of a character, a stop, a space, a separator, of writing without spaces (by the first), a
comma or semicolon (of wide ones, as of all in their block of Unicode, the first)."""
_CLASSES[:, 0] = [(byte & 0xC0) != 0x80 for byte in range(256)]
_CLASSES[list(b".!?"), 1] = 1
_CLASSES[list(b" \n"), 2] = 1
_CLASSES[list(b"|"), 3] = 1
_CLASSES[0xE3:0xEE, 4] = 1
_CLASSES[[*b",;", 0xEF], 5] = 1
_ENDS = np.zeros(256, bool)
_ENDS[[*b'.!?:"', 0x82, 0x9D]] = True  # the last also of the ideographic stop and the closing quotation mark

MEANS = _listed("""
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
        of_url: what the page's URL says, by name. Blocks are judged without: how URLs look differs from one set of
            pages to the next more than how text does.
    """

    names: list[str]
    rows: npt.NDArray[np.float32]
    words: Floats
    page_begins: int
    of_url: dict[str, float]

    @property
    def of_page(self) -> tuple[list[str], npt.NDArray[np.float32]]:
        """(names, values) of the page as a whole: its own, its URL's, and MEANS of blocks by words and by blocks."""
        columns = self.rows[:, [self.names.index(name) for name in MEANS]]
        names = [f"{name} by {unit}" for unit in ("words", "blocks") for name in MEANS]
        # Not by `@`, whose last digits differ between machines.
        means = ((self.words[:, None] * columns).sum(axis=0) / self.words.sum(), columns.mean(axis=0))
        values = np.concatenate((self.rows[0, self.page_begins :], list(self.of_url.values()), *means))
        return [*self.names[self.page_begins :], *self.of_url, *names], values.astype(np.float32)


def sums(values: npt.ArrayLike) -> Floats:
    """Sums of all values before each place, and of all."""
    out: Floats = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    return out


def mean_of_equal(kinds: npt.NDArray[np.int64], *values: Floats) -> list[Floats]:
    """The number of equal kinds, small numbers themselves, and the mean of each of `values` over them."""
    counts = np.bincount(kinds)[kinds].astype(np.float64)
    return [counts, *(np.bincount(kinds, value)[kinds] / counts for value in values)]


def neighbours(values: Floats) -> dict[str, Floats]:
    """The values of the two blocks before each and of the two behind, by where; -1 where there is none."""
    padded = np.full(len(values) + 4, -1.0)
    padded[2:-2] = values
    return {f"at {by:+d}": padded[2 + by : 2 + by + len(values)] for by in (-2, -1, 1, 2)}


def _bits(values: npt.NDArray[np.int64], of: Mapping[str, int]) -> Floats:
    """Of each bit of those a row: whether each of the values has it."""
    return ((values & np.array(list(of.values()))[:, None]) > 0).astype(np.float64)


@inner
def _small(byte: int) -> int:
    """A letter of ASCII as a small one."""
    return byte | 32 if 65 <= byte <= 90 else byte


@compiled(types.int64[::1](BYTES, BYTES, types.int64[::1], types.int64[::1], types.boolean[::1]))
def _counts(data: Any, names: Any, ends: Any, by_first: Any, begins: Any) -> Any:
    """How often each name stands in bytes, in whatever case. Those that begin with byte b are `by_first[b]` up to
    `by_first[b + 1]`; `begins[b]` is whether one begins with three bytes whose last five bits each are those of b."""
    counts = np.zeros(len(ends) - 1, np.int64)
    begin_bits = 0
    for last in range(len(data)):
        begin_bits = (begin_bits << 5 | data[last] & 31) & 0x7FFF
        at = last - 2
        if at < 0 or not begins[begin_bits]:
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


def _things(html: str, sign: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """What a pattern that begins with a sign finds in a page; CPython looks for the sign itself three times as fast."""
    at = html.find(sign)
    while at >= 0:
        if found := pattern.match(html, at):
            yield found[1]
        at = html.find(sign, at + len(sign))


def page_features(html: str) -> dict[str, float]:
    """What the page says as a whole, by name."""
    count_of = counts_of_names(html)
    types = [name for sign, pattern in _SCHEMAS.items() if count_of[sign] for name in _things(html, sign, pattern)]
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
    }


def url_features(url: str) -> dict[str, float]:
    """What a URL says of its page, by name."""
    path = url.partition("://")[2].partition("/")[2].partition("?")[0]
    last = path.rstrip("/").rpartition("/")[2]
    return {
        **{f"url {kind}": float(pattern.search(url) is not None) for kind, pattern in _URLS},
        "url length": len(last),
        "url dashes": last.count("-"),
        "url depth": path.count("/"),
        "url query": float("?" in url),
    }


@compiled(types.float64[:, ::1](BYTES, types.int64[::1], types.int64[:, ::1]))
def _classes_of_texts(data: Any, lengths: Any, classes: Any) -> Any:
    """Of each class a row: how many bytes of each text are of it; then the first byte of each, and the last one.

    Args:
        data: all texts in UTF-8, one behind the other.
        lengths: of each in characters, at least 1.
        classes: (256, classes), of each byte, of which the first says whether it begins a character.
    """
    kinds = classes.shape[1]
    counts = np.zeros((kinds + 2, len(lengths)))
    at = 0
    for text in range(len(lengths)):
        counts[kinds, text] = data[at]
        left = lengths[text]
        while at < len(data) and (left > 0 or not classes[data[at], 0]):
            left -= classes[data[at], 0]
            for kind in range(kinds):
                counts[kind, text] += classes[data[at], kind]
            at += 1
        counts[kinds + 1, text] = data[at - 1]
    return counts


def _said(texts: list[str], title: str) -> dict[str, Floats]:
    """What each text says, and how often it stands on the page."""
    phrases, labels, titles, copies, all_copies = np.zeros((5, len(texts)))
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
    before: Counter[str] = Counter()
    for number in np.flatnonzero(all_copies > 1).tolist():
        copies[number] = before[texts[number]]
        before[texts[number]] += 1
    return {"phrase": phrases, "label": labels, "title words": titles, "copy": copies, "copies": all_copies}


def _text_features(texts: list[str], title: str) -> tuple[dict[str, Floats], Floats, Floats]:
    """What each text is like, its words, and its characters."""
    data = np.frombuffer("".join(texts).encode("utf-8", "replace"), np.uint8)
    lengths = np.array([len(text) for text in texts])
    all_characters, stops, spaces, separators, wide, commas, first, last = _classes_of_texts(data, lengths, _CLASSES)
    characters = np.maximum(1.0, all_characters)
    words = np.maximum(spaces + 1, wide / 2)
    features = {
        "words": np.log1p(words),
        "characters": np.log1p(characters),
        "word length": characters / words,
        "stops": stops / words,
        "separators": separators,
        "commas": commas,
        "ends a sentence": _ENDS[last.astype(np.int64)].astype(np.float64),
        "question": (last == ord("?")).astype(np.float64),
        "begins small": ((first >= ord("a")) & (first <= ord("z"))).astype(np.float64),
    }
    return features | _said(texts, title), words, characters


def _densest(
    blocks: Blocks, words: Floats, characters: Floats, commas: Floats, link_shares: Floats
) -> dict[str, Floats]:
    """Where the paragraphs are densest, by the scores of Readability (arc90, 2009).

    A paragraph of 25 characters gives what it lies in a point, one more for each of `commas`, and one for each 100
    characters up to 3; and half as much to what that lies in. `link_shares` of elements are taken off their scores.
    """
    element, parent, number = blocks.element, blocks.parent, len(words)
    tag, place = blocks.tag[element], np.arange(number)
    length = np.maximum(characters, CHARACTERS_A_WORD * words)
    is_paragraph = (length >= PARAGRAPH_CHARACTERS) & ~NO_PARAGRAPHS[tag]
    points = np.where(is_paragraph, 1 + commas + np.minimum(3, np.floor(length / 100)), 0.0)
    holder = np.where(HOLDERS[tag], element, parent[element])
    points_held = np.bincount(holder, points, len(parent)) + np.bincount(parent[holder], points / 2, len(parent))
    scores = points_held * (1 - link_shares)
    best = int(np.argmax(scores))
    highest = max(1.0, float(scores[best]))
    begin, end = (blocks.first[best], blocks.last[best]) if scores[best] > 0 else (0, 0)
    inside = (place >= begin) & (place < end)
    around, largest = element, scores[element]
    for _ in range(DENSE_LEVELS):
        around = parent[around]
        largest = np.maximum(largest, scores[around])
    # Readability takes elements beside the best, too, if they have a fifth of its score.
    beside = (parent == parent[best]) & (scores >= max(10.0, highest / 5))
    beside[best], beside[0] = scores[best] > 0, False
    opened = np.bincount(blocks.first[beside], minlength=number + 1) - np.bincount(
        blocks.last[beside], minlength=number + 1
    )
    ranks = np.sort(scores)
    return {
        "in densest": inside.astype(np.float64),
        "depth in densest": np.where(inside, blocks.depth[element] - blocks.depth[best], -1.0),
        "place in densest": (place - begin) / max(1, end - begin),
        "in or beside densest": (np.cumsum(opened[:number]) > 0).astype(np.float64),
        "score of parent": scores[parent[element]] / highest,
        "score of grandparent": scores[parent[parent[element]]] / highest,
        "score around": largest / highest,
        "share of densest": np.full(number, words[begin:end].sum() / words.sum()),
        "second densest": np.full(number, ranks[-2] / highest),
    }


def features_of(blocks: Blocks, html: str, url: str, title: str) -> Features:
    """The features of a page's blocks, of which there must be one."""
    found, words, characters = _text_features(blocks.texts, title)
    number, element, parent = len(words), blocks.element, blocks.parent
    place = np.arange(number, dtype=np.float64)
    links = np.minimum(blocks.link_characters, characters)
    stops = found["stops"] * words
    tag = blocks.tag[element]
    is_heading, is_paragraph = HEADINGS[tag], tag == TAGS["p"]
    w, c, l, s = sums(words), sums(characters), sums(links), sums(stops)  # noqa: E741
    long, paragraphs = sums(words >= LONG_WORDS), sums(words * is_paragraph)
    total = max(1.0, w[-1])
    link_share = links / characters
    found |= {
        "links": np.log1p(blocks.links),
        "link share": link_share,
        "bold share": np.minimum(1.0, blocks.bold_characters / characters),
        "tag": tag.astype(np.float64),
        "unseen": blocks.unseen[element].astype(np.float64),
        "depth": blocks.depth[element].astype(np.float64),
        "words before": w[:-1] / total,
        "blocks before": place / number,
        "number": np.log1p(place),
        "number from the end": np.log1p(place[::-1]),
    }
    # Headings.
    firsts = np.flatnonzero(tag == TAGS["h1"])
    first = int(firsts[0]) if len(firsts) else 0
    found["after h1"] = place - first if len(firsts) else np.full(number, FAR)
    found["words after h1"] = (
        np.sign(place - first) * np.log1p(np.abs(w[:-1] - w[first])) if len(firsts) else np.full(number, FAR)
    )
    heading = np.maximum.accumulate(np.where(is_heading, np.arange(number), -1))
    has_heading = heading >= 0
    found["after heading"] = np.where(has_heading, place - heading, -1.0)
    found["heading"] = np.where(has_heading, tag[heading], 0).astype(np.float64)
    found["heading words"] = np.where(has_heading, found["words"][heading], -1.0)
    found["heading phrase"] = np.where(has_heading, found["phrase"][heading], 0.0)
    # Likeness to other blocks on the page.
    alike, alike_words, alike_links, alike_characters = mean_of_equal(
        blocks.shape[element], words, links.astype(np.float64), characters
    )
    found |= {
        "alike": np.log1p(alike),
        "alike words": np.log1p(alike_words),
        "alike link share": alike_links / alike_characters,
        "alike share": alike * alike_words / total,
    }
    # The elements around it.
    held_words, held_blocks = w[blocks.last] - w[blocks.first], (blocks.last - blocks.first).astype(np.float64)
    held_characters = np.maximum(1.0, c[blocks.last] - c[blocks.first])
    held_links, held_stops = l[blocks.last] - l[blocks.first], s[blocks.last] - s[blocks.first]
    held_paragraphs = paragraphs[blocks.last] - paragraphs[blocks.first]
    shapes, shape_words = mean_of_equal(blocks.shape, held_words)
    more = {
        "words": np.log1p(held_words),
        "share": held_words / total,
        "link share": held_links / held_characters,
        "blocks": np.log1p(held_blocks),
        "words a block": np.log1p(held_words / np.maximum(1.0, held_blocks)),
        "paragraphs": held_paragraphs / np.maximum(1.0, held_words),
        "stops": held_stops / np.maximum(1.0, held_words),
        "children": np.log1p(blocks.children),
        "alike": np.log1p(shapes),
        "alike words": np.log1p(shape_words),
        "words before": w[blocks.first],
    }
    of_elements = np.array(list(more.values()))
    around = element
    near, middle = blocks.hints[element], blocks.hints[element]
    for level in range(1, max(LEVELS) + 1):
        around = parent[around]
        if level <= 2:
            near = near | blocks.hints[around]
        if level <= 4:
            middle = middle | blocks.hints[around]
        if level not in LEVELS:
            continue
        of_level = of_elements[:, around]
        of_level[-1] = (w[:-1] - of_level[-1]) / np.maximum(1.0, held_words[around])
        found |= {f"around {level} {name}": value for name, value in zip(more, of_level, strict=True)}
    # The parts with the prose.
    prose = np.where((words >= PROSE_WORDS) & (link_share < 0.5), words, 0.0)
    p = sums(prose)
    held_prose = p[blocks.last] - p[blocks.first]
    for share in SHARES:
        enough = np.flatnonzero(held_prose >= share * p[-1])
        part = enough[np.argmax(blocks.depth[enough])]
        begin, end = blocks.first[part], blocks.last[part]
        found |= {
            f"in part {share}": ((place >= begin) & (place < end)).astype(np.float64),
            f"place in part {share}": (place - begin) / max(1, end - begin),
            f"share of part {share}": np.full(number, held_words[part] / total),
            f"depth in part {share}": (blocks.depth[element] - blocks.depth[part]).astype(np.float64),
        }
    found |= _densest(blocks, words, characters, found.pop("commas"), held_links / held_characters)
    is_prose = np.flatnonzero(prose)
    if len(is_prose):
        before = is_prose[np.maximum(0, np.searchsorted(is_prose, place, "right") - 1)]
        after = is_prose[np.minimum(len(is_prose) - 1, np.searchsorted(is_prose, place))]
        distances = (place - is_prose[0], place - is_prose[-1], place - before, after - place)
    else:
        distances = (np.full(number, FAR),) * 4
    for name, distance in zip(("first", "last", "previous", "next"), distances, strict=True):
        found[f"from {name} prose"] = distance
    # Neighbours.
    for name in ("words", "link share", "tag", "depth"):
        around_it = neighbours(found[name] if number > 2 else np.full(number, -1.0))
        found |= {f"{name} {where}": value for where, value in around_it.items()}
    for reach in (3, 10):
        low, high = np.maximum(0, np.arange(number) - reach), np.minimum(number, np.arange(number) + reach + 1)
        around_words = w[high] - w[low]
        found[f"words within {reach}"] = np.log1p(around_words / (high - low))
        found[f"link share within {reach}"] = (l[high] - l[low]) / np.maximum(1.0, c[high] - c[low])
        found[f"stops within {reach}"] = (s[high] - s[low]) / np.maximum(1.0, around_words)
    # Names and landmarks.
    everywhere, landmarks = blocks.all_hints[element], blocks.landmarks[element]
    page = {
        "page words": np.log1p(total),
        "page blocks": np.log1p(number),
        "page link share": l[-1] / max(1.0, c[-1]),
        "page words a block": total / number,
        "page prose": p[-1] / total,
        "page long": long[-1] / number,
        "page paragraphs": paragraphs[-1] / total,
        "page labels": float(found["label"].mean()),
        "page headings": float(is_heading.mean()),
        "page questions": float(found["question"].mean()),
        "page alike": float(found["alike"].max()),
    }
    of_names = [_bits(names, HINT_BITS) for names in (near, everywhere, middle)]
    for name, is_near, inside, is_middle in zip(HINT_BITS, *of_names, strict=True):
        found |= {f"near {name}": is_near, f"in {name}": inside, f"middle {name}": is_middle}
    # Not by `@`, for which BLAS may start threads.
    shares = (of_names[1] * words).sum(axis=1) / total
    page |= {f"page {name}": share for name, share in zip(HINT_BITS, shares, strict=True)}
    inside_of = _bits(landmarks, LANDMARKS)
    found |= {f"in <{name}>": inside for name, inside in zip(LANDMARKS, inside_of, strict=True)}
    shares = (inside_of * words).sum(axis=1) / total
    page |= {f"page <{name}>": share for name, share in zip(LANDMARKS, shares, strict=True)}
    page |= page_features(html)
    matrix = np.empty((number, len(found) + len(page)), np.float32)
    matrix[:, : len(found)] = np.array(list(found.values())).T
    matrix[:, len(found) :] = np.array(list(page.values()), np.float32)
    return Features([*found, *page], matrix, words, len(found), url_features(url))
