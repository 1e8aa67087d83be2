"""The kept blocks of a page as a text: plain lines, or Markdown.

Tables of data are kept as a whole or in part as their blocks are; a row is a line, its cells stand between bars. Tables
that only place things on a page are none: one with another table in it, a heading, one column, or a cell of many words.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

from webtext_prep.extraction.blocks import TAGS, Blocks
from webtext_prep.extraction.formulas import with_dollars

Markup = Literal["plain", "markdown"]
"""How a text is written."""
Kept = npt.NDArray[np.bool_]

CELL_WORDS = 60
"""A cell with more words is a part of a layout."""
CELL_BLOCKS = 6
"""So is one with more blocks."""
MOST_KEPT = 0.5
"""A table of which this share of its characters is kept is kept as a whole."""
_NAMES = {number: tag for tag, number in TAGS.items()}
_TABLE, _LIST_ITEM, _QUOTE, _HEADER = TAGS["table"], TAGS["li"], TAGS["blockquote"], TAGS["th"]
_LISTS = (TAGS["ul"], TAGS["ol"])
_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
"""Within a paragraph; a backslash makes it a hard one (CommonMark 0.31.2, 6.7)."""
_HEADINGS = {TAGS[f"h{level}"]: level for level in range(1, 7)}


class Tables:
    """The tables of data of a page.

    Attributes:
        of: the table (its element) of each block, -1 where it lies in none.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.of = np.full(len(blocks.texts), -1)
        tables: dict[int, list[int]] = {}
        for number in np.flatnonzero(blocks.row >= 0):
            tables.setdefault(_above(blocks, int(blocks.row[number]), (_TABLE,)), []).append(int(number))
        for table, members in tables.items():
            if table and _is_data(blocks, table, members):
                self.of[members] = table

    def completed(self, blocks: Blocks, kept: Kept) -> Kept:
        """`kept`, and all of each table of which most is kept."""
        lengths = np.array([len(text) for text in blocks.texts])
        found = kept.copy()
        for table in np.unique(self.of[(self.of >= 0) & kept]):
            inside = (self.of == table) & blocks.seen
            if lengths[inside & kept].sum() >= MOST_KEPT * lengths[inside].sum():
                found |= inside
        return found


def _above(blocks: Blocks, element: int, tags: tuple[int, ...]) -> int:
    """The innermost of an element and those it lies in that has one of the tags; 0 where none has."""
    while element and blocks.tag[element] not in tags:
        element = int(blocks.parent[element])
    return element


def _is_data(blocks: Blocks, table: int, members: list[int]) -> bool:
    """Whether a table holds data, given the blocks in its rows."""
    if len(members) < blocks.last[table] - blocks.first[table]:
        return False  # another table lies in it, or text beside its rows
    cells: dict[int, tuple[int, int]] = {}
    for number in members:
        if blocks.cell[number] < 0 or number in blocks.code or blocks.tag[blocks.element[number]] in _HEADINGS:
            return False
        count, words = cells.get(int(blocks.cell[number]), (0, 0))
        cells[int(blocks.cell[number])] = count + 1, words + len(blocks.texts[number].split())
    rows = blocks.row[members]
    columns = max(
        len({int(blocks.cell[number]) for number in group})
        for _, group in groupby(members, lambda number: blocks.row[number])
    )
    return (
        columns > 1
        and len(set(rows.tolist())) > 1
        and all(count <= CELL_BLOCKS and words <= CELL_WORDS for count, words in cells.values())
    )


