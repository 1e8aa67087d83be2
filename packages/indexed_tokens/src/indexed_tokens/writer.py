"""Writing `<prefix>.bin` and `<prefix>.idx`: tokens are streamed out, the index appears last.

Memory is 12 bytes per document for the index, for any number of tokens. Neither file appears under its final name
before both are on the disk, and an old index is removed before the new tokens take their place: a reader never meets a
pair that does not belong together, and a full disk leaves the old pair as it was.
"""

from __future__ import annotations

import array
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from command_kit.atomic import UnfinishedFile, atomic_file, remove_file, remove_leftovers_of
from indexed_tokens.checksums import Checksum, checksum_of, joined
from indexed_tokens.reader import HEADER, IndexedTokensError, bin_path, header, idx_path, prefix_of

MOST_TOKENS = 2**31 - 1
"""Tokens of a document, whose length the index holds in 32 bits."""


def smallest_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The type in which Megatron-LM stores a vocabulary of this size: u16 under 65,500 tokens, else i32."""
    return np.dtype("<u2") if vocabulary_size < 65500 else np.dtype("<i4")


class IndexedTokensWriter:
    """Writes one `.bin/.idx` pair, a document at a time; use it in a `with` block.

    The files appear when the block ends well; when it raises, nothing does.

    Args:
        path: the prefix, or the path of either file.
        dtype: the type of a token in the file (see `smallest_dtype`).

    >>> with IndexedTokensWriter("corpus_text_document") as writer:  # doctest: +SKIP
    ...     writer.add([15496, 995, 50256])
    """

    def __init__(self, path: str | Path, dtype: npt.DTypeLike = np.uint16) -> None:
        self.prefix = prefix_of(path)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        header(self.dtype, 0, 0)  # refuses a type that can't be stored
        self._lengths = array.array("i")
        self._document_index = array.array("q", [0])
        self._unended = 0
        self.total_tokens = 0
        """Tokens added so far."""

    @property
    def documents(self) -> int:
        """Documents added so far."""
        return len(self._document_index) - 1

    def __enter__(self) -> IndexedTokensWriter:
        for path in (bin_path(self.prefix), idx_path(self.prefix)):
            remove_leftovers_of(path)
        self._binary = UnfinishedFile(bin_path(self.prefix))
        self._file = self._binary.file
        return self

    def add(self, tokens: npt.ArrayLike) -> None:
        """Add one document of `tokens`, shape (n,). An empty one writes no sequence, only its place in the index.

        Raises IndexedTokensError for an id that the file's type can't hold, or tokens that are not one row of numbers.
        """
        self.extend(tokens)
        self._end()

    def extend(self, tokens: npt.ArrayLike) -> None:
        """Add `tokens`, shape (n,), to the document that `end_document` will end. Raises as `add` does."""
        values = np.asarray(tokens)
        if values.ndim != 1 or values.dtype.kind not in "iuf":
            raise IndexedTokensError(
                f"a document is one row of token ids, not an array of shape {values.shape} and type {values.dtype}."
            )
        if values.size == 0:
            return
        if self._unended + values.size > MOST_TOKENS:
            raise IndexedTokensError(f"a document has more than {MOST_TOKENS:,} tokens: cut it.")
        if values.dtype != self.dtype:
            if values.dtype.kind == "f" and self.dtype.kind != "f":
                raise IndexedTokensError(
                    f"token ids are whole numbers: {values.dtype} can't be stored as {self.dtype}."
                )
            limits = np.iinfo(self.dtype) if self.dtype.kind in "iu" else None
            if limits and (int(values.min()) < limits.min or int(values.max()) > limits.max):
                raise IndexedTokensError(
                    f"token ids {int(values.min())} to {int(values.max())} do not fit into {self.dtype}: "
                    "write the file as int32."
                )
            values = values.astype(self.dtype)
        self._file.write(values.tobytes())
        self._unended += values.size
        self.total_tokens += values.size

    def end_document(self) -> None:
        """End the document that `extend` began; without one, do nothing."""
        if self._unended:
            self._end()

    def _end(self) -> None:
        if self._unended:
            self._lengths.append(self._unended)
        self._document_index.append(len(self._lengths))
        self._unended = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._binary.sync()
                with atomic_file(idx_path(self.prefix)) as index:
                    self._write_index(index)
                    index.flush()
                    os.fsync(index.fileno())
                    remove_file(idx_path(self.prefix))
                    self._binary.commit()
        finally:
            self._binary.discard()

    def _write_index(self, file: BinaryIO) -> None:
        lengths = np.frombuffer(self._lengths, np.int32) if self._lengths else np.zeros(0, np.int32)
        sizes = lengths.astype(np.int64) * self.dtype.itemsize
        offsets = np.zeros(len(sizes), np.int64)
        np.cumsum(sizes[:-1], out=offsets[1:])
        documents = np.frombuffer(self._document_index, np.int64)
        file.write(header(self.dtype, len(lengths), len(documents) - 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write(offsets.astype("<i8").tobytes())
        file.write(documents.astype("<i8").tobytes())


REGIONS = ("lengths", "offsets", "documents")
"""Regions of an index after its header."""

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
        return header(np.dtype(self.dtype), self.sequences, self.documents)

    @property
    def _end(self) -> bytes:
        """The last entry of the document index."""
        return self.sequences.to_bytes(8, "little")

    def create(self) -> None:
        """Make both files as large as they will be, the index with its header and its last entry. Raises OSError.

        Raises IndexedTokensError if tokens of that type can't be stored.
        """
        beginning = self._header  # refuses a type that can't be stored
        with self.binary.open("wb") as file:
            file.truncate(self.size)
        with self.index.open("wb") as file:
            file.write(beginning)
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
