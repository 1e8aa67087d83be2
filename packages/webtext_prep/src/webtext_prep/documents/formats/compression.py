"""Reading and writing files whose suffix says how they are compressed: .gz, .xz, .bz2, .zst, or none.

A file that ends in the middle of its compressed data is an error that names it: a shortened download or a full disk
must not pass for a shorter corpus. So is anything after the data but more of it or zeros: the standard library's
`bz2.open` and `lzma.open` leave out, without an error, a second stream that is damaged near its start.

Memory is bounded for any file: one step gives at most 1 MiB, however densely it was compressed.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

import zstandard

from webtext_prep import storage
from webtext_prep.errors import DamagedFileError, InputError
from webtext_prep.storage.locations import Location

# The package zstandard, which writes here, has no reader that bounds what one step gives and tells a cut file (0.25).
# So the standard library's zstd reads all there is.
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZstdError = zstd.ZstdError
decompress_zstd = zstd.decompress
"""What some bytes hold that were compressed with zstandard as a whole. Raises ZstdError."""

COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")

CHUNK_BYTES = 1 << 20
"""The most that one step of reading gives."""
MAX_LINE_BYTES = 256 << 20
"""A longer line is not text that anybody wrote: reading stops there instead of filling the memory."""

GZIP_LEVEL = 6
"""gzip's own default."""
MOST_RATIO = 10_000
"""No text compresses so well: one page of 100 kB again and again does 2,500-fold."""
RATIO_BYTES = 256 << 20
"""So much is decompressed, however little it was before."""
MAX_TRIALS = 1_000
"""Places that look like the beginning of a stream and are none, after which the rest of a damaged file is given up."""
_COMPRESSED_CHUNK = 1 << 15


class Decompressor(Protocol):
    """One compressed stream: what the decompressors of bz2, lzma and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _GzipDecompressor:
    """zlib's decompressor with the interface of the others. It checks gzip's checksum and length."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(31)  # gzip's header and checksum, with the largest window
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        self.needs_input = len(found) < max_length and not self._stream.unconsumed_tail
        return found


def zstd_decompressor(dictionary: bytes = b"") -> Decompressor:
    """For one frame, which may have been compressed with a dictionary. Raises OSError if that is none."""
    try:
        known = zstd.ZstdDict(dictionary) if dictionary else None
    except (zstd.ZstdError, ValueError) as error:
        raise OSError(f"its dictionary can't be read: {error}") from error
    # Public dumps are compressed with windows of up to 2 GiB (`zstd --long=31`).
    return zstd.ZstdDecompressor(known, {zstd.DecompressionParameter.window_log_max: 31})


DECOMPRESSORS: dict[str, Callable[[], Decompressor]] = {
    ".gz": _GzipDecompressor,
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": zstd_decompressor,
}
"""Suffix to what decompresses one stream of such a file."""
DECOMPRESSOR_ERRORS = (zstd.ZstdError, lzma.LZMAError, zlib.error)
"""What they raise for damage; that of bz2 raises OSError."""


def compression_of(path: Location) -> str:
    """The suffix of `path`, in lower case, if it is that of a compressed file, else an empty text."""
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSED_SUFFIXES else ""


def bare_name(path: Location) -> str:
    """The file's name without the suffix of its compression: `a.jsonl.zst` -> `a.jsonl`."""
    return path.name.removesuffix(path.suffix) if compression_of(path) else path.name


def _decompressed(read: Callable[[int], bytes], compression: str) -> Iterator[bytes]:
    """All streams of a file, which `read` reads on, one after another, at most `CHUNK_BYTES` at a time.

    Raises EOFError if the file ends inside a stream or holds none; else the decompressor's own error.
    """
    data = read(_COMPRESSED_CHUNK)
    if not data:
        # Even nothing takes some bytes once it is compressed.
        raise EOFError
    while data:
        stream = DECOMPRESSORS[compression]()
        while not stream.eof:
            if not data and stream.needs_input:
                data = read(_COMPRESSED_CHUNK)
                if not data:
                    raise EOFError
            found = stream.decompress(data, CHUNK_BYTES)
            data = b""
            if found:
                yield found
        # Padding with zeros is part of the xz format, and left behind other files by tapes and block devices.
        data = stream.unused_data.lstrip(b"\0")
        while not data and (more := read(_COMPRESSED_CHUNK)):
            data = more.lstrip(b"\0")


def check_ratio(path: Location, size: int, packed: int) -> None:
    """Raise InputError if `packed` bytes of a file are `size` decompressed, and that is more than any text has."""
    if size > RATIO_BYTES and size > MOST_RATIO * packed:
        raise InputError(
            f"{path} is more than {MOST_RATIO:,} times as large once it is decompressed, as no text is: leave it out, "
            "or give it decompressed if it is right."
        )


def end_of_stream(file: BinaryIO, compression: str, start: int) -> int | None:
    """Where the compressed stream ends that begins at a place of an open file; None if it is damaged or cut off."""
    file.seek(start)
    stream, data, end = DECOMPRESSORS[compression](), b"", start
    try:
        while not stream.eof:
            if stream.needs_input:
                data = file.read(_COMPRESSED_CHUNK)
                if not data:
                    return None
                end += len(data)
            stream.decompress(data, CHUNK_BYTES)
            data = b""
    except DECOMPRESSOR_ERRORS:
        return None
    except OSError as error:
        if error.errno is not None:
            raise
        return None  # what bz2 says of damage
    return end - len(stream.unused_data)


