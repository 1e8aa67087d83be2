"""Suspects, the documents that share a bucket with another, on their way to the task that decides about them.

Their texts are kept in scratch files, compressed; their sets of shingles are made again by the task that compares them:
sets take 1.4 (words) to 7 bytes (characters) a byte of text, compressed texts 0.4.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from webtext_prep.documents.document import Document

MEMORY_BYTES = 256 << 20
"""Sets that take more than this are kept in a file mapped into memory: those of one large component."""


class Suspects(msgspec.Struct, array_like=True):
    """Some suspects of one block, in the order of the input.

    Attributes:
        numbers: of the documents, as int64.
        keys: their band keys, as uint64 of shape (documents, bands).
        urls: their `Document.id`, in UTF-8.
        domains: the registered name of each document's host.
        texts: in UTF-8.
    """

    numbers: bytes
    keys: bytes
    urls: list[bytes]
    domains: list[str]
    texts: list[bytes]

    @classmethod
    def of(cls, numbers: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64], documents: list[Document]) -> Suspects:
        """These documents with their numbers and keys, shape (bands, documents)."""
        return cls(
            numbers.tobytes(),
            keys.T.tobytes(),
            [as_bytes(document.id) for document in documents],
            [document.domain for document in documents],
            [as_bytes(document.text) for document in documents],
        )

    def pack(self) -> bytes:
        """The content of a frame."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, content: bytes) -> Suspects:
        """What `pack` made."""
        return msgspec.msgpack.decode(content, type=cls)


def as_bytes(text: str) -> bytes:
    """UTF-8, also of text with lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def as_text(content: bytes) -> str:
    """The inverse of `as_bytes`."""
    return content.decode("utf-8", "surrogatepass")


class Decided(msgspec.Struct, array_like=True):
    """What was decided about the documents of one block by one task: those that go, in the order of the input.

    Attributes:
        numbers: of the documents, as int64.
        rows: of the table of duplicates, one line each.
    """

    numbers: bytes
    rows: list[bytes]

    def pack(self) -> bytes:
        """The content of a frame."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, content: bytes) -> Decided:
        """What `pack` made."""
        return msgspec.msgpack.decode(content, type=cls)


class SetStore:
    """Sets of shingles, collected text by text: in memory as long as they are few, then in a file.

    Args:
        folder: for the file, which has no name and goes with the process.
        memory: the most bytes in memory.
    """

    def __init__(self, folder: Path, memory: int = MEMORY_BYTES) -> None:
        self._folder, self._memory = folder, memory
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self._count = 0
        self._file: BinaryIO | None = None  # nameless, so that it goes with the process

    def add(self, hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64]) -> None:
        """Add the sets of some texts, as `fingerprints.shingle_sets` gives them."""
        self._ends.append(ends + self._count)
        self._count += len(hashes)
        self._hashes.append(hashes)
        if self._file is None and 8 * self._count > self._memory:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - `finish` closes it
        if self._file is not None:
            for entry in self._hashes:
                self._file.write(entry.data)
            self._hashes = []

    def finish(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """All sets one after another, and where each ends."""
        ends = np.concatenate(self._ends) if self._ends else np.zeros(0, np.int64)
        if self._file is None:
            return np.concatenate(self._hashes) if self._hashes else np.zeros(0, np.uint64), ends
        with self._file as file:
            file.flush()
            return np.asarray(np.memmap(file, np.uint64, "r+", shape=(self._count,))), ends


def matching_text(
    text: str,
    spans: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    other: npt.NDArray[np.uint64],
    most: int,
) -> str:
    """The beginning, of at most `most` characters, of the longest passage of `text` whose shingles are all in `other`.

    Args:
        text: a text.
        spans: its shingles in order, as `fingerprints.shingle_spans` gives them.
        other: the set of another text.
        most: characters.
    """
    hashes, starts, ends = spans
    first, last = _longest_run(hashes, other)
    return text[starts[first] : min(ends[last], starts[first] + most)] if last >= first else ""


def _longest_run(hashes: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """The first and the last of the longest run of `hashes` that are in the set `other`; (0, -1) if none is."""
    is_shared = np.isin(hashes, other)
    edges = np.flatnonzero(np.diff(is_shared, prepend=False, append=False))
    firsts, ends = edges[::2], edges[1::2]
    if not len(firsts):
        return 0, -1
    best = int((ends - firsts).argmax())
    return int(firsts[best]), int(ends[best]) - 1
