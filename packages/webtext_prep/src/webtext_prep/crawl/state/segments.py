"""What a journal has gained, kept where other machines find it: whole files that never change.

SQLite must not lie on a file system that machines share: its locks and its write-ahead log are not safe there. So on a
node the journal is a working copy on the node's own disk, and what is added to it is kept in segments, on the shared
file system or in storage: 20 seconds after the last one, or when 32 MiB have come. A task that goes on, on whatever
node, makes its working copy of them; a node that dies takes the last seconds with it.

Two attempts at one task (a node that was given up still lives) share no name, and what both add says the same.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import xxhash

from command_kit import hide_credentials
from webtext_prep import storage
from webtext_prep.crawl.state.database import Entry, Journal, unpacked
from webtext_prep.crawl.state.page_cache import KEY, PageReader, PageSpool
from webtext_prep.documents.document import decode_document
from webtext_prep.errors import RetryableError
from webtext_prep.storage.stores.base import Location

SUFFIX = ".segment"
SECONDS = 20.0
"""After so many seconds a segment is due,"""
HELD_BYTES = 32 << 20
"""or when records of so many bytes were added, about."""
_MAGIC = b"webtext journal segment 1\n"
_CHECKSUM_BYTES = 8


class _Record(NamedTuple):
    retry_pass: int
    row: bytes
    document: bytes | None
    page: bytes | None


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes, bytes | None, bytes | None]]).decode


def segments_in(folder: Location) -> list[Location]:
    """The segments in a folder, in the order in which they were begun."""
    return [file for file in storage.files_in(folder) if file.name.endswith(SUFFIX)]


def _records(segment: Location) -> Iterator[_Record]:
    """The records of a segment; none of a damaged one, whose pages are fetched again."""
    data = storage.read_bytes(segment)
    begin = len(_MAGIC) + _CHECKSUM_BYTES
    packed = data[begin:]
    if data[:begin] == _MAGIC + xxhash.xxh3_64_digest(packed):
        yield from map(_Record._make, _decode(packed))


def entries_of(segment: Location) -> Iterator[Entry]:
    """The records of a segment as those of a journal."""
    for record in _records(segment):
        document = None if record.document is None else decode_document(unpacked(record.document))
        yield Entry(msgspec.json.decode(record.row), document, record.retry_pass, record=record.page)


class Segments:
    """The segments of one journal.

    Args:
        folder: where they lie.
        journal: the working copy.
        spool: its pages, if they are saved.
    """

    def __init__(self, folder: Location, journal: Journal, spool: PageSpool | None = None) -> None:
        self._folder, self._journal, self._spool = folder, journal, spool
        self._count = self._last = 0
        self._saved, self._saved_size = time.monotonic(), 0

    def restore(self) -> None:
        """Bring what was kept into the working copy, which is new."""
        segments = segments_in(self._folder)
        for segment in segments:
            records = [self._with_page(record) for record in _records(segment)]
            self._journal.add_packed((record.retry_pass, record.row, record.document) for record in records)
        self._count = len(segments)
        self.skip()

    def _with_page(self, record: _Record) -> _Record:
        """A record whose row says where its page lies now."""
        if record.page is None or self._spool is None:
            return record
        row = msgspec.json.decode(record.row)
        row[KEY] = self._spool.add(record.page)
        return record._replace(row=msgspec.json.encode(row))

    def skip(self) -> None:
        """Keep nothing of what the journal holds now: it is found elsewhere."""
        self._last, self._saved_size = self._journal.last, self._size()

    def _page_of(self, row: bytes) -> bytes | None:
        if self._spool is None:
            return None
        with PageReader(self._spool.path) as pages:
            return pages.read(msgspec.json.decode(row))

    def save_if_due(self) -> None:
        """Keep what was added, if it is time. Raises as `save` does."""
        is_late = time.monotonic() - self._saved >= SECONDS
        if is_late or self._size() - self._saved_size >= HELD_BYTES:
            self.save()

    def _size(self) -> int:
        return self._journal.added_bytes + (0 if self._spool is None else self._spool.size)

    def save(self) -> None:
        """Keep what was added since the last time. Raises RetryableError where that can't be written."""
        added = self._journal.added_after(self._last)
        if added:
            packed = _encode([_Record(*entry[1:], self._page_of(entry[2])) for entry in added])
            place = self._folder / f"{self._count:06}-{secrets.token_hex(4)}{SUFFIX}"
            try:
                with storage.create(place) as file:
                    file.write(_MAGIC + xxhash.xxh3_64_digest(packed))
                    file.write(packed)
            except OSError as error:
                raise RetryableError(f"{hide_credentials(str(place))} could not be written ({error})") from error
            self._count, self._last = self._count + 1, added[-1][0]
        self._saved, self._saved_size = time.monotonic(), self._size()
