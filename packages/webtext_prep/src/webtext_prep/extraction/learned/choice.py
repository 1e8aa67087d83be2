"""Main text by a learned choice among a page's blocks, and the kind of page that it is.

Two forests say of each block how likely it belongs to the text: the first looks at each by itself, the second again
with what the first says of the blocks around it and of the page. Which blocks are kept is decided for the page as a
whole, so that the expected F1 of its words is greatest: with right probabilities that is all above half of that F1
(Lipton, Elkan, Naryanaswamy 2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure"). The kind is that whose
forest has the greatest sum; how much greater says how likely it is. A page whose URL nobody knows, as of a file, has
forests of its own for its kind, which have learned without; texts are all found without a URL. All parameters lie in
`parameters.json`, made by `tools/learn_extraction.py` from pages with human-reviewed text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from command_kit import parse_json
from webtext_prep.extraction.html.markup import Markup, written
from webtext_prep.extraction.learned import PARAMETERS
from webtext_prep.extraction.learned import feature_kernels as kernels
from webtext_prep.extraction.learned.blocks import LANDMARKS, NO_HEADING, TAGS, Blocks, blocks_of
from webtext_prep.extraction.learned.features import (
    AROUND_IT,
    OF_URLS,
    PAGE_FEATURES,
    Features,
    Floats,
    features_of,
    sums,
)
from webtext_prep.extraction.learned.forest import Forest
from webtext_prep.extraction.learned.names import HINT_BITS

CAUTION = 1.15
"""The threshold over half of the expected F1: probabilities are somewhat high on pages of sites never seen."""
READS_FORMULAS = re.compile("mathjax|katex", re.IGNORECASE)
"""A program in a page that shows what stands in `\\(...\\)` as a formula."""
DOUBT = 1.5
"""The power of the expected F1 in the threshold: where little is likely, forests are too sure of what is no text."""
LEAST = 0.1
"""No block that is less likely is kept, unless nothing else is."""
HEADED_KINDS = frozenset({"collection", "documentation", "listing", "product", "service"})
"""Kinds of pages that keep their own heading. That of an article or a thread is its title, and people who reviewed
such pages left it out of the text of nine in ten, but not of news: there the forests decide."""
NAMING_KINDS = frozenset({"forum", "listing", "product"})
"""Kinds of pages on which many headings are names of other pages: the forests decide. On others, and where nothing says
the kind, headings belong to the text below them."""
OF_LINKS = frozenset({"collection", "listing"})
"""Kinds of pages whose text may be a list of links, whatever the name of its part."""
LEADING = HINT_BITS["nav"] | HINT_BITS["side"]
MANY_LINKS, SHARE_OF_LINKS = 20, 0.9
"""What a name of a part says that leads through a site or a manual, how many links it has, and of its characters."""
LEAST_SEEN = 1 / 3
"""The share of what the forests take for main text that must be seen; else scripts show the rest in the end."""
NEAR = 3
"""A heading of a lower level than `h1` is the page's own so many blocks above the text."""
NAMED = 3
"""So many levels up the name of a part says that a heading is that of its navigation."""
_SAID_BY_URLS = np.isin(PAGE_FEATURES, OF_URLS)
CONTEXT = (
    "odds",
    *(f"likely {where}" for where in AROUND_IT),
    *(f"likely within {reach}" for reach in kernels.CONTEXT_REACHES),
    *("text before", "likely if alike", "text alike", "likely on the page", "text words"),
    *(f"{what} around {level}" for level in kernels.CONTEXT_LEVELS for what in ("likely", "text")),
    *("in run", "from run", "words from run", "text in run"),
    *(f"{what} text {share}" for share in kernels.CONTEXT_SHARES for what in ("in", "likely in")),
)
"""What is said of a block by how likely it and others are main text."""


