"""Folders of torch.distributed.checkpoint (`.metadata`, `__0_0.distcp`), read in one process, without code from them.

The index of such a folder is a pickle, and unpickling a foreign file can run anything. The reader here knows the dozen
plain classes of that index and refuses all others; tensors themselves are read by torch with `weights_only`.
"""

from __future__ import annotations

import enum
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata

from gpt2_train.checkpoint.tensor_files import boxes_fill
from gpt2_train.config.errors import Gpt2UsageError

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
"""The classes of the index of torch.distributed.checkpoint: plain data classes and type names."""


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


class TorchDist(dcp.FileSystemReader):
    """torch.distributed.checkpoint's reader of folders, with an index that can't run code, and holds tensors alone.

    Raises Gpt2UsageError for a damaged index, or one that holds anything else than tensors in its folder, each value
    of them once.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._index = self._read_index()
        self.tensors: dict[str, TensorStorageMetadata] = self._index.state_dict_metadata  # type: ignore[assignment]
        """Shape (`size`) and type (`properties.dtype`) of each tensor by its name."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index, for torch's loader."""
        self._index.storage_meta = StorageMeta(load_id=self.load_id)
        return self._index

    def read(self, name: str) -> Tensor:
        """One tensor, whole. Raises Gpt2UsageError for what torch can't read."""
        entry = self.tensors[name]
        tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
        try:
            # torch's notices to developers, of its storage classes and a missing process group.
            with warnings.catch_warnings(action="ignore"):
                dcp.load({name: tensor}, storage_reader=self, no_dist=True)
        except (Exception, dcp.CheckpointException) as error:
            raise Gpt2UsageError(f"{name} in {self.folder} can't be read ({error!s:.200}): it is damaged.") from error
        return tensor

    def _read_index(self) -> Metadata:
        try:
            metadata = _IndexUnpickler(io.BytesIO((self.folder / ".metadata").read_bytes())).load()
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
            raise Gpt2UsageError(f"the index of {self.folder} can't be read ({error}): it is damaged.") from error
        if not good:
            raise Gpt2UsageError(f"the index of {self.folder} holds something else than tensors in it: it is damaged.")
        if uncovered is not None:
            raise Gpt2UsageError(
                f"the index of {self.folder} does not cover {uncovered}, each value once: it is damaged."
            )
        return metadata


def _uncovered(index: Metadata) -> Iterator[str]:
    """The tensors of which an index does not say for each value in which one of the stored pieces it is."""
    for name, entry in index.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        pieces = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks if 0 not in chunk.sizes]
        if not boxes_fill(tuple(entry.size), pieces) or any(
            MetadataIndex(name, torch.Size(offsets)) not in index.storage_data for offsets, _ in pieces
        ):
            yield name
    ends: dict[str, int] = {}
    for place, item in sorted(index.storage_data.items(), key=lambda one: (one[1].relative_path, one[1].offset)):
        if item.length < 0 or item.offset < ends.get(item.relative_path, 0):
            yield place.fqn
        ends[item.relative_path] = item.offset + item.length
