"""The interface of a file format: reading documents in order, and writing them in a stream."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, ClassVar

from webtext_prep.documents.document import Document, decode_document
from webtext_prep.storage.locations import Location


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
        """Add `count` documents, given as `encode_document` writes them, with a newline after each."""
        for line in bytes(lines).splitlines():
            self.write(decode_document(line))


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
        """The documents of one file for whose number, from 0 on, `is_chosen` is true, each with its number.

        A format may leave the others undecoded.
        """
        return ((number, document) for number, document in enumerate(self.read(location)) if is_chosen(number))

    def read_with(self, location: Location, texts: Sequence[str]) -> Iterator[tuple[int, Document]]:
        """The documents of one file as `write` made it, each with its number from 0 on.

        A format may leave out some that hold none of `texts`, where any are given.
        """
        return enumerate(self.read(location))

    @abc.abstractmethod
    def write(self, stream: BinaryIO) -> AbstractContextManager[DocumentWriter]:
        """Write documents to a stream; the bytes follow from the documents alone."""