_MARKS = {
    ".gz": re.compile(rb"\x1f\x8b\x08[\0-\x1f]"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    ".bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
}
"""How a compressed stream with anything in it begins."""
_LONGEST_MARK = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a compressed file: streams (frames, members) that are whole, or what lies between such.

    Attributes:
        begin: its first byte in the file.
        end: the byte after its last one.
        is_whole: whether it can be read, and is what its checksums say.
    """

    begin: int
    end: int
    is_whole: bool


def pieces_of(path: Location) -> list[Piece]:
    """The pieces of a compressed file, whole and damaged ones in turn; each byte but padding is in one.

    All of the file is decompressed. Raises InputError if it can't be opened.
    """
    compression, found = compression_of(path), list[Piece]()
    with _errors_named(path, compression), storage.open_for_reading(path) as file:
        size, at, trials = file.seek(0, 2), 0, 0
        while (at := _without_padding(file, at, size)) < size:
            begin, end = at, end_of_stream(file, compression, at)
            while end is None and at < size:
                trials += 1
                at = _next_mark(file, compression, at + 1, size) if trials < MAX_TRIALS else size
                end = end_of_stream(file, compression, at) if at < size else None
            if at > begin:
                found.append(Piece(begin, at, is_whole=False))
            if end is not None:
                is_more = bool(found) and found[-1].is_whole
                found.append(Piece(found.pop().begin if is_more else at, end, is_whole=True))
                at = end
    return found


def _without_padding(file: BinaryIO, at: int, size: int) -> int:
    """The first place from one on at which there is no zero."""
    while at < size:
        file.seek(at)
        data = file.read(_COMPRESSED_CHUNK)
        if rest := data.lstrip(b"\0"):
            return at + len(data) - len(rest)
        at += len(data)
    return size


def _next_mark(file: BinaryIO, compression: str, at: int, size: int) -> int:
    """The first place from one on at which a stream may begin, or the end of the file."""
    while at < size:
        file.seek(at)
        window = file.read(CHUNK_BYTES)
        if mark := _MARKS[compression].search(window):
            return at + mark.start()
        at += max(1, len(window) - _LONGEST_MARK) if len(window) == CHUNK_BYTES else len(window)
    return size


def read_piece(path: Location, piece: Piece) -> Iterator[bytes]:
    """The decompressed bytes of a whole piece, as `read_chunks` gives those of a file."""
    compression, size = compression_of(path), 0
    with _errors_named(path, compression), storage.open_for_reading(path) as file:
        file.seek(piece.begin)
        for chunk in _decompressed(lambda most: file.read(min(most, piece.end - file.tell())), compression):
            size += len(chunk)
            check_ratio(path, size, file.tell() - piece.begin)
            yield chunk


def read_chunks(path: Location) -> Iterator[bytes]:
    """The decompressed bytes of `path`, at most 1 MiB at a time.

    Raises InputError if the file can't be opened, or becomes more than 256 MiB and 10,000 times as large, and
    DamagedFileError if it is damaged or ends in the middle of its compressed data.
    """
    return (chunk for chunk, _ in read_placed_chunks(path))


def read_placed_chunks(path: Location) -> Iterator[tuple[bytes, int]]:
    """As `read_chunks`, each chunk with how many bytes of the file were read up to its end."""
    compression = compression_of(path)
    with _errors_named(path, compression), storage.open_for_reading(path) as file:
        if compression:
            size = 0
            for chunk in _decompressed(file.read, compression):
                size += len(chunk)
                check_ratio(path, size, file.tell())
                yield chunk, file.tell()
        else:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk, file.tell()


@contextlib.contextmanager
def _errors_named(path: Location, compression: str) -> Iterator[None]:
    """Raise InputError for what goes wrong in the block with a file."""
    try:
        yield
    except EOFError:
        raise DamagedFileError(
            f"{path} is cut off in the middle of its compressed data: fetch or write it again, or leave it out."
        ) from None
    except DECOMPRESSOR_ERRORS as error:
        raise DamagedFileError(
            f"{path} is not a valid {compression} file ({error}): fetch or write it again."
        ) from error
    except OSError as error:
        if compression == ".bz2" and error.errno is None:
            raise DamagedFileError(f"{path} is not a valid .bz2 file ({error}): fetch or write it again.") from error
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            reason = error.strerror or "it is not there, or not yours to read"
            raise InputError(f"can't read {path} ({reason}).") from error
        raise


@contextlib.contextmanager
def compressed(stream: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    """A stream whose bytes go to `stream` compressed as `suffix` says: `.zst`, `.gz`, or none.

    Equal content gives equal bytes, in one frame or member, which any reader takes.
    """
    if not suffix:
        yield stream
    elif suffix == ".gz":
        with gzip.GzipFile("", "wb", GZIP_LEVEL, stream, mtime=0) as lines:
            yield cast(BinaryIO, lines)
    else:
        # 187 MB/s at a ratio of 2.73 on web text, measured on one core; higher levels cost more than they save.
        compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        with compressor.stream_writer(stream, closefd=False) as frame:
            yield cast(BinaryIO, frame)


@contextlib.contextmanager
def write_zstd(location: Location, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing zstandard-compressed bytes; it appears complete or not at all."""
    with storage.create(location, durable=durable) as file, compressed(file, ".zst") as stream:
        yield stream


def join_zstd(parts: Iterable[Location], place: Location) -> Location:
    """Write what several files of `write_zstd` hold, in order, as one such file; returns its place."""
    with storage.create(place) as joined:
        for part in parts:
            with storage.open_for_reading(part) as file:
                shutil.copyfileobj(file, joined, 1 << 20)
    return place
