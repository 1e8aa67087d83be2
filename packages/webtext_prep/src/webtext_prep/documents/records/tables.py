"""Tables as text: comma- and tab-separated values whose first row names the columns.

Quoted fields may hold newlines and be as long as a line may be. A row that does not fit the header, or a quote that is
never closed, is a bad record and never a document of the wrong columns. Such a quote costs its line alone: what it has
taken for the rest of a field is read again, from the next line on.

Values separated by tabs mostly have no quotes around them: there a field is quoted only where that leaves a table.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from webtext_prep.documents.formats.arrow_values import column_names
from webtext_prep.documents.formats.compression import MAX_LINE_BYTES
from webtext_prep.documents.formats.lines import lines_in, read_lines
from webtext_prep.documents.records.base import FileBlock, Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.storage.locations import Location

_NOT_UTF8 = re.compile("[\udc80-\udcff]")


class Row(NamedTuple):
    """A row of a table: the number of its first line, and its cells, or why they can't be read."""

    line: int
    cells: list[str] | Unreadable


class CsvRecords(RecordReader):
    """Values separated by commas, or as others write them: spreadsheets by semicolons (where the comma is a decimal
    point) or tabs ("text in Unicode"), databases by bars."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)
    delimiters: ClassVar[tuple[str, ...]] = (",", ";", "\t", "|")

    has_blocks: ClassVar[bool] = True

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        lines = _Lines(read_lines(file.location), file.part.first if file.part else 1)
        delimiter, header = file.part.head if file.part and file.part.head else (lines.find(self.delimiters), None)
        for line, cells in _rows(lines, delimiter, header and len(header)):
            place, url = f"line {line}", file.url(line)
            if isinstance(cells, Unreadable):
                yield Record(place, cells, url)
            elif header is None:
                header = column_names(cells)
            elif len(cells) != len(header):
                reason = "a row of more or fewer cells than the header"
                yield Record(place, Unreadable(reason, f"{len(cells)}, not {len(header)}"), url)
            else:
                yield keys.record(dict(zip(header, cells, strict=True)), place, url)

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[FileBlock]:
        """See `RecordReader`. A head is the delimiter, and the names of the columns as soon as they are known."""
        lines = _Lines(lines_in(location, chunks), are_kept=True)
        delimiter, header = head or (lines.find(self.delimiters), None)
        for _, cells in _rows(lines, delimiter, header and len(header)):
            if header is None and not isinstance(cells, Unreadable):
                header = column_names(cells)
            if lines.size >= size:
                yield lines.taken([delimiter, header])
        if lines.size:
            yield lines.taken([delimiter, header])


class TsvRecords(CsvRecords):
    """Values separated by tabs."""

    suffixes: ClassVar[tuple[str, ...]] = (".tsv",)
    delimiters: ClassVar[tuple[str, ...]] = ("\t",)


def read_rows(
    location: Location, delimiters: tuple[str, ...], first: int = 1, width: int | None = None
) -> Iterator[Row]:
    """The rows of a table, its header among them, but not its empty lines.

    They are separated as `delimiter_of` has it. Lines are numbered from `first` on. `width` is the number of columns,
    that of the first row if it is None.
    """
    lines = _Lines(read_lines(location), first)
    return _rows(lines, lines.find(delimiters), width)


def _rows(lines: _Lines, delimiter: str, width: int | None) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    # Strict, as otherwise a quote that is never closed takes in the rest of the file without an error.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.begin()
        number = lines.number
        try:
            cells: list[str] | Unreadable | None = next(reader, None)
        except csv.Error as error:
            # Where such a quote meets another one depends on how much of the file is read together.
            is_open = len(lines.record) > 1 or lines.is_ended
            cells = Unreadable("not a valid row", "a quote that does not end as it should" if is_open else error)
        if cells is None:
            return
        if isinstance(cells, Unreadable) or _has_taken_rows(lines.record, cells, delimiter, width):
            lines.back_to_second()
            if delimiter == "\t":
                cells = lines.record[0].decode("utf-8", "surrogateescape").removesuffix("\r").split("\t")
            elif not isinstance(cells, Unreadable):
                cells = Unreadable("not a valid row", "a quote that does not end as it should")
        if number == 1 and isinstance(cells, list) and "".join(cells).lower() == "sep=":
            continue  # tells Excel the delimiter, which is behind it
        if not isinstance(cells, Unreadable) and _NOT_UTF8.search("".join(cells)):
            cells = Unreadable("not valid UTF-8", "save it as UTF-8")
        if cells:
            if isinstance(cells, list):
                # What ClickHouse, PostgreSQL, MySQL and Hive write where there is nothing.
                cells = ["" if cell == r"\N" else cell for cell in cells]
            yield Row(number, cells)
            width = width or (None if isinstance(cells, Unreadable) else len(cells))


def _has_taken_rows(record: list[bytes], cells: list[str], delimiter: str, width: int | None) -> bool:
    """Whether the lines of a record but for the first are rows by themselves, which a stray quote has taken in.

    The lines of a text may have as many delimiters by chance: more so commas than tabs, and few lines than many.
    """
    if width is None or width < 2 or (len(record) == 1 and len(cells) == width):
        return False
    first, *others = (line.count(delimiter.encode()) == width - 1 for line in record)
    if len(cells) != width:
        return (delimiter == "\t" and first) or 0 < len(others) <= 2 * sum(others)
    # A hundred lines of a text that is no table have not all as many commas as a row.
    return all(others) and (delimiter == "\t" or len(others) >= 100)


def delimiter_of(line: str, delimiters: tuple[str, ...]) -> str:
    """The one of `delimiters` that a table's first line holds most often outside of quotes; the first if none."""
    bare = re.sub(r'"[^"]*"', "", line)
    found = max(reversed(delimiters), key=bare.count)  # of as many, a comma is the likelier to be part of a name
    return found if found in bare else delimiters[0]


