"""The index of the tensor files, read without running code from it.

torch.distributed.checkpoint keeps its index in `.metadata`, a pickle, and unpickling a foreign file can run anything.
This reader knows the dozen plain classes of that index and refuses all others; tensors themselves are read by torch
with `weights_only`. torch's writer of safetensors has no such index, but it holds each file twice in memory, and
checkpoints written with this one would need this reader all the same.
"""

from __future__ import annotations

import enum
import io
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from gpt2_train.checkpoint.folders import damaged

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
    """What Python 3.11.0 to 3.11.3 write instead of an enum's member: `getattr(kind, name)`, of an enum alone."""
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
        except Exception as error:
            raise damaged(self.checkpoint, f"its index can't be read: {error}") from error
        if not good:
            raise damaged(self.checkpoint, "its index holds something else than tensors in this folder")
        return metadata
