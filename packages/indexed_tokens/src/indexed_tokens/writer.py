"""Writing `<prefix>.bin` and `<prefix>.idx`: tokens are streamed out, the index appears last.

Memory is 12 bytes per document for the index, whatever the tokens. Neither file appears under its final name before
both are on the disk, and an old index is removed before the new tokens take their place: a reader never meets a pair
that does not belong together, and a full disk leaves the old pair as it was.
"""

from __future__ import annotations

import array
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from command_kit.atomic import UnfinishedFile, atomic_file, remove_leftovers_of
from indexed_tokens.errors import IndexedTokensError
from indexed_tokens.reader import DTYPE_OF_CODE, HEADER, MAGIC, VERSION, IndexedTokens, bin_path, idx_path, prefix_of

CODE_OF_DTYPE = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}


def smallest_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The type in which Megatron-LM stores a vocabulary of this size: u16 under 65,500 tokens, else i32."""
    return np.dtype("<u2") if vocabulary_size < 65500 else np.dtype("<i4")


class IndexedTokensWriter:
    """Writes one `.bin/.idx` pair, a document at a time; use it in a `with` block.

    The files appear when the block ends well; when it raises, nothing does.

    Args:
        path: the prefix, or the path of either file.
        dtype: the type of a token in the file (see `smallest_dtype`).
        durable: flush both files to the disk; without it a power cut may take them, as scratch files may be taken.

    >>> with IndexedTokensWriter("corpus_text_document") as writer:  # doctest: +SKIP
    ...     writer.add([15496, 995, 50256])
    """

    def __init__(self, path: str | Path, dtype: npt.DTypeLike = np.uint16, *, durable: bool = True) -> None:
        self.prefix, self._durable = prefix_of(path), durable
        self.dtype = np.dtype(dtype).newbyteorder("<")
        if self.dtype not in CODE_OF_DTYPE:
            raise IndexedTokensError(f"tokens of type {self.dtype} can't be stored: use uint16 or int32.")
        self._lengths = array.array("i")
        self._document_index = array.array("q", [0])
        self.total_tokens = 0
        """Tokens added so far."""

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
        values = np.asarray(tokens)
        if values.ndim != 1 or values.dtype.kind not in "iuf":
            raise IndexedTokensError(
                f"a document is one row of token ids, not an array of shape {values.shape} and type {values.dtype}."
            )
        if values.size == 0:
            self._document_index.append(len(self._lengths))
            return
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
        self._lengths.append(values.size)
        self._document_index.append(len(self._lengths))
        self.total_tokens += values.size

    def append(self, other: IndexedTokens) -> None:
        """Add all documents of another file. Raises IndexedTokensError if it stores tokens of another type."""
        if other.dtype != self.dtype:
            raise IndexedTokensError(
                f"{other.prefix} stores tokens as {other.dtype} and this file as {self.dtype}: "
                "only files of one type can be merged."
            )
        first = len(self._lengths)
        for tokens in other:
            self._file.write(tokens.tobytes())
        self._lengths.extend(other.lengths.tolist())
        self._document_index.extend((other.document_index[1:] + first).tolist())
        self.total_tokens += other.total_tokens

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._durable:
                    self._binary.sync()
                with atomic_file(idx_path(self.prefix), durable=self._durable) as index:
                    self._write_index(index)
                    index.flush()
                    if self._durable:
                        os.fsync(index.fileno())
                    idx_path(self.prefix).unlink(missing_ok=True)
                    self._binary.commit(durable=self._durable)
        finally:
            self._binary.discard()

    def _write_index(self, file: BinaryIO) -> None:
        lengths = np.frombuffer(self._lengths, np.int32) if self._lengths else np.zeros(0, np.int32)
        sizes = lengths.astype(np.int64) * self.dtype.itemsize
        offsets = np.zeros(len(sizes), np.int64)
        np.cumsum(sizes[:-1], out=offsets[1:])
        documents = np.frombuffer(self._document_index, np.int64)
        code = CODE_OF_DTYPE[self.dtype]
        file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(documents)))
        file.write(lengths.astype("<i4").tobytes())
        file.write(offsets.astype("<i8").tobytes())
        file.write(documents.astype("<i8").tobytes())
