"""A page cut into blocks: the text between two boundaries of its layout, and the elements that it lies in.

A block is what a reader sees as one piece: a paragraph, a heading, an item of a list, a cell of a table, a label.
Inline elements (links, bold words) are part of it. Elements are numbered in document order, so that what an element
holds is a range of blocks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

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
    is_space_of_ruby,
    shown_again,
    text_of,
    tree_of,
)
from webtext_prep.extraction.learned.names import ALL_HINTS, HIDING, HINT_BITS, ODD, ROLES, bits_of

Integers = npt.NDArray[np.int64]

_TAGS = """
p li h1 h2 h3 h4 h5 h6 td th div span pre blockquote dt dd figcaption section article main button a label tr body header
footer nav aside form table ul ol dl figure caption details summary fieldset address center
"""
TAGS = {tag: number for number, tag in enumerate(_TAGS.split(), start=1)}
"""Numbers of elements by their names; all others are 0."""
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
_TELLING = frozenset(
    {"id", "itemprop", "role", "style", "hidden", "aria-hidden", "popover"}.union(*ATTRIBUTES.values())
)
"""Attributes, but for classes, that say something of an element."""
_MAY_BE_ODD, _SKIPPED, _ANNOTATION, _BLOCK, _INLINE = 1, 2, 4, 8, 16
_ROLES_OF_TAGS = {
    _MAY_BE_ODD: ("math", "script", "pre"),  # a formula or code
    _SKIPPED: SKIPPED,
    _ANNOTATION: ANNOTATIONS,
    _BLOCK: BLOCKS,
    _INLINE: INLINE,
}
_KINDS: dict[str, int] = {}
"""What is asked of a tag while a page is walked, as bits: one question instead of five."""
for _bit, _tags in _ROLES_OF_TAGS.items():
    _KINDS |= {tag: _KINDS.get(tag, 0) | _bit for tag in _tags}
_BREAK = "\x01"
"""Stands for `<br>` while a block is read: pages hold no control characters (`readable`)."""
_PARAGRAPHS = re.compile(r"\n{2,}")


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
_OF_ELEMENTS = ("parent", "depth", "tag", "hints", "all_hints", "landmarks", "unseen", "hidden", "shape", "first")


def _columns(names: Sequence[str], rows: Sequence[tuple[int, ...]]) -> dict[str, Integers]:
    """Rows with a number for each name as an array for each."""
    values = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(names))
    return dict(zip(names, np.ascontiguousarray(values.reshape(-1, len(names)).T), strict=True))


_Line = tuple[list[str], int, int, int]
"""Pieces of a line, and its characters in links, links, and bold characters."""


class _Walk:
    """One pass over a page's tree.

    Attributes:
        elements: of each a row of _OF_ELEMENTS; `lasts` is apart, since it is known later.
        places: of each block a row of _OF_BLOCKS.
        shown: the nodes that are seen in what is hidden.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.code: dict[int, str] = {}
        self.attributes: dict[int, dict[str, str]] = {}
        self.bars: list[int] = []
        self.places: list[tuple[int, ...]] = []
        self.elements: list[tuple[int, ...]] = [(0,) * len(_OF_ELEMENTS)]
        self.lasts = [0]
        self.shapes: dict[tuple[int, str, str], int] = {}
        self.shown: set[Any] = set()
        self.pieces: list[str] = []
        self.link_characters = self.links = self.bold_characters = 0

    def blocks(self) -> Blocks:
        """What has been found."""
        self.lasts[0] = len(self.texts)
        of_elements = _columns(_OF_ELEMENTS, self.elements)
        return Blocks(
            self.texts,
            self.code,
            **_columns(_OF_BLOCKS, self.places),
            **of_elements,
            children=np.bincount(of_elements["parent"][1:], minlength=len(self.elements)),
            last=np.array(self.lasts, np.int64),
            attributes=self.attributes,
            bars=self.bars,
        )

    def end_block(self, element: int, row: int, cell: int, is_pre: bool) -> None:
        """What has been read since the last boundary is a block of `element`, if there is text in it."""
        pieces = self.pieces
        joined = pieces[0] if len(pieces) == 1 else "".join(pieces)
        pieces.clear()
        if joined.isspace():  # most are what stands between two tags
            text = ""
        elif is_pre:
            text = joined.strip("\n").rstrip()
        else:
            text = _lines_of(joined) if _BREAK in joined else " ".join(joined.split())
        if text:
            self.texts.append(text)
            self.places.append((element, row, cell, self.link_characters, self.links, self.bold_characters))
        self.link_characters = self.links = self.bold_characters = 0

    def set_aside(self) -> _Line:
        """What has been read since the last boundary, for a line that goes on behind what is not displayed in it."""
        line = (self.pieces.copy(), self.link_characters, self.links, self.bold_characters)
        self.pieces.clear()
        self.link_characters = self.links = self.bold_characters = 0
        return line

    def end_element(self, number: int, line: _Line | None) -> None:
        """All of an element has been read; a line that was set aside for it goes on."""
        self.lasts[number] = len(self.texts)
        if line is not None:
            self.pieces[:], self.link_characters, self.links, self.bold_characters = line

    def begin_element(
        self, node: Any, tag: str, attributes: dict[str, str], classes: str | None, bits: int, parent: int
    ) -> int:
        """The number of a new element, whose classes say these `bits`."""
        _, depth, _, _, all_hints, landmarks, unseen, hidden, shape, _ = self.elements[parent]
        number = len(self.elements)
        hints, may_hide = bits & ALL_HINTS, bits & HIDING != 0 or tag in SHUT
        if not _TELLING.isdisjoint(attributes):
            for name in ("id", "itemprop"):
                if name in attributes:
                    hints |= bits_of(attributes[name]) & ALL_HINTS
            role = attributes.get("role")
            if role in ROLES:
                hints |= HINT_BITS[ROLES[role]]
            is_shut = (
                ("style" in attributes and hidden_by_style(attributes["style"]) == ALL)
                or "hidden" in attributes
                or attributes.get("aria-hidden") == "true"
            )
            unseen = unseen or int(is_shut)
            may_hide = may_hide or is_shut or "popover" in attributes
            if tag in ATTRIBUTES:
                placing = {name: attributes[name] for name in ATTRIBUTES[tag] if name in attributes}
                if placing:
                    self.attributes[number] = placing
        if self.shown and node in self.shown:
            hidden = unseen = 0
        elif may_hide and not hidden and is_hidden(node, tag, attributes, classes):
            hidden = number
            self.shown.update(shown_again(node))
        shape = self.shapes.setdefault((shape, tag, classes or ""), len(self.shapes) + 1)
        landmarks |= LANDMARKS.get(tag, 0)
        all_hints |= hints
        self.elements.append(
            (parent, depth + 1, TAGS.get(tag, 0), hints, all_hints, landmarks, unseen, hidden, shape, len(self.texts))
        )
        self.lasts.append(0)
        return number

    def read(self, text: str, in_link: bool, is_bold: bool) -> None:
        """Text of the block at hand."""
        self.pieces.append(text)
        if in_link or is_bold:
            self.count(text, in_link, is_bold)

    def end_line(self) -> None:
        """Text of the block at hand, if there is some, ends its line."""
        if next((piece for piece in reversed(self.pieces) if not piece.isspace()), _BREAK) != _BREAK:
            self.pieces.append(_BREAK)

    def count(self, text: str, in_link: bool, is_bold: bool) -> None:
        """Text of the block at hand that is a link's or bold."""
        length = len(text.strip())
        self.link_characters += length if in_link else 0
        self.bold_characters += length if is_bold else 0

    def read_code(self, node: Any, element: int, row: int, cell: int) -> None:
        """A piece of code, which is a block of its own."""
        self.pieces.append(code_of(node))
        links = list(node.iter("a"))
        self.links = len(links)
        self.link_characters = sum(len(text_of(link)) for link in links)
        before = len(self.texts)
        self.end_block(element, row, cell, True)
        if len(self.texts) > before:
            self.code[before] = language_of(node)

    def visit(self, node: Any, element: int, row: int, cell: int, in_link: bool, is_pre: bool, is_bold: bool) -> None:
        """All that lies in a node. It nests no deeper than libxml2 reads, 256 levels."""
        tag = node.tag
        kind = _KINDS.get(tag, 0)
        attributes = dict(node.items())  # takes as long as its keys, and as one attribute that is asked for
        classes = attributes.get("class")
        bits = 0 if classes is None else bits_of(classes)
        may_matter = bits & ODD or kind & _MAY_BE_ODD
        if may_matter:
            formula = formula_of(node, tag)
            if formula is not None:
                self.read(formula, in_link, is_bold)
                return
            if bits & ODD and is_line_numbers(node):
                return
        if kind & _SKIPPED or (classes == SHORT_COMMENT and is_repeated(node)):
            return
        if kind & _ANNOTATION and is_annotation(node):
            for base in node.iterchildren("rb"):  # left open, it holds the next one
                self.visit(base, element, row, cell, in_link, is_pre, is_bold)
            return
        pieces = self.pieces
        style = attributes.get("style")
        may_hide = style is not None or "hidden" in attributes
        if may_hide and is_search(node) and is_hidden(node, tag, attributes, classes):
            return
        if kind & _BLOCK:
            is_block = style is None or not (is_in_line(style) and is_inline(node))
        else:
            is_block = not (kind & _INLINE or is_inline(node))
        is_block = is_block or (len(self.shown) > 0 and node in self.shown)
        here, inner_row, inner_cell, inner_pre = element, row, cell, is_pre
        line = None
        if is_block:
            if pieces and is_not_displayed(node, tag, attributes, classes):
                line = self.set_aside()
            elif pieces:
                self.end_block(element, row, cell, is_pre)
            here = self.begin_element(node, tag, attributes, classes, bits, element)
            if tag == "tr":
                inner_row, inner_cell = here, -1
            elif tag in ("td", "th"):
                inner_cell = here
            if may_matter and is_code(node, tag):
                self.read_code(node, here, inner_row, inner_cell)
                self.end_element(here, line)
                return
            inner_pre = is_pre or tag == "pre"
        elif (bits & HIDING or style is not None or "hidden" in attributes or not kind & _INLINE) and is_hidden(
            node, tag, attributes, classes
        ):
            for part in shown_again(node):
                self.visit(part, element, row, cell, in_link, is_pre, is_bold)
            return
        elif tag == "a":
            if is_permalink(node, classes):
                return
            in_link = True
            self.links += 1
        elif tag == "br":
            pieces.append("\n" if is_pre else _BREAK)
        elif tag in ("b", "strong"):
            is_bold = True
        elif classes == "sep" and is_empty(node):  # a style sheet parts words there, in manuals by gi-docgen a dot
            pieces.append(" ")
        stands_apart = style is not None and not is_block and not is_pre and has_own_lines(style)
        if stands_apart:
            self.end_line()
        in_ruby = tag == "ruby"
        text = node.text
        if text and not (in_ruby and text.isspace()):
            pieces.append(text)
            if in_link or is_bold:
                self.count(text, in_link, is_bold)
        for child in node[:]:  # all at once takes half the time of one after the other
            self.visit(child, here, inner_row, inner_cell, in_link, inner_pre, is_bold)
            text = child.tail
            if text and not (in_ruby and text.isspace() and is_space_of_ruby(child)):
                pieces.append(text)
                if in_link or is_bold:
                    self.count(text, in_link, is_bold)
        if stands_apart:
            self.end_line()
        if is_block:
            if pieces:
                self.end_block(here, inner_row, inner_cell, inner_pre)
            self.end_element(here, line)
            is_opener = tag == "summary" and classes == "hideme"  # hides itself when it has opened
            if is_opener or classes in NAVIGATION or attributes.get("id") in NAVIGATION:
                self.bars.append(here)


def _lines_of(text: str) -> str:
    """A text with single spaces, and a newline for each break of its lines, two for several."""
    lines = [" ".join(line.split()) for line in text.split(_BREAK)]
    return _PARAGRAPHS.sub("\n\n", "\n".join(lines).strip())


def blocks_of(page: str) -> Blocks | None:
    """The blocks of a page's HTML; None where there is no element in it."""
    tree = tree_of(page)
    if tree is None:
        return None
    body = tree.find("body")
    walk = _Walk()
    walk.visit(tree if body is None else body, 0, -1, -1, False, False, False)
    return walk.blocks()