@dataclass(frozen=True)
class Parameters:
    """What has been learned.

    Attributes:
        first: the forest that says how likely a block by itself belongs to the main text.
        second: the forest that says so with their context.
        kinds: of each kind of page a forest; the greatest sum wins.
        kinds_without_url: the same for a page without a URL.
    """

    first: Forest
    second: Forest
    kinds: Mapping[str, Forest]
    kinds_without_url: Mapping[str, Forest]

    @classmethod
    def parse(cls, text: str) -> Parameters:
        """From a JSON object: names of `features` and the trees of the `first` forest; names of its `context` and the
        trees of the `second`; names of `page_features`, and of each of `kinds` its trees, and of `kinds_without_url`.
        """
        read = parse_json(text)
        first = Forest.of(read["features"], read["first"])
        kinds, without_url = (
            {kind: Forest.of(read["page_features"], trees) for kind, trees in read[name].items()}
            for name in ("kinds", "kinds_without_url")
        )
        return cls(first, Forest.of([*read["features"], *read["context"]], read["second"]), kinds, without_url)

    def kept(self, blocks: Blocks, features: Features, kind: str, title: str) -> npt.NDArray[np.bool_]:
        """Which blocks of a page of some kind and title are its main text."""
        rows = with_context(blocks, features.rows, features.words, self.first.sums(features.rows))
        kept = chosen(1 / (1 + np.exp(-self.second.sums(rows))), features.words)
        beside = kept.copy()
        for bar in blocks.bars if kind in OF_LINKS else (*blocks.bars, *link_bars(blocks)):
            beside[blocks.first[bar] : blocks.last[bar]] = False
        kept = beside if beside.any() else kept
        if kind in HEADED_KINDS and (heading := own_heading(blocks, kept, title)) is not None:
            kept[heading] = True
        if kind not in NAMING_KINDS:
            kept = kept | section_headings(blocks, kept)
        seen = kept & blocks.seen
        # A page most of whose main text is hidden is shown by its scripts.
        return seen if features.words[seen].sum() >= LEAST_SEEN * features.words[kept].sum() else kept

    def kind(self, features: Features, *, has_url: bool) -> tuple[str, float]:
        """The kind of page, and how likely it is; ("", 0) where none has been learned."""
        values = features.of_page
        forests = self.kinds if has_url else self.kinds_without_url
        if not forests:
            return "", 0.0
        row = values if has_url else without_url(values)
        sums = np.array([forest.sums(row[None])[0] for forest in forests.values()])
        odds = np.exp(sums - sums.max())
        return list(forests)[int(odds.argmax())], float(odds.max() / odds.sum())


@functools.lru_cache(maxsize=1)
def parameters() -> Parameters:
    """The weights that come with this package."""
    return Parameters.parse(PARAMETERS.read_text(encoding="utf-8"))


