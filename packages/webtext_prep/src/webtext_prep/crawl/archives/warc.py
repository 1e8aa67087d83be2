"""Pages in web archives: WARC files (ISO 28500) of any crawler, and the texts of Common Crawl's WET files.

FastWARC finds the records, at some 0.8 GB of pages a second; here it is decided what each is, as a download would with
the same answer. An archive may hold anything: headers are bounded, a body is read up to the cap on pages, and what lies
beyond is skipped without being held. FastWARC ends quietly where a file breaks off, which is noticed here, and stops at
damage, after which reading goes on where `records.py` finds a record. A block that has a digest is checked.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import msgspec
from fastwarc.warc import WarcRecord, WarcRecordType

from webtext_prep import storage
from webtext_prep.crawl.archives import records
from webtext_prep.crawl.archives.warc_writing import SOURCE_TYPE, PageSource
from webtext_prep.crawl.http.bodies import BodyError, TooLargeError, decoded
from webtext_prep.crawl.http.media_types import content_type_of, is_html_page, may_be_page
from webtext_prep.crawl.http.redirects import refreshed
from webtext_prep.documents.records.base import SourceFile
from webtext_prep.extraction.edge_refusals import refused_outcome
from webtext_prep.extraction.outcomes import PageOutcome, http_outcome
from webtext_prep.extraction.pages import Page
from webtext_prep.opt_outs.signals import HOST_FILES, ROBOTS_TXT
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import DEFAULT_PORTS, clean_metadata, without_credentials

MAX_HTTP_HEADER = 1 << 18
"""Bytes; servers that send more are few, and their pages are left out."""
MAX_DATE = 40
"""Characters."""
MAX_SOURCE = 1 << 20
"""Bytes of what a list says of one page."""
SEPARATOR = 4
"""Bytes between two records of a plain archive: damage in these costs nothing."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_decode_source = msgspec.json.Decoder(PageSource).decode


@dataclass(frozen=True, slots=True)
class PagePlace:
    """Where in an archive a page lies.

    Attributes:
        offset: of its record in the file, where that can be read from there; of damage, where reading goes on.
        identity: of its record; None for damage.
        number: how many pages and damaged places there are up to this one.
    """

    offset: int
    identity: str | None
    number: int


