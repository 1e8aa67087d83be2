"""Folders of torch.distributed.checkpoint (`.metadata`, `__0_0.distcp`), read in one process, without code from them.

The index of such a folder is a pickle, and unpickling a foreign file can run anything. The reader here knows the dozen
plain classes of that index, keeps the plans of writers (Megatron's) as records, and refuses all others. What the index
claims is compared with the files before memory is taken; each piece is a file of `torch.save` inside of one, read by
torch with `weights_only`.
"""

from __future__ import annotations

import enum
import io
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata

from gpt2_train.checkpoint.load import is_usable
from gpt2_train.checkpoint.tensor_files import boxes_fill
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.conversion.pickles import INDEX, UnpickledObject, first_line, read_pickle

_INDEX_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"},
}
"""The classes of the index of torch.distributed.checkpoint: plain data classes and type names."""
_RECORDED = {
    "torch.distributed.checkpoint.planner": {"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
    "megatron.core.dist_checkpointing.strategies.torch": {"MCoreMetadata", "MCoreSavePlan"},
}
"""Classes of how it was written, which says nothing of what is in it."""


class _Properties:
    """The type of a tensor's values; what else is stored with it differs from version to version of torch."""

    dtype: Any = None

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


class _IndexUnpickler(pickle._Unpickler):
    """The one that is written in Python: that in C makes a table as long as the largest number that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib" or module.startswith("pathlib."):
            # Where the checkpoint was first written, which may be another kind of machine: kept as plain text.
            return lambda *parts: "/".join(map(str, parts))
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if (module, name) == ("torch.distributed.checkpoint.metadata", "TensorProperties"):
            return _Properties
        if name in _RECORDED.get(module, ()):
            return UnpickledObject
        if name in _INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint holds")


def _enum_member(kind: Any, name: Any) -> Any:
    """The call that Python 3.11.0 to 3.11.3 store for an enum's member: `getattr(kind, name)`, of an enum alone."""
    if isinstance(kind, enum.EnumMeta) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(f"it asks for {name} of {kind}, which no checkpoint holds")


class _Piece(NamedTuple):
    """A box of a tensor, and where it lies: `length` bytes of a file from `begin` on."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


class TorchDist:
    """The tensors of a folder of torch.distributed.checkpoint; everything else in it is passed over.

    Args:
        folder: the one with `.metadata`.
        is_wanted: whether the tensor of a name will be read; of others nothing is checked.

    Raises Gpt2UsageError for a damaged index, or one that does not cover each value of a tensor once by the files.
    """

    def __init__(self, folder: Path, is_wanted: Callable[[str], bool] = lambda name: True) -> None:
        self.folder = folder
        self.tensors: dict[str, TensorStorageMetadata] = {}
        """Shape (`size`) and type (`properties.dtype`) of each tensor by its name."""
        self._pieces: dict[str, list[_Piece]] = {}
        self._objects: dict[str, _Piece] = {}
        try:
            index = _IndexUnpickler(io.BytesIO((folder / INDEX).read_bytes())).load()
            good = isinstance(index, Metadata)
            for name, entry in index.state_dict_metadata.items() if good else ():
                if isinstance(entry, BytesStorageMetadata):
                    self._objects[name] = _piece(index, MetadataIndex(name), ())
                elif isinstance(entry, TensorStorageMetadata) and is_wanted(name):
                    self.tensors[name], self._pieces[name] = entry, _pieces(index, name, entry)
            problem = self._uncovered()
        except Exception as error:
            raise Gpt2UsageError(
                f"the index of {folder} can't be read ({first_line(error)}): it is damaged."
            ) from error
        if not good:
            raise Gpt2UsageError(f"the index of {folder} holds something else than tensors in it: it is damaged.")
        if problem is not None:
            raise Gpt2UsageError(f"the index of {folder} does not cover {problem}, each value once: it is damaged.")

    def _uncovered(self) -> str | None:
        """The first tensor whose values are not all, each once, in as many bytes of the files; None without one."""
        ends: dict[str, int] = {}
        placed = [
            (piece.file, piece.begin, piece.length, name) for name in self.tensors for piece in self._pieces[name]
        ]
        for file, begin, length, name in sorted(placed):
            is_inside = Path(file).name == file and begin + length <= (self.folder / file).stat().st_size
            if not is_inside or length < 0 or begin < ends.get(file, 0):
                return name
            ends[file] = begin + length
        for name, entry in self.tensors.items():
            pieces, width = self._pieces[name], entry.properties.dtype.itemsize
            if not boxes_fill(tuple(entry.size), [(piece.offsets, piece.sizes) for piece in pieces]) or any(
                math.prod(piece.sizes) * width > piece.length for piece in pieces
            ):
                return name
        return None

    def read(self, name: str, layer: int | None = None) -> Tensor:
        """One tensor, whole, or of one that has layers stacked the one of a number.

        Raises Gpt2UsageError for a damaged file.
        """
        entry = self.tensors[name]
        first, end = (0, entry.size[0] if entry.size else 1) if layer is None else (layer, layer + 1)
        whole = torch.empty((end - first, *entry.size[1:]) if entry.size else (), dtype=entry.properties.dtype)
        for piece in self._pieces[name]:
            if not entry.size:
                return self._values(name, piece, whole.dtype)
            low, high = max(first, piece.offsets[0]), min(end, piece.offsets[0] + piece.sizes[0])
            if low < high:
                rest = zip(piece.offsets[1:], piece.sizes[1:], strict=True)
                target = whole[
                    (slice(low - first, high - first), *(slice(begin, begin + size) for begin, size in rest))
                ]
                target.copy_(self._values(name, piece, whole.dtype)[low - piece.offsets[0] : high - piece.offsets[0]])
        return whole if layer is None else whole[0]

    def read_object(self, name: str) -> Any:
        """An object that is no tensor, as `read_pickle` reads it; None if there is none of that name.

        Raises Gpt2UsageError for a damaged file.
        """
        place = self._objects.get(name)
        if place is None:
            return None
        try:
            content = self._content(place)
        except (OSError, ValueError, TypeError, OverflowError) as error:
            raise Gpt2UsageError(
                f"{name} in {self.folder} can't be read ({first_line(error)}): it is damaged."
            ) from error
        return read_pickle(self.folder / place.file, content)

    def _content(self, piece: _Piece) -> io.BytesIO:
        """The bytes in the place of a piece. Raises OSError."""
        with (self.folder / Path(piece.file).name).open("rb") as file:
            file.seek(piece.begin)
            return io.BytesIO(file.read(min(piece.length, os.fstat(file.fileno()).st_size)))

    def _values(self, name: str, piece: _Piece, dtype: torch.dtype) -> Tensor:
        """What lies in the place of a piece. Raises Gpt2UsageError if it is not the piece."""
        try:
            content = self._content(piece)
            with zipfile.ZipFile(content) as archive:
                # torch compresses nothing: a few bytes may unpack to any number.
                stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
            content.seek(0)
            values = torch.load(content, map_location="cpu", weights_only=True) if stored else None
        except Exception as error:
            raise Gpt2UsageError(
                f"{name} in {self.folder} can't be read ({first_line(error)}): it is damaged."
            ) from error
        if not (
            isinstance(values, Tensor)
            and is_usable(values)
            and values.dtype == dtype
            and tuple(values.shape) == piece.sizes
        ):
            raise Gpt2UsageError(f"{name} in {self.folder} is not what its index says: it is damaged.")
        return values


def _pieces(index: Metadata, name: str, entry: TensorStorageMetadata) -> list[_Piece]:
    """The pieces of a tensor and their places; raises for what is no such table."""
    if not (isinstance(entry.size, torch.Size) and isinstance(entry.properties.dtype, torch.dtype)):
        raise ValueError(f"{name} has no shape or type")
    if 0 in entry.size:
        raise ValueError(f"{name} has no values")
    found = []
    for chunk in entry.chunks:
        if 0 not in chunk.sizes:
            found.append(_piece(index, MetadataIndex(name, chunk.offsets), tuple(chunk.sizes)))
    return found


def _piece(index: Metadata, place: MetadataIndex, sizes: tuple[int, ...]) -> _Piece:
    item = index.storage_data[place]
    if item.transform_descriptors:
        raise ValueError(f"{place.fqn} is compressed")
    return _Piece(tuple(place.offset or ()), sizes, item.relative_path, item.offset, item.length)
