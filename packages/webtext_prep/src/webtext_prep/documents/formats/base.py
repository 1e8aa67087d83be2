"""The interface of a file format: reading documents in order, and writing them in a stream."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, ClassVar

import msgspec

from webtext_prep.documents.compressed_streams import Border, CompressedStream
from webtext_prep.documents.document import Document, decode_document, without_surrogates
from webtext_prep.documents.stores.base import Location


class DocumentWriter(abc.ABC):
    """Writes documents to an open shard.

    Attributes:
        written: how many so far.
    """

    def __init__(self) -> None:
        self.written = 0

    @abc.abstractmethod
    def write(self, document: Document) -> None:
        """Add one document."""

    def write_lines(self, lines: bytes | memoryview, count: int) -> None:
        """Add `count` documents, given as `encode_document` writes them, with a newline behind each."""
        for line in bytes(lines).splitlines():
            self.write(decode_document(line))

    def write_packed(self, packed: bytes) -> None:
        """Add one document that `Format.pack` of the same format has packed."""
        url, text, metadata = msgspec.json.decode(packed)
        self.write(Document(url, text, metadata))


class Format(abc.ABC):
    """One file format. It has no state: a file's suffix decides which format reads it."""

    name: ClassVar[str]
    """What `--format` calls it; its shards are `part-00000.NAME`."""
    also_reads: ClassVar[tuple[str, ...]] = ()
    """Other suffixes, with their dot, of files that it can read."""

    @classmethod
    def reads(cls, file_name: str) -> bool:
        """Whether files of that name are read by it."""
        return file_name.lower().endswith((f".{cls.name}", *cls.also_reads))

    @abc.abstractmethod
    def read(self, location: Location) -> Iterator[Document]:
        """The documents of one file, in order. Raises InputError naming the file and the place that holds none."""

    def read_chosen(self, location: Location, is_chosen: Callable[[int], object]) -> Iterator[tuple[int, Document]]:
        """Those documents of one file for whose number, from 0 on, `is_chosen` is true, each with its number.

        A format may leave the others undecoded.
        """
        return ((number, document) for number, document in enumerate(self.read(location)) if is_chosen(number))

    def read_from(self, location: Location, start: int) -> Iterator[Document]:
        """The documents of one file from number `start` on, counted from 0. A format may leave the others undecoded."""
        return itertools.islice(self.read(location), start, None)

    def pack(self, document: Document) -> bytes:
        """A document as bytes that are kept until it can be written; for `DocumentWriter.write_packed`."""
        row = [document.url, document.text, document.metadata]
        try:
            return msgspec.json.encode(row)
        except UnicodeEncodeError:
            return msgspec.json.encode(without_surrogates(row))

    def pack_line(self, line: bytes) -> bytes:
        """The same, of a document that `encode_document` has encoded."""
        return self.pack(decode_document(line))

    @abc.abstractmethod
    def write(self, stream: BinaryIO) -> AbstractContextManager[DocumentWriter]:
        """Write documents to a stream; the bytes follow from the documents alone."""

    def open_stream(self, stream: BinaryIO, begin: Border | None = None, *, at: int = 0) -> CompressedStream | None:
        """For a format whose documents are what `pack` made of them, with a newline: the stream for such lines.

        It may continue a file; see `CompressedStream`. None for any other format.
        """
        return None
