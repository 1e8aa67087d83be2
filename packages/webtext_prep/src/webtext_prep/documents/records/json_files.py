"""JSON files as they are found: one object per line (several where a newline got lost), a list, or one after another.

A .json file is read into memory as a whole, but for a large one, which is first cut into blocks: then one entry at a
time is.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.arrow_values import exact_number
from webtext_prep.documents.formats.compression import Piece, compression_of, pieces_of
from webtext_prep.documents.formats.lines import (
    has_ranges,
    line_blocks,
    numbered_lines,
    numbered_lines_around_damage,
    read_range,
    read_utf8,
)
from webtext_prep.documents.records.base import (
    LOST,
    Damaged,
    FileBlock,
    FilePart,
    Keys,
    OtherKindError,
    Record,
    RecordReader,
    SourceFile,
    Unreadable,
)
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import clean_metadata

_OWN = ("url", "text")
_decode = msgspec.json.Decoder(float_hook=exact_number).decode
_python_decoder = json.JSONDecoder(parse_float=exact_number, parse_constant=str)
"""NaN, Infinity and -Infinity, as Python and data frames write them, are no JSON: they are text from here on."""


class JsonLineRecords(RecordReader):
    """One JSON object per line."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    has_blocks: ClassVar[bool] = True

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        first = file.part.first if file.part else 1
        for number, line in numbered_lines(file.location, _chunks(file), first):
            yield from self._records(line, file, number, keys)

    def read_around_damage(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`. A compressed stream (a frame, a member) that is damaged anywhere is lost.

        Lines after it are numbered as if there was none.
        """
        pieces = pieces_of(file.location) if compression_of(file.location) else []
        if all(piece.is_whole for piece in pieces):
            yield from self.read(file, keys)
            return
        for found in numbered_lines_around_damage(file.location, pieces):
            if isinstance(found, Piece):
                size = found.end - found.begin
                place = f"bytes {found.begin:,} to {found.end:,}"
                yield Record(place, Damaged(LOST, size), file.url(found.begin))
                continue
            number, line, may_be_cut = found
            # No proper part of an object is one.
            if not may_be_cut or _is_object(line):
                yield from self._records(line, file, number, keys)

    def _records(self, line: bytes, file: SourceFile, number: int, keys: Keys) -> Iterator[Record]:
        place = f"line {number}"
        try:
            value = _decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            yield from self._several(line, place, file, number, keys)
        else:
            yield unpacked(keys.record(value, place, file.url(number)))

    def parts(self, location: Location, size: int) -> list[FilePart]:
        """Ranges of bytes."""
        if not has_ranges(location):
            return []
        return [FilePart(begin, begin + size) for begin in range(0, storage.size(location), size)]

    def count(self, location: Location, part: FilePart) -> int:
        """How many lines begin in the range."""
        last, count = b"", 0
        for last in read_range(location, part.begin, part.end):
            count += last.count(b"\n")
        return count + (last[-1:] not in (b"", b"\n"))

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[FileBlock]:
        """See `RecordReader`."""
        for block in line_blocks(location, chunks, size):
            yield FileBlock(block, len(block), block.count(b"\n"), head)

    @staticmethod
    def _several(line: bytes, place: str, file: SourceFile, number: int, keys: Keys) -> Iterator[Record]:
        """Two records in one line, where a newline got lost, are two records; anything else is a bad line."""
        at = 0
        try:
            for at, value in enumerate(json_values(decode_utf8(line)), 1):
                yield unpacked(keys.record(value, place, file.url(number) if at == 1 else file.url(number, at)))
        except Unreadable as error:
            yield Record(place, error, file.url(number) if at == 0 else file.url(number, at + 1))


def _chunks(file: SourceFile) -> Iterator[bytes]:
    # What was cut out of a compressed file is a file by itself.
    if file.part is None or compression_of(file.location):
        return read_utf8(file.location)
    return read_range(file.location, file.part.begin, file.part.end)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(_decode(line), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def unpacked(record: Record) -> Record:
    """The record, its metadata with that in a string of JSON under `metadata`, as `webtext export` writes what fits no
    column."""
    document = record.document
    if isinstance(document, Document) and isinstance(packed := document.metadata.get("metadata"), str):
        with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
            rest = msgspec.json.decode(packed)
            if isinstance(rest, dict):
                del document.metadata["metadata"]
                document.metadata |= {key: value for key, value in clean_metadata(rest).items() if key not in _OWN}
    return record


def decode_utf8(data: bytes) -> str:
    """`data` as text. Raises Unreadable if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable("not valid UTF-8", f"{error.reason} at byte {error.start}: save it as UTF-8") from error


def json_values(text: str) -> Iterator[Any]:
    """The JSON values in `text`, one after another with or without white space between them.

    Raises Unreadable where something else comes next.
    """
    text = text.strip()
    decoder, at = _python_decoder, 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise Unreadable("not valid JSON", f"{error.msg} at character {error.pos}") from error
        except RecursionError as error:
            raise Unreadable("JSON nested too deep to read") from error
        except ValueError as error:
            raise Unreadable("JSON that can't be read", error) from error
        yield value
        while at < len(text) and text[at].isspace():
            at += 1


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
            if file.part is None and _looks_like_list(data):
                for number, value in enumerate(_damaged_list(data), 1):
                    place, url = f"entry {number}", file.url(number)
                    is_bad = isinstance(value, Unreadable)
                    yield Record(place, value, url) if is_bad else keys.record(value, place, url)
            elif b"\n" in data.strip():
                yield from JsonLineRecords().read(file, keys)
            else:
                yield Record("", error, file.url(1))
            return
        if file.part is None and len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        elif len(values) == 1:
            values = keys.wrapped(values[0]) or values
        is_one = file.part is None and len(values) == 1
        for number, value in enumerate(values, file.part.first if file.part else 1):
            yield keys.record(value, "" if is_one else f"entry {number}", file.url(number))

    def read_around_damage(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`. Lines of objects are read as those of other files, and of a list all is lost."""
        if compression_of(file.location) and _holds_lines(file.location):
            yield from JsonLineRecords().read_around_damage(file, keys)
        else:
            yield from super().read_around_damage(file, keys)

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[FileBlock]:
        """See `RecordReader`. The entries of a list are put one after another."""
        if head == LINES:
            yield from JsonLineRecords().blocks(location, chunks, size, LINES)
            return
        text = _Text(chunks)
        try:
            yield from _blocks(text, size, head)
        except (ValueError, RecursionError) as error:
            # As `read` takes it: for lines if there are several. What has none yet is left to it.
            raise OtherKindError(LINES if text.has_lines and not text.is_list else None) from error


_OBJECT = re.compile(rb"\s*\{\s*[\"}]")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_ENTRY = re.compile(r"\}\s*,?\s*(?=\{\s*\")")
"""Where an entry may begin: in no string, in which a quote is written with a backslash."""
_ODD_SIGN = re.compile(r"\s*\S?\s*(?=\{)")
"""What may stand before an entry, where one sign is damaged."""
_MOST_SEARCHED = 200
"""So many times a damaged list is read in search of entries."""
_END, _INSIDE, _DAMAGE = "the end", "inside an entry", "damage"


def _looks_like_list(data: bytes) -> bool:
    """Whether a file was a list, one end of which may be damaged."""
    return data.lstrip()[:1] == b"[" or (data.rstrip()[-1:] == b"]" and not _OBJECT.match(data))


def _damaged_list(data: bytes) -> Iterator[Any]:
    """The entries of a list that is not valid JSON, and an `Unreadable` for each stretch of text that is lost.

    After damage an object is taken for an entry unless it turns out to be inside one, by what follows it.
    """
    text = data.decode("utf-8", "surrogateescape").rstrip()
    first = _ODD_SIGN.match(text)
    start = first.end() if first else text.find("[") + 1
    at, lost, left = start, start, _MOST_SEARCHED * len(text)
    while True:
        values, stop, read, how = _run(text, at)
        if values and (at == start or how != _INSIDE):
            if at > lost:
                yield _lost(lost, at)
            yield from values
            if how == _END:
                return
            lost = stop
        left -= read
        following = _ENTRY.search(text, stop) if left > 0 else None
        if following is None:
            yield _lost(lost, len(text))
            return
        at = following.end()


def _lost(begin: int, end: int) -> Unreadable:
    return Unreadable("not valid JSON", f"{end - begin:,} characters are lost from character {begin:,} on")


def _run(text: str, at: int) -> tuple[list[Any], int, int, str]:
    """The entries from a place on, where they end, how much was read in all, and what comes there."""
    decode, values, start = _python_decoder.raw_decode, list[Any](), at
    while True:
        try:
            value, stop = decode(text, at)
        except json.JSONDecodeError as error:
            # An error counts the lines before it.
            read = error.pos + (len(text) if error.msg.startswith("Unterminated") else 0)
            return values, at, read, _DAMAGE
        except (ValueError, RecursionError):
            return values, at, len(text), _DAMAGE
        is_utf8 = _NOT_UTF8.search(text, at, stop) is None
        value = value if is_utf8 else Unreadable("not valid UTF-8", f"in an entry of {stop - at:,} characters")
        rest = text[stop : stop + 64].strip()
        if len(text) - stop <= 64 and len(rest) <= 1:
            is_cut = rest in ("", ",")
            end = [Unreadable("not valid JSON", "a list without an end: it may be cut off")] if is_cut else []
            return [*values, value, *end], stop, stop - start, _END
        sign = _SPACE[VALUES].match(text, stop)
        after = sign.end() if sign else stop
        if text[after] == ",":
            following = _SPACE[VALUES].match(text, after + 1)
            values.append(value)
            at = following.end() if following else after + 1
        elif text[after] in "]}":
            return [*values, value], stop, stop - start, _INSIDE
        elif odd := _ODD_SIGN.match(text, stop):
            values.append(value)
            at = odd.end()
        else:
            return values, at, stop - start, _DAMAGE


def _holds_lines(location: Location) -> bool:
    """Whether the first line of a compressed file that is not damaged is an object."""
    found = numbered_lines_around_damage(location, pieces_of(location))
    return _is_object(next((entry[1] for entry in found if not isinstance(entry, Piece)), b""))


def _blocks(text: _Text, size: int, kind: str | None) -> Iterator[FileBlock]:
    """The values in a text, in blocks. Raises ValueError if it is neither a list nor values one after another."""
    held: list[str] = []
    is_first = kind is None
    if kind is None:
        kind = LIST if text.next(VALUES) == "[" else VALUES
        text.at += kind == LIST
    text.is_list = kind == LIST
    length, start = 0, 0
    while sign := text.next(kind):
        if kind == LIST:
            if sign == "]":
                text.at += 1
                if text.next(VALUES):
                    raise ValueError("something after a list")
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
            yield FileBlock("\n".join([*held, ""]).encode(), place - start, len(held), kind)
            held, length, start = [], 0, place
    else:
        if kind == LIST:
            raise ValueError("a list without an end")
    if held:
        # No list goes on after this: whoever was killed here and goes on finds nothing, and not a list without an end.
        yield FileBlock("\n".join([*held, ""]).encode(), text.place() - start, len(held), VALUES)


class _Text:
    """A text, as much of it as is needed.

    Attributes:
        at: how far it is read.
        has_lines: whether it has a newline inside, as far as it is known.
        is_list: whether it begins as a list.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._decoder = iter(chunks), codecs.getincrementaldecoder("utf-8")()
        self._values, self._text, self._before, self._is_whole = json.JSONDecoder(), "", 0, False
        self.at, self.has_lines, self.is_list = 0, False, False

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
        """Forget the part read, and have twice the rest; False if there is no more."""
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
