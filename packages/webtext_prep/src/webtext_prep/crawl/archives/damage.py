"""Where a damaged archive can be read again: at the next record, gzip member or zstandard frame.

FastWARC says where the last record began, and stops. Whether that record is whole is looked up in the file: what its
compressed piece decompresses to, or what follows its last byte. Then the file is searched for the beginning of a
piece in which FastWARC finds a record. In one compressed piece there is no such place: the rest after the damage is
lost.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from typing import BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from webtext_prep.documents.formats.compression import end_of_stream
from webtext_prep.storage.locations import Location

MAX_RECORD_HEADER = 1 << 20
"""Bytes: the URL stands in there."""
MAX_TRIALS = 1_000
"""Places that look like a record and hold none, after which the rest of the file is given up."""

_OTHER = WarcRecordType.warcinfo | WarcRecordType.request | WarcRecordType.metadata | WarcRecordType.continuation
_WINDOW = 1 << 20
_LONGEST_MARK = 16
_MARKS = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    "": re.compile(rb"WARC/[01]\.\d{1,2}\r?\n"),
}
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_RECORD_END = b"\r\n\r\n"


class ArchiveStream:
    """A file as FastWARC reads it, which tells an error of the file system from one of the archive.

    Attributes:
        error: what reading the file has raised.
        size: bytes of the file.
        trials: places that were taken for the beginning of a record.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None
        self.size = file.seek(0, io.SEEK_END)
        self.trials = 0

    def read(self, size: int = -1) -> bytes:
        """See `BinaryIO.read`."""
        try:
            return self._file.read(size)
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        """See `BinaryIO.seek`."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """See `BinaryIO.tell`."""
        return self._file.tell()

    def close(self) -> None:
        """The file is closed by who opened it."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A record whose header has been read.

    Attributes:
        offset: of it in the file; FastWARC gives any place in a compressed piece for a record that is not its first.
        identity: of it, if it has one.
        first: identity of the first record with that offset.
        length: bytes of its block, as it says.
        is_other: it is known to be no page.
        is_verified: its digest says that the block is as it was written.
    """

    offset: int
    identity: str | None
    first: str | None
    length: int
    is_other: bool = False
    is_verified: bool = False

    @classmethod
    def of(cls, record: WarcRecord, before: Begun) -> Begun:
        """The facts about a record, and about the one before it, as long as its block has not been read."""
        offset, identity = record.stream_pos, record.record_id
        first = before.first if before is not NONE and before.offset == offset else identity
        return cls(offset, identity, first, record.content_length, bool(record.record_type & _OTHER))


NONE = Begun(0, None, None, 0)
"""Stands in the place of the last record where none has begun."""


def compression_of(file: ArchiveStream, location: Location) -> str:
    """How an archive is compressed, as its first bytes say, or its name where they are damaged: `.gz`, `.zst` or ""."""
    file.seek(0)
    head = file.read(_LONGEST_MARK)
    found = next((kind for kind, mark in _MARKS.items() if mark.match(head)), None)
    if found is not None:
        return found
    suffix = location.suffix.lower()
    return suffix if suffix in _MARKS else ""


def records_from(stream: ArchiveStream, offset: int) -> ArchiveIterator:
    """The records from a place on where a piece begins. Its iteration raises OSError for damage."""
    stream.seek(offset)
    return ArchiveIterator(stream, parse_http=False, max_header_len=MAX_RECORD_HEADER, fsspec_args=False)


def record_at(stream: ArchiveStream, offset: int) -> WarcRecord | None:
    """The record that begins at a place, or None if none does."""
    with contextlib.suppress(OSError):
        record = next(records_from(stream, offset), None)
        return record if record is not None and record.stream_pos == offset else None
    return None


def next_record(file: ArchiveStream, compression: str, offset: int) -> int | None:
    """The first place from `offset` on at which a record begins; None if there is none."""
    while True:
        file.seek(offset)
        window = file.read(_WINDOW)
        for mark in _MARKS[compression].finditer(window):
            file.trials += 1
            if file.trials > MAX_TRIALS:
                return None
            if record_at(file, offset + mark.start()) is not None:
                return offset + mark.start()
        if len(window) < _WINDOW:
            return None
        offset += len(window) - _LONGEST_MARK


def end_of_record(file: ArchiveStream, compression: str, begun: Begun, start: int) -> tuple[int, bool]:
    """Where to look for the next record, and whether the one that has begun is whole.

    Args:
        file: the archive.
        compression: of it.
        begun: the record that was read last.
        start: a place before it at which a piece begins.
    """
    if not compression:
        return _end_of_plain(file, begun)
    piece, end = start, None
    first = record_at(file, begun.offset)
    if first is not None and first.record_id == begun.first:
        piece = begun.offset
    while end is None or end < begun.offset:
        end = end_of_stream(file, compression, piece)
        if end is None:
            return max(piece + 1, begun.offset), False
        piece = end
    return end, True


def _end_of_plain(file: ArchiveStream, begun: Begun) -> tuple[int, bool]:
    file.seek(begun.offset)
    header = _HEADER_END.search(file.read(MAX_RECORD_HEADER))
    if header is None:
        return begun.offset + 1, False
    end = begun.offset + header.end() + begun.length
    file.seek(end)
    behind = file.read(_LONGEST_MARK)
    is_at_end = not behind.strip() and end <= file.size
    if begun.is_verified or is_at_end or behind.startswith(_RECORD_END) or behind[4:].startswith(b"WARC/"):
        return end, True
    return begun.offset + 1, False
