"""Bodies of answers, decompressed in small steps against a cap.

A few kilobytes of gzip may hold gigabytes, so that only formats that can be read in steps are asked for. aiohttp's
decoder goes in steps, too, but takes a gzip stream that breaks off for a whole one, waits for more of a deflate stream
that does, and refuses a whole page with padding between its gzip members or rubbish after them; hence this one, which
also reads the stored bodies of archives. Between two awaits at most `STEP_BYTES` come out of it, for any input.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp

from webtext_prep.extraction.outcomes import PageOutcome

STEP_BYTES = 1 << 20
"""The most that is decompressed, or taken in, before other requests have their turn: some 5 ms."""
MAX_MEMBERS = 1024
"""Gzip members in one body: real ones have one, or one for each block of some ten kilobytes."""
GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
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
