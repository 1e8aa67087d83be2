"""Pages in web archives: WARC files (ISO 28500) of any crawler, and the texts of Common Crawl's WET files.

FastWARC finds the records, at some 0.8 GB of pages a second; here it is decided what each is, as a download would with
the same answer. An archive may hold anything: headers are bounded, a body is read up to the cap on pages, and what lies
beyond is skipped without being held. FastWARC ends quietly where a file breaks off, which is noticed here. Digests are
not checked: a gzip member has a checksum of its own.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import msgspec
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from webtext_prep.documents import storage
from webtext_prep.documents.compression import is_whole
from webtext_prep.documents.outcomes import PageOutcome, http_outcome
from webtext_prep.documents.records.base import SourceFile
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.urls import clean_metadata, without_credentials
from webtext_prep.extraction.pages import Page
from webtext_prep.web.archived_bodies import decoded
from webtext_prep.web.bodies import CutShortError, DamagedBodyError, TooLargeError
from webtext_prep.web.content_types import content_type_of, is_html_page, may_be_page
from webtext_prep.web.warc_writing import SOURCE_TYPE, Source

MAX_RECORD_HEADER = 1 << 20
"""Bytes: the URL stands in there."""
MAX_HTTP_HEADER = 1 << 18
"""Bytes; servers that send more are few, and their pages are left out."""
MAX_DATE = 40
"""Characters."""
MAX_SOURCE = 1 << 20
"""Bytes of what a list says of one page."""
_PAGES = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion | WarcRecordType.revisit
_decode_source = msgspec.json.Decoder(Source).decode


@dataclass(frozen=True, slots=True)
class Place:
    """Where in an archive a page lies, so that reading can go on behind it.

    Attributes:
        offset: of its record in the file, where that can be read from there.
        identity: of its record.
        number: how many pages there are up to this one.
    """

    offset: int
    identity: str | None
    number: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a source holds of one URL.

    Attributes:
        url: the URL.
        outcome: `ok` if there is a page, else why there is none.
        page: the page.
        status: the HTTP status, if there is one.
        final_url: where redirects led, if that is known.
        fetched_at: when it was fetched, if that is known.
        metadata: what a list or a sidecar says of it.
        problem: for people: what is wrong with the file.
    """

    url: str
    outcome: str
    page: Page | None = None
    status: int | None = None
    final_url: str | None = None
    fetched_at: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Damage:
    """Behind this place an archive can't be read.

    Attributes:
        offset: byte of the file, about.
        reason: why, for people.
    """

    offset: int
    reason: str