class _Lines:
    """The lines of a file with their newlines, as the csv module wants them.

    Args:
        lines: of the file, without newlines, from line number `number` on.
        are_kept: whether `taken` will be called.

    Attributes:
        number: of the next one.
        size: bytes of rows since the last call of `taken`.
        record: rows since the last call of `begin`.
        is_ended: whether another one was asked for since then, but there is none.
    """

    def __init__(self, lines: Iterator[bytes], number: int = 1, *, are_kept: bool = False) -> None:
        self.number, self.size = number, 0
        self._are_kept = are_kept
        self.record: list[bytes] = []
        self.is_ended = False
        self._lines, self._taken = lines, list[bytes]()
        self._next = deque(itertools.islice(lines, 1))

    def find(self, delimiters: tuple[str, ...]) -> str:
        """The delimiter of the next line."""
        return delimiter_of((self._next[0] if self._next else b"").decode("utf-8", "surrogateescape"), delimiters)

    def taken(self, head: Any) -> FileBlock:
        """The lines since the last call."""
        block = FileBlock(b"\n".join([*self._taken, b""]), self.size, len(self._taken), head)
        self._taken, self.size = [], 0
        return block

    def begin(self) -> None:
        """A record begins with the next line that is not empty."""
        self.record, self.is_ended = [], False
        while (line := self._following()) in (b"", b"\r"):
            self._pass(line)
        if line is not None:
            self._next.appendleft(line)

    def back_to_second(self) -> None:
        """Give the lines of this record once more, but for its first."""
        again = self.record[1:]
        if again:
            del self.record[1:]
            if self._are_kept:
                del self._taken[-len(again) :]
            self._next.extendleft(reversed(again))
            self.number -= len(again)
            self.size -= sum(len(line) + 1 for line in again)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._following()
        if line is None:
            self.is_ended = True
            raise StopIteration
        self._pass(line)
        self.record.append(line)
        return line.decode("utf-8", "surrogateescape") + "\n"

    def _following(self) -> bytes | None:
        return self._next.popleft() if self._next else next(self._lines, None)

    def _pass(self, line: bytes) -> None:
        self.number += 1
        self.size += len(line) + 1
        if self._are_kept:
            self._taken.append(line)
