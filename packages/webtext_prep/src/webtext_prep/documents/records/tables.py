"""Tables as text: comma- and tab-separated values whose first row names the columns.

Quoted fields may hold newlines and be as long as a line may be. A row that does not fit the header, or a quote that is
never closed, is a bad record and never a document of the wrong columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from webtext_prep.documents.compression import MAX_LINE_BYTES
from webtext_prep.documents.lines import read_lines
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile, Unreadable
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

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        header: list[str] | None = None
        for line, cells in read_rows(file.location, self.delimiters):
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


def read_rows(location: Location, delimiters: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a table, its header among them, but not its empty lines.

    They are separated by the first of `delimiters` that the first line holds.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _Lines(location)
    delimiter = next((sign for sign in delimiters if sign in lines.peek()), delimiters[0])
    # Strict, as otherwise a quote that is never closed takes in the rest of the file without an error.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = lines.number + 1
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

    Attributes:
        number: how many were given.
    """

    def __init__(self, location: Location) -> None:
        self.number = 0
        self._lines = read_lines(location)
        self._next = self._read()

    def _read(self) -> str | None:
        line = next(self._lines, None)
        return None if line is None else line.decode("utf-8", "surrogateescape") + "\n"

    def peek(self) -> str:
        """The next line, if there is one."""
        return self._next or ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._next
        if line is None:
            raise StopIteration
        self._next = self._read()
        self.number += 1
        return line
