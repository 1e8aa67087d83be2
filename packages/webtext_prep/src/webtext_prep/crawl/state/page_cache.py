"""Pages that a download keeps (`--save-pages`): collected in the order in which they come, written in that of the list.

While a shard is fetched its pages are appended, each as a finished record, to one file beside the journal; the row of
a URL says where its record lies, and is added behind it. Then they are copied into `pages/part-00000.warc.gz`, in
which each row of the outcomes finds its record. A copy checks each record; one that was lost is fetched again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import xxhash

from webtext_prep import storage
from webtext_prep.crawl.archives.warc_writing import (
    NO_DATE,
    Source,
    info_record,
    is_plain,
    response_record,
    software,
    source_record,
)
from webtext_prep.crawl.state.database import Entry
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.errors import WebtextError
from webtext_prep.storage.stores.base import Location

SPOOL_SUFFIX = ".pages"
KEY = "page"
"""Under it, the row of a URL says where its record lies: `offset`, `length`, and a checksum, `xxh3_64`."""


def _place(offset: int, record: bytes) -> dict[str, Any]:
    return {"offset": offset, "length": len(record), "xxh3_64": xxhash.xxh3_64_hexdigest(record)}


class PageReader:
    """Reads records of a file by what rows say. Use as a context manager; a file that is not there holds none."""

    def __init__(self, place: Location) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(OSError):
            self._file = storage.open_for_reading(place)

    def __enter__(self) -> PageReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def saved(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Entries whose pages have been appended."""
        for entry in entries:
            if entry.answer is not None:
                entry.row[KEY] = self.add(response_record(entry.answer))
            elif entry.record is not None:
                entry.row[KEY] = self.add(entry.record)
            yield entry

    def moved(self, entries: Iterable[Entry], source: Location) -> Iterator[Entry]:
        """Entries of an earlier run with their pages, which lie in `source`, without those whose pages are lost."""
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

    Args:
        stream: what to write to.
        spool: where the records come from.
        user_agent: by which the pages were asked for.
    """

    def __init__(self, stream: BinaryIO, spool: Path, user_agent: str) -> None:
        self._stream, self._spool, self._user_agent = stream, spool, user_agent
        self._reader = PageReader(spool)
        self._offset = 0

    def __enter__(self) -> PageFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)
        if kind is None:
            self._begin(NO_DATE)

    def add(self, asked: Document, row: dict[str, Any]) -> None:
        """Copy the page of a URL, if its row has one, behind what the list says of it; the row then tells where.

        Raises WebtextError if the page was lost.
        """
        if KEY not in row:
            return
        record = self._reader.read(row)
        if record is None:
            raise WebtextError(
                f"{self._spool} is damaged: remove it, and run the command again, which fetches its pages again."
            )
        self._begin(row["fetched_at"])
        final_url = row.get("final_url")
        if final_url is not None or asked.metadata or not is_plain(asked.url):
            source = Source(asked.url, final_url, asked.metadata)
            try:
                self._write(source_record(source, row["fetched_at"]))
            except UnicodeEncodeError:
                source = Source(*without_surrogates([asked.url, final_url, asked.metadata]))
                self._write(source_record(source, row["fetched_at"]))
        row[KEY] = _place(self._offset, record)
        self._write(record)

    def _begin(self, date: str) -> None:
        """The record about the file: of the date of its first page, so that the same pages make the same file."""
        if self._offset == 0:
            fields = {
                "software": software(),
                "format": "WARC File Format 1.1",
                "http-header-user-agent": self._user_agent,
            }
            self._write(info_record(date, fields))

    def _write(self, record: bytes) -> None:
        self._stream.write(record)
        self._offset += len(record)
