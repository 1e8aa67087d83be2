"""Reading `<prefix>.bin` and `<prefix>.idx`: token sequences, memory-mapped, byte-compatible with Megatron-LM.

Opening costs the check of the index (a few numpy passes over it) and no reading of tokens. A slice is a view into the
mapped file, without a copy: right for whole documents in the order of the file. `read` is for a few tokens anywhere:
a page fault in a mapped file reads far more than was asked for (2 KB from a cold 1 GB file: 2.2 ms mapped, 0.11 ms
mapped with MADV_RANDOM, which makes reading in order 20 times slower, 0.06 ms by `pread`). What is wrong with a file
is said when it is opened, not in the middle of a training run.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import UsageError


class IndexedTokensError(UsageError):
    """A token file or a vocabulary is missing, damaged, or of another kind."""


MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, sequences, length of the document index: 34 bytes, little-endian."""

_AT_ONCE = 1 << 20
"""Entries of an index that are checked at once: memory stays the same for any index."""

DTYPES = tuple(map(np.dtype, ("<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")))
"""The types of tokens; their codes are counted from 1 on."""


TOKENS_SUFFIX = "_text_document"
"""The ending that Megatron-LM's users expect between a prefix and `.bin`."""


def prefix_of(path: str | Path) -> Path:
    """The prefix that `path` names: itself, or the part before `.bin` or `.idx`."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def _near(prefix: Path) -> list[Path]:
    """Indices that `prefix` was probably meant to name: what a command called so, in that folder, or spelt alike."""
    named = idx_path(f"{prefix}{TOKENS_SUFFIX}")
    if named.is_file() or prefix.is_dir():
        return [named] if named.is_file() else sorted(prefix.glob("*.idx"))
    found = [path for path in prefix.parent.glob("*.idx") if path.stem != prefix.name]
    beside = {path.stem.removesuffix(ending): path for path in found for ending in ("", TOKENS_SUFFIX)}
    return list(dict.fromkeys(beside[name] for name in difflib.get_close_matches(prefix.name, beside)))


def header(dtype: np.dtype[Any], sequences: int, documents: int) -> bytes:
    """The header of an index of so many sequences and documents.

    Raises IndexedTokensError if tokens of that type can't be stored.
    """
    if dtype not in DTYPES:
        raise IndexedTokensError(f"tokens of type {dtype} can't be stored: use uint16 or int32.")
    return HEADER.pack(MAGIC, VERSION, DTYPES.index(dtype) + 1, sequences, documents + 1)


def bin_path(prefix: str | Path) -> Path:
    """`corpus_text_document` -> `corpus_text_document.bin`."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """`corpus_text_document` -> `corpus_text_document.idx`."""
    return Path(f"{prefix}.idx")


def held_out_prefix(prefix: str | Path) -> Path:
    """The token files of the documents that are held out of others.

    >>> held_out_prefix("work/corpus_text_document").name
    'corpus_held_out_text_document'
    """
    path = prefix_of(prefix)
    stem = path.name.removesuffix(TOKENS_SUFFIX)
    return path.with_name(f"{stem}_held_out{path.name[len(stem) :]}")


class IndexedTokens:
    """The token sequences of one `.bin/.idx` pair.

    Args:
        path: the prefix, or the path of either file.

    Attributes:
        prefix: the path without its suffix.
        dtype: the type of a token in the file.
        lengths: tokens in each sequence, int32 of shape (sequences,).
        offsets: byte at which each sequence begins in the `.bin`, int64 of shape (sequences,).
        document_index: int64 of shape (documents + 1,); document d is the sequences
            `document_index[d]` to `document_index[d + 1]`, usually a single one.
        has_modes: whether the index is of a multimodal dataset, with a byte more for each sequence.

    Raises IndexedTokensError if a file is missing, foreign, truncated, or the two do not belong together.

    >>> tokens = IndexedTokens("corpus_text_document")  # doctest: +SKIP
    >>> tokens[0][:4]  # doctest: +SKIP
    array([15496,   995,    13, 50256], dtype=uint16)
    """

    def __init__(self, path: str | Path) -> None:
        self.prefix = prefix_of(path)
        idx, binary = idx_path(self.prefix), bin_path(self.prefix)
        for file in (idx, binary):
            if not file.is_file():
                near = [str(found.with_suffix("")) for found in _near(self.prefix)]
                hint = f"did you mean {' or '.join(near[:3])}?" if near else "run `webtext tokenize` first."
                raise IndexedTokensError(f"no token file {file}: {hint}")
        self._index = np.memmap(idx, dtype=np.uint8, mode="r") if idx.stat().st_size else np.zeros(0, np.uint8)
        if self._index.size < HEADER.size or self._index[: len(MAGIC)].tobytes() != MAGIC:
            raise IndexedTokensError(
                f"{idx} is not a token index (it does not begin with MMIDIDX): "
                "give the prefix of files that `webtext tokenize` or Megatron-LM's preprocessing wrote."
            )
        _, version, code, sequences, documents = HEADER.unpack(self._index[: HEADER.size].tobytes())
        if version != VERSION or not 1 <= code <= len(DTYPES):
            raise IndexedTokensError(
                f"{idx} has version {version} and token type {code}; known are version 1 and types 1 to 8: "
                "it is damaged or was written by a newer program."
            )
        self.dtype: np.dtype[Any] = DTYPES[code - 1]
        expected = HEADER.size + sequences * 12 + documents * 8
        # Multimodal files carry one more byte per sequence, which holds nothing about the tokens.
        if self._index.size not in (expected, expected + sequences):
            raise IndexedTokensError(
                f"{idx} has {self._index.size:,} bytes where its header asks for {expected:,}: "
                "it was cut off or damaged, write it again."
            )
        self.has_modes = sequences > 0 and self._index.size != expected
        at = HEADER.size
        self.lengths: npt.NDArray[np.int32] = np.frombuffer(self._index, "<i4", sequences, at)
        at += sequences * 4
        self.offsets: npt.NDArray[np.int64] = np.frombuffer(self._index, "<i8", sequences, at)
        at += sequences * 8
        self.document_index: npt.NDArray[np.int64] = np.frombuffer(self._index, "<i8", documents, at)
        self._check(idx, binary)
        size = binary.stat().st_size
        self._tokens = np.memmap(binary, dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)
        self._descriptor = os.open(binary, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def _check(self, idx: Path, binary: Path) -> None:
        index, size = self.document_index, binary.stat().st_size
        ordered = all((np.diff(index[at : at + _AT_ONCE + 1]) >= 0).all() for at in range(0, len(index), _AT_ONCE))
        if len(index) == 0 or index[0] != 0 or index[-1] != len(self.lengths) or not ordered:
            raise IndexedTokensError(
                f"the document index of {idx} does not run from 0 to its {len(self.lengths):,} sequences: "
                "it is damaged, write it again."
            )
        needed = 0
        for at in range(0, len(self.lengths), _AT_ONCE):
            lengths, offsets = self.lengths[at : at + _AT_ONCE], self.offsets[at : at + _AT_ONCE]
            if (lengths < 0).any() or (offsets < 0).any():
                raise IndexedTokensError(f"{idx} holds negative lengths or offsets: it is damaged, write it again.")
            ends = offsets + lengths.astype(np.int64) * self.dtype.itemsize
            # A damaged offset may be so large that its end wraps around.
            needed = max(needed, int(ends.max()), int(offsets.max()))
        if needed > size:
            raise IndexedTokensError(
                f"{binary} has {size:,} bytes where {idx.name} asks for {needed:,}: "
                "it was cut off, or belongs to another index; write both again."
            )

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.lengths)

    @property
    def documents(self) -> int:
        """The number of documents, empty ones included."""
        return len(self.document_index) - 1

    @property
    def total_tokens(self) -> int:
        """The number of tokens in all sequences."""
        return int(self.lengths.sum(dtype=np.int64))

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """The tokens of sequence `index`, a read-only view. Raises IndexError outside the sequences."""
        return self.slice(index)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self.slice(index) for index in range(len(self)))

    def slice(self, index: int, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]:
        """`length` tokens (all that follow, by default) of sequence `index`, from its token `offset` on: a view.

        Raises IndexError where that is outside the sequence.
        """
        start, length = self._range(index, offset, length)
        return np.frombuffer(self._tokens, self.dtype, length, start) if length else np.zeros(0, self.dtype)

    def read(self, index: int, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]:
        """The tokens of `slice`, as a read-only copy that costs one read of just these bytes, from any thread.

        Raises IndexError where that is outside the sequence, IndexedTokensError if the file has been cut off since
        it was opened, OSError if it can't be read.
        """
        start, length = self._range(index, offset, length)
        wanted = length * self.dtype.itemsize
        content = os.pread(self._descriptor, wanted, start)
        while len(content) < wanted:  # The kernel returns at most 2 GB at a time.
            more = os.pread(self._descriptor, wanted - len(content), start + len(content))
            if not more:
                raise IndexedTokensError(f"{bin_path(self.prefix)} was cut off while in use: write it again.")
            content += more
        return np.frombuffer(content, self.dtype)

    def _range(self, index: int, offset: int, length: int | None) -> tuple[int, int]:
        """(first byte in the `.bin`, number of tokens) of a part of a sequence, checked."""
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)} in {self.prefix}")
        available = int(self.lengths[index]) - offset
        length = available if length is None else length
        if offset < 0 or not 0 <= length <= available:
            raise IndexError(f"tokens {offset} to {offset + length} of sequence {index} in {self.prefix}")
        return int(self.offsets[index]) + offset * self.dtype.itemsize, length

    def fingerprint(self) -> dict[str, int]:
        """Sizes and modification times (nanoseconds) of both files: changes whenever the corpus does."""
        found = {}
        for file in (bin_path(self.prefix), idx_path(self.prefix)):
            status = file.stat()
            found[f"{file.suffix[1:]}_bytes"] = status.st_size
            found[f"{file.suffix[1:]}_modified_ns"] = status.st_mtime_ns
        return found

    def identity(self) -> dict[str, int | str]:
        """The identity of this corpus, by which a changed one is noticed: sizes, digest of lengths and sampled tokens.

        The digest covers all lengths and up to 64 evenly spaced pieces of 4 kB of the tokens: a copy of the files is
        the same corpus, an edited one hardly ever is.
        """
        digest = hashlib.sha256(self.lengths.tobytes())
        digest.update(self.document_index.tobytes())
        with bin_path(self.prefix).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for place in sorted({size * piece // 64 for piece in range(64)} | {max(0, size - 4096)}):
                file.seek(place)
                digest.update(file.read(4096))
        return {"bin_bytes": size, "idx_bytes": idx_path(self.prefix).stat().st_size, "digest": digest.hexdigest()[:32]}