class _Stream:
    """A file as FastWARC reads it, by which an error of the file system is told from one of the archive."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        """The file is closed by who opened it."""


class ArchiveReader:
    """Reads the pages of one archive.

    Args:
        location: the file.
        name: what it is called in the URL of a page that has none.
        max_bytes: most bytes of a page, decompressed.
        keep_truncated: take pages, too, that the crawler cut off.
    """

    def __init__(self, location: Location, name: str, *, max_bytes: int, keep_truncated: bool) -> None:
        self._location, self._file = location, SourceFile(location, name)
        self._limit, self._keep_truncated = max_bytes, keep_truncated
        self._offset = self._length = 0  # of the record that was read last

    def pages(self, behind: Place | None = None) -> Iterator[tuple[Found, Place] | Damage]:
        """The pages in order, from the beginning or from `behind` a place on; the last item may be a Damage.

        Raises OSError where the file can't be read, whatever it holds.
        """
        with storage.open_for_reading(self._location) as file:
            stream = _Stream(file)
            last: tuple[Found, Place] | None = None
            try:
                for found in self._pages(stream, behind):
                    if last is not None:
                        yield last
                    last = found
                damage = self._at_end(file)
            except OSError as error:  # FastWARC's, unless the file could not be read
                damage = Damage(self._offset, str(error).rstrip("."))
            if stream.error is not None:
                raise stream.error
            # What a damaged record was taken for is not known, unless all of its page was there.
            if last is not None and (damage is None or last[0].page is not None or last[1].offset != damage.offset):
                yield last
            if damage is not None:
                yield damage

    def _pages(self, stream: _Stream, behind: Place | None) -> Iterator[tuple[Found, Place]]:
        number = behind.number if behind is not None else 0
        records = self._records_behind(stream, behind)
        if records is None:  # no record of that identity begins there: it lies inside a larger compressed piece
            stream.seek(0)
            records, number, skipped = self._records(stream), 0, number
        else:
            skipped = 0
        source: tuple[str, Source] | None = None
        for record in records:
            if record.record_type == WarcRecordType.metadata:
                source = _source_of(record) or source
            if not record.record_type & _PAGES:
                continue
            number += 1
            place = Place(record.stream_pos, record.record_id, number)
            own = source[1] if source is not None and source[0] == record.record_id else None
            if number > skipped:
                yield self._found(record, own, place), place

    def _records(self, stream: _Stream) -> Iterator[WarcRecord]:
        records = ArchiveIterator(stream, parse_http=False, max_header_len=MAX_RECORD_HEADER, fsspec_args=False)
        for record in records:
            self._offset, self._length = record.stream_pos, record.content_length
            yield record

    def _records_behind(self, stream: _Stream, behind: Place | None) -> Iterator[WarcRecord] | None:
        """The records behind a place, or None if it is not found by its offset."""
        if behind is None:
            return self._records(stream)
        if behind.identity is None:
            return None
        stream.seek(behind.offset)
        records = self._records(stream)
        try:
            first = next(records, None)
        except OSError:
            if stream.error is not None:
                raise
            return None
        return records if first is not None and first.record_id == behind.identity else None

    def _at_end(self, file: BinaryIO) -> Damage | None:
        """What is wrong with the end of the file, at which FastWARC says nothing."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        is_gzip = file.read(2) == b"\x1f\x8b"
        if size == 0:
            return Damage(0, "it is empty")
        if is_gzip:
            # Where records share a member, FastWARC gives the end of that member for all but the first.
            file.seek(self._offset if self._offset < size else 0)
            return None if is_whole(file, ".gz") else Damage(self._offset, "it is cut off")
        file.seek(self._offset)
        head = file.read(MAX_RECORD_HEADER)
        if not head.startswith(b"WARC/"):
            return None  # compressed in another way, in which FastWARC notices
        end = re.search(rb"\r?\n\r?\n", head)
        if end is None or self._offset + end.end() + self._length > size:
            return Damage(self._offset, "it is cut off")
        file.seek(self._offset + end.end() + self._length)
        return Damage(self._offset, "it is cut off") if file.read(1 << 10).strip() else None

    # One record

    def _found(self, record: WarcRecord, source: Source | None, place: Place) -> Found:
        target = without_credentials((record.headers.get("WARC-Target-URI") or "").strip().strip("<>"))
        url, final_url, metadata = target, None, {}
        if source is not None:
            url, final_url, metadata = source.url, source.final_url, source.metadata
        common: dict[str, Any] = {
            "final_url": final_url,
            "fetched_at": (record.headers.get("WARC-Date") or "")[:MAX_DATE] or None,
            "metadata": metadata,
        }
        if not (is_address(url) and (final_url is None or is_address(final_url))):
            return Found(self._file.url(place.number), PageOutcome.MALFORMED_URL, **common)
        if record.record_type == WarcRecordType.revisit:
            return Found(url, PageOutcome.REVISIT, **common)
        try:
            status, kind, charset = self._head(record)
        except (OSError, ValueError):
            return Found(url, PageOutcome.MALFORMED_RESPONSE, **common)
        common["status"] = status
        if status is not None and status not in (200, 203):
            return Found(url, http_outcome(status), **common)
        is_cut = bool(record.headers.get("WARC-Truncated") or record.headers.get("WARC-Segment-Number"))
        if not may_be_page(kind) or _is_robots_file(url):
            return Found(url, PageOutcome.NOT_HTML, **common)
        if is_cut and not self._keep_truncated:
            return Found(url, PageOutcome.TRUNCATED, **common)
        try:
            body = self._body(record, is_cut=is_cut)
        except TooLargeError:
            return Found(url, PageOutcome.TOO_LARGE, **common)
        except (DamagedBodyError, CutShortError):
            return Found(url, PageOutcome.MALFORMED_RESPONSE, **common)
        is_html = is_html_page(kind, body)
        if is_html is None:
            return Found(url, PageOutcome.NOT_HTML, **common)
        return Found(url, PageOutcome.OK, Page(url, body, charset, is_html, final_url, status), **common)

    @staticmethod
    def _head(record: WarcRecord) -> tuple[int | None, str, str | None]:
        """The status, if there is one, media type and charset of a page. Raises OSError or ValueError for bad HTTP."""
        if record.record_type == WarcRecordType.conversion:
            return None, "text/plain", content_type_of(record.headers.get("Content-Type"))[1] or "utf-8"
        said, _ = content_type_of((record.headers.get("Content-Type") or "").partition(";")[0])
        if record.record_type == WarcRecordType.resource:
            return None, *content_type_of(record.headers.get("Content-Type"))
        if said != "application/http":  # a name looked up, a file by FTP
            return None, said or "unknown", None
        record.parse_http(quirks_mode=True, max_header_len=MAX_HTTP_HEADER)
        status = record.http_headers.status_code if record.http_headers is not None else None
        if status is None:
            raise ValueError("no status")
        return status, *content_type_of(_http_header(record, b"content-type"))

    def _body(self, record: WarcRecord, *, is_cut: bool) -> bytes:
        announced = record.content_length
        if announced > self._limit:
            raise TooLargeError
        body = record.reader.read(self._limit + 1)
        if len(body) < announced:
            raise OSError("the file is cut off")
        if not record.is_http_parsed:
            return body
        return decoded(
            body,
            _http_header(record, b"transfer-encoding") or "",
            _http_header(record, b"content-encoding") or "",
            limit=self._limit,
            may_be_cut=is_cut,
        )


def is_address(url: str) -> bool:
    """Whether a URL can be taken apart; it need not be one of the web."""
    try:
        return bool(urlsplit(url).hostname or url)
    except ValueError:
        return False


def _is_robots_file(url: str) -> bool:
    return urlsplit(url).path == "/robots.txt"


def _http_header(record: WarcRecord, name: bytes) -> str | None:
    value = record.http_headers.get_bytes(name)
    return None if value is None else value.decode("latin-1")


def _source_of(record: WarcRecord) -> tuple[str, Source] | None:
    """What a metadata record of a download says, and of which record."""
    refers_to = record.headers.get("WARC-Refers-To")
    if record.headers.get("Content-Type") != SOURCE_TYPE or refers_to is None:
        return None
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        source = _decode_source(record.reader.read(MAX_SOURCE))
        final_url = None if source.final_url is None else without_credentials(source.final_url)
        return refers_to, Source(without_credentials(source.url), final_url, clean_metadata(source.metadata))
    return None
