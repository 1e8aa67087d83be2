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
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from webtext_prep.extraction.learned import feature_kernels as kernels
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
_URLS = [re.compile(pattern, re.IGNORECASE) for pattern in URLS.values()]


_KINDS = {
    "": kernels.HOLDER,
    **dict.fromkeys(("div", "section", "article", "main", "td", "body"), kernels.HOLDER),
    **dict.fromkeys(("h2", "h3", "h4", "h5", "h6"), kernels.HEADING),
    "h1": kernels.HEADING | kernels.TITLE,
    "p": kernels.PARAGRAPH,
    "button": kernels.BUTTON,
}
_KINDS_OF_TAGS = np.array([_KINDS.get(tag, 0) for tag in ("", *TAGS)])
"""Bits of each number of an element."""

OF_TEXTS = _listed("""
words|characters|word length|stops|separators|ends a sentence|question|begins small
phrase|label|title words|copy|copies
""")
_OF_ELEMENTS = _listed("""
words|share|link share|blocks|words a block|paragraphs|stops|children|alike|alike words|words before
""")
AROUND_IT = [f"at {by:+d}" for by in kernels.AHEAD]
"""The blocks before and behind one."""
_OF_BLOCKS = (
    *OF_TEXTS,
    *_listed("""
links|link share|bold share|tag|unseen|depth
words before|blocks before|number|number from the end|after h1|words after h1
after heading|heading|heading words|heading phrase
alike|alike words|alike link share|alike share
"""),
    *(f"around {level} {name}" for level in kernels.LEVELS for name in _OF_ELEMENTS),
    *(f"{name} part {share}" for share in kernels.SHARES for name in ("in", "place in", "share of", "depth in")),
    *_listed("""
in densest|depth in densest|place in densest|in or beside densest|score of parent|score of grandparent|score around
share of densest|second densest
from first prose|from last prose|from previous prose|from next prose
"""),
    *(f"{name} {where}" for name in ("words", "link share", "tag", "depth") for where in AROUND_IT),
    *(f"{name} within {reach}" for reach in kernels.REACHES for name in ("words", "link share", "stops")),
    *(f"{where} {name}" for name in HINT_BITS for where in ("near", "in", "middle")),
    *(f"in <{name}>" for name in LANDMARKS),
)
OF_HTML = (
    *("images", "forms", "list items", "cells", "code", "documentation", "forum", "shop"),
    *(f"schema {name}" for name in SCHEMAS),
)
_OF_PAGE = (
    *_listed("""
page words|page blocks|page link share|page words a block|page prose|page long|page paragraphs|page labels
page headings|page questions|page alike
"""),
    *(f"page {name}" for name in HINT_BITS),
    *(f"page <{name}>" for name in LANDMARKS),
    *OF_HTML,
)
FEATURES = (*_OF_BLOCKS, *_OF_PAGE)
"""Names of the features of a block; the last ones are of its page, the same for all its blocks."""
MEANS = _listed("""
words|stops|link share|ends a sentence|title words|alike|around 3 alike|in <table>|in <pre>|label|phrase
""")
"""Features of blocks whose means say something of the page."""
_MEANS = [FEATURES.index(name) for name in MEANS]
OF_URLS = tuple(f"url {name}" for name in (*URLS, "length", "dashes", "depth", "query"))
PAGE_FEATURES = (*_OF_PAGE, *OF_URLS, *(f"{name} by {unit}" for unit in ("words", "blocks") for name in MEANS))
"""Names of the features of a page as a whole: its own, its URL's, and MEANS of blocks by words and by blocks."""


@dataclass(frozen=True)
class Features:
    """The features of a page's blocks.

    Attributes:
        rows: (blocks, FEATURES), float32.
        words: of each block.
        of_url: OF_URLS. Blocks are judged without: how URLs look differs from one set of pages to the next more than
            how text does.
    """

    rows: npt.NDArray[np.float32]
    words: Floats
    of_url: list[float]

    @property
    def of_page(self) -> npt.NDArray[np.float32]:
        """PAGE_FEATURES."""
        columns = self.rows[:, _MEANS]
        # Not by `@`, whose last digits differ between machines.
        means = ((self.words[:, None] * columns).sum(axis=0) / self.words.sum(), columns.mean(axis=0))
        return np.concatenate((self.rows[0, len(_OF_BLOCKS) :], self.of_url, *means)).astype(np.float32)


def sums(values: npt.ArrayLike) -> Floats:
    """Sums of all values before each place, and of all."""
    out: Floats = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    return out


def counts_of_names(html: str) -> dict[str, int]:
    """How often each of NAMES stands in a page, in whatever case; one pass instead of thirty."""
    data = np.frombuffer(html.encode("utf-8", "replace"), np.uint8)
    return dict(zip(NAMES, kernels.counts(data, *_NAME_TABLES).tolist(), strict=True))


def _things(html: str, sign: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """What a pattern that begins with a sign finds in a page; CPython looks for the sign itself three times as fast."""
    at = html.find(sign)
    while at >= 0:
        if found := pattern.match(html, at):
            yield found[1]
        at = html.find(sign, at + len(sign))


def html_features(html: str) -> list[float]:
    """What a page's HTML says of it as a whole: OF_HTML."""
    count_of = counts_of_names(html)
    types = [name for sign, pattern in _SCHEMAS.items() if count_of[sign] for name in _things(html, sign, pattern)]
    return [
        np.log1p(count_of["<img"]),
        count_of["<form"],
        np.log1p(count_of["<li"]),
        np.log1p(count_of["<td"]),
        np.log1p(count_of["<code"] + count_of["<pre"]),
        *(sum(count_of[name] > 0 for name in names) for names in (DOCUMENTATION, FORUMS, SHOPS)),
        *(min(3, types.count(name)) for name in SCHEMAS),
    ]


def url_features(url: str) -> list[float]:
    """What a URL says of its page: OF_URLS."""
    path = url.partition("://")[2].partition("/")[2].partition("?")[0]
    last = path.rstrip("/").rpartition("/")[2]
    kinds = [pattern.search(url) is not None for pattern in _URLS]
    return [*kinds, len(last), last.count("-"), path.count("/"), "?" in url]


def _said(texts: list[str], title: str) -> Floats:
    """What each text says, and how often it stands on the page: OF_TEXTS from "phrase" on."""
    found = np.zeros((5, len(texts)))
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
    before: Counter[str] = Counter()
    for number in np.flatnonzero(all_copies > 1).tolist():
        copies[number] = before[texts[number]]
        before[texts[number]] += 1
    return found


def features_of(blocks: Blocks, html: str, url: str, title: str) -> Features:
    """The features of a page's blocks, of which there must be one."""
    rows, words = kernels.describe(
        np.frombuffer("".join(blocks.texts).encode("utf-8", "replace"), np.uint8),
        np.array(list(map(len, blocks.texts))),
        _KINDS_OF_TAGS,
        _said(blocks.texts, title),
        blocks.element,
        blocks.link_characters,
        blocks.links,
        blocks.bold_characters,
        blocks.parent,
        blocks.depth,
        blocks.tag,
        blocks.children,
        blocks.hints,
        blocks.all_hints,
        blocks.landmarks,
        blocks.unseen,
        blocks.shape,
        blocks.first,
        blocks.last,
        len(HINT_BITS),
        len(LANDMARKS),
        np.array(html_features(html), np.float64),
    )
    return Features(rows, words, url_features(url))
