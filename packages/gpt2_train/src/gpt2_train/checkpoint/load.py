"""Loading tensors of a checkpoint in one process, checked before use, and checking whole checkpoints.

A file of a few bytes may claim a million layers. So what the files of any model claim is compared with their tensors
one at a time, up to the first that is missing, and with their size, before a module or a tensor is made
(`check_stored`).

Only the files of the tensors asked for are opened: a model is read without the optimizer's state, which is twice its
size. No process group is needed, and nothing is exchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from command_kit.command import print_warning
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
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.files import CHECKPOINT_FILE, CHECKPOINTS_FOLDER
from gpt2_train.config.settings import ModelConfig
from indexed_tokens.checksums import checksum_of_file

EMBEDDING = "token_embedding.weight"
"""The matrix with a row for each token id, which is the output matrix, too."""


class StoredTensor(NamedTuple):
    """Shape of a tensor in a file, as `gpt2.py` has it, and whether it is one of floating-point numbers."""

    shape: tuple[int, ...]
    is_float: bool


def is_usable(tensor: Tensor) -> bool:
    """Whether a tensor that a file holds has values, and floating-point ones: it may be sparse, or a shape alone."""
    return tensor.is_floating_point() and str(tensor.layout) == "torch.strided" and not tensor.is_meta


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each parameter of `GPT2(config)`, in its order, tied ones once.

    The embedding has a row for each token of the vocabulary, without padding. Each is computed when it is asked for.
    """
    hidden = config.hidden
    block = {
        "attention_norm.weight": (hidden,),
        "attention_norm.bias": (hidden,),
        "attention.qkv.weight": (3 * hidden, hidden),
        "attention.qkv.bias": (3 * hidden,),
        "attention.out.weight": (hidden, hidden),
        "attention.out.bias": (hidden,),
        "feed_forward_norm.weight": (hidden,),
        "feed_forward_norm.bias": (hidden,),
        "feed_forward.up.weight": (4 * hidden, hidden),
        "feed_forward.up.bias": (4 * hidden,),
        "feed_forward.down.weight": (hidden, 4 * hidden),
        "feed_forward.down.bias": (hidden,),
    }
    yield EMBEDDING, (config.vocabulary_size, hidden)
    yield "position_embedding.weight", (config.sequence_length, hidden)
    for layer in range(config.layers):
        for name, shape in block.items():
            yield f"blocks.{layer}.{name}", shape
    yield "final_norm.weight", (hidden,)
    yield "final_norm.bias", (hidden,)


def check_stored(origin: Path, config: ModelConfig, size: int, stored: Callable[[str], StoredTensor | None]) -> None:
    """Raise Gpt2UsageError for the first parameter that files do not hold as `config` claims, or can't hold.

    Args:
        origin: the file or folder, for messages.
        config: what it claims.
        size: bytes of its files with tensors.
        stored: the stored form of a parameter, by its name in `gpt2.py`; None for nothing. The embedding may have more
            rows than the vocabulary.
    """
    values = 0
    for name, expected in parameter_shapes(config):
        values += math.prod(checked(origin, name, expected, stored(name)).shape)
    # A tensor that repeats one value can claim any size.
    if values > size:
        raise Gpt2UsageError(
            f"{origin} claims {values:,} parameters, and its files have {size:,} bytes: it is damaged."
        )


def checked(origin: Path, name: str, expected: tuple[int, ...], found: StoredTensor | None) -> StoredTensor:
    """The values that `origin` holds of a parameter, if it can be one of that shape; the embedding may have more rows.

    Raises Gpt2UsageError where it can't.
    """
    if found is None:
        raise missing(origin, name)
    shape = found.shape
    if name == EMBEDDING and len(shape) == 2:
        shape = (min(shape[0], expected[0]), shape[1])
    if shape != expected:
        raise Gpt2UsageError(
            f"{origin} has {name} of shape {found.shape}, where {expected} is needed: it is damaged, or another kind "
            "of model."
        )
    if not found.is_float:
        raise Gpt2UsageError(
            f"{origin} has {name} in a type that is not floating-point: it is quantised, or no model; give the "
            "original."
        )
    return found


def warn_if_not_finite(origin: Path, name: str, tensor: Tensor) -> bool:
    """Print a warning if a value of a parameter is NaN or infinite; whether one is. Costs a sum of its values."""
    values = tensor if tensor.itemsize > 1 else tensor.float()
    # A sum of finite numbers may overflow.
    if values.sum().isfinite() or values.isfinite().all():
        return False
    print_warning(
        "gpt2", f"{origin} has values that are NaN or infinite in {name}: what it computes will be no numbers, too."
    )
    return True


def missing(origin: Path, name: str) -> Gpt2UsageError:
    """The error for a model without one of its parameters."""
    return Gpt2UsageError(f"{origin} holds no {name} of a GPT-2: it is another kind of model, or damaged.")


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
    """The damage of a file of a checkpoint, in a few words; nothing if it is as it was written.

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
    """The findings on one checkpoint.

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

    def check_indices() -> None:
        check_model(info)
        for part in sorted({_part_of(name) for name in info.files} - {"model"}):
            TensorReader(info.folder, part).read_metadata()

    # An index that was not read back would only say so once more.
    for is_due, check in ((not problems, check_indices), (info.tokenizer, lambda: load_tokenizer(folder))):
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
