"""Writing compressed bytes so that it can be continued after a kill, at places that follow from the content alone.

A stream is one zstandard frame, one gzip member, or plain bytes: what any reader takes. Its content is compressed in
pieces of `PIECE_BYTES`, none of which depends on those before it. So a writer that is given the beginning of a file,
up to the `Border` behind some piece, goes on from there to the bytes that one writer makes in one go. A smaller stream
is one piece, with the bytes that zstandard and gzip give it; larger ones grow by 0.2 %.

The pieces of a gzip member are flushed, and the next one begins with an empty window. Those of a zstandard frame but
for the first are the jobs of its multithreaded mode without overlap, which its documentation calls completely
independent. What is in front of such a job is replaced by one byte, and left out of the result.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import xxhash
import zstandard

PIECE_BYTES = 512 << 20
"""Content of a piece: some seconds of work."""
ZSTD_LEVEL = 3
"""187 MB/s at a ratio of 2.73 on web text, measured on one core; higher levels cost more than they save."""
GZIP_LEVEL = 6
"""gzip's own default."""
_COPY_BYTES = 1 << 16
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no name, no time, an unknown system (RFC 1952, 2.3)."""
_EMPTY_LAST_BLOCK = b"\x01\x00\x00"
"""Of a zstandard frame (RFC 8878, 3.1.1.2)."""


class Border(NamedTuple):
    """The end of a piece that is not the last one.

    Attributes:
        content: bytes of content up to here.
        size: bytes of the file up to here.
    """

    content: int
    size: int


class CompressedStream:
    """Bytes that are compressed on their way to `stream`; by this class itself they are not.

    Args:
        stream: where they go; to continue, a file that can be read, too, and is cut off behind `begin`.
        begin: the border behind which it continues.
        at: bytes of content before those that are written next: what lies before `begin` is left out.

    Raises ValueError if the file does not hold what `begin` says.
    """

    def __init__(self, stream: BinaryIO, begin: Border | None = None, *, at: int = 0) -> None:
        self._stream, self.border = stream, begin
        self._content, self._size = begin or (0, 0)
        self._left_out = self._content - at
        self._room = PIECE_BYTES
        if begin is not None:
            stream.seek(0)
            try:
                content = self._read_again(begin.size)
            except (zlib.error, zstandard.ZstdError) as error:
                raise ValueError(f"the file is damaged: {error}") from error
            if content != begin.content:
                raise ValueError(f"the file does not hold {begin}")
            stream.seek(begin.size)
        self._begin_piece()

    def write(self, data: bytes | memoryview) -> int:
        """Add some content; returns its length."""
        size = len(data)
        if self._left_out:
            left_out = min(size, self._left_out)
            self._left_out -= left_out
            data = memoryview(data)[left_out:]
        while len(data) > self._room:
            first, data = memoryview(data)[: self._room], memoryview(data)[self._room :]
            self._feed(first)
            self._put(self._end_piece())
            self.border = Border(self._content, self._size)
            self._begin_piece()
            self._room = PIECE_BYTES
        self._feed(data)
        return size

    def close(self) -> None:
        """End the stream, but leave the file open."""
        self._put(self._end())

    def _feed(self, data: bytes | memoryview) -> None:
        self._put(self._compress(data))
        self._content += len(data)
        self._room -= len(data)

    def _put(self, data: bytes | memoryview) -> None:
        if data:
            self._stream.write(data)
            self._size += len(data)

    def _read_again(self, size: int) -> int:
        """Read the first `size` bytes of the file; returns how much content that is."""
        return size

    def _begin_piece(self) -> None:
        """Prepare for the next piece."""

    def _compress(self, data: bytes | memoryview) -> bytes | memoryview:
        """What follows in the file from more content."""
        return data

    def _end_piece(self) -> bytes:
        """What is left to write of a piece that is not the last one."""
        return b""

    def _end(self) -> bytes:
        """What is left to write of all."""
        return b""


class GzipStream(CompressedStream):
    """One gzip member, without time and name: equal content gives equal bytes."""

    def _read_again(self, size: int) -> int:
        self._checksum, content, stream = 0, 0, zlib.decompressobj(31)
        for chunk in _chunks(self._stream, size):
            found = stream.decompress(chunk)
            self._checksum, content = zlib.crc32(found, self._checksum), content + len(found)
        return content

    def _begin_piece(self) -> None:
        if not self._content:
            self._checksum = 0
            self._put(_GZIP_HEAD)
        self._piece = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)

    def _compress(self, data: bytes | memoryview) -> bytes:
        self._checksum = zlib.crc32(data, self._checksum)
        return self._piece.compress(data)

    def _end_piece(self) -> bytes:
        return self._piece.flush(zlib.Z_SYNC_FLUSH)

    def _end(self) -> bytes:
        numbers = (self._checksum, self._content & 0xFFFFFFFF)
        return self._piece.flush() + b"".join(number.to_bytes(4, "little") for number in numbers)


class ZstdStream(CompressedStream):
    """One zstandard frame with a checksum, by which a reader notices bytes that changed on the disk."""

    def _read_again(self, size: int) -> int:
        self._hash, content, stream = xxhash.xxh64(), 0, zstandard.ZstdDecompressor().decompressobj()
        for chunk in _chunks(self._stream, size):
            found = stream.decompress(chunk)
            self._hash.update(found)
            content += len(found)
        return content

    def _begin_piece(self) -> None:
        if not self._content:
            self._hash = xxhash.xxh64()
            self._piece = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compressobj()
            return
        settings = zstandard.ZstdCompressionParameters.from_level(ZSTD_LEVEL, threads=1, overlap_log=1)
        self._piece = zstandard.ZstdCompressor(compression_params=settings).compressobj()
        # A job before this one, without which it would be the first of a frame.
        self._piece.compress(b"\n")
        self._end_piece()

    def _compress(self, data: bytes | memoryview) -> bytes:
        self._hash.update(data)
        return self._piece.compress(data)

    def _end_piece(self) -> bytes:
        return self._piece.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def _end(self) -> bytes:
        if self.border is None:
            return self._piece.flush()
        return self._end_piece() + _EMPTY_LAST_BLOCK + (self._hash.intdigest() & 0xFFFFFFFF).to_bytes(4, "little")


STREAMS: dict[str, type[CompressedStream]] = {"": CompressedStream, ".gz": GzipStream, ".zst": ZstdStream}
"""By the suffix of a compressed file."""


def _chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := stream.read(min(size, _COPY_BYTES))):
        yield chunk
        size -= len(chunk)
