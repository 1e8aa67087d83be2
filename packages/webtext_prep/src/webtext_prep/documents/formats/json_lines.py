"""JSON lines: one object per line with `url`, all metadata, and `text`; compressed or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, ClassVar

import msgspec
import numpy as np

from webtext_prep.documents.document import (
    Document,
    decode_document,
    decode_heads,
    encode_document,
    encode_json,
)
from webtext_prep.documents.folders.shards import DocumentWriter, Format
from webtext_prep.documents.formats.compression import compressed
from webtext_prep.documents.formats.lines import line_blocks, numbered_lines, read_utf8
from webtext_prep.documents.packed import PackedDocuments, PackedTexts
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

BLOCK_BYTES = 1 << 20
"""Bytes of lines in which a text is looked for, or that are copied, at once."""
_NEWLINE, _BRACE = b"\n{"


def _taken_apart(block: bytes) -> PackedDocuments | None:
    """The documents of a block of lines, or None if one of them is not just what `encode_document` writes of a document
    with a text."""
    from webtext_prep.documents import line_kernels

    heads, text = np.empty(len(block), np.uint8), np.empty(len(block) + line_kernels.SLACK, np.uint8)
    ends, lengths = np.empty((2, len(block) // line_kernels.SHORTEST + 1), np.int64)
    count, head, size = line_kernels.take_apart(np.frombuffer(block, np.uint8), heads, text, ends, lengths)
    documents = decode_heads(heads[:head].tobytes())
    if not count or documents is None:
        return None
    return PackedDocuments(documents, PackedTexts(text[:size], ends[:count], lengths[:count]), True)


class _LineWriter(DocumentWriter):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, document: Document) -> None:
        self._stream.write(encode_document(document) + b"\n")
        self.written += 1

    def write_lines(self, lines: bytes | memoryview, count: int) -> None:
        """See `DocumentWriter`: the bytes as they are."""
        self._stream.write(lines)
        self.written += count


class JsonLines(Format):
    """Uncompressed."""

    name: ClassVar[str] = "jsonl"
    compression: ClassVar[str] = ""

    def read(self, location: Location) -> Iterator[Document]:
        """See `Format`."""
        for number, line in numbered_lines(location, read_utf8(location)):
            yield self._decoded(line, location, number)

    def read_chosen(self, location: Location, is_chosen: Callable[[int], object]) -> Iterator[tuple[int, Document]]:
        """See `Format`."""
        before, first = 0, 1
        for block in line_blocks(location, read_utf8(location), BLOCK_BYTES):
            data = np.frombuffer(block, np.uint8)
            ends = np.flatnonzero(data == _NEWLINE)
            begins = np.append(0, ends[:-1] + 1)
            if (data[begins] == _BRACE).all():  # no line is blank
                for number in filter(is_chosen, range(before, before + len(ends))):
                    line = block[begins[number - before] : ends[number - before]]
                    yield number, self._decoded(line, location, first + number - before)
                before += len(ends)
            else:
                for line_number, line in numbered_lines(location, [block], first):
                    if is_chosen(before):
                        yield before, self._decoded(line, location, line_number)
                    before += 1
            first += len(ends)

    def read_packed(self, location: Location) -> Iterator[PackedDocuments]:
        """See `Format`. Blocks of lines that this class wrote are read at thrice the speed."""
        first, are_equal = 1, True
        for block in line_blocks(location, read_utf8(location), BLOCK_BYTES):
            found = _taken_apart(block) if are_equal else None
            if found is None:
                documents, lines = list[Document](), block.count(b"\n")
                for number, line in numbered_lines(location, [block], first):
                    documents.append(self._decoded(line, location, number))
                    are_equal = are_equal and encode_document(documents[-1]) == line
                are_equal &= len(documents) == lines
                texts = PackedTexts.of([document.text for document in documents])
                found = PackedDocuments(documents, texts, are_equal)
                first += lines - len(documents)
            first += len(found.documents)
            yield found

    def copy_others(
        self, location: Location, writer: DocumentWriter, count: int, gone: Sequence[int], report: Callable[[int], None]
    ) -> None:
        """See `Format`."""
        before = at = 0
        for block in line_blocks(location, read_utf8(location), BLOCK_BYTES):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)[: count - before] + 1
            begins, first, whole = np.append(0, ends).tolist(), 0, memoryview(block)
            while at < len(gone) and gone[at] < before + len(ends):
                last = gone[at] - before
                writer.write_lines(whole[begins[first] : begins[last]], last - first)
                first, at = last + 1, at + 1
            writer.write_lines(whole[begins[first] : begins[-1]], len(ends) - first)
            before += len(ends)
            report(before)

    def read_with(self, location: Location, texts: Sequence[str]) -> Iterator[tuple[int, Document]]:
        """See `Format`. Lines are decoded that hold one of the texts as `encode_json` writes it."""
        wanted = [encode_json(text)[1:-1] for text in texts] or [b""]
        before = 0
        for block in line_blocks(location, read_utf8(location), BLOCK_BYTES):
            if any(text in block for text in wanted):
                for number, line in enumerate(block.split(b"\n")[:-1], before):
                    if any(text in line for text in wanted):
                        yield number, self._decoded(line, location, number + 1)
            before += block.count(b"\n")

    def _decoded(self, line: bytes, location: Location, number: int) -> Document:
        try:
            return decode_document(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{location}, line {number}, is not a document ({error}): run `webtext merge` on the folder first, "
                "which skips and counts what can't be read."
            ) from error

    @contextlib.contextmanager
    def write(self, stream: BinaryIO) -> Iterator[DocumentWriter]:
        """See `Format`."""
        with compressed(stream, self.compression) as lines:
            yield _LineWriter(lines)


class ZstdJsonLines(JsonLines):
    """Compressed with zstandard: the default, 187 MB/s at a ratio of 2.73 on web text."""

    name: ClassVar[str] = "jsonl.zst"
    compression: ClassVar[str] = ".zst"


class GzipJsonLines(JsonLines):
    """Compressed with gzip, which every tool reads. The other compressions are read, too."""

    name: ClassVar[str] = "jsonl.gz"
    compression: ClassVar[str] = ".gz"
    also_reads: ClassVar[tuple[str, ...]] = (".jsonl.xz", ".jsonl.bz2")