def without_url(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """PAGE_FEATURES, the last axis of `values`, as they are where nobody knows the pages' URLs."""
    return np.where(_SAID_BY_URLS, np.float32(0), values)


def chosen(probabilities: npt.NDArray[np.float64], words: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which blocks of a page are its main text, by their probabilities and numbers of words."""
    order = np.argsort(-probabilities, kind="stable")
    kept, right = np.cumsum(words[order]), np.cumsum((probabilities * words)[order])
    best = float((2 * right / np.maximum(1e-9, kept + right[-1])).max())
    return np.asarray(probabilities > min(max(LEAST, CAUTION * best**DOUBT / 2), float(probabilities.max()) - 1e-12))


def own_heading(blocks: Blocks, kept: npt.NDArray[np.bool_], title: str) -> int | None:
    """The block that is the page's own heading: above its text the last one of the highest level; None without one.

    That of a list of places in a manual or on its site is not: one below `h1` in a `<nav>`, or near such a name. Nor is
    the site's name: one with which the page's title ends, where it begins with one that follows.
    """
    text = np.flatnonzero(kept & (blocks.levels == NO_HEADING))
    above = blocks.levels[: text[0] if len(text) else 0]
    if not len(above):
        return None
    above = np.where((above > 1) & _navigates(blocks)[: len(above)], NO_HEADING, above)
    if above.min() == NO_HEADING:
        return None
    heading = int(np.flatnonzero(above == above.min())[-1])
    if title.endswith(blocks.texts[heading]):
        below = heading + 1 + np.flatnonzero(above[heading + 1 :] < NO_HEADING)
        heading = next((int(one) for one in below if title.startswith(blocks.texts[one])), heading)
    return heading if above.min() == 1 or len(above) - heading <= NEAR else None


def section_headings(blocks: Blocks, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The headings right above a block that is kept and lies in the same part, but for those above all that is kept."""
    is_heading = blocks.levels < NO_HEADING
    part = blocks.element  # then what holds more than the heading, however deep that lies
    while (alone := (blocks.last[part] - blocks.first[part] == 1) & is_heading & (part > 0)).any():
        part = np.where(alone, blocks.parent[part], part)
    with_next = np.arange(1, len(kept) + 1) < blocks.last[part]
    next_is_kept = np.append(kept[1:], False)
    return np.asarray(is_heading & with_next & next_is_kept & (np.cumsum(kept) > 0))


def link_bars(blocks: Blocks) -> list[int]:
    """The elements whose names say that they lead elsewhere, with many links and hardly another word."""
    leads = ((blocks.hints & LEADING) > 0) | (blocks.tag == TAGS["nav"]) | (blocks.tag == TAGS["aside"])
    of_blocks = (list(map(len, blocks.texts)), blocks.link_characters, blocks.links)
    length, linked, links = (s[blocks.last] - s[blocks.first] for s in (sums(values) for values in of_blocks))
    return list(np.flatnonzero(leads & (links >= MANY_LINKS) & (linked >= SHARE_OF_LINKS * length)))


def _navigates(blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Which blocks lie in a `<nav>`, or at most NAMED levels below an element of such a name."""
    around, hints = blocks.element, blocks.hints[blocks.element]
    for _ in range(NAMED):
        around = blocks.parent[around]
        hints = hints | blocks.hints[around]
    return ((blocks.landmarks[blocks.element] & LANDMARKS["nav"]) | (hints & HINT_BITS["nav"])) > 0


def with_context(blocks: Blocks, rows: npt.NDArray[np.float32], words: Floats, odds: Floats) -> npt.NDArray[np.float32]:
    """The rows of features of a page's blocks, of so many `words`, each with its CONTEXT behind it; `odds` are the
    logarithms of the odds that each is main text.

    Whether a short text beside a list of teasers is the main one, or a part of that list, depends on what the others
    are taken for: those around it, those of its shape, those in the elements that it lies in, and the page as a whole.
    """
    of_elements = (blocks.parent, blocks.depth, blocks.shape, blocks.first, blocks.last)
    return np.asarray(kernels.with_context(rows, words, odds, blocks.element, *of_elements))


def main_text(page: str, url: str, title: str, markup: Markup = "plain") -> tuple[str, str, float, float]:
    """The main text of a page's HTML, its kind, how likely that is, and the share of its characters that is the text;
    ("", "", 0, 0) without any text."""
    blocks = blocks_of(page)
    if blocks is None or not blocks.texts:
        return "", "", 0.0, 0.0
    features = features_of(blocks, page, url, title)
    may_have_formulas = any("\\(" in block or "\\[" in block for block in blocks.texts)
    has_dollars = may_have_formulas and READS_FORMULAS.search(page) is not None
    # A file that nobody knows the URL of has `file:` and its name.
    kind, probability = parameters().kind(features, has_url="://" in url)
    kept = parameters().kept(blocks, features, kind, title)
    text = written(blocks, kept, markup, has_dollars=has_dollars)
    lengths = np.array([len(block) for block in blocks.texts])
    return text, kind, probability, float(lengths[kept].sum() / lengths.sum())
