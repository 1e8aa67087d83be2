"""Bodies of answers, decompressed in small steps against a cap, from a server or as they lie in an archive.

A few kilobytes of gzip may hold gigabytes, so that only formats that can be read in steps are asked for; what comes in
another one all the same (Brotli, zstandard) is decompressed at once, up to the cap: some 3 ms a megabyte. aiohttp's
decoder goes in steps, too, but takes a gzip stream that breaks off for a whole one, waits for more of a deflate stream
that does, and refuses a whole page with padding between its gzip members or rubbish after them; hence this one, which
also reads the stored bodies of archives. Between two awaits at most `STEP_BYTES` come out of it, for any input.

Without a `ByteBudget`, memory is bounded only by connections times the largest page: 200 pages of 5 MB are a gigabyte.
Whoever reads a body takes bytes from the budget as they come, and waits when there are none: unread data then stays
with the kernel, and the sender is slowed down. The oldest reservations never wait, so that there is always one who gets
on: each of them may exceed the budget by one page. Were it only one, senders that fill the budget and then dawdle would
be read one after the other.

Archives keep what was sent, or what was decoded of it, under headers that may still tell of the former: a stored body
that is not as its headers say, but begins like a page, is taken as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import re
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp
from fastwarc.stream_io import BrotliReader, ZstdReader

from webtext_prep.crawl.http.media_types import looks_like
from webtext_prep.extraction.outcomes import PageOutcome

STEP_BYTES = 1 << 20
"""The most that is decompressed, or taken in, before other requests have their turn: some 5 ms."""
MAX_MEMBERS = 1024
"""Gzip members in one body: real ones have one, or one for each block of some ten kilobytes."""
GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
_IN_STEPS = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_WINDOW = 1 << 12
"""Compressed bytes handed over at once. zlib copies what follows a member's end, so that a stream of tiny members
handed over whole costs the square of its length."""

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
        if self.encoding not in _IN_STEPS:
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


class ByteBudget:
    """Bytes shared by all pages of a process.

    Args:
        limit: bytes that may be held at once, but for `unhindered` pages more.
        unhindered: how many of the pages that hold some, the oldest ones, never wait.
    """

    def __init__(self, limit: int, *, unhindered: int = 1) -> None:
        self.limit, self.held, self.unhindered = limit, 0, unhindered
        self.holders: dict[Reservation, None] = {}  # in the order of their first byte
        self.changed = asyncio.Event()

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Reservation]:
        """A reservation, given back at the end of the block."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.held -= reservation.held
            self.holders.pop(reservation, None)
            self.changed.set()


class Reservation:
    """The bytes that one page holds of a budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget, self.held = budget, 0
        self.waited = 0.0  # seconds

    def try_grow(self, size: int) -> bool:
        """Take `size` bytes more if there is room now."""
        budget = self.budget
        budget.holders.setdefault(self)
        if budget.held + size > budget.limit and self not in itertools.islice(budget.holders, budget.unhindered):
            return False
        budget.held += size
        self.held += size
        return True

    async def grow(self, size: int) -> float:
        """Take `size` bytes more, as soon as there is room. Returns the seconds waited."""
        start = time.monotonic()
        while not self.try_grow(size):
            self.budget.changed.clear()
            await self.budget.changed.wait()
        waited = time.monotonic() - start
        self.waited += waited
        return waited


async def _pieces(response: aiohttp.ClientResponse, encoding: str) -> AsyncIterator[tuple[bytes, int]]:
    """The decompressed pieces of a body, each with the bytes received so far; others have their turn in between."""
    decompressor = Decompressor(encoding)
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

    Raises DamagedBodyError and CutShortError as `Decompressor` and `decoded` do.
    """
    if (response.content_length or 0) > limit and not may_be_cut:
        raise TooLargeError
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    is_unasked = encoding not in _IN_STEPS and "," not in encoding  # several may be hundreds
    pieces: list[bytes] = []
    size = 0
    async for piece, received in _pieces(response, "" if is_unasked else encoding):
        size += len(piece)
        # Compressed data of which nothing comes out must not continue forever either.
        if max(size, received) > limit and not may_be_cut:
            raise TooLargeError
        if piece:
            await reserve(len(piece))
            pieces.append(piece)
        if max(size, received) >= limit and may_be_cut:
            break
    body = b"".join(pieces)[:limit]
    if is_unasked:
        body = decoded(body, "", encoding, limit=limit, may_be_cut=may_be_cut)
        await reserve(len(body))
    return body


_CHUNK = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]{0,4096})?\r?\n")
_BY_LIBRARY = {"br": BrotliReader, "zstd": ZstdReader}
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", *_BY_LIBRARY})
"""Other names (`utf-8`, `none`, `aws-chunked`) are mistakes, and say nothing of how a body is sent or stored."""


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
    names = [name.strip() for name in encodings.lower().split(",")]
    are_known = all(name in _CODINGS or name in ("", "identity") for name in names)
    for name in reversed(names):
        if name not in _CODINGS or not body:
            continue
        try:
            body = _decompressed(body, name, limit, may_be_cut=may_be_cut)
        except DamagedBodyError:
            if looks_like(body) not in ("html", "text"):
                raise
    if not are_known and looks_like(body) not in ("html", "text"):
        raise DamagedBodyError(encodings)
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
