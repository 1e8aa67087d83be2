"""Writing tensor files in the format of torch.distributed.checkpoint, with their sizes and CRCs.

torch plans who writes which part of a sharded tensor, and writes; two places of it are replaced that are made for it.
The file system counts what goes through it, so that no file is read back for its CRC. The planner looks tensors up in
copies, so that a file can be written while training already changes the tensors themselves. Costs 0.25 s of one core
per gigabyte for the CRC.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import MetadataIndex

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
