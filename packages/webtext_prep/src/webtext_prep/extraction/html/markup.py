"""The kept blocks of a page as a text: plain lines, or Markdown.

Of tables of data each row is kept as a whole or not at all; it is a line, its cells stand between bars. Tables that
only place things on a page are none: one with another table in it, a heading beside others, one column, or a cell of
many words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

from webtext_prep.extraction.html import markdown
from webtext_prep.extraction.html.formulas import with_dollars
from webtext_prep.extraction.html.markdown import Container, MarkdownWriter
from webtext_prep.extraction.learned.blocks import NO_HEADING, TAGS, Blocks

Markup = Literal["plain", "markdown"]
"""How a text is written."""
Kept = npt.NDArray[np.bool_]

CELL_WORDS = 60
"""A cell with more words is a part of a layout."""
CELL_BLOCKS = 6
"""So is one with more blocks."""
MOST_COLUMNS, MOST_ROWS = 1000, 65534
"""A cell takes no more of them, whatever it says (HTML standard, 4.9.11)."""
_TABLE, _ROW, _LIST_ITEM, _QUOTE, _ORDERED = (TAGS[tag] for tag in ("table", "tr", "li", "blockquote", "ol"))
_CAPTION = TAGS["caption"]
_TERM, _DEFINITION = TAGS["dt"], TAGS["dd"]
_CELLS = (TAGS["td"], TAGS["th"])
_LISTS = (TAGS["ul"], _ORDERED)
_INTEGER = re.compile(r"[ \t\n\f\r]*([+-]?[0-9]{1,18})")
_HEADINGS = {TAGS[f"h{level}"]: level for level in range(1, 7)}


class Tables:
    """The tables of data of a page.

    Attributes:
        of: the table (its element) of each block, -1 where it lies in none.
        columns: of a table the column of each cell.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.columns = functools.cache(functools.partial(columns_of, blocks))
        self.of = np.full(len(blocks.texts), -1)
        tables: dict[int, list[int]] = {}
        in_rows = blocks.row[blocks.row >= 0]
        alone = np.bincount(in_rows, minlength=len(blocks.parent))[blocks.row] == 1
        heads = (blocks.levels < NO_HEADING) & alone  # each parts the table that it lies in
        for number in np.flatnonzero(blocks.row >= 0):
            tables.setdefault(_above(blocks, int(blocks.row[number]), (_TABLE,)), []).append(int(number))
        for table, within in tables.items():
            members = [number for number in within if not heads[number]]
            if table and members and _is_data(blocks, table, members, len(within) - len(members)):
                self.of[members] = table

    def completed(self, blocks: Blocks, kept: Kept) -> Kept:
        """`kept`, and all of each row of which anything is."""
        in_tables = (self.of >= 0) & blocks.seen
        return kept | (in_tables & np.isin(blocks.row, blocks.row[in_tables & kept]))


def _above(blocks: Blocks, element: int, tags: tuple[int, ...]) -> int:
    """The innermost of an element and those it lies in that has one of the tags; 0 where none has."""
    while element and blocks.tag[element] not in tags:
        element = int(blocks.parent[element])
    return element


def _is_data(blocks: Blocks, table: int, members: list[int], heads: int) -> bool:
    """Whether a table holds data, given the blocks in its rows, and how many headings have a row each."""
    beside = int(blocks.last[table] - blocks.first[table]) - len(members) - heads
    if beside and beside != _in_captions(blocks, table):
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


def _in_captions(blocks: Blocks, table: int) -> int:
    """The number of blocks in a table's captions."""
    captions = [one for one in elements_in(blocks, table) if blocks.tag[one] == _CAPTION]
    return sum(int(blocks.last[one] - blocks.first[one]) for one in captions)


