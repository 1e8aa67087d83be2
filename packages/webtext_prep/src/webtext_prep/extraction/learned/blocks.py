"""A page cut into blocks: the text between two boundaries of its layout, and the elements that it lies in.

A block is what a reader sees as one piece: a paragraph, a heading, an item of a list, a cell of a table, a label.
Inline elements (links, bold words) are part of it. Elements are numbered in document order, so that what an element
holds is a range of blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from lxml import etree  # type: ignore[import-untyped]

from webtext_prep.extraction.html.code_text import code_of, is_code, is_line_numbers, language_of
from webtext_prep.extraction.html.formulas import formula_of
from webtext_prep.extraction.html.page_tree import (
    ALL,
    ANNOTATIONS,
    BLOCKS,
    INLINE,
    LEAST_SHOWN,
    NAVIGATION,
    SHORT_COMMENT,
    SHUT,
    SKIPPED,
    has_own_lines,
    hidden_by_style,
    is_annotation,
    is_empty,
    is_hidden,
    is_in_line,
    is_inline,
    is_not_displayed,
    is_permalink,
    is_repeated,
    is_search,
    may_hide,
    shown_again,
    text_of,
    tree_of,
)
from webtext_prep.extraction.learned import page_kernels as kernels
from webtext_prep.extraction.learned.names import ALL_HINTS, BITS, HIDING, HINT_BITS, MOVES, ODD, ROLES, bits_of

Integers = npt.NDArray[np.int64]

_TAGS = """
p li h1 h2 h3 h4 h5 h6 td th div span pre blockquote dt dd figcaption section article main button a label tr body header
footer nav aside form table ul ol dl figure caption details summary fieldset address center
"""
TAGS = {tag: number for number, tag in enumerate(_TAGS.split(), start=1)}
"""Numbers of elements by their names; all others are 0."""
NO_HEADING = 7
LEVELS = np.full(len(TAGS) + 1, NO_HEADING)
"""Of each number the level of a heading, or NO_HEADING."""
LEVELS[[TAGS[f"h{level}"] for level in range(1, NO_HEADING)]] = range(1, NO_HEADING)
_LANDMARKS = """
noscript template nav header footer aside main article form table li figure button blockquote pre dl section details a
ul
"""
LANDMARKS = {name: 1 << bit for bit, name in enumerate(_LANDMARKS.split())}
"""A bit for each element that says what lies in it."""
ATTRIBUTES = {
    "ol": ("start", "reversed"),
    "li": ("value",),
    "td": ("colspan", "rowspan"),
    "th": ("colspan", "rowspan"),
}
"""By element, the attributes that say where on a page something stands: its number in a list, its columns and rows."""
_KINDS: dict[str, int] = {}
"""What a name of an element says, as bits."""
for _bit, _tags in {
    kernels.SKIPPED: SKIPPED,
    kernels.ANNOTATION: ANNOTATIONS,
    kernels.BLOCK: BLOCKS,
    kernels.INLINE: INLINE,
    kernels.TELLING: {"math", "pre", *SHUT, *ANNOTATIONS},
    kernels.A: {"a"},
    kernels.BR: {"br"},
    kernels.BOLD: {"b", "strong"},
    kernels.RUBY: {"ruby"},
    kernels.ROW: {"tr"},
    kernels.CELL: {"td", "th"},
    kernels.PRE: {"pre"},
    kernels.PLACED: ATTRIBUTES,
}.items():
    for _tag in _tags:
        _KINDS[_tag] = _KINDS.get(_tag, 0) | _bit
_MAY_BE_ODD = frozenset({"math", "script", "pre"})
"""A formula or code."""
_SPACE, _OPENER = "sep", "hideme"


@dataclass
class Blocks:
    """The blocks of a page, and its elements but for inline ones, in document order. Element 0 holds them all.

    Attributes:
        texts: each block's text; its white space is single spaces, but in code. A `<br>` ends a line, several of them
            a paragraph: between these is an empty line.
        code: of each block that is code its language, or "".
        element: of each block the element that it lies in directly.
        row, cell: of each block the row of a table that it lies in, and the cell, or -1.
        link_characters, links, bold_characters: of each block.
        parent, depth, tag, children: of each element its parent (of element 0 itself), and what they say.
        hints, all_hints: bits of HINTS in an element's own names, and in the names of all that it lies in, too.
        landmarks: bits of LANDMARKS, its own and of all that it lies in.
        unseen: 1 where attributes hide it or what it lies in.
        hidden: where a page shows nobody what lies in it, the outermost such element; else 0.
        shape: a number for its tag and class, and for all that it lies in: equal ones have the same.
        first, last: the blocks in it are `first` up to `last`.
        attributes: of each element that has some of ATTRIBUTES, those.
        bars: the elements whose class or id is in NAVIGATION, and signs that only open what is read.
    """

    texts: list[str]
    code: dict[int, str]
    element: Integers
    row: Integers
    cell: Integers
    link_characters: Integers
    links: Integers
    bold_characters: Integers
    parent: Integers
    depth: Integers
    tag: Integers
    children: Integers
    hints: Integers
    all_hints: Integers
    landmarks: Integers
    unseen: Integers
    hidden: Integers
    shape: Integers
    first: Integers
    last: Integers
    attributes: dict[int, dict[str, str]]
    bars: list[int]

    @functools.cached_property
    def levels(self) -> Integers:
        """Of each block the level of the heading that it is, or NO_HEADING."""
        return np.asarray(LEVELS[self.tag[self.element]])

    @functools.cached_property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Which blocks a reader sees.

        What is hidden and has more characters than all that is seen, and LEAST_SHOWN, is what scripts show in the end.
        """
        hidden = self.hidden[self.element]
        lengths = np.array([len(text) for text in self.texts])
        of_each = np.bincount(hidden, lengths, len(self.parent))
        shown = of_each > max(LEAST_SHOWN, of_each[0])
        shown[0] = True
        return np.asarray(shown[hidden])


