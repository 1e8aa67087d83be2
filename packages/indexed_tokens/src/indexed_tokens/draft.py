"""A `.bin/.idx` pair written in parts, by several processes at once: each part goes to its own place in both files.

For whoever knows beforehand how many sequences and documents come out, and how many bytes. Memory is that of one part,
the index included. The two files are drafts, of any name; they are a pair once every part is written. Each write
returns the checksums of what it wrote: in the order of the files they make those of both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexed_tokens.checksums import Checksum, checksum_of, joined
from indexed_tokens.errors import IndexedTokensError
from indexed_tokens.reader import HEADER, MAGIC, VERSION
from indexed_tokens.writer import CODE_OF_DTYPE

REGIONS = ("lengths", "offsets", "documents")
"""Of an index, behind its header."""

Written = dict[str, tuple[int, int]]
"""Bytes and CRC-32 of what a part is of `tokens`, and of each of `REGIONS`; plain, as the result of a task is."""


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

    @property
    def _header(self) -> bytes:
        code = CODE_OF_DTYPE[np.dtype(self.dtype)]
        return HEADER.pack(MAGIC, VERSION, code, self.sequences, self.documents + 1)

    @property
    def _end(self) -> bytes:
        """The last entry of the document index."""
        return self.sequences.to_bytes(8, "little")

    def create(self) -> None:
        """Make both files as large as they will be, the index with its header and its last entry. Raises OSError.

        Raises IndexedTokensError if tokens of that type can't be stored.
        """
        if np.dtype(self.dtype) not in CODE_OF_DTYPE:
            raise IndexedTokensError(f"tokens of type {np.dtype(self.dtype)} can't be stored: use uint16 or int32.")
        with self.binary.open("wb") as file:
            file.truncate(self.size)
        with self.index.open("wb") as file:
            file.write(self._header)
            file.seek(self.index_size - len(self._end))
            file.write(self._end)

    def write_tokens(self, offset: int, tokens: bytes | bytearray | memoryview) -> Written:
        """Write bytes of the `.bin` from its byte `offset` on. Raises OSError."""
        with self.binary.open("r+b", buffering=0) as file:
            return {"tokens": _write_at(file.fileno(), offset, tokens)}

    def write_sequences(self, first: int, lengths: npt.ArrayLike, offset: int) -> Written:
        """Write the index of sequences that lie back to back in the `.bin`. Raises OSError.

        Args:
            first: the number of the first of them.
            lengths: tokens in each, shape (n,).
            offset: byte of the `.bin` at which the first one begins.
        """
        sizes = np.asarray(lengths, np.int64) * np.dtype(self.dtype).itemsize
        return self.write_index(first, lengths, offset + np.cumsum(sizes) - sizes)

    def write_index(self, first: int, lengths: npt.ArrayLike, offsets: npt.ArrayLike) -> Written:
        """Write the index of sequences: tokens in each, and the byte at which each begins. Raises OSError."""
        with self.index.open("r+b", buffering=0) as file:
            place = HEADER.size + 4 * first
            of_lengths = _write_at(file.fileno(), place, np.asarray(lengths, "<i4").data.cast("B"))
            place = HEADER.size + 4 * self.sequences + 8 * first
            of_offsets = _write_at(file.fileno(), place, np.asarray(offsets, "<i8").data.cast("B"))
        return {"lengths": of_lengths, "offsets": of_offsets}

    def write_documents(self, first: int, begins: npt.ArrayLike) -> Written:
        """Write entries of the document index, from entry `first` on: the sequence at which each document begins.

        The last entry of all, number `documents`, is there from the beginning. Raises OSError.
        """
        with self.index.open("r+b", buffering=0) as file:
            place = HEADER.size + 12 * self.sequences + 8 * first
            return {"documents": _write_at(file.fileno(), place, np.asarray(begins, "<i8").data.cast("B"))}

    def checksums(self, parts: Iterable[Written]) -> dict[str, dict[str, int]]:
        """Size (`bytes`) and CRC-32 (`crc32`) of `bin` and `idx`, from what the writes of all parts returned.

        The parts are in the order in which they lie in the files.
        """
        written = list(parts)

        def of(name: str) -> Checksum:
            return joined(Checksum(*part[name]) for part in written if name in part)

        index = joined([checksum_of(self._header), *map(of, REGIONS), checksum_of(self._end)])
        return {"bin": of("tokens")._asdict(), "idx": index._asdict()}


def _write_at(descriptor: int, offset: int, data: bytes | bytearray | memoryview) -> Checksum:
    view = memoryview(data)
    found = checksum_of(view)
    while view:
        # The kernel takes at most 2 GB at a time.
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
    return found
