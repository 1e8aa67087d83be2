"""Tables as text: comma- and tab-separated values whose first row names the columns.

Quoted fields may hold newlines and be as long as a line may be. A row that does not fit the header, or a quote that is
never closed, is a bad record and never a document of the wrong columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from webtext_prep.documents.compression import MAX_LINE_BYTES
from webtext_prep.documents.lines import lines_in, read_lines
from webtext_prep.documents.records.base import Block, Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.stores.base import Location

_NOT_UTF8 = re.compile("[\udc80-\udcff]")


class Row(NamedTuple):
    """A row of a table: the number of its first line, and its cells, or why they can't be told."""

    line: int
    cells: list[str] | Unreadable


class CsvRecords(RecordReader):
    """Values separated by commas, or by semicolons as spreadsheets write them where the comma is a decimal point."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)
    delimiters: ClassVar[tuple[str, ...]] = (",", ";")

    has_blocks: ClassVar[bool] = True

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        lines = _Lines(read_lines(file.location), file.part.first if file.part else 1)
        delimiter, header = file.part.head if file.part and file.part.head else (lines.find(self.delimiters), None)
        for line, cells in _rows(lines, delimiter):
            place, url = f"line {line}", file.url(line)
            if isinstance(cells, Unreadable):
                yield Record(place, cells, url)
            elif header is None:
                header = _names(cells)
            elif len(cells) != len(header):
                reason = "a row of more or fewer cells than the header"
                yield Record(place, Unreadable(reason, f"{len(cells)}, not {len(header)}"), url)
            else:
                yield keys.record(dict(zip(header, cells, strict=True)), place, url)

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[Block]:
        """See `RecordReader`. A head is the delimiter, and the names of the columns as soon as they are known."""
        lines = _Lines(lines_in(location, chunks))
        delimiter, header = head or (lines.find(self.delimiters), None)
        for _, cells in _rows(lines, delimiter):
            if header is None and not isinstance(cells, Unreadable):
                header = _names(cells)
            if lines.size >= size:
                yield lines.taken([delimiter, header])
        if lines.size:
            yield lines.taken([delimiter, header])


def _names(header: list[str]) -> list[str]:
    """The names of the columns; one without a name, or with that of another, is called by its number."""
    names: list[str] = []
    for number, cell in enumerate(header, 1):
        name = cell.strip()
        names.append(name if name and name not in names else f"{name or 'column'}_{number}")
    return names


class TsvRecords(CsvRecords):
    """Values separated by tabs."""

    suffixes: ClassVar[tuple[str, ...]] = (".tsv",)
    delimiters: ClassVar[tuple[str, ...]] = ("\t",)


def read_rows(location: Location, delimiters: tuple[str, ...], first: int = 1) -> Iterator[Row]:
    """The rows of a table, its header among them, but not its empty lines.

    They are separated by the first of `delimiters` that the first line holds. Lines are numbered from `first` on.
    """
    lines = _Lines(read_lines(location), first)
    return _rows(lines, lines.find(delimiters))


def _rows(lines: _Lines, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    # Strict, as otherwise a quote that is never closed takes in the rest of the file without an error.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = lines.number
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Row(number, Unreadable("not a valid row", error))
            continue
        if cells is None:
            return
        if _NOT_UTF8.search("".join(cells)):
            yield Row(number, Unreadable("not valid UTF-8", "save it as UTF-8"))
        elif cells:
            yield Row(number, cells)


class _Lines:
    """The lines of a file with their newlines, as the csv module wants them.

    Args:
        lines: of the file, without newlines, from line number `number` on.

    Attributes:
        number: of the next one.
        size: bytes of those since the last call of `taken`.
    """

    def __init__(self, lines: Iterator[bytes], number: int = 1) -> None:
        self.number, self.size = number, 0
        self._lines, self._taken = lines, list[bytes]()
        self._next = next(lines, None)

    def find(self, delimiters: tuple[str, ...]) -> str:
        """The first of `delimiters` that the next line holds; the first one of all, if it holds none."""
        line = (self._next or b"").decode("utf-8", "surrogateescape")
        return next((sign for sign in delimiters if sign in line), delimiters[0])

    def taken(self, head: Any) -> Block:
        """The lines since the last call."""
        block = Block(b"\n".join([*self._taken, b""]), self.size, len(self._taken), head)
        self._taken, self.size = [], 0
        return block

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._next
        if line is None:
            raise StopIteration
        self._next = next(self._lines, None)
        self.number += 1
        self.size += len(line) + 1
        self._taken.append(line)
        return line.decode("utf-8", "surrogateescape") + "\n"
