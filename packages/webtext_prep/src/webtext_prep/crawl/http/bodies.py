"""Bodies of answers: decompressed in small steps against a cap, and told apart by header and first bytes.

A few kilobytes of gzip may hold gigabytes, so that only formats that can be read in steps are asked for. aiohttp's
own decoder also goes in steps, but takes a gzip stream that breaks off for a whole one, and begins before a cap on
bytes can stop it; hence this one. Between two awaits at most `STEP_BYTES` come out of it, for any input.

What a `Content-Type` header and the first bytes of a body say: a page of HTML, of plain text, or neither.

Servers and archives are judged alike, so that a saved page gives the same document as the one that was fetched.

The body of an HTTP answer as it lies in an archive: its chunks put together and decompressed, against a cap.

Archives keep what was sent, or what was decoded of it, under headers that may still tell of the former: a body that is
not as its headers say, but begins like a page, is taken as it is.
"""

from __future__ import annotations

import asyncio
import functools
import io
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from email.message import Message

import aiohttp
from fastwarc.stream_io import BrotliReader, ZstdReader

from webtext_prep.extraction.outcomes import PageOutcome

STEP_BYTES = 1 << 20
"""So much is decompressed at most, or taken in, before other requests have their turn: some 5 ms."""
MAX_MEMBERS = 1024
"""Gzip members in one body: real ones have one, or one for each block of some ten kilobytes."""
GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
_WINDOW = 1 << 12
"""Compressed bytes handed over at once. zlib copies what follows a member's end, so that a stream of tiny members
handed over whole costs the square of its length."""

_HTML_PREFIXES = (b"<!doctype html", b"<html", b"<head", b"<body", b"<!--", b"<title", b"<?xml", b"<script", b"<meta")
_BINARY = frozenset(bytes([*range(9), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)]))
_OTHER_FORMATS = (b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"\x1f\x8b", b"ID3", b"OggS", b"Rar!")
"""What some servers send as text/html all the same."""


Reserve = Callable[[int], Awaitable[None]]
"""Takes memory for so many bytes, as soon as there is some."""


class BodyError(Exception):
    """A body that can't be read. `outcome` is that of an archived page, which another request would not change."""

    outcome = PageOutcome.MALFORMED_RESPONSE


class TooLargeError(BodyError):
    """A body with more bytes than allowed."""

    outcome = PageOutcome.TOO_LARGE


class DamagedBodyError(BodyError):
    """A body that is not compressed as its header says, or in a way that was not asked for."""


class CutShortError(BodyError):
    """A compressed body that breaks off."""


class Decompressor:
    """Takes the pieces of a body and gives back decompressed ones, each of at most 64 KiB.

    Raises DamagedBodyError for an encoding that it does not know or data that does not follow it.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding.strip().lower()
        if self.encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise DamagedBodyError(encoding)
        self._is_plain = self.encoding in ("", "identity")
        self._inflater: zlib._Decompress | None = None  # none between members
        self._first_bytes = b""  # of a member, too short to identify it
        self._members = 0
        self._is_over = False

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield what `data` adds; an empty piece says that work was done with nothing to show for it."""
        if self._is_plain:
            yield data
            return
        for start in range(0, len(data), _WINDOW):
            if self._is_over:
                return
            yield from self._inflate(data[start : start + _WINDOW])

    def finish(self) -> None:
        """Raise CutShortError if the body broke off; to be called once, after the last piece."""
        if self._inflater is not None or (self._first_bytes and not self._members):
            raise CutShortError(self.encoding)

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflater is None:
                data = self._begin_member(data)
                continue
            piece = self._decompress(data)
            yield piece
            # A full piece may leave more to come though all input is used up.
            while not self._inflater.eof and (self._inflater.unconsumed_tail or len(piece) == _PIECE):
                piece = self._decompress(self._inflater.unconsumed_tail)
                yield piece
            data = self._inflater.unused_data
            if self._inflater.eof:
                self._inflater = None

    def _begin_member(self, data: bytes) -> bytes:
        """Choose the format of the member that begins with `data`; returns what there is of it."""
        data, self._first_bytes = self._first_bytes + data, b""
        if self._members:
            data = data.lstrip(b"\0")  # padding
        if len(data) < 2:
            self._first_bytes = data
            return b""
        if self._members and not data.startswith(GZIP):
            self._is_over = True  # rubbish after the end
            return b""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise DamagedBodyError("too many members")
        # Some servers send bare deflate data under the name of the zlib format, whose header is a multiple of 31.
        is_zlib = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        is_bare = self.encoding == "deflate" and not is_zlib and not data.startswith(GZIP)
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32)
        return data

    def _decompress(self, data: bytes) -> bytes:
        assert self._inflater is not None
        try:
            return self._inflater.decompress(data, _PIECE)
        except zlib.error:
            raise DamagedBodyError(self.encoding) from None


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[bytes, int]]:
    """The decompressed pieces of a body, each with the bytes received so far; others have their turn in between."""
    decompressor = Decompressor(response.headers.get("Content-Encoding", ""))
    received = work = 0
    async for data in response.content.iter_any():
        received += len(data)
        for piece in decompressor.steps(data):
            yield piece, received
            work += len(piece) + _WINDOW
            if work >= STEP_BYTES:
                work = 0
                await asyncio.sleep(0)
    decompressor.finish()


