"""Loading tensors of a checkpoint in one process, checked before use: what `generate` and `evaluate` need.

Only the files of the tensors asked for are opened: a model is read without the optimizer's state, which is twice its
size. No process group is needed, and nothing is exchanged.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gpt2_train.checkpoint.info import CheckpointInfo, damaged
from gpt2_train.checkpoint.storage import TensorReader
from gpt2_train.checkpoint.stored_shapes import EMBEDDING, StoredTensor, check_stored
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from indexed_tokens.checksums import checksum_of_file


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model under the names that checkpoints use, `model.<name>`; tied ones once."""
    return {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def check_model(info: CheckpointInfo) -> TensorReader:
    """Compare the model that a checkpoint claims with its index and the sizes of its files; returns what reads these.

    Raises Gpt2UsageError for what is missing or has another shape: then no model of that shape may be built.
    """
    names = [name for name in info.files if _part_of(name) == "model"]
    problem = next(filter(None, (_problem_of_size(info, name) for name in names)), None)
    if problem is not None:
        raise damaged(info.folder, problem)
    reader = TensorReader(info.folder, "model")
    index = reader.read_metadata().state_dict_metadata

    def stored(name: str) -> StoredTensor | None:
        entry = index.get(f"model.{name}")
        if not isinstance(entry, TensorStorageMetadata):
            return None
        shape = tuple(entry.size)
        if name == EMBEDDING and shape[:1] == (info.config.padded_vocabulary,):
            shape = (info.config.vocabulary_size, *shape[1:])
        return StoredTensor(shape, entry.properties.dtype.is_floating_point)

    check_stored(info.folder, info.config, sum(info.files[name]["bytes"] for name in names), stored)
    return reader


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors in each part of a checkpoint: `model`, `optimizer`."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parts.setdefault(name.partition(".")[0], {})[name] = tensor
    return parts


def check_files(info: CheckpointInfo, parts: Collection[str], *, rank: int = 0, size: int = 1) -> None:
    """Compare the files of some parts of a checkpoint with their sizes and CRCs; processes share the work.

    Raises Gpt2UsageError naming the first file that is missing, cut off or changed.
    """
    for part in parts:
        if not any(_part_of(name) == part for name in info.files):
            raise damaged(info.folder, f"it lists no tensor files in {part}")
    names = sorted(name for name in info.files if _part_of(name) in parts)
    for name in names[rank::size]:
        problem = problem_of_file(info, name)
        if problem:
            raise damaged(info.folder, problem)


def problem_of_file(info: CheckpointInfo, name: str, count: Callable[[int], object] | None = None) -> str:
    """What is wrong with a file of a checkpoint, in a few words; nothing if it is what was written.

    `count` is called with the bytes read since the last call.
    """
    if problem := _problem_of_size(info, name):
        return problem
    path = info.folder / name
    try:
        crc = file_crc(path) if count is None else file_crc(path, count)
    except OSError as error:
        return f"{name} can't be read: {error.strerror or error}"
    return "" if crc == info.files[name]["crc32"] else f"{name} is not what was written"


def _problem_of_size(info: CheckpointInfo, name: str) -> str:
    written = info.files[name]["bytes"]
    try:
        found = (info.folder / name).stat().st_size
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"{name} can't be read: {error}"
    return "" if found == written else f"{name} has {found:,} bytes where {written:,} were written"


def _part_of(name: str) -> str:
    """`model` for `model/__0_0.distcp`, `.` for a file of the checkpoint's own folder."""
    return str(PurePosixPath(name).parent)


def file_crc(path: Path, count: Callable[[int], object] = lambda _: None) -> int:
    """CRC-32 of a file; each piece that is read `count` is told the size of. Raises OSError."""
    return checksum_of_file(path, count).crc32


class StoredTensors:
    """The tensors of a checkpoint's model or optimizer as they are stored, read one at a time in this process.

    Args:
        info: the checkpoint.
        name: `model` or `optimizer`.
        reader: of its files, where there is one already.
        rank, size: of the processes that read it, each of which checks its share of the files before its first tensor.
    """

    def __init__(
        self, info: CheckpointInfo, name: str, reader: TensorReader | None = None, *, rank: int = 0, size: int = 1
    ) -> None:
        self.info, self.name = info, name
        self._rank, self._size = rank, size
        self._reader = reader or TensorReader(info.folder, name)

    @functools.cached_property
    def _entries(self) -> dict[str, TensorStorageMetadata]:
        check_files(self.info, [self.name], rank=self._rank, size=self._size)
        stored = self._reader.read_metadata().state_dict_metadata
        return {
            name.removeprefix(f"{self.name}."): entry
            for name, entry in sorted(stored.items())
            if isinstance(entry, TensorStorageMetadata) and name.startswith(f"{self.name}.")
        }

    def names(self) -> list[str]:
        """The tensors' names without that of the part. Raises Gpt2UsageError if a file of the part is damaged."""
        return list(self._entries)

    def read(self, name: str) -> Tensor:
        """One tensor, whole, in the type in which it is stored. Raises Gpt2UsageError if it is not there."""
        entry = self._entries.get(name)
        if entry is None:
            raise Gpt2UsageError(f"the checkpoint {self.info.folder} has no {self.name}.{name}: check the name.")
        tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
        read_tensors(self.info, self._reader, {f"{self.name}.{name}": tensor}, in_one_process=True)
        return tensor


def check_shapes(info: CheckpointInfo, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise Gpt2UsageError if the checkpoint lacks one of the tensors, or has it in another (global) shape."""
    for part, group in parts.items():
        stored = TensorReader(info.folder, part).read_metadata().state_dict_metadata
        for name, tensor in group.items():
            entry = stored.get(name)
            if not isinstance(entry, TensorStorageMetadata):
                raise Gpt2UsageError(f"the checkpoint {info.folder} has no {name}: it is of another kind of model.")
            if tuple(entry.size) != tuple(tensor.shape):
                raise Gpt2UsageError(
                    f"the checkpoint {info.folder} has {name} of shape {tuple(entry.size)}, where "
                    f"{tuple(tensor.shape)} is needed: it is of another size of model."
                )


def read_tensors(
    info: CheckpointInfo, reader: TensorReader, tensors: dict[str, Tensor], *, in_one_process: bool
) -> None:
    """Fill plain or sharded tensors of one part in place; all processes of the default group unless `in_one_process`.

    Raises Gpt2UsageError for what torch can't read.
    """
    try:
        with without_notices():
            dcp.load(dict(tensors), storage_reader=reader, no_dist=in_one_process)
    except Gpt2Error:
        raise
    except (Exception, dcp.CheckpointException) as error:
        raise damaged(info.folder, innermost(error)) from error


def innermost(error: BaseException) -> str:
    """The last line of what went wrong first, without the names of the layers that it passed through."""
    failures = [failure for failure, _ in getattr(error, "failures", {}).values()]
    cause = failures[-1] if failures else error
    text = str(cause).strip()
    return text.splitlines()[-1] if text else type(cause).__name__


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Without torch's notices to developers (its storage classes, a missing process group)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
