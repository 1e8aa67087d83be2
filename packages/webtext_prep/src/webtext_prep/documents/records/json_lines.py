"""JSON lines as they are found: one object per line, or several where a newline got lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.compression import compression_of
from webtext_prep.documents.formats.lines import has_ranges, line_blocks, numbered_lines, read_range, read_utf8
from webtext_prep.documents.records.base import Block, Keys, Part, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.urls import clean_metadata

_OWN = ("url", "text")


class JsonLineRecords(RecordReader):
    """One JSON object per line."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    has_blocks: ClassVar[bool] = True

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        decode = msgspec.json.Decoder().decode
        first = file.part.first if file.part else 1
        for number, line in numbered_lines(file.location, _chunks(file), first):
            place, url = f"line {number}", file.url(number)
            try:
                value = decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                yield from self._several(line, place, file, number, keys)
            else:
                yield unpacked(keys.record(value, place, url))

    def parts(self, location: Location, size: int) -> list[Part]:
        """Ranges of bytes."""
        if not has_ranges(location):
            return []
        return [Part(begin, begin + size) for begin in range(0, storage.size(location), size)]

    def count(self, location: Location, part: Part) -> int:
        """How many lines begin in the range."""
        last, count = b"", 0
        for last in read_range(location, part.begin, part.end):
            count += last.count(b"\n")
        return count + (last[-1:] not in (b"", b"\n"))

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[Block]:
        """See `RecordReader`."""
        for block in line_blocks(location, chunks, size):
            yield Block(block, len(block), block.count(b"\n"), head)

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
    decoder, at = json.JSONDecoder(), 0
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