@dataclass(frozen=True, slots=True)
class FoundPage:
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
        host_file: the contents, if it is a file of a host in which an owner's preferences may stand.
    """

    url: str
    outcome: str
    page: Page | None = None
    status: int | None = None
    final_url: str | None = None
    fetched_at: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    host_file: bytes | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """A place at which an archive can't be read.

    Attributes:
        offset: byte of the file, about.
        reason: why, for people.
        page: the page that is lost there, if there is one.
        is_last: nothing after it can be read either.
    """

    offset: int
    reason: str
    page: FoundPage | None = None
    is_last: bool = False


class _Last(NamedTuple):
    """A page that was found last, with its record and place: whether it is whole is known at the next one."""

    found: FoundPage
    begun: records.Begun
    place: PagePlace


class ArchiveReader:
    """Reads the pages of one archive.

    Args:
        location: the file.
        name: what it is called in the URL of a page that has none.
        max_bytes: most bytes of a page, decompressed.
        keep_truncated: take pages, too, that the crawler cut off.
        data: the bytes of the file, where it is in memory.
    """

    def __init__(
        self, location: Location, name: str, *, max_bytes: int, keep_truncated: bool, data: bytes | None = None
    ) -> None:
        self._location, self._file = location, SourceFile(location, name)
        self._limit, self._keep_truncated, self._data = max_bytes, keep_truncated, data
        self._begun = records.NONE  # the record that was read last
        self._number = 0  # of pages and damaged places so far
        self._reads_pages = True
        self._source: tuple[str, PageSource] | None = None  # what is said of the record that follows

    def _opened(self) -> BinaryIO:
        return storage.open_for_reading(self._location) if self._data is None else io.BytesIO(self._data)

    def entrances(self, every: int, report: Callable[[int], None]) -> list[PagePlace]:
        """The places of pages, about `every` apart, after which reading can go on without the bytes before them.

        None of them is that of the last page. `report` gets the bytes read.
        """
        found: list[PagePlace] = []
        last, next_number = None, every
        with self._opened() as file:
            stream = records.ArchiveStream(file)
            compression = records.compression_of(stream, self._location)
            for _, place in self.pages():
                if last is not None and place.number > last.number:
                    found.append(last)
                    last = None
                if place.number >= next_number:
                    next_number = place.number + every
                    report(place.offset)
                    is_entrance = place.identity is not None and (
                        records.identity_at(stream, compression, place.offset) == (place.identity,)
                    )
                    last = place if is_entrance else None
        return found

    def pages(
        self, behind: PagePlace | None = None, until: PagePlace | None = None
    ) -> Iterator[tuple[FoundPage | Damage, PagePlace]]:
        """The pages, and damaged places, in order, from the beginning or after `behind`, one of `entrances`.

        They end at the place `until`, that one included, if it is given.

        Raises OSError where the file can't be read, whatever it holds.
        """
        with self._opened() as file:
            stream = records.ArchiveStream(file)
            try:
                for entry, place in self._entries(stream, behind):
                    if until is not None and place.number > until.number:
                        return
                    if stream.error is None:
                        yield entry, place
            except OSError:
                if stream.error is None:
                    raise
            if stream.error is not None:
                raise stream.error

    def host_files(self, report: Callable[[int], None]) -> Iterator[FoundPage]:
        """The files of hosts with owners' preferences; pages are passed over. `report` gets the bytes read."""
        self._reads_pages = False
        for entry, place in self.pages():
            if place.number % 1024 == 0:
                report(place.offset)
            if isinstance(entry, FoundPage) and entry.host_file is not None:
                yield entry

    def _entries(
        self, stream: records.ArchiveStream, behind: PagePlace | None
    ) -> Iterator[tuple[FoundPage | Damage, PagePlace]]:
        """One stretch of readable records after another, each with the damage after it."""
        compression = records.compression_of(stream, self._location)
        start: int | None = behind.offset if behind is not None else 0
        self._number, passed = (behind.number, 1) if behind is not None else (0, 0)
        while start is not None:
            self._begun, self._source, last = records.NONE, None, None
            with contextlib.suppress(OSError):
                for found in self._pages(records.fast_records(stream, start), passed):
                    if last is not None:
                        yield last.found, last.place
                    last = _Last(found, self._begun, self._place())
            # FastWARC has stopped, at the end of the file or before: the last record is read again, and what follows.
            if stream.error is not None:
                return
            begun, self._begun = self._begun, records.NONE
            rest, before = records.records_behind(stream, compression, begun, start)
            again = last if last is not None and last.begun is begun else None
            if again is not None:
                self._number, last = again.place.number - 1, None
            if begun.number >= passed and begun is not records.NONE:
                passed = before
            reason = ""
            try:
                for found in self._pages(iter(rest), passed):
                    if last is not None:
                        yield last.found, last.place
                    last = _Last(found, self._begun, self._place())
            except OSError as error:
                reason = str(error).rstrip(".")
            if self._begun is records.NONE and again is not None:  # a header that FastWARC takes, though it breaks off
                self._begun, self._number, last = begun, again.place.number, again
            entries, start = self._end_of_stretch(stream, compression, start, last, rest, reason or rest.reason)
            yield from entries
            passed = 0

    def _place(self) -> PagePlace:
        return PagePlace(self._begun.offset, self._begun.identity, self._number)

    def _end_of_stretch(
        self,
        stream: records.ArchiveStream,
        compression: str,
        start: int,
        last: _Last | None,
        rest: records.Records,
        reason: str,
    ) -> tuple[list[tuple[FoundPage | Damage, PagePlace]], int | None]:
        """The rest of a stretch: its last page, and the damage after it; and where the next stretch begins."""
        begun = self._begun
        page: list[tuple[FoundPage | Damage, PagePlace]] = [(last.found, last.place)] if last is not None else []
        if not reason and stream.size:
            return page, None
        end, is_whole = rest.end(is_verified=begun.is_verified) if begun is not records.NONE else (start, True)
        following = records.next_record(stream, compression, max(end, start + 1))
        if is_whole and not compression and following is not None and following - end <= SEPARATOR:
            return page, following
        lost = None
        if not is_whole and last is not None and last.begun is begun:
            lost, page = replace(last.found, outcome=PageOutcome.DAMAGED, page=None), []
        else:
            self._number += 1
            # What can't be read is taken for a page, if its kind is not known and this is an archive at all.
            if following is not None if begun is records.NONE else is_whole or not begun.is_other:
                lost = FoundPage(self._file.url(self._number), PageOutcome.DAMAGED)
        offset = end if is_whole else begun.offset
        reason = reason if stream.size else "it is empty"
        place = PagePlace(stream.size if following is None else following, None, self._number)
        return [*page, (Damage(offset, reason, lost, is_last=following is None), place)], following

    def _pages(self, found: Iterator[tuple[int, WarcRecord]], passed: int) -> Iterator[FoundPage]:
        """The pages of records behind those that are passed over."""
        for offset, record in found:
            self._begun = records.Begun.of(offset, record, self._begun)
            if self._begun.number < passed:
                continue
            if record.record_type == WarcRecordType.metadata:
                self._source = _source_of(record) or self._source
            if record.record_type & records.OTHER:
                continue
            self._number += 1
            source = self._source
            own = source[1] if source is not None and source[0] == record.record_id else None
            about = self._about(record, own)
            try:
                page = self._found(record, about)
            except OSError:
                yield replace(about, outcome=PageOutcome.DAMAGED)
                raise
            yield page

    # One record

    def _about(self, record: WarcRecord, source: PageSource | None) -> FoundPage:
        """What the header of a record says, and the one in front of it."""
        target = without_credentials((record.headers.get("WARC-Target-URI") or "").strip().strip("<>"))
        url, final_url, metadata = target, None, {}
        if source is not None:
            url, final_url, metadata = source.url, source.final_url, source.metadata
        outcome = _outcome_of_address(url)
        if not record.record_type & records.PAGES:
            outcome = PageOutcome.NOT_A_PAGE
        elif outcome == PageOutcome.OK and final_url is not None:
            outcome = _outcome_of_address(final_url)
        if outcome == PageOutcome.MALFORMED_URL:
            url = self._file.url(self._number)
        date = (record.headers.get("WARC-Date") or "")[:MAX_DATE] or None
        return FoundPage(url, outcome, final_url=final_url, fetched_at=date, metadata=metadata)

    def _found(self, record: WarcRecord, about: FoundPage) -> FoundPage:
        """What a record holds. Raises OSError where it can't be read."""
        if about.outcome != PageOutcome.OK or not (self._reads_pages or urlsplit(about.url).path in HOST_FILES):
            return about
        if record.record_type == WarcRecordType.revisit:
            return replace(about, outcome=PageOutcome.REVISIT)
        if not self._is_as_written(record):
            problem = "the page is not what its digest in the archive says: fetch the archive again"
            return replace(about, outcome=PageOutcome.DAMAGED, problem=problem)
        try:
            status, kind, charset = self._head(record)
        except (OSError, ValueError):
            return replace(about, outcome=PageOutcome.MALFORMED_RESPONSE)
        about = replace(about, status=status)
        headers = tuple(record.http_headers.items_bytes()) if record.is_http_parsed else ()
        if status is not None:
            refusal = refused_outcome(status, {name.lower().decode("latin-1") for name, _ in headers})
            if refusal is not None or status not in (200, 203):
                return replace(about, outcome=refusal or http_outcome(status))
        is_cut = bool(record.headers.get("WARC-Truncated") or record.headers.get("WARC-Segment-Number"))
        if self._reads_pages and (not may_be_page(kind) or urlsplit(about.url).path == ROBOTS_TXT):
            return replace(about, outcome=PageOutcome.NOT_HTML)
        if is_cut and not self._keep_truncated:
            return replace(about, outcome=PageOutcome.TRUNCATED)
        try:
            body = self._body(record, is_cut=is_cut)
        except BodyError as error:
            return replace(about, outcome=error.outcome)
        if not self._reads_pages:
            return replace(about, host_file=body)
        is_html = is_html_page(kind, body)
        if is_html is None:
            return replace(about, outcome=PageOutcome.NOT_HTML)
        address = about.final_url or about.url
        if is_html and status is not None and refreshed(address, _http_header(record, b"refresh"), body, charset):
            return replace(about, outcome=PageOutcome.REDIRECT)
        return replace(about, page=Page(about.url, body, charset, is_html, about.final_url, status, headers))

    def _is_as_written(self, record: WarcRecord) -> bool:
        """False if a record that is to be read has a digest, and not that of its block."""
        said = record.headers.get("WARC-Block-Digest") or ""
        digest = records.fastwarc_digest(said)
        if record.content_length > self._limit or digest is None:
            return True
        if digest != said:
            record.headers["WARC-Block-Digest"] = digest
        self._begun = replace(self._begun, is_verified=record.verify_block_digest())
        return self._begun.is_verified

    @staticmethod
    def _head(record: WarcRecord) -> tuple[int | None, str, str | None]:
        """The status, if there is one, media type and charset of a page. Raises OSError or ValueError for bad HTTP."""
        own, charset = content_type_of(record.headers.get("Content-Type"))
        if record.record_type == WarcRecordType.conversion:
            return None, own or "text/plain", charset or "utf-8"
        if record.record_type == WarcRecordType.resource:
            return None, own, charset
        said, _ = content_type_of((record.headers.get("Content-Type") or "").partition(";")[0])
        if said != "application/http":  # a name looked up, a file by FTP
            return None, said or "unknown", None
        if not record.is_http:  # FastWARC does not know `content-type`
            record.is_http = True
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
        encodings = (_http_header(record, name) for name in (b"transfer-encoding", b"content-encoding"))
        return decoded(body, *encodings, limit=self._limit, may_be_cut=is_cut)


