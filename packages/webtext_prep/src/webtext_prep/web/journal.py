"""What a download has finished, on disk the moment it is finished: one append-only file a shard.

A record is a URL's outcome row and, if it has one, its document, with length and checksum in front: after a `kill -9`
the torn end is recognised and cut off, and nothing before it is fetched again. Records are found by URL, never by line
number, so that the list may grow, shrink or change its order. The index in memory takes some 200 bytes a URL.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import xxhash
import zstandard

from webtext_prep.documents.document import Document, decode_document, encode_document

_HEADER = struct.Struct("<IIQ")  # bytes of the row, bytes of the document, checksum of both
_MAGIC = b"webtext journal 1\n"


def url_digest(url: str) -> bytes:
    """16 bytes that stand for a URL in indexes."""
    return xxhash.xxh3_128_digest(url.encode("utf-8", "surrogatepass"))


class Journal:
    """The records of one shard. Use as a context manager; a later record of a URL replaces the earlier one.

    Attributes:
        fetched: digests of the URLs whose last record was made by fetching, in this run or in one that was cut short.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self._offsets: dict[bytes, int] = {}
        self.fetched: set[bytes] = set()
        self._compress = zstandard.ZstdCompressor(level=1).compress
        self._decompress = zstandard.ZstdDecompressor().decompress
        self._load()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, url: str) -> bool:
        return url_digest(url) in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def _load(self) -> None:
        """Index the records, and cut off whatever follows the last whole one."""
        self._file.seek(0)
        if self._file.read(len(_MAGIC)) != _MAGIC:
            self._file.truncate(0)
            self._file.write(_MAGIC)
            self._file.flush()
        self._end = len(_MAGIC)
        self._file.seek(self._end)
        while (record := self._read_record()) is not None:
            row = record[0]
            self._note(row, self._end)
            self._end = self._file.tell()
        self._file.truncate(self._end)

    def _note(self, row: dict[str, Any], offset: int) -> None:
        digest = url_digest(row["url"])
        self._offsets[digest] = offset
        (self.fetched.discard if row["seeded"] else self.fetched.add)(digest)

    def _read_record(self) -> tuple[dict[str, Any], bytes] | None:
        """The record at the file's position, or None if there is no whole one."""
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        row_bytes, document_bytes, checksum = _HEADER.unpack(header)
        payload = self._file.read(row_bytes + document_bytes)
        if len(payload) < row_bytes + document_bytes or xxhash.xxh3_64_intdigest(payload) != checksum:
            return None
        return msgspec.json.decode(payload[:row_bytes]), payload[row_bytes:]

    def add(self, row: dict[str, Any], document: Document | None, *, seeded: bool = False) -> None:
        """Append a record and hand it to the system, which keeps it though this process be killed.

        Args:
            row: the URL's outcome, with `url`.
            document: its document, if the outcome is `ok`.
            seeded: whether it comes from an earlier run's output instead of the network.
        """
        row = {**row, "seeded": seeded}
        encoded = msgspec.json.encode(row)
        body = self._compress(encode_document(document)) if document is not None else b""
        payload = encoded + body
        self._file.write(_HEADER.pack(len(encoded), len(body), xxhash.xxh3_64_intdigest(payload)) + payload)
        self._file.flush()
        self._note(row, self._end)
        self._end += _HEADER.size + len(payload)

    def urls(self) -> Iterator[str]:
        """The URL of each record, those of replaced records included; nothing may be added meanwhile."""
        position = len(_MAGIC)
        while position < self._end:
            self._file.seek(position)
            record = self._read_record()
            if record is None:
                return
            position = self._file.tell()
            yield record[0]["url"]

    def row(self, url: str) -> dict[str, Any] | None:
        """The outcome row of `url`, or None."""
        found = self.get(url)
        return found[0] if found else None

    def get(self, url: str) -> tuple[dict[str, Any], Document | None] | None:
        """The outcome row and the document of `url`, or None if there is no record."""
        offset = self._offsets.get(url_digest(url))
        if offset is None:
            return None
        self._file.seek(offset)
        record = self._read_record()
        if record is None:
            raise OSError(f"the journal {self._file.name} changed while it was read")
        row, body = record
        row.pop("seeded")
        return row, decode_document(self._decompress(body)) if body else None
