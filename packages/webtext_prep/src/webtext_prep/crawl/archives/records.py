"""The records of an archive in every spelling that ISO 28500 allows, for where FastWARC stops or finds no type.

FastWARC 2.0.1 is ten times as fast. But it knows the names of fields in one spelling alone (`WARC-Type`; the standard,
5.1, has them in any case), wants lines that end in CRLF, ends quietly at an empty gzip member (BGZF's last block is
one), and reads no zstandard window above 2^27 bytes. And it ends quietly where a file breaks off. So what it leaves of
an archive is read here: only what can't be read here either is damaged.

FastWARC says where the last record began, and stops; reading goes on from there. Where it can't, the file is searched
for the beginning of a record, or of a compressed piece in which one begins. In one compressed piece there is no such
place: the rest after the damage is lost.

Each record is handed on as FastWARC's, with the names of its fields as FastWARC knows them.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from webtext_prep.documents.formats.compression import (
    CHUNK_BYTES,
    DECOMPRESSOR_ERRORS,
    DECOMPRESSORS,
    Decompressor,
    zstd_decompressor,
)
from webtext_prep.storage.locations import Location

MAX_RECORD_HEADER = 1 << 20
"""Bytes: the URL stands in there."""
FIRST_LINE = re.compile(rb"WARC/\d{1,2}\.\d{1,3}[ \t]*\r?\n")
PADDING = b"\0 \t\r\n"
"""What may lie between two records, or fill a block behind the last one."""
_PACKED_BYTES = 1 << 15
_FIRST_BYTES = b"WARC/"
_BEHIND = 16
"""Bytes behind a block that are looked at."""
_HEADER = re.compile(FIRST_LINE.pattern + rb"(?:[!-9;-~][^:\n]*:[^\n]*\n|[ \t]+[^\s][^\n]*\n)*")
_EMPTY_LINE = re.compile(rb"\r?\n")
_SOME_BYTES = 1 << 12
"""More than most headers of records have."""
_LENGTH = re.compile(rb"(?<=\n)(?i:content-length)[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?\n")
_FOLDED = re.compile(rb"\r?\n[ \t]+")
_NAMES = {name.lower(): name for name in (b"WARC-Type", b"Content-Length")}
"""The fields that FastWARC knows in this spelling alone."""
_DICTIONARY = b"\x5d\x2a\x4d\x18"
"""The beginning of the frame, skipped by other programs, that holds the dictionary of a .warc.zst (IIPC's "Use of
Zstandard compression in WARC files", 1.0). ArchiveTeam's archives have one."""
_ZSTD_FRAME = b"\x28\xb5\x2f\xfd"
_MAX_DICTIONARY = 16 << 20


class ArchiveStream:
    """A file as FastWARC reads it, which tells an error of the file system from one of the archive.

    Attributes:
        error: what reading the file has raised.
        size: bytes of the file.
        trials: places that were taken for the beginning of a record.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None
        self.size = file.seek(0, io.SEEK_END)
        self.trials = 0

    def read(self, size: int = -1) -> bytes:
        """See `BinaryIO.read`."""
        try:
            return self._file.read(size)
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        """See `BinaryIO.seek`."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """See `BinaryIO.tell`."""
        return self._file.tell()

    def close(self) -> None:
        """The file is closed by who opened it."""


class _Bytes:
    """The bytes of an archive, decompressed, from a place on at which a piece (gzip member, zstandard frame) begins.

    Attributes:
        piece: where the piece lies from which the next byte comes; in a plain archive, that byte.
        last: that place for the byte that was read last.
        opened: the piece that is being decompressed.
        whole: the end of the last piece that was read to its end, and is what its checksum says.
    """

    def __init__(self, file: ArchiveStream, compression: str, offset: int) -> None:
        self._file, self._compression = file, compression
        self._at = offset  # in the file, of what was not yet read
        self._packed = b""
        self._stream: Decompressor | None = None
        self._dictionary: bytes | None = None
        self._error: OSError | None = None
        self._ready: deque[tuple[int, bytes]] = deque()
        self.last = self.opened = self.whole = offset

    @property
    def piece(self) -> int:
        return self._ready[0][0] if self._ready else self._at if not self._compression else self.opened

    def peek(self, size: int) -> bytes:
        """The next bytes, which stay: so many, or all that are left before the end or damage."""
        with contextlib.suppress(OSError):
            while sum(len(data) for _, data in self._ready) < size and self._fill():
                pass
        return b"".join(data for _, data in self._ready)[:size]

    def read(self, size: int) -> bytes:
        """Some of the next bytes, at most so many; none at the end. Raises OSError for damage."""
        if not self._ready and not self._fill():
            return b""
        piece, data = self._ready.popleft()
        self.last = piece
        if len(data) > size:
            self._ready.appendleft((piece if self._compression else piece + size, data[size:]))
        return data[:size]

    def skip(self, size: int) -> int:
        """Pass over so many bytes; how many fewer there are. Raises OSError for damage."""
        while size and (data := self.read(min(size, CHUNK_BYTES))):
            size -= len(data)
        return size

    def skip_padding(self) -> bool:
        """Pass over what lies between two records; False at the end. Raises OSError for damage."""
        while self._ready or self._fill():
            piece, data = self._ready.popleft()
            if rest := data.lstrip(PADDING):
                self._ready.appendleft((piece if self._compression else piece + len(data) - len(rest), rest))
                return True
        return False

    def finish(self, piece: int) -> None:
        """Read a piece to its end, and the next ones, if it is not yet read. Raises OSError for damage."""
        while self.whole <= piece and self._fill():
            self._ready.clear()

    def _fill(self) -> bool:
        """Have more bytes ready; False at the end of the file. Raises OSError for damage, each time."""
        if self._error is None:
            try:
                return self._decompress()
            except OSError as error:
                self._error = error
        raise self._error

    def _decompress(self) -> bool:
        if not self._compression:
            begin, data = self._at, self._more(CHUNK_BYTES)
            if data:
                self._ready.append((begin, data))
            return bool(data)
        while self._stream is not None or self._begin_piece():
            assert self._stream is not None
            if not self._packed and self._stream.needs_input:
                self._packed = self._more(_PACKED_BYTES)
                if not self._packed:
                    raise OSError("it is cut off")
            try:
                data = self._stream.decompress(self._packed, CHUNK_BYTES)
            except DECOMPRESSOR_ERRORS as error:
                raise OSError(str(error)) from error
            self._packed = b""
            piece = self.opened
            if self._stream.eof:
                self._packed, self._stream = self._stream.unused_data, None
                self.whole = self._at - len(self._packed)
            if data:
                self._ready.append((piece, data))
                return True
        return False

    def _begin_piece(self) -> bool:
        """Find the beginning of the next piece; False at the end of the file."""
        self._packed = self._packed.lstrip(PADDING)
        while not self._packed:
            self._packed = self._more(_PACKED_BYTES)
            if not self._packed:
                return False
            self._packed = self._packed.lstrip(PADDING)
        self.opened = self._at - len(self._packed)
        if self._compression == ".zst":
            self._dictionary = _dictionary_of(self._file) if self._dictionary is None else self._dictionary
            self._stream = zstd_decompressor(self._dictionary)
        else:
            self._stream = DECOMPRESSORS[self._compression]()
        return True

    def _more(self, size: int) -> bytes:
        self._file.seek(self._at)
        data = self._file.read(size)
        self._at += len(data)
        return data


def _dictionary_of(file: ArchiveStream) -> bytes:
    """The dictionary with which the frames of an archive are compressed; empty if there is none."""
    file.seek(0)
    head = file.read(8)
    size = int.from_bytes(head[4:], "little")
    if not head.startswith(_DICTIONARY) or size > _MAX_DICTIONARY:
        return b""
    data = file.read(size)
    if not data.startswith(_ZSTD_FRAME):
        return data
    try:
        return zstd_decompressor().decompress(data, _MAX_DICTIONARY)
    except DECOMPRESSOR_ERRORS:
        return b""


class _OneRecord:
    """A record as FastWARC reads it: its header, then its block out of the archive."""

    def __init__(self, header: bytes, source: _Bytes, length: int) -> None:
        self._header, self._source, self.left = header, source, length
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        if self._header:
            data, self._header = self._header[:size], self._header[size:]
        else:
            data = self._source.read(min(size, self.left)) if self.left else b""
            self.left -= len(data)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """It goes on only: FastWARC reads a record once."""
        raise io.UnsupportedOperation("seek")

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """The archive is closed by who opened it."""


class Records:
    """The records of an archive, each with its offset, or that of the compressed piece in which it begins.

    They end at the end of the file, or where it can't be read: then `reason` says why.

    Args:
        file: the archive.
        compression: of it.
        offset: where to begin: at a record of a plain archive, or at a compressed piece.

    Attributes:
        reason: why nothing more can be read, for people; empty at the end of the file.
    """

    def __init__(self, file: ArchiveStream, compression: str, offset: int) -> None:
        self._source, self._compression = _Bytes(file, compression, offset), compression
        self._begun = offset  # where the last record lies
        self._block_end: int | None = None  # of it, in a plain archive; else the piece in which its block ends
        self._is_in_place = False  # in a plain archive nothing but what follows says that a length is right
        self.reason = ""

    def __iter__(self) -> Iterator[tuple[int, WarcRecord]]:
        try:
            yield from self._records()
        except OSError as error:
            self.reason = str(error).rstrip(".") or "it is damaged"

    def end(self, *, is_verified: bool) -> tuple[int, bool]:
        """Where to look for the next record, and whether the last one is whole.

        Args:
            is_verified: its digest says that its block is as it was written.
        """
        begun, end, source = self._begun, self._block_end, self._source
        if not self._compression:
            is_whole = end is not None and (self._is_in_place or is_verified)
            return (end, True) if end is not None and is_whole else (begun + 1, False)
        if end is not None and source.whole > end:
            return source.whole, True
        return max(source.opened + 1, begun), False

    def _records(self) -> Iterator[tuple[int, WarcRecord]]:
        source = self._source
        while source.skip_padding():
            header = self._header()
            if header is None:
                if self._compression and self._block_end is not None:
                    source.finish(self._block_end)
                raise OSError("no record begins there")
            begun, (head, length) = source.piece, header
            source.skip(len(head))
            content = _OneRecord(_as_fastwarc_knows(head), source, length)
            record = next(ArchiveIterator(content, parse_http=False, max_header_len=2 * MAX_RECORD_HEADER), None)
            if record is None:
                raise OSError("no record begins there")
            self._begun, self._block_end = begun, None
            yield begun, record
            if source.skip(content.left):
                raise OSError("it is cut off")
            self._block_end = source.last if self._compression else source.piece
            if not self._compression:
                self._is_in_place = _is_between_records(source.peek(_BEHIND), is_crlf=head.endswith(b"\r\n\r\n"))

    def _header(self) -> tuple[bytes, int] | None:
        """The header of the next record and the bytes of its block; None if none begins there."""
        size = _SOME_BYTES
        while size <= MAX_RECORD_HEADER:
            head = self._source.peek(size)
            fields = _HEADER.match(head)
            if fields is None:
                return None
            end = fields.end()
            if last := _EMPTY_LINE.match(head, end):
                length = _LENGTH.findall(head, 0, end)
                return (head[: last.end()], int(length[-1])) if length else None
            if len(head) < size or b"\n" in head[end:]:
                return None
            size *= 4
        return None


def _as_fastwarc_knows(header: bytes) -> bytes:
    """The header of a record with lines that end in CRLF, none of them folded, and names in the usual spelling."""
    first, *lines = _FOLDED.sub(b" ", header.rstrip(b"\r\n")).splitlines()
    fields = (line.partition(b":") for line in lines if b":" in line)
    named = [b"%b: %b" % (_NAMES.get(name.strip().lower(), name.strip()), value.strip()) for name, _, value in fields]
    return b"\r\n".join([first.strip(), *named, b"", b""])


def _is_between_records(behind: bytes, *, is_crlf: bool) -> bool:
    """Whether what lies behind a block is what lies between two records, or at the end of an archive."""
    is_at_end = len(behind) < _BEHIND and not behind.strip(PADDING)
    separator = b"\r\n\r\n" if is_crlf else b"\n\n"
    is_followed = behind.lstrip(PADDING).startswith(_FIRST_BYTES) or behind[4:].startswith(_FIRST_BYTES)
    return is_at_end or is_followed or behind.startswith(separator)


MAX_TRIALS = 1_000
"""Places that look like a record and hold none, after which the rest of the file is given up."""

OTHER = WarcRecordType.warcinfo | WarcRecordType.request | WarcRecordType.metadata | WarcRecordType.continuation
PAGES = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion | WarcRecordType.revisit
"""Records that may be pages. `OTHER` are about pages."""
_WINDOW = 1 << 20
_LONGEST_MARK = 16
_MARKS = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    "": FIRST_LINE,
}


@dataclass(frozen=True, slots=True)
class Begun:
    """A record whose header has been read.

    Attributes:
        offset: of it in the file; FastWARC gives any place in a compressed piece for a record that is not its first.
        identity: of it, if it has one.
        first: identity of the first record with that offset.
        number: how many records lie before it, from where reading began.
        place: how many of these have another offset.
        is_other: it is known to be no page.
        is_verified: its digest says that the block is as it was written.
    """

    offset: int
    identity: str | None
    first: str | None
    number: int = 0
    place: int = 0
    is_other: bool = False
    is_verified: bool = False

    @classmethod
    def of(cls, offset: int, record: WarcRecord, before: Begun) -> Begun:
        """The facts about a record, and about the one before it."""
        identity, number = record.record_id, before.number + 1 if before is not NONE else 0
        is_same = before is not NONE and before.offset == offset
        first, place = (before.first, before.place) if is_same else (identity, number)
        return cls(offset, identity, first, number, place, bool(record.record_type & OTHER))


NONE = Begun(0, None, None)
"""Stands in the place of the last record where none has begun."""


def compression_of(file: ArchiveStream, location: Location) -> str:
    """How an archive is compressed, as its first bytes say, or its name where they are damaged: `.gz`, `.zst` or ""."""
    file.seek(0)
    head = file.read(_LONGEST_MARK)
    found = next((kind for kind, mark in _MARKS.items() if mark.match(head)), None)
    if found is not None:
        return found
    suffix = location.suffix.lower()
    return suffix if suffix in _MARKS else ""


def fast_records(stream: ArchiveStream, offset: int) -> Iterator[tuple[int, WarcRecord]]:
    """The records from a place on where a piece begins, as FastWARC finds them, each with its offset.

    They end, at the latest, before one whose type or length it does not know. Raises OSError for damage, and for what
    FastWARC can't read.
    """
    stream.seek(offset)
    for record in ArchiveIterator(stream, parse_http=False, max_header_len=MAX_RECORD_HEADER, fsspec_args=False):
        if not (record.record_type & (PAGES | OTHER) and record.content_length) and _is_spelled_otherwise(record):
            return
        yield record.stream_pos, record


def _is_spelled_otherwise(record: WarcRecord) -> bool:
    """Whether FastWARC found no type or length for their names, or as the header breaks off.

    A header of LF lines above a block of HTTP goes on for it up to the first CRLF, which is one of HTTP's: its first
    value then has the other lines in it.
    """
    names = set(record.headers.keys())
    return not {"WARC-Type", "Content-Length"} <= names or any("\n" in value for value in record.headers.values())


def records_behind(stream: ArchiveStream, compression: str, begun: Begun, start: int) -> tuple[Records, int]:
    """A reader for what FastWARC has left, and how many records of it lie before the one that has begun.

    Args:
        stream: the archive.
        compression: of it.
        begun: the record that was read last, from `start` on.
        start: a place at which a piece begins.
    """
    if begun is NONE:
        return Records(stream, compression, start), 0
    if not compression or identity_at(stream, compression, begun.offset) == (begun.first,):
        return Records(stream, compression, begun.offset), begun.number - begun.place
    return Records(stream, compression, start), begun.number


def identity_at(stream: ArchiveStream, compression: str, offset: int) -> tuple[str | None] | None:
    """The identity of the record that begins at a place; None if none does."""
    first = next(iter(Records(stream, compression, offset)), None)
    return (first[1].record_id,) if first is not None and first[0] == offset else None


def next_record(file: ArchiveStream, compression: str, offset: int) -> int | None:
    """The first place from `offset` on at which a record begins; None if there is none."""
    while True:
        file.seek(offset)
        window = file.read(_WINDOW)
        for mark in _MARKS[compression].finditer(window):
            file.trials += 1
            if file.trials > MAX_TRIALS:
                return None
            if identity_at(file, compression, offset + mark.start()) is not None:
                return offset + mark.start()
        if len(window) < _WINDOW:
            return None
        offset += len(window) - _LONGEST_MARK


_BYTES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}
_USUAL = re.compile(r"sha1:[A-Z2-7]{32}|sha256:[0-9a-f]{64}")


def fastwarc_digest(said: str) -> str | None:
    """A digest of a block as FastWARC checks it; None for one of no known algorithm or spelling, which says nothing.

    ISO 28500 (5.8) leaves both open: `sha1:` in Base32 is usual, hex is common, with or without padding, in small or
    capital letters. FastWARC 2.0.1 takes some right digests for wrong: Base32 in small letters, without padding but of
    sha1, Base64, names with a hyphen.

    >>> fastwarc_digest("SHA-1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj")
    'sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709'
    """
    if _USUAL.fullmatch(said):
        return said
    name, _, value = said.partition(":")
    name, value = name.strip().lower().replace("-", ""), value.strip()
    size = _BYTES.get(name)
    digest = _decoded(value, size) if size is not None else None
    return None if digest is None else f"{name}:{digest.hex()}"


def _decoded(value: str, size: int) -> bytes | None:
    """The bytes of a digest of that many, in hex, Base32 or Base64."""
    bare = value.rstrip("=")
    with contextlib.suppress(ValueError):
        if len(bare) == 2 * size:
            return bytes.fromhex(value)
        if len(bare) == -(-size * 8 // 5):
            return base64.b32decode(bare.upper() + "=" * (-len(bare) % 8))
        if len(bare) == -(-size * 8 // 6):
            return base64.b64decode(bare.replace("-", "+").replace("_", "/") + "=" * (-len(bare) % 4), validate=True)
    return None
