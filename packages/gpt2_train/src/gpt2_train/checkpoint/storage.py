"""Tensor files in the format of torch.distributed.checkpoint: written with sizes and CRCs, read without running code.

torch plans who writes which part of a sharded tensor, and writes; two places of it are replaced that are made for it.
The file system counts what goes through it, so that no file is read back for its CRC. The planner looks tensors up in
copies, so that a file can be written while training already changes the tensors themselves. Costs 0.25 s of one core
per gigabyte for the CRC.

torch.distributed.checkpoint keeps the index of these files in `.metadata`, a pickle, and unpickling a foreign file can
run anything. This reader knows the dozen plain classes of that index and refuses all others; tensors themselves are
read by torch with `weights_only`. torch's writer of safetensors has no such index, but it holds each file twice in
memory, and checkpoints written with this one would need this reader all the same.
"""

from __future__ import annotations

import contextlib
import enum
import io
import itertools
import math
import os
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata

from gpt2_train.checkpoint.info import damaged

PIECE = 1 << 22
"""Bytes whose CRC is computed and which are then written at a time: few enough to stay in a core's cache."""

COPY_AHEAD = 10_000_000
"""Bytes that are copied from a GPU ahead of writing them (torch's default)."""

Files = dict[str, dict[str, int]]
"""Size (`bytes`) and CRC-32 (`crc32`) of files by their names."""


class _CountedFile(io.FileIO):
    """A file that is written from its beginning to its end, with size and CRC-32 of what went into it."""

    bytes = crc32 = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), PIECE):
            piece = view[begin : begin + PIECE]
            self.crc32 = zlib.crc32(piece, self.crc32)
            while piece:
                piece = piece[super().write(piece) :]
        self.bytes += len(view)
        return len(view)


class _CountedFiles(FileSystem):
    """The local file system; `written` has size and CRC-32 of each file that was written through it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: Files = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with _CountedFile(path, mode) as file:
            yield file
        self.written[Path(path).name] = {"bytes": file.bytes, "crc32": file.crc32}

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class TensorWriter(dcp.FileSystemWriter):
    """torch.distributed.checkpoint's writer of folders, one flushed file a process, which counts what it writes.

    Args:
        folder: where index and tensors go.
        copy_ahead: bytes that are copied from a GPU ahead of writing them; 0 for tensors in host memory, where looking
            for a GPU would only open a context on the first one.
    """

    def __init__(self, folder: Path, *, copy_ahead: int = COPY_AHEAD) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True, per_thread_copy_ahead=copy_ahead)
        self.fs = self.counted = _CountedFiles()


class CopyPlanner(dcp.DefaultSavePlanner):
    """Plans by the tensors of a run, plain or sharded, and writes copies of this process's shares instead of them.

    Args:
        copies: by the names of the tensors, the values of this process's share of each, in host memory.
    """

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.copies = copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The copy of the tensor written under `index`."""
        return self.copies[index.fqn]


_INDEX_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"},
}
"""What the index of torch.distributed.checkpoint is made of: plain data classes and type names."""


class _IndexUnpickler(pickle._Unpickler):
    """The one that is written in Python: that in C makes a table as long as the largest number that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib" or module.startswith("pathlib."):
            # Where the checkpoint was first written, which may be another kind of machine: kept as plain text.
            return lambda *parts: "/".join(map(str, parts))
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if name in _INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint holds")


def _enum_member(kind: Any, name: Any) -> Any:
    """The call that Python 3.11.0 to 3.11.3 store for an enum's member: `getattr(kind, name)`, of an enum alone."""
    if isinstance(kind, enum.EnumMeta) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(f"it asks for {name} of {kind}, which no checkpoint holds")


class TensorReader(dcp.FileSystemReader):
    """torch.distributed.checkpoint's reader of folders, with an index that can't run code.

    Args:
        checkpoint: the checkpoint's folder.
        part: the folder in it that holds index and tensors.
    """

    def __init__(self, checkpoint: Path, part: str) -> None:
        super().__init__(checkpoint / part)
        self.checkpoint = checkpoint
        self.index_file = checkpoint / part / ".metadata"
        self._index: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index, read once. Raises Gpt2UsageError if it is damaged or holds anything else than tensors here."""
        if self._index is None:
            self._index = self._read_index()
        self._index.storage_meta = StorageMeta(load_id=self.load_id)
        return self._index

    def _read_index(self) -> Metadata:
        try:
            with self.index_file.open("rb") as file:
                metadata = _IndexUnpickler(io.BytesIO(file.read())).load()
            good = isinstance(metadata, Metadata) and all(
                isinstance(entry, TensorStorageMetadata)
                and isinstance(entry.size, torch.Size)
                and isinstance(entry.properties.dtype, torch.dtype)
                for entry in metadata.state_dict_metadata.values()
            )
            stored = metadata.storage_data.values() if good else ()
            good = good and all(Path(item.relative_path).name == item.relative_path for item in stored)
            uncovered = next(_uncovered(metadata), None) if good else None
        except Exception as error:
            raise damaged(self.checkpoint, f"its index can't be read: {error}") from error
        if not good:
            raise damaged(self.checkpoint, "its index holds something else than tensors in this folder")
        if uncovered is not None:
            raise damaged(self.checkpoint, f"its index does not cover {uncovered}, each value once")
        return metadata


MOST_DIMENSIONS = 4
"""Dimensions of a stored tensor, at most: GPT-2 has two, and what is checked doubles with each."""


def _uncovered(index: Metadata) -> Iterator[str]:
    """The tensors of which an index does not say for each value in which one of the stored pieces it is."""
    for name, entry in index.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        pieces = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks if 0 not in chunk.sizes]
        if not _tile(tuple(entry.size), pieces) or any(
            MetadataIndex(name, torch.Size(offsets)) not in index.storage_data for offsets, _ in pieces
        ):
            yield name
    ends: dict[str, int] = {}
    for place, item in sorted(index.storage_data.items(), key=lambda one: (one[1].relative_path, one[1].offset)):
        if item.length < 0 or item.offset < ends.get(item.relative_path, 0):
            yield place.fqn
        ends[item.relative_path] = item.offset + item.length


def _tile(size: tuple[int, ...], pieces: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Whether boxes, each given by its offsets and sizes, fill a box of `size` without an overlap.

    They do if they lie in it, have its volume, and each corner but its own belongs to an even number of them: then an
    odd number of boxes, so at least one, is at each place of it, and the volume leaves room for no second one.
    """
    if len(size) > MOST_DIMENSIONS or sum(math.prod(sizes) for _, sizes in pieces) != math.prod(size):
        return False
    odd: set[tuple[int, ...]] = set()
    for offsets, sizes in [*pieces, ((0,) * len(size), size)] if pieces else ():
        sides = [(begin, begin + length) for begin, length in zip(offsets, sizes, strict=True)]
        if any(not 0 <= begin < end <= most for (begin, end), most in zip(sides, size, strict=True)):
            return False
        for corner in itertools.product(*sides):
            odd ^= {corner}
    return not odd
