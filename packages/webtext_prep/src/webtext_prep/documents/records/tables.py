"""Tables as text: comma- and tab-separated values whose first row names the columns.

Quoted fields may hold newlines and be as long as a line may be. A row that does not fit the header, or a quote that is
never closed, is a bad record and never a document of the wrong columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from webtext_prep.documents.compression import MAX_LINE_BYTES
from webtext_prep.documents.lines import read_lines
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.stores.base import Location

_NOT_UTF8 = re.compile("[\udc80-\udcff]")


class CsvRecords(RecordReader):
    """Values separated by commas, or by semicolons as spreadsheets write them where the comma is a decimal point."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)
    delimiters: ClassVar[tuple[str, ...]] = (",", ";")

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        for line, row in read_table(file.location, self.delimiters):
            place, url = f"line {line}", file.url(line)
            yield Record(place, row, url) if isinstance(row, Unreadable) else keys.record(row, place, url)


class TsvRecords(CsvRecords):
    """Values separated by tabs."""

    suffixes: ClassVar[tuple[str, ...]] = (".tsv",)
    delimiters: ClassVar[tuple[str, ...]] = ("\t",)


def read_table(location: Location, delimiters: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any] | Unreadable]]:
    """The rows below the header as column name to value, each with the number of its first line.

    The first of `delimiters` that the header holds counts.
    """
    rows = _rows(location, delimiters)
    header: list[str] | None = None
    for line, row in rows:
        if isinstance(row, Unreadable):
            yield line, row
        elif header is None:
            header = [name.strip() or f"column_{number}" for number, name in enumerate(row, 1)]
        elif len(row) != len(header):
            yield line, Unreadable("a row of more or fewer cells than the header", f"{len(row)}, not {len(header)}")
        else:
            yield line, dict(zip(header, row, strict=True))


def _rows(location: Location, delimiters: tuple[str, ...]) -> Iterator[tuple[int, list[str] | Unreadable]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _Lines(location)
    first = lines.peek()
    delimiter = next((sign for sign in delimiters if sign in first), delimiters[0])
    # Strict, as otherwise a quote that is never closed takes in the rest of the file without an error.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = lines.number + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield number, Unreadable("not a valid row", error)
            continue
        if row is None:
            return
        if _NOT_UTF8.search("".join(row)):
            yield number, Unreadable("not valid UTF-8", "save it as UTF-8")
        elif row:
            yield number, row


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
