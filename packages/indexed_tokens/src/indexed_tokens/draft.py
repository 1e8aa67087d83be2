"""A `.bin/.idx` pair written in parts, by several processes at once: each part goes to its own place in both files.

For whoever knows beforehand how many sequences and documents come out, and how many bytes. Memory is that of one part,
the index included. The two files are drafts, of any name; they are a pair once every part is written.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexed_tokens.errors import IndexedTokensError
from indexed_tokens.reader import HEADER, MAGIC, VERSION
from indexed_tokens.writer import CODE_OF_DTYPE


@dataclass(frozen=True)
class PairDraft:
    """The two files, and what will be in them.

    Attributes:
        binary: the draft of the `.bin`.
        index: the draft of the `.idx`.
        dtype: the type of a token, as numpy calls it (`<u2`).
        sequences: how many there will be in all.
        documents: how many there will be in all.
        size: bytes of the `.bin`.
    """

    binary: Path
    index: Path
    dtype: str
    sequences: int
    documents: int
    size: int

    @property
    def index_size(self) -> int:
        """Bytes of the `.idx`."""
        return HEADER.size + 12 * self.sequences + 8 * (self.documents + 1)

    def create(self) -> None:
        """Make both files as large as they will be, the index with its header. Raises OSError.

        Raises IndexedTokensError if tokens of that type can't be stored.
        """
        dtype = np.dtype(self.dtype)
        if dtype not in CODE_OF_DTYPE:
            raise IndexedTokensError(f"tokens of type {dtype} can't be stored: use uint16 or int32.")
        for path, size in ((self.binary, self.size), (self.index, self.index_size)):
            with path.open("wb") as file:
                if path == self.index:
                    code = CODE_OF_DTYPE[dtype]
                    file.write(HEADER.pack(MAGIC, VERSION, code, self.sequences, self.documents + 1))
                file.truncate(size)

    def write_tokens(self, offset: int, tokens: bytes | bytearray | memoryview) -> None:
        """Write bytes of the `.bin` from its byte `offset` on. Raises OSError."""
        with self.binary.open("r+b", buffering=0) as file:
            _write_at(file.fileno(), offset, tokens)

    def write_sequences(self, first: int, lengths: npt.ArrayLike, offset: int) -> None:
        """Write the index of sequences that lie back to back in the `.bin`. Raises OSError.

        Args:
            first: the number of the first of them.
            lengths: tokens in each, shape (n,).
            offset: byte of the `.bin` at which the first one begins.
        """
        sizes = np.asarray(lengths, np.int64) * np.dtype(self.dtype).itemsize
        self.write_index(first, lengths, offset + np.cumsum(sizes) - sizes)

    def write_index(self, first: int, lengths: npt.ArrayLike, offsets: npt.ArrayLike) -> None:
        """Write the index of sequences: tokens in each, and the byte at which each begins. Raises OSError."""
        with self.index.open("r+b", buffering=0) as file:
            _write_at(file.fileno(), HEADER.size + 4 * first, np.asarray(lengths, "<i4").data.cast("B"))
            place = HEADER.size + 4 * self.sequences + 8 * first
            _write_at(file.fileno(), place, np.asarray(offsets, "<i8").data.cast("B"))

    def write_documents(self, first: int, begins: npt.ArrayLike) -> None:
        """Write entries of the document index, from entry `first` on: the sequence at which each document begins.

        The last entry of all, number `documents`, is `sequences`. Raises OSError.
        """
        with self.index.open("r+b", buffering=0) as file:
            place = HEADER.size + 12 * self.sequences + 8 * first
            _write_at(file.fileno(), place, np.asarray(begins, "<i8").data.cast("B"))


def _write_at(descriptor: int, offset: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        # The kernel takes at most 2 GB at a time.
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