async def read_body(
    response: aiohttp.ClientResponse, limit: int, reserve: Reserve, *, may_be_cut: bool = False
) -> bytes:
    """The decompressed body.

    Args:
        response: whose body to read.
        limit: bytes beyond which it raises TooLargeError, before they are all in memory.
        reserve: awaited with the size of each piece before it is kept.
        may_be_cut: give the first `limit` bytes instead, or what came of them.

    Raises DamagedBodyError and CutShortError as `Decompressor` does.
    """
    if (response.content_length or 0) > limit and not may_be_cut:
        raise TooLargeError
    pieces: list[bytes] = []
    size = 0
    async for piece, received in _pieces(response):
        size += len(piece)
        # Compressed data of which nothing comes out must not continue forever either.
        if max(size, received) > limit and not may_be_cut:
            raise TooLargeError
        if piece:
            await reserve(len(piece))
            pieces.append(piece)
        if max(size, received) >= limit and may_be_cut:
            break
    return b"".join(pieces)[:limit]


def looks_like(body: bytes) -> str:
    """What a body is by its first bytes: `html`, `text`, `binary` or, where that is certain, `other`."""
    if body.startswith(_OTHER_FORMATS):
        return "other"
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "html" if b"<\0" in body[:64] or b"\0<" in body[:64] else "text"
    head = body[:_PIECE].removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\f")[:512].lower()
    if head.startswith(_HTML_PREFIXES):
        return "html"
    return "binary" if any(byte in _BINARY for byte in body[:512]) else "text"


HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
TEXT_TYPES = frozenset({"text/plain", "text/markdown", "text/x-markdown"})
UNSAID_TYPES = frozenset({"", "application/octet-stream", "binary/octet-stream", "unknown/unknown"})
"""What servers send that don't know: the content decides."""
MAX_HEADER = 1_000
"""Characters of a header that are looked at."""
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


@functools.lru_cache(maxsize=1024)
def content_type_of(header: str | None) -> tuple[str, str | None]:
    """The media type that a `Content-Type` header names ("" if none, or no valid one), and its charset.

    >>> content_type_of('Text/HTML; Charset="utf-8"')
    ('text/html', 'utf-8')
    """
    message = Message()
    try:
        message["Content-Type"] = " ".join((header or "")[:MAX_HEADER].split())
        kind, charset = message.get_params([("", "")])[0][0].strip().lower(), message.get_param("charset")
    except (ValueError, LookupError, TypeError):  # some malformed parameters are too much for the parser
        return "", None
    # A parameter in three parts (RFC 2231) says its own encoding first.
    value = charset[-1] if isinstance(charset, tuple) else charset
    return kind if _MEDIA_TYPE.fullmatch(kind) else "", (value or "").strip("'\" ") or None


def may_be_page(kind: str) -> bool:
    """Whether a body of this media type is worth reading."""
    return kind in HTML_TYPES or kind in TEXT_TYPES or kind in UNSAID_TYPES


def is_html_page(kind: str, body: bytes) -> bool | None:
    """Whether a body of a media type that `may_be_page` is HTML, or else plain text; None if it is neither."""
    looks = looks_like(body)
    if looks == "other" or (looks == "binary" and kind not in HTML_TYPES):
        return None
    return kind in HTML_TYPES or (kind in UNSAID_TYPES and looks == "html")


_CHUNK = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]{0,4096})?\r?\n")
_BY_LIBRARY = {"br": BrotliReader, "zstd": ZstdReader}


def decoded(body: bytes, transfer: str, encodings: str, *, limit: int, may_be_cut: bool) -> bytes:
    """A body without its chunks and decompressed.

    Args:
        body: as it lies in the archive.
        transfer: the header `Transfer-Encoding`.
        encodings: the header `Content-Encoding`.
        limit: bytes beyond which it raises TooLargeError.
        may_be_cut: take what there is of a body that breaks off.

    Raises DamagedBodyError if it is not encoded as the headers say, and CutShortError if it breaks off.
    """
    if "chunked" in transfer.lower():
        body = without_chunks(body, may_be_cut=may_be_cut)
    for encoding in reversed(encodings.lower().split(",")):
        name = encoding.strip()
        if name in ("", "identity") or not body:
            continue
        try:
            body = _decompressed(body, name, limit, may_be_cut=may_be_cut)
        except DamagedBodyError:
            if looks_like(body) not in ("html", "text"):
                raise
    return body


def without_chunks(body: bytes, *, may_be_cut: bool = False) -> bytes:
    """A body without the sizes between its chunks; as it is if it does not begin with one."""
    pieces: list[bytes] = []
    at = 0
    while (found := _CHUNK.match(body, at)) is not None:
        size = int(found[1], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(body[found.end() : found.end() + size])
        at = found.end() + size
        if at > len(body):
            break
        at += 2 if body.startswith(b"\r\n", at) else 1 if body.startswith(b"\n", at) else 0
    if not pieces:
        return body
    if at < len(body):
        raise DamagedBodyError("chunked")
    if not may_be_cut:
        raise CutShortError("chunked")
    return b"".join(pieces)


def _decompressed(body: bytes, name: str, limit: int, *, may_be_cut: bool) -> bytes:
    if name in _BY_LIBRARY:
        try:
            found = _BY_LIBRARY[name](io.BytesIO(body)).read(limit + 1)
        except OSError as error:
            raise DamagedBodyError(name) from error
        if len(found) > limit:
            raise TooLargeError
        return found
    decompressor, pieces, size = Decompressor(name), [], 0
    for piece in decompressor.steps(body):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise TooLargeError
    if not may_be_cut:
        decompressor.finish()
    return b"".join(pieces)