def written(blocks: Blocks, kept: Kept, markup: Markup = "plain", *, has_dollars: bool = False) -> str:
    """The text of a page.

    Args:
        blocks: of the page.
        kept: (blocks,), which of them are its text.
        markup: how it is written.
        has_dollars: whether what stands in `\\(...\\)` is a formula.
    """
    tables = Tables(blocks)
    kept = with_definitions(blocks, tables.completed(blocks, kept))
    texts = [with_dollars(text) if has_dollars and number not in blocks.code else text
             for number, text in enumerate(blocks.texts)]  # fmt: skip
    numbers = np.flatnonzero(kept).tolist()
    return _plain(blocks, texts, tables, numbers) if markup == "plain" else _markdown(blocks, texts, tables, numbers)


def with_definitions(blocks: Blocks, kept: Kept) -> Kept:
    """`kept`, and the terms of what is kept of their definitions, or else the definitions of terms that are kept."""
    groups: dict[int, list[list[int]]] = {}
    for element in np.flatnonzero((blocks.tag == _TERM) | (blocks.tag == _DEFINITION)).tolist():
        of_list = groups.setdefault(int(blocks.parent[element]), [])
        if not of_list or (blocks.tag[element] == _TERM and blocks.tag[of_list[-1][-1]] == _DEFINITION):
            of_list.append([])
        of_list[-1].append(element)
    found = kept.copy()
    for group in chain.from_iterable(groups.values()):
        sides = [
            [at for one in group if blocks.tag[one] == tag for at in range(blocks.first[one], blocks.last[one])]
            for tag in (_TERM, _DEFINITION)
        ]
        for side, other in (sides, sides[::-1]):
            if kept[side].any() and not kept[other].any():
                found[other] = blocks.seen[other]
    return found


def _plain(blocks: Blocks, texts: list[str], tables: Tables, numbers: list[int]) -> str:
    """Blocks as lines, a row of a table as one; a cell without text leaves its place between bars."""
    lines = []
    for table, members in _parts(tables, numbers):
        if table < 0:
            lines.append(texts[members[0]])
        for row in _rows(blocks, texts, tables, members) if table >= 0 else ():
            lines.append(" |".join(f" {row[at]}" if at in row else "" for at in range(max(row) + 1)).strip())
    return "\n".join(lines)


def _parts(tables: Tables, numbers: list[int]) -> Iterator[tuple[int, list[int]]]:
    """The blocks of each table with its number, and each other block by itself, with -1."""
    for (table, _), group in groupby(
        numbers, lambda number: (int(tables.of[number]), -1 if tables.of[number] >= 0 else number)
    ):
        yield table, list(group)


def _rows(blocks: Blocks, texts: list[str], tables: Tables, numbers: list[int]) -> list[dict[int, str]]:
    """Of each row of a table the texts by column, without columns that only hold others apart."""
    rows = [_cells(blocks, texts, row) for _, row in groupby(numbers, lambda number: blocks.row[number])]
    columns = tables.columns(int(tables.of[numbers[0]]))
    used = {column: at for at, column in enumerate(sorted({columns[cell] for row in rows for cell in row}))}
    return [{used[columns[cell]]: text for cell, text in row.items()} for row in rows]


def _cells(blocks: Blocks, texts: list[str], numbers: Iterable[int]) -> dict[int, str]:
    """The texts of cells that have some; each is one line."""
    return {
        cell: " ".join(word for number in group for word in texts[number].split())
        for cell, group in groupby(numbers, lambda number: int(blocks.cell[number]))
    }


def _markdown(blocks: Blocks, texts: list[str], tables: Tables, numbers: list[int]) -> str:
    """Blocks in Markdown."""
    writer, containers = MarkdownWriter(), Containers(blocks)
    for table, members in _parts(tables, numbers):
        if table >= 0:
            rows = _rows(blocks, texts, tables, members)
            writer.write(containers.around(table), markdown.table(rows, 1 + max(map(max, rows))))
            continue
        number = members[0]
        element = int(blocks.element[number])
        heading = _above(blocks, element, tuple(_HEADINGS))
        if number in blocks.code:
            lines = markdown.code(texts[number], blocks.code[number])
        elif heading:
            lines = markdown.heading(texts[number], _HEADINGS[int(blocks.tag[heading])])
        else:
            lines = markdown.paragraph(texts[number])
        is_paragraph = number not in blocks.code and not heading
        writer.write(containers.around(element), lines, is_paragraph=is_paragraph)
    return "\n".join(writer.lines)


