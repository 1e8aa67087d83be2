"""Pages that a download keeps (`--save-pages`): collected in the order in which they come, written in that of the list.

While a shard is fetched its pages are appended, each as a finished record, to one file next to the journal; the row of
a URL says where its record lies, and is added after it. Then they are copied into `pages/part-00000.warc.gz`, in
which each row of the outcomes finds its record. A copy checks each record; one that was lost is fetched again.

Segments are what a journal has gained, kept where other machines find it: whole files that never change.

SQLite must not lie on a file system that machines share: its locks and its write-ahead log are not safe there. So on a
node the journal is a working copy on the node's own disk, and additions are kept in segments, on the shared
file system or in storage: 20 seconds after the last one, or when 32 MiB have come. A task that goes on, on any
node, makes its working copy of them; a node that dies takes the last seconds with it.

Two attempts at one task (a node that was given up still lives) share no name, and what both add says the same.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import xxhash

from command_kit import hide_credentials
from webtext_prep import storage
from webtext_prep.crawl.archives.warc_writing import (
    NO_DATE,
    Source,
    info_record,
    is_plain,
    response_record,
    source_record,
)
from webtext_prep.crawl.state.database import Entry, Journal, unpacked
from webtext_prep.documents.document import Document, decode_document, without_surrogates
from webtext_prep.errors import RetryableError, WebtextError
from webtext_prep.extraction.pages import CAPTURE
from webtext_prep.storage.stores.base import Location

SPOOL_SUFFIX = ".pages"
KEY = "page"
"""Under it, the row of a URL says where its record lies: `offset`, `length`, and a checksum, `xxh3_64`."""


def _place(offset: int, record: bytes) -> dict[str, Any]:
    return {"offset": offset, "length": len(record), "xxh3_64": xxhash.xxh3_64_hexdigest(record)}


class PageReader:
    """Reads records of a file by what rows say. Use as a context manager; a file that is not there holds none."""

    def __init__(self, place: Location) -> None:
        self.place = place
        self._file: BinaryIO | None = None
        with contextlib.suppress(OSError):
            self._file = storage.open_for_reading(place)

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, row: dict[str, Any]) -> bytes | None:
        """The record that belongs to a row, or None if it is not there as it was written."""
        place = row.get(KEY)
        if self._file is None or place is None:
            return None
        try:
            self._file.seek(place["offset"])
            record = self._file.read(place["length"])
            return record if xxhash.xxh3_64_hexdigest(record) == place["xxh3_64"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class PageSpool:
    """The pages of one shard while it is fetched. Use as a context manager.

    Args:
        path: the file.
        is_new: whether what lies there belongs to nothing any more.

    Attributes:
        size: its bytes.
    """

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self.path = path
        self._file = path.open("wb" if is_new else "ab", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> PageSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def holds(self, row: dict[str, Any]) -> bool:
        """Whether the record of a row is there, if it has one: a power cut may have taken the end of the file."""
        place = row.get(KEY)
        return place is None or place["offset"] + place["length"] <= self.size

    def add(self, record: bytes) -> dict[str, Any]:
        """Append a record; what a row is to say of it. Raises WebtextError if it can't be written (a full disk)."""
        place, rest = _place(self.size, record), memoryview(record)
        try:
            while rest:
                written = self._file.write(rest) or 0
                self.size += written
                rest = rest[written:]
        except OSError as error:
            raise WebtextError(
                f"can't write {self.path} ({error}): free some space, or check its folder, and run the command again."
            ) from error
        return place

    def read(self, row: dict[str, Any]) -> bytes | None:
        """The record that belongs to a row, or None if it has none, or that is not there as it was written."""
        with PageReader(self.path) as reader:
            return reader.read(row)

    def saved(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Entries whose pages have been appended."""
        for entry in entries:
            if entry.answer is not None:
                entry.row[KEY] = self.add(response_record(entry.answer, entry.row["url"], entry.row["fetched_at"]))
            elif entry.record is not None:
                entry.row[KEY] = self.add(entry.record)
            yield entry

    def moved(self, entries: Iterable[Entry], source: Location) -> Iterator[Entry]:
        """Entries of an earlier run with their pages, which lie in `source`, without entries whose pages are lost."""
        with PageReader(source) as reader:
            for entry in entries:
                if KEY in entry.row:
                    record = entry.record or reader.read(entry.row)
                    if record is None:
                        continue
                    entry.row[KEY] = self.add(record)
                yield entry


class PageFile:
    """A file of pages that is being written: the records of a spool in another order.

    `begin` at its end gives a file without pages its first record, too.

    Args:
        stream: what to write to.
        reader: of the spool, where the records come from.
        user_agent: by which the pages were asked for.
    """

    def __init__(self, stream: BinaryIO, reader: PageReader, user_agent: str) -> None:
        self._stream, self._reader, self._user_agent = stream, reader, user_agent
        self._offset = 0

    def add(self, asked: Document, row: dict[str, Any]) -> None:
        """Copy the page of a URL, if its row has one, after the pages before it in the list; the row then tells where.

        Raises WebtextError if the page was lost.
        """
        if KEY not in row:
            return
        record = self._reader.read(row)
        if record is None:
            raise WebtextError(
                f"{self._reader.place} is damaged: remove it, and run the command again, which fetches its pages again."
            )
        self.begin(row["fetched_at"])
        final_url = row.get("final_url")
        metadata = {**asked.metadata, **{key: row[key] for key in CAPTURE if key in row}}
        if final_url is not None or metadata or not is_plain(asked.url):
            source = Source(*without_surrogates([asked.url, final_url, metadata]))
            self._write(source_record(source, row["fetched_at"]))
        row[KEY] = _place(self._offset, record)
        self._write(record)

    def begin(self, date: str = NO_DATE) -> None:
        """Write the record about the file, if it is not there: of the date of its first page, if there is one.

        So the same pages make the same file.
        """
        if self._offset == 0:
            self._write(info_record(date, self._user_agent))

    def _write(self, record: bytes) -> None:
        self._stream.write(record)
        self._offset += len(record)


SUFFIX = ".segment"
SECONDS = 20.0
"""Seconds after which a segment is due,"""
HELD_BYTES = 32 << 20
"""or bytes of records that were added, about."""
_MAGIC = b"webtext journal segment 1\n"
_CHECKSUM_BYTES = 8


_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes, bytes | None, bytes | None]]).decode


def segments_in(folder: Location) -> list[Location]:
    """The segments in a folder, in the order in which they were begun."""
    return [file for file in storage.files_in(folder) if file.name.endswith(SUFFIX)]


def entries_of(segment: Location) -> Iterator[Entry]:
    """The records of a segment as a journal has them; none of a damaged one, whose pages are fetched again."""
    data = storage.read_bytes(segment)
    begin = len(_MAGIC) + _CHECKSUM_BYTES
    packed = data[begin:]
    if data[:begin] != _MAGIC + xxhash.xxh3_64_digest(packed):
        return
    for retry_pass, row, document, page in _decode(packed):
        text = None if document is None else decode_document(unpacked(document))
        yield Entry(msgspec.json.decode(row), text, retry_pass, record=page)


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
            entries = entries_of(segment)
            self._journal.add_many(entries if self._spool is None else self._spool.saved(entries))
        self._count = len(segments)
        self._last, self._saved_size = self._journal.last, self._size()  # what is kept already

    def _page_of(self, row: bytes) -> bytes | None:
        return None if self._spool is None else self._spool.read(msgspec.json.decode(row))

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
            packed = msgspec.msgpack.encode([(*entry[1:], self._page_of(entry[2])) for entry in added])
            place = self._folder / f"{self._count:06}-{secrets.token_hex(4)}{SUFFIX}"
            try:
                with storage.create(place) as file:
                    file.write(_MAGIC + xxhash.xxh3_64_digest(packed))
                    file.write(packed)
            except OSError as error:
                raise RetryableError(f"{hide_credentials(str(place))} could not be written ({error})") from error
            self._count, self._last = self._count + 1, added[-1][0]
        self._saved, self._saved_size = time.monotonic(), self._size()
