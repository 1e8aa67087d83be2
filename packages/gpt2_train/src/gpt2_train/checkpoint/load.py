"""Loading tensors of a checkpoint in one process, checked before use, and checking whole checkpoints.

Only the files of the tensors asked for are opened: a model is read without the optimizer's state, which is twice its
size. No process group is needed, and nothing is exchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gpt2_train.checkpoint.info import (
    CheckpointInfo,
    DamagedCheckpoint,
    damaged,
    find_checkpoint,
    list_checkpoints,
    load_tokenizer,
    read_info,
)
from gpt2_train.checkpoint.storage import TensorReader
from gpt2_train.checkpoint.stored_shapes import EMBEDDING, StoredTensor, check_stored, missing
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.files import CHECKPOINT_FILE, CHECKPOINTS_FOLDER
from indexed_tokens.checksums import checksum_of_file


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model under the names that checkpoints use, `model.<name>`; tied ones once."""
    return {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def check_model(info: CheckpointInfo) -> TensorReader:
    """Compare the model that a checkpoint claims with its index and the sizes of its files; returns what reads these.

    Raises Gpt2UsageError for a tensor that is missing or has another shape: then no model of that shape may be built.
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
    """The tensors of each part, in the same order on all processes: `model`, then `optimizer`."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name in sorted(tensors):
        parts.setdefault(name.partition(".")[0], {})[name] = tensors[name]
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


def problem_of_file(info: CheckpointInfo, name: str, count: Callable[[int], object] = lambda _: None) -> str:
    """What is wrong with a file of a checkpoint, in a few words; nothing if it is as it was written.

    `count` is called with the bytes read since the last call.
    """
    if problem := _problem_of_size(info, name):
        return problem
    try:
        crc = checksum_of_file(info.folder / name, count).crc32
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


@dataclasses.dataclass
class StoredTensors:
    """The tensors of a checkpoint's model or optimizer as they are stored, read one at a time in this process.

    Args:
        info: the checkpoint.
        name: `model` or `optimizer`.
        reader: of its files, where there is one already.
        rank, size: of the processes that read it, each of which checks its share of the files before its first tensor.
    """

    info: CheckpointInfo
    name: str
    reader: TensorReader | None = None
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        self._reader = self.reader or TensorReader(self.info.folder, self.name)

    @functools.cached_property
    def _entries(self) -> dict[str, TensorStorageMetadata]:
        check_files(self.info, [self.name], rank=self.rank, size=self.size)
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
            raise missing(self.info.folder, f"{self.name}.{name}")
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
            if entry.size != tensor.shape:
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
        # torch's notices to developers, of its storage classes and a missing process group.
        with warnings.catch_warnings(action="ignore"):
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


@dataclasses.dataclass(frozen=True)
class Verified:
    """What was found of one checkpoint.

    Attributes:
        folder: the checkpoint.
        step: optimizer steps that it says it was trained for; None if it can't be read.
        files: how many files with tensors it has.
        bytes: their size.
        has_optimizer: whether a run can resume from it.
        problems: a sentence for each; empty if there is none.
    """

    folder: Path
    step: int | None
    files: int
    bytes: int
    has_optimizer: bool
    problems: list[str]


def checkpoints_at(path: str | Path) -> list[Path]:
    """The checkpoint that `path` is, or all of a run or its `checkpoints` folder, oldest first.

    Raises Gpt2UsageError if there is none.
    """
    path = Path(path)
    if (path / CHECKPOINT_FILE).is_file():
        return [path]
    return list_checkpoints(path) or list_checkpoints(path / CHECKPOINTS_FOLDER) or [find_checkpoint(path)]


def bytes_to_read(folder: Path) -> int:
    """Bytes that `verify` will read of a checkpoint, about."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a run at work removes old checkpoints
            size += path.stat().st_size if path.is_file() else 0
    return size


def verify(folder: Path, count: Callable[[int], object]) -> Verified:
    """Read every file of a checkpoint and compare it with what was recorded; `count` gets the bytes read."""
    try:
        info = read_info(folder)
    except Gpt2UsageError as error:
        return Verified(folder, None, 0, 0, False, [_why(error)])
    problems = [problem for name in sorted(info.files) if (problem := problem_of_file(info, name, count))]
    # An index that was not read back would only say so once more.
    for is_due, check in ((not problems, lambda: check_model(info)), (info.tokenizer, lambda: load_tokenizer(folder))):
        try:
            if is_due:
                check()
        except Exception as error:  # Any error that a damaged file makes its reader raise.
            problems.append(_why(error))
    return Verified(
        folder,
        info.step,
        len(info.files),
        sum(entry["bytes"] for entry in info.files.values()),
        any(name.startswith("optimizer/") for name in info.files),
        problems,
    )


def _why(error: Exception) -> str:
    return error.why if isinstance(error, DamagedCheckpoint) else str(error).rstrip(".")