def _outcome_of_address(url: str) -> PageOutcome:
    """`ok` for an address of the web, `not_a_page` for one of another scheme (`urn:`, `dns:`), else `malformed_url`."""
    scheme = url.partition(":")[0].strip().lower()
    if scheme not in DEFAULT_PORTS and _SCHEME.fullmatch(scheme) and ":" in url:
        return PageOutcome.NOT_A_PAGE
    return PageOutcome.OK if is_web_address(url) else PageOutcome.MALFORMED_URL


def is_web_address(url: str) -> bool:
    """Whether a URL is of the web, http or https, and can be taken apart."""
    try:
        parts = urlsplit(url)
        return parts.scheme in DEFAULT_PORTS and bool(parts.hostname)
    except ValueError:
        return False


def _http_header(record: WarcRecord, name: bytes) -> str:
    """The values of a header of an answer: those of several lines are one list (RFC 9110, 5.3)."""
    return b",".join(record.http_headers.get_bytes_multiple(name)).decode("latin-1")


def _source_of(record: WarcRecord) -> tuple[str, PageSource] | None:
    """What a metadata record of a download says, and of which record."""
    refers_to = record.headers.get("WARC-Refers-To")
    if record.headers.get("Content-Type") != SOURCE_TYPE or refers_to is None:
        return None
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        source = _decode_source(record.reader.read(MAX_SOURCE))
        final_url = None if source.final_url is None else without_credentials(source.final_url)
        return refers_to, PageSource(without_credentials(source.url), final_url, clean_metadata(source.metadata))
    return None
