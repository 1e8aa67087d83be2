"""A .json file: one object, a list of them, or objects one after another.

It is read into memory as a whole, but for a large one, which is first cut into blocks: then one entry at a time is.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from webtext_prep.documents.formats.lines import read_utf8
from webtext_prep.documents.records.base import (
    Block,
    Keys,
    OtherKindError,
    Record,
    RecordReader,
    SourceFile,
    Unreadable,
)
from webtext_prep.documents.records.json_lines import JsonLineRecords, decode_utf8, json_values
from webtext_prep.storage.stores.base import Location

LIST, VALUES, LINES = "list", "values", "lines"
"""What a file holds: the head of its blocks. Many a .json file in the wild is JSON lines."""

_SPACE = {LIST: re.compile(r"[ \t\n\r]*"), VALUES: re.compile(r"\s*")}


class JsonRecords(RecordReader):
    """JSON objects."""

    suffixes: ClassVar[tuple[str, ...]] = (".json",)
    has_blocks: ClassVar[bool] = True

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        if file.part is not None and file.part.head == LINES:
            yield from JsonLineRecords().read(file, keys)
            return
        data = b"".join(read_utf8(file.location))
        try:
            values = list(json_values(decode_utf8(data)))
        except Unreadable as error:
            if b"\n" in data.strip():
                yield from JsonLineRecords().read(file, keys)
            else:
                yield Record("", error, file.url(1))
            return
        if file.part is None and len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        is_one = file.part is None and len(values) == 1
        for number, value in enumerate(values, file.part.first if file.part else 1):
            yield keys.record(value, "" if is_one else f"entry {number}", file.url(number))

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[Block]:
        """See `RecordReader`. The entries of a list are put one after another."""
        if head == LINES:
            yield from JsonLineRecords().blocks(location, chunks, size, LINES)
            return
        text = _Text(chunks)
        try:
            yield from _blocks(text, size, head)
        except (ValueError, RecursionError) as error:
            # As `read` takes it: for lines if there are several. What has none yet is left to it.
            raise OtherKindError(LINES if text.has_lines else None) from error


def _blocks(text: _Text, size: int, kind: str | None) -> Iterator[Block]:
    """The values in a text, in blocks. Raises ValueError for what is neither a list nor values one after another."""
    held: list[str] = []
    is_first = kind is None
    if kind is None:
        kind = LIST if text.next(VALUES) == "[" else VALUES
        text.at += kind == LIST
    length, start = 0, 0
    while sign := text.next(kind):
        if kind == LIST:
            if sign == "]":
                text.at += 1
                if text.next(VALUES):
                    text.has_lines = False
                    raise ValueError("something behind a list")
                break
            if not is_first:
                if sign != ",":
                    raise ValueError("no comma")
                text.at += 1
                text.next(kind)
        is_first = False
        held.append(text.value())
        length += len(held[-1])
        if length >= size:
            place = text.place()
            yield Block("\n".join([*held, ""]).encode(), place - start, len(held), kind)
            held, length, start = [], 0, place
    else:
        if kind == LIST:
            raise ValueError("a list without an end")
    if held:
        yield Block("\n".join([*held, ""]).encode(), text.place() - start, len(held), kind)


class _Text:
    """A text, as much of it as is needed.

    Attributes:
        at: how far it is read.
        has_lines: whether it has a newline inside, as far as it is known.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._decoder = iter(chunks), codecs.getincrementaldecoder("utf-8")()
        self._values, self._text, self._before, self._is_whole = json.JSONDecoder(), "", 0, False
        self.at, self.has_lines = 0, False

    def next(self, kind: str) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            found = _SPACE[kind].match(self._text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self._text):
                return self._text[self.at]
            if not self._read_more():
                return ""

    def value(self) -> str:
        """The JSON value that begins here. Raises ValueError if none does."""
        while True:
            try:
                _, end = self._values.raw_decode(self._text, self.at)
            except ValueError:
                if not self._read_more():
                    raise
                continue
            # A number may go on.
            if end < len(self._text) or not self._read_more():
                found, self.at = self._text[self.at : end], end
                return found

    def place(self) -> int:
        """How many bytes are read."""
        return self._before + len(self._text[: self.at].encode())

    def _read_more(self) -> bool:
        """Forget what is read, and have twice the rest; False if there is no more."""
        if self._is_whole:
            return False
        self._before = self.place()
        pieces, wanted = [self._text[self.at :]], max(1 << 20, len(self._text) - self.at)
        while wanted > 0 and not self._is_whole:
            chunk = next(self._chunks, b"")
            self._is_whole = not chunk
            pieces.append(self._decoder.decode(chunk, final=self._is_whole))
            wanted -= len(pieces[-1])
        self._text, self.at = "".join(pieces), 0
        self.has_lines = self.has_lines or "\n" in self._text.strip()
        return True
