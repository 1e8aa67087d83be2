"""The files of pages that a download keeps (`--save-pages`): WARC records in the order of the list.

The row of a URL in the outcomes says where its record lies in `pages/part-00000.warc.gz`.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import xxhash

from webtext_prep.crawl.archives.warc_writing import NO_DATE, PageSource, info_record, is_plain, source_record
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.documents.folders.stage_record import PAGES
from webtext_prep.extraction.pages import CAPTURE
from webtext_prep.opt_outs.decisions import KEYS
from webtext_prep.storage.locations import Location

SUFFIX = ".warc.gz"
KEY = "page"
"""Under it, the row of a URL says where its record lies: `offset`, `length`, and a checksum, `xxh3_64`."""


def pages_of(shard: Location) -> Location:
    """Where the pages of a shard of documents belong: `pages/part-00000.warc.gz`."""
    return shard.parent / PAGES / f"{shard.name.partition('.')[0]}{SUFFIX}"


class PageFile:
    """A file of pages that is being written.

    `begin` at its end gives a file without pages its first record, too.

    Args:
        stream: what to write to.
        user_agent: by which the pages were asked for.
    """

    def __init__(self, stream: BinaryIO, user_agent: str) -> None:
        self._stream, self._user_agent = stream, user_agent
        self._offset = 0

    def add(self, asked: Document, row: dict[str, Any], record: bytes) -> None:
        """Append the page of a URL; its row then tells where it lies."""
        self.begin(row["fetched_at"])
        final_url = row.get("final_url")
        metadata = {**asked.metadata, **{key: row[key] for key in (*CAPTURE, *KEYS) if key in row}}
        if final_url is not None or metadata or not is_plain(asked.url):
            source = PageSource(*without_surrogates([asked.url, final_url, metadata]))
            self._write(source_record(source, row["fetched_at"]))
        digest = xxhash.xxh3_64_hexdigest(record)
        row[KEY] = {"offset": self._offset, "length": len(record), "xxh3_64": digest}
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
