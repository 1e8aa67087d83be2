"""Where an archive can be read on: behind what FastWARC has read, and behind damage.

FastWARC says where the last record began, and stops; `records.py` reads on from there. Where it can't either, the file
is searched for the beginning of a record, or of a compressed piece in which one begins. In one compressed piece there
is no such place: the rest after the damage is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from webtext_prep.crawl.archives.records import FIRST_LINE, MAX_RECORD_HEADER, ArchiveStream, Records
from webtext_prep.storage.locations import Location

MAX_TRIALS = 1_000
"""Places that look like a record and hold none, after which the rest of the file is given up."""

OTHER = WarcRecordType.warcinfo | WarcRecordType.request | WarcRecordType.metadata | WarcRecordType.continuation
PAGES = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion | WarcRecordType.revisit
"""Records that may be pages. `OTHER` are about pages."""
_WINDOW = 1 << 20
_LONGEST_MARK = 16
_MARKS = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    "": FIRST_LINE,
}


@dataclass(frozen=True, slots=True)
class Begun:
    """A record whose header has been read.

    Attributes:
        offset: of it in the file; FastWARC gives any place in a compressed piece for a record that is not its first.
        identity: of it, if it has one.
        first: identity of the first record with that offset.
        number: how many records lie before it, from where reading began.
        place: how many of these have another offset.
        is_other: it is known to be no page.
        is_verified: its digest says that the block is as it was written.
    """

    offset: int
    identity: str | None
    first: str | None
    number: int = 0
    place: int = 0
    is_other: bool = False
    is_verified: bool = False

    @classmethod
    def of(cls, offset: int, record: WarcRecord, before: Begun) -> Begun:
        """The facts about a record, and about the one before it."""
        identity, number = record.record_id, before.number + 1 if before is not NONE else 0
        is_same = before is not NONE and before.offset == offset
        first, place = (before.first, before.place) if is_same else (identity, number)
        return cls(offset, identity, first, number, place, bool(record.record_type & OTHER))


NONE = Begun(0, None, None)
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


def fast_records(stream: ArchiveStream, offset: int) -> Iterator[tuple[int, WarcRecord]]:
    """The records from a place on where a piece begins, as FastWARC finds them, each with its offset.

    They end, at the latest, before one whose type or length it does not know. Raises OSError for damage, and for what
    FastWARC can't read.
    """
    stream.seek(offset)
    for record in ArchiveIterator(stream, parse_http=False, max_header_len=MAX_RECORD_HEADER, fsspec_args=False):
        if not (record.record_type & (PAGES | OTHER) and record.content_length) and _is_spelled_otherwise(record):
            return
        yield record.stream_pos, record


def _is_spelled_otherwise(record: WarcRecord) -> bool:
    """Whether FastWARC found no type or length for their names, or as the header breaks off.

    A header of LF lines above a block of HTTP goes on for it up to the first CRLF, which is one of HTTP's: its first
    value then has the other lines in it.
    """
    names = set(record.headers.keys())
    return not {"WARC-Type", "Content-Length"} <= names or any("\n" in value for value in record.headers.values())


def records_behind(stream: ArchiveStream, compression: str, begun: Begun, start: int) -> tuple[Records, int]:
    """A reader for what FastWARC has left, and how many records of it lie before the one that has begun.

    Args:
        stream: the archive.
        compression: of it.
        begun: the record that was read last, from `start` on.
        start: a place at which a piece begins.
    """
    if begun is NONE:
        return Records(stream, compression, start), 0
    if not compression or identity_at(stream, compression, begun.offset) == (begun.first,):
        return Records(stream, compression, begun.offset), begun.number - begun.place
    return Records(stream, compression, start), begun.number


def identity_at(stream: ArchiveStream, compression: str, offset: int) -> tuple[str | None] | None:
    """The identity of the record that begins at a place; None if none does."""
    first = next(iter(Records(stream, compression, offset)), None)
    return (first[1].record_id,) if first is not None and first[0] == offset else None


def next_record(file: ArchiveStream, compression: str, offset: int) -> int | None:
    """The first place from `offset` on at which a record begins; None if there is none."""
    while True:
        file.seek(offset)
        window = file.read(_WINDOW)
        for mark in _MARKS[compression].finditer(window):
            file.trials += 1
            if file.trials > MAX_TRIALS:
                return None
            if identity_at(file, compression, offset + mark.start()) is not None:
                return offset + mark.start()
        if len(window) < _WINDOW:
            return None
        offset += len(window) - _LONGEST_MARK
