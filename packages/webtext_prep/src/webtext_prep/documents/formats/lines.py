"""Text files as lines of UTF-8, from any encoding that a byte order mark declares: UTF-8, UTF-16 or UTF-32.

Windows tools put such a mark in front of the first line, where it would become part of a URL, and write UTF-16. Files
without a mark pass through as they are, at no cost, but for UTF-16 whose first characters are plain to see.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from webtext_prep import storage
from webtext_prep.documents.formats import compression
from webtext_prep.documents.formats.compression import CHUNK_BYTES, MAX_LINE_BYTES, Piece, compression_of
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # Before UTF-16's, which one of them begins with.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SNIFFED = 4
_RUN = b"\n" * 64
_RUNS = re.compile(rb"\n{64,}")


class EncodingError(InputError):
    """A text file is not in the encoding that it declares."""


def _encoding_of(start: bytes) -> tuple[str, int]:
    """The encoding of a file that starts so, and the length of its byte order mark."""
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return encoding, len(mark)
    # Two characters of ASCII in UTF-16, as RFC 4627 tells the encodings of JSON apart; no text in UTF-8 starts so.
    zeros = [byte == 0 for byte in start]
    if zeros == [False, True, False, True]:
        return "utf-16-le", 0
    if zeros == [True, False, True, False]:
        return "utf-16-be", 0
    return "utf-8", 0


def read_utf8(location: Location) -> Iterator[bytes]:
    """The bytes of a text file, decompressed, in UTF-8 and without a byte order mark, about 1 MiB at a time.

    A file that declares no encoding is taken for UTF-8, and not checked.

    Raises InputError as `read_chunks` does, and EncodingError where UTF-16 or UTF-32 is not valid.
    """
    chunks = compression.read_chunks(location)
    start = b""
    while len(start) < _SNIFFED and (chunk := next(chunks, b"")):
        start += chunk
    encoding, length = _encoding_of(start[:_SNIFFED])
    chunks = itertools.chain([start[length:]], chunks)
    if encoding == "utf-8":
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        name = encoding[:6].upper()
        raise EncodingError(
            f"{location} is not valid {name}, which its first bytes declare ({error.reason}): save it as UTF-8."
        ) from error


def read_utf8_from(location: Location, start: int) -> Iterator[bytes]:
    """As `read_utf8`, without the first `start` bytes of what that gives; a plain file is not read up to there."""
    if start and has_ranges(location):
        with storage.open_for_reading(location) as file:
            mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
            file.seek(start + (len(codecs.BOM_UTF8) if mark else 0))
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
        return
    yield from without_start(read_utf8(location), start)


def read_lines(location: Location) -> Iterator[bytes]:
    """The lines of a text file, decompressed, in UTF-8, without newlines; the last one need not end with one.

    The time is linear in the size of the file, for lines of any length.

    Raises InputError as `read_utf8` does, and for a line of more than 256 MiB.
    """
    yield from lines_in(location, read_utf8(location))


def lines_in(location: Location, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the text in `chunks` (of `location`), as `read_lines` does for a whole file."""
    begun = bytearray()  # the beginning of the line that continues in the next chunk
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun += first
        if len(begun) > MAX_LINE_BYTES:
            raise _too_long(location)
        if others:
            yield bytes(begun)
            begun = bytearray(others.pop())
            yield from others
    if begun:
        yield bytes(begun)


def numbered_lines(location: Location, chunks: Iterable[bytes], first: int = 1) -> Iterator[tuple[int, bytes]]:
    """The lines of the text in `chunks` (of `location`) that are not blank, with their numbers from `first` on.

    Long runs of empty lines take no longer than reading them.
    """
    number, begun = first, bytearray()
    for chunk in chunks:
        for piece, newlines in _runs_of_newlines(chunk):
            head, *others = piece.split(b"\n")
            begun += head
            if len(begun) > MAX_LINE_BYTES:
                raise _too_long(location)
            if others:
                if begun.strip():
                    yield number, bytes(begun)
                begun = bytearray(others.pop())
                for number, line in enumerate(others, number + 1):  # noqa: B020 - goes on from there
                    if line.strip():
                        yield number, line
                number += 1
            if newlines:
                if begun.strip():
                    yield number, bytes(begun)
                number, begun = number + newlines, bytearray()
    if begun.strip():
        yield number, bytes(begun)


