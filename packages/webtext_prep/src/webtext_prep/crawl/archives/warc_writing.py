"""Fetched pages as standard WARC records (ISO 28500), by FastWARC: a file that any program for web archives reads.

The pages of a download (`--save-pages`) lie in the order of the list; the row of a URL in the outcomes says where its
record lies in `pages/part-00000.warc.gz`.

Each record is a gzip member of its own, so that one can be read, copied or skipped without the others. Bodies are
stored decompressed and in one piece, as they are extracted: as in Common Crawl's files, the headers that said otherwise
get `X-Crawler-` in front. A record's bytes, its id included, follow from the answer and the second in which it came.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import uuid
from typing import Any, BinaryIO

import msgspec
import xxhash
from fastwarc.stream_io import GzipWriter
from fastwarc.warc import WarcRecord, WarcRecordType

from webtext_prep.crawl.http.client import Reply
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.extraction.pages import CAPTURE
from webtext_prep.opt_outs.decisions import KEYS

GZIP_LEVEL = 3
"""0.85 ms for a page of 119 kB; level 6 saves 5% more and takes 1.2 ms."""
SOURCE_TYPE = "application/vnd.webtext.source+json"
"""Of a metadata record in front of a response: how the list names the page (`PageSource`)."""
NO_DATE = "1970-01-01T00:00:00Z"
"""Of a file without pages."""
_OF_SENT_BODY = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://webtext.example/pages")


class PageSource(msgspec.Struct, omit_defaults=True):
    """What a page's document has from elsewhere than the page.

    Attributes:
        url: by which the list asked for it.
        final_url: where redirects led, or None if there were none.
        metadata: what else the list says of it.
    """

    url: str
    final_url: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


def is_plain(url: str) -> bool:
    """Whether a URL can stand in a record's header as it is."""
    return url.isascii() and url.isprintable() and " " not in url


def response_record(reply: Reply, asked: str, date: str) -> bytes:
    """The response record of a page as a server sent it, compressed.

    Its target is the URL of the list where that is what answered; else a `source_record` is to say it.

    Args:
        reply: the answer.
        asked: the URL of the list.
        date: when, such as `2026-11-21T16:05:45Z`.
    """
    head = [f"HTTP/1.1 {reply.status} {reply.reason}".rstrip().encode("latin-1", "replace")]
    for name, value in reply.headers:
        head.append(b"%b%b: %b" % (b"X-Crawler-" if name.lower() in _OF_SENT_BODY else b"", name, value))
    head += [b"Content-Length: %d" % len(reply.body), b"", b""]
    record = _new(WarcRecordType.response, date, record_id("response", asked, date))
    record.headers["WARC-Target-URI"] = reply.url
    record.is_http = True
    record.set_bytes_content(b"\r\n".join(head) + reply.body)
    return _packed(record, hashlib.sha1(reply.body, usedforsecurity=False).digest())


def source_record(source: PageSource, date: str) -> bytes:
    """The metadata record that goes in front of the response to the same URL and date, compressed."""
    record = _new(WarcRecordType.metadata, date, record_id("metadata", source.url, date))
    record.headers["WARC-Refers-To"] = record_id("response", source.url, date)
    record.headers["Content-Type"] = SOURCE_TYPE
    record.set_bytes_content(msgspec.json.encode(source))
    return _packed(record)


def info_record(date: str, user_agent: str) -> bytes:
    """The warcinfo record with which a file begins, compressed."""
    fields = {
        "software": f"webtext/{importlib.metadata.version('webtext-gpt2-prep')}",
        "format": "WARC File Format 1.1",
        "http-header-user-agent": user_agent,
    }
    content = "".join(f"{name}: {' '.join(value.split())}\r\n" for name, value in fields.items())
    record = _new(WarcRecordType.warcinfo, date, record_id("warcinfo", content, date))
    record.headers["Content-Type"] = "application/warc-fields"
    record.set_bytes_content(content.encode())
    return _packed(record)


def record_id(*parts: str) -> str:
    """A record's id, made from what sets it apart from all others."""
    return f"<urn:uuid:{uuid.uuid5(_NAMESPACE, ' '.join(parts).encode('utf-8', 'surrogatepass').hex())}>"


def _new(kind: WarcRecordType, date: str, identity: str) -> WarcRecord:
    record = WarcRecord()
    record.init_headers(kind)
    record.headers["WARC-Record-ID"] = identity
    record.headers["WARC-Date"] = date
    return record


def _packed(record: WarcRecord, payload_digest: bytes | None = None) -> bytes:
    stream = io.BytesIO()
    with GzipWriter(stream, GZIP_LEVEL) as member:
        record.write(member, checksum_data=True, payload_digest=payload_digest)
        member.finish()
        return stream.getvalue()


KEY = "page"
"""Under it, the row of a URL says where its record lies: `offset`, `length`, and a checksum, `xxh3_64`."""


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