_OF_BLOCKS = ("element", "row", "cell", "link_characters", "links", "bold_characters")
_OF_ELEMENTS = (
    *("parent", "depth", "tag", "hints", "all_hints", "landmarks", "unseen", "hidden", "shape", "first", "last"),
)
_ATTRIBUTES_READ = {
    "class": kernels.CLASS,
    "id": kernels.ID,
    "itemprop": kernels.ITEMPROP,
    "role": kernels.ROLE,
    "style": kernels.STYLE,
    "hidden": kernels.HIDES,
    "popover": kernels.HIDES,
    "aria-hidden": kernels.ARIA_HIDDEN,
    "href": kernels.HREF,
    "type": kernels.TYPE,
    **dict.fromkeys(chain.from_iterable(ATTRIBUTES.values()), kernels.PLACE),
}
_NAMES_ASKED = frozenset({SHORT_COMMENT, _SPACE, _OPENER, *NAVIGATION})
_WORDS = sorted({*_KINDS, *TAGS, *LANDMARKS, *_ATTRIBUTES_READ, *_NAMES_ASKED, *ROLES})
_MEANINGS = np.array(
    [(0,) * 6]
    + [
        (
            _KINDS.get(word, 0),
            TAGS.get(word, 0),
            LANDMARKS.get(word, 0),
            _ATTRIBUTES_READ.get(word, 0),
            int(word in _NAMES_ASKED),
            HINT_BITS[ROLES[word]] if word in ROLES else 0,
        )
        for word in _WORDS
    ]
)
_WORD_TABLES = kernels.word_tables(_WORDS)


@functools.lru_cache(maxsize=50_000)
def _tells(style: str) -> bool:
    """Whether a `style` attribute alone makes anything of an element."""
    return hidden_by_style(style) != "" or is_in_line(style) or has_own_lines(style)