def numbered_lines_around_damage(
    location: Location, pieces: Sequence[Piece]
) -> Iterator[tuple[int, bytes, bool] | Piece]:
    """The lines of a compressed file in UTF-8, of whose `pieces` some are damaged, as `numbered_lines` gives those of a
    whole one, each with whether its beginning or end may be lost; and the damaged pieces, in their places.

    Raises InputError as `numbered_lines` does.
    """
    number = 0
    for at, piece in enumerate(pieces):
        if not piece.is_whole:
            yield piece
            continue
        tail = _Tail(
            _without_mark(compression.read_piece(location, piece))
            if at == 0
            else compression.read_piece(location, piece)
        )
        held: tuple[int, bytes, bool] | None = None
        for number, line in numbered_lines(location, tail, number + 1):  # noqa: B020 - goes on from there
            if held is not None:
                yield held
            held = (number, line, held is None and at > 0)
        if held is not None:
            is_cut = at + 1 < len(pieces) and tail.last != b"\n"
            yield held[0], held[1], held[2] or is_cut


class _Tail:
    """Chunks of bytes, and the last byte that was given."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self.last = chunks, b""

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.last = chunk[-1:] or self.last
            yield chunk


def _without_mark(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from chunks


def _runs_of_newlines(chunk: bytes) -> Iterator[tuple[bytes, int]]:
    """`chunk` in pieces, each with how many newlines follow it; counted in long runs only."""
    at = 0
    if _RUN in chunk:
        for found in _RUNS.finditer(chunk):
            yield chunk[at : found.start()], found.end() - found.start()
            at = found.end()
    yield chunk[at:], 0


def _too_long(location: Location) -> InputError:
    return InputError(f"{location} holds a line of more than {MAX_LINE_BYTES >> 20} MiB: it is not a text file.")


# Blocks of lines, and parts of a file


def line_blocks(location: Location, chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The text in `chunks` (of `location`) again, in blocks of whole lines of about `size` bytes; each ends a line.

    Raises InputError for a line of more than 256 MiB.
    """
    parts, held, begun = list[bytes](), 0, 0  # `begun` bytes of a line that is not whole yet
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        begun = len(chunk) - end if end else begun + len(chunk)
        if begun > MAX_LINE_BYTES:
            raise _too_long(location)
        if end and held + len(chunk) >= size:
            yield b"".join([*parts, chunk[:end]])
            parts, held = [chunk[end:]], begun
        else:
            parts.append(chunk)
            held += len(chunk)
    if held:
        rest = b"".join(parts)
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def without_start(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """`chunks` without their first `size` bytes."""
    for chunk in chunks:
        if len(chunk) > size:
            yield chunk[size:]
        size = max(0, size - len(chunk))


def has_ranges(location: Location) -> bool:
    """Whether parts of a file can be read without the bytes before them: it is neither compressed nor in UTF-16.

    Raises InputError as `read_chunks` does.
    """
    if compression_of(location):
        return False
    return _encoding_of(next(compression.read_chunks(location), b"")[:_SNIFFED])[0] == "utf-8"


def read_range(location: Location, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of the lines that begin at `start` or after it and before `stop`, about 1 MiB at a time.

    So ranges that meet have each line once. For files that `has_ranges`.
    """
    with storage.open_for_reading(location) as file:
        size = file.seek(0, 2)
        begin, end = (_line_begin(file, min(place, size)) for place in (start, stop))
        file.seek(begin)
        if begin == 0 and file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while file.tell() < end and (chunk := file.read(min(CHUNK_BYTES, end - file.tell()))):
            yield chunk


def _line_begin(file: BinaryIO, place: int) -> int:
    """Where the first line begins that does so at `place` or after it; the end of the file if there is none."""
    if place == 0:
        return 0
    file.seek(place - 1)
    while chunk := file.read(1 << 16):
        found = chunk.find(b"\n")
        if found >= 0:
            return file.tell() - len(chunk) + found + 1
    return file.tell()