def written(blocks: Blocks, kept: Kept, markup: Markup = "plain", *, has_dollars: bool = False) -> str:
    """The text of a page.

    Args:
        blocks: of the page.
        kept: (blocks,), which of them are its text.
        markup: how it is written.
        has_dollars: whether what stands in `\\(...\\)` is a formula.
    """
    tables = Tables(blocks)
    kept = tables.completed(blocks, kept)
    texts = [with_dollars(text) if has_dollars and number not in blocks.code else text
             for number, text in enumerate(blocks.texts)]  # fmt: skip
    parts: list[tuple[str, int]] = []
    for (table, row), group in groupby(
        np.flatnonzero(kept).tolist(),
        lambda number: (int(tables.of[number]), int(blocks.row[number]) if tables.of[number] >= 0 else -number - 1),
    ):
        members = list(group)
        if table >= 0:
            parts.append(
                (_row(blocks, texts, members, row, markup, is_first=not parts or parts[-1][1] != table), table)
            )
        else:
            parts.append(
                (texts[members[0]] if markup == "plain" else _block(blocks, texts, members[0]), -1 - members[0])
            )
    if markup == "plain":
        return "\n".join(text for text, _ in parts)
    return _joined(blocks, parts)


def _row(blocks: Blocks, texts: list[str], members: list[int], row: int, markup: Markup, *, is_first: bool) -> str:
    """A row of a table: its cells between bars; in Markdown with empty cells, and a line below the first."""
    cells = {
        cell: " ".join(word for number in group for word in texts[number].split())
        for cell, group in groupby(members, lambda number: int(blocks.cell[number]))
    }
    if markup == "plain":
        return " | ".join(cells.values())
    places = np.flatnonzero(blocks.parent == row)
    line = "| " + " | ".join(cells.get(int(place), "").replace("|", "\\|") for place in places) + " |"
    return f"{line}\n{'|---' * len(places)}|" if is_first else line


def _block(blocks: Blocks, texts: list[str], number: int) -> str:
    """A block in Markdown."""
    element, text = int(blocks.element[number]), texts[number]
    if number in blocks.code:
        fence = "```"
        while fence in text:
            fence += "`"
        text = f"{fence}{blocks.code[number]}\n{text}\n{fence}"
    else:
        text = _LINE_BREAK.sub("\\\\\n", text)
    heading = _above(blocks, element, tuple(_HEADINGS))
    if heading:
        return f"{'#' * _HEADINGS[int(blocks.tag[heading])]} {' '.join(texts[number].split())}"
    item = _above(blocks, element, (_LIST_ITEM,))
    if item:
        text = _item(blocks, item, text, is_first=number == blocks.first[item])
    if _above(blocks, element, (_QUOTE,)):
        text = "\n".join(f"> {line}" for line in text.split("\n"))
    return text


def _item(blocks: Blocks, item: int, text: str, *, is_first: bool) -> str:
    """The text of an item of a list, behind its mark and as far to the right as its list lies deep."""
    around = _above(blocks, int(blocks.parent[item]), _LISTS)
    mark = "- "
    if around and _NAMES.get(int(blocks.tag[around])) == "ol":
        siblings = np.flatnonzero((blocks.parent == blocks.parent[item]) & (blocks.tag == _LIST_ITEM))
        mark = f"{int(np.searchsorted(siblings, item)) + 1}. "
    depth, outer = 0, around
    while outer:
        outer = _above(blocks, int(blocks.parent[outer]), _LISTS)
        depth += outer > 0
    indent = "   " * depth
    first, rest = (mark, " " * len(mark)) if is_first else (" " * len(mark),) * 2
    lines = text.split("\n")
    return "\n".join([f"{indent}{first}{lines[0]}", *(f"{indent}{rest}{line}" for line in lines[1:])])


def _joined(blocks: Blocks, parts: list[tuple[str, int]]) -> str:
    """Parts in Markdown: rows of a table and items of a list follow each other, between others is an empty line."""
    lines: list[str] = []
    for at, (text, kind) in enumerate(parts):
        before = parts[at - 1][1] if at else None
        is_close = kind >= 0 and before == kind
        if before is not None and kind < 0 and before < 0:
            items = [_above(blocks, int(blocks.element[-1 - number]), (_LIST_ITEM,)) for number in (before, kind)]
            is_close = all(items)
        lines.append(text if not at or is_close else f"\n{text}")
    return "\n".join(lines)