class _Answers:
    """What is known of a page's elements that its rows of numbers alone do not say.

    Attributes:
        rows: of the elements, in which BITS and WAYS are completed.
        table: (elements, 5), the columns of `page_kernels`.
        written: the bytes of what stands for elements: formulas and code.
        languages: of each element that is code.
        attributes: of each element that has some of ATTRIBUTES, those.
        bars: the elements that are bars.
    """

    def __init__(self, root: Any, rows: Integers, begin: int) -> None:
        self.rows, self.begin = rows, begin
        self.nodes: list[Any] = list(root.iter())
        self.table = np.zeros((len(rows), 5), np.int64)
        self.table[:, kernels.OWNER] = -1
        self.written = bytearray()
        self.languages: dict[int, str] = {}
        self.attributes: dict[int, dict[str, str]] = {}
        self.bars: list[int] = []
        self.passed = 0
        asked = np.flatnonzero(rows[:, kernels.ASKS])
        columns = rows[asked][:, (kernels.ASKS, kernels.KIND, kernels.BITS)].tolist()
        for number, (asks, kind, bits) in zip(asked.tolist(), columns, strict=True):
            if self.table[number, kernels.OWNER] >= 0:  # seen in what is passed
                self.passed = 0
            if number >= self.passed:
                node = self.nodes[number]
                if asks != kernels.STYLED or _tells(node.get("style")):
                    rows[number, kernels.WAYS] |= self.ways_of(number, node, kind, self.bits(number, node, asks, bits))

    @functools.cached_property
    def numbers(self) -> dict[Any, int]:
        """The number of each node."""
        return {node: number for number, node in enumerate(self.nodes)}

    def write(self, number: int, text: str) -> None:
        """Let a text stand for an element."""
        self.pass_by(number)
        begin = self.begin + len(self.written)
        self.written += escape(text, quote=False).encode("utf-8", "replace")
        self.table[number, kernels.WRITTEN : kernels.WRITTEN_END + 1] = begin, self.begin + len(self.written)

    def pass_by(self, number: int) -> int:
        """The ways of an element of which nothing counts; what lies in it is not asked."""
        self.passed = int(self.rows[number, kernels.END])
        return kernels.PASSED

    def show(self, number: int, parts: Iterable[Any]) -> bool:
        """Whether there are parts that are seen in an element that is passed or hidden."""
        found = [self.numbers[part] for part in parts]
        for part in found:
            if self.table[part, kernels.OWNER] < 0:
                self.table[part, kernels.OWNER] = number
        return bool(found)

    def bits(self, number: int, node: Any, asks: int, bits: int) -> int:
        """What the names of an element say, given what could be read of them."""
        found = bits
        if asks & kernels.UNREAD:
            found |= bits_of(node.get("class", ""))
            for name in ("id", "itemprop"):
                found |= bits_of(node.get(name, "")) & ALL_HINTS
        if found & HIDING and not may_hide(node.get("class", "")):
            found &= ~HIDING
        if found != bits:
            self.rows[number, kernels.BITS] = found
        return found

    def ways_of(self, number: int, node: Any, kind: int, bits: int) -> int:
        """The ways of an element, by its kind and the bits of its names."""
        tag, attributes = node.tag, dict(node.items())
        classes, style = attributes.get("class"), attributes.get("style")
        may_matter = bits & ODD or tag in _MAY_BE_ODD
        if may_matter:
            formula = formula_of(node, tag)
            if formula is not None:
                self.write(number, formula)
                return kernels.REPLACED
            if bits & ODD and is_line_numbers(node):
                return self.pass_by(number)
        if kind & kernels.SKIPPED or (classes == SHORT_COMMENT and is_repeated(node)):
            return self.pass_by(number)
        if kind & kernels.ANNOTATION and is_annotation(node):
            if self.show(number, node.iterchildren("rb")):  # left open, it holds the next one
                self.table[number, kernels.WRITTEN] = -1
                return kernels.PASSED
            return self.pass_by(number)
        is_hiding = style is not None or "hidden" in attributes
        may_be = is_hiding or bits & HIDING or tag in SHUT or "popover" in attributes or "aria-hidden" in attributes
        is_off = bool(may_be) and is_hidden(node, tag, attributes, classes)
        if is_off and is_hiding and is_search(node):
            return self.pass_by(number)
        ways = 0
        if (
            (style is not None and is_in_line(style)) if kind & kernels.BLOCK else not kind & kernels.INLINE
        ) and is_inline(node):
            ways |= kernels.IN_LINE
        is_block = not (kind & kernels.INLINE or ways)
        if tag in ATTRIBUTES:
            placing = {name: attributes[name] for name in ATTRIBUTES[tag] if name in attributes}
            if placing:
                self.attributes[number] = placing
        if style is not None:
            ways |= kernels.APART if has_own_lines(style) else 0
            ways |= kernels.UNSEEN if hidden_by_style(style) == ALL else 0
        if is_off:
            ways |= kernels.HIDDEN
            if is_not_displayed(node, tag, attributes, classes):
                ways |= kernels.NOT_DISPLAYED
            if self.show(number, shown_again(node)) and not is_block:
                self.table[number, kernels.WRITTEN] = -1
        if may_matter and is_block and is_code(node, tag):
            self.write(number, code_of(node))
            links = list(node.iter("a"))
            characters = sum(len(text_of(link)) for link in links)
            self.table[number, kernels.LINKS : kernels.LINK_CHARACTERS + 1] = len(links), characters
            self.languages[number] = language_of(node)
            return ways | kernels.CODE
        if tag == "a" and is_permalink(node, classes):
            ways |= kernels.PERMALINK
        elif classes == _SPACE and is_empty(node):  # a style sheet parts words there, in manuals by gi-docgen a dot
            ways |= kernels.SPACE
        is_opener = tag == "summary" and classes == _OPENER  # hides itself when it has opened
        if is_opener or classes in NAVIGATION or attributes.get("id") in NAVIGATION:
            self.bars.append(number)
        return ways