def columns_of(blocks: Blocks, table: int) -> dict[int, int]:
    """The column of each cell of a table, by the HTML standard's algorithm for forming one (4.9.12.1).

    A cell takes as many columns and rows as it says; one that goes on below takes the place of cells there, no further
    than its row group does.
    """
    columns: dict[int, int] = {}
    reaches: dict[int, int] = {}  # columns, and in how many rows from here on a cell takes them
    column = group = 0
    for element in elements_in(blocks, table):
        if blocks.tag[element] == _ROW:
            is_same = blocks.parent[element] == group
            reaches = {at: rows - 1 for at, rows in reaches.items() if rows > 1} if is_same else {}
            column, group = 0, int(blocks.parent[element])
        elif blocks.tag[element] in _CELLS:
            while column in reaches:
                column += 1
            columns[element] = column
            attributes = blocks.attributes.get(element, {})
            width = min(max(1, integer_of(attributes.get("colspan")) or 1), MOST_COLUMNS)
            height = integer_of(attributes.get("rowspan"))
            height = MOST_ROWS if height == 0 else min(max(1, height or 1), MOST_ROWS)
            if height > 1:
                reaches |= dict.fromkeys(range(column, column + width), height)
            column += width
    return columns


def elements_in(blocks: Blocks, element: int) -> range:
    """The elements that lie in one."""
    after = np.flatnonzero(blocks.depth[element + 1 :] <= blocks.depth[element])
    return range(element + 1, element + 1 + int(after[0]) if len(after) else len(blocks.depth))


def integer_of(value: str | None) -> int | None:
    """The number that an attribute begins with, by the HTML standard's rules for parsing integers (2.3.4.1)."""
    found = _INTEGER.match(value or "")
    return int(found[1]) if found else None


class Containers:
    """The lists and quotes that the elements of a page lie in."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._numbers: dict[int, dict[int, int]] = {}
        self._around: dict[int, tuple[Container, ...]] = {0: ()}

    def around(self, element: int) -> tuple[Container, ...]:
        """Those of an element, itself among them, from the outermost."""
        chain = []
        while element not in self._around:
            chain.append(element)
            element = int(self.blocks.parent[element])
        found = self._around[element]
        for one in reversed(chain):
            tag = int(self.blocks.tag[one])
            if tag == _QUOTE:
                found = (*found, Container(one, is_quote=True))
            elif tag == _LIST_ITEM:
                owner = _above(self.blocks, int(self.blocks.parent[one]), _LISTS)
                found = (*found, Container(one, owner, self._number(owner, one)))
            self._around[one] = found
        return found

    def _number(self, owner: int, item: int) -> int | None:
        if self.blocks.tag[owner] != _ORDERED:
            return None
        if owner not in self._numbers:
            self._numbers[owner] = numbers_of(self.blocks, owner)
        return self._numbers[owner][item]


def numbers_of(blocks: Blocks, owner: int) -> dict[int, int]:
    """The numbers of an ordered list's items, by the HTML standard (4.4.5, 4.4.8): `start`, `reversed`, `value`."""
    items = [
        element
        for element in elements_in(blocks, owner)
        if blocks.tag[element] == _LIST_ITEM and _above(blocks, int(blocks.parent[element]), _LISTS) == owner
    ]
    attributes = blocks.attributes.get(owner, {})
    step = -1 if "reversed" in attributes else 1
    start = integer_of(attributes.get("start"))
    number = start if start is not None else 1 if step > 0 else len(items)
    numbers = {}
    for item in items:
        value = integer_of(blocks.attributes.get(item, {}).get("value"))
        number = number if value is None else value
        numbers[item] = number
        number += step
    return numbers