def blocks_of(page: str) -> Blocks | None:
    """The blocks of a page's HTML; None where there is no element in it."""
    tree = tree_of(page)
    if tree is None:
        return None
    tree.getroottree().docinfo.clear()  # a document type of XHTML has attributes written that are not there
    body = tree.find("body")
    root = tree if body is None else body
    source = etree.tostring(root, encoding="utf-8", with_tail=False)
    data = np.frombuffer(source, np.uint8)
    rows = kernels.read_tags(data, *_WORD_TABLES, _MEANINGS, MOVES, BITS, ALL_HINTS, ODD | HIDING, source.count(b"<"))
    answers = _Answers(root, rows, len(source))
    data = np.frombuffer(source + answers.written, np.uint8)
    out, places, elements, element_of = kernels.cut(data, rows, answers.table, len(source), _MEANINGS, ALL_HINTS)
    texts = out.tobytes().decode("utf-8", "replace").split("\0")[:-1]
    columns = dict(zip(_OF_BLOCKS, np.ascontiguousarray(places.T), strict=True))
    columns |= dict(zip(_OF_ELEMENTS, np.ascontiguousarray(elements.T), strict=True))
    first, last = columns["first"], columns["last"]
    numbered = [(int(element_of[node]), language) for node, language in answers.languages.items()]
    return Blocks(
        texts,
        {int(first[at]): language for at, language in numbered if at >= 0 and first[at] < last[at]},
        **columns,
        children=np.bincount(columns["parent"][1:], minlength=len(elements)),
        attributes={
            int(element_of[node]): placing for node, placing in answers.attributes.items() if element_of[node] >= 0
        },
        bars=[int(element_of[node]) for node in answers.bars if element_of[node] >= 0],
    )
