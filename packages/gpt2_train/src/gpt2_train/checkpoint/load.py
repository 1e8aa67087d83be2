"""Loading tensors of a checkpoint in one process, checked before use, without running code from it.

A file of a few bytes may claim a million layers. So what the files of any model claim is compared with their tensors
one at a time, up to the first that is missing, and with their size, before a module or a tensor is made
(`check_stored`).

torch.distributed.checkpoint keeps the index of its files in `.metadata`, a pickle, and unpickling a foreign file can
run anything. The reader here knows the dozen plain classes of that index and refuses all others; tensors themselves are
read by torch with `weights_only`. torch's writer of safetensors has no such index, but it holds each file twice in
memory, and checkpoints written with this one would need this reader all the same.

Only the files of the tensors asked for are opened: a model is read without the optimizer's state, which is twice its
size. No process group is needed, and nothing is exchanged.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import itertools
import math
import pickle
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata

from command_kit.command import print_warning
from gpt2_train.checkpoint.info import CheckpointInfo, damaged
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
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


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model under the names that checkpoints use, `model.<name>`; tied ones once."""
    return {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def check_model(info: CheckpointInfo) -> TensorReader:
    """Compare the model that a checkpoint claims with its index and the sizes of its files; returns what reads these.

    Raises Gpt2UsageError for a tensor that is missing or has another shape: then no model of that shape may be built.
    """
    names = [name for name in info.files if part_of(name) == "model"]
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
        if not any(part_of(name) == part for name in info.files):
            raise damaged(info.folder, f"it lists no tensor files in {part}")
    names = sorted(name for name in info.files if part_of(name) in parts)
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


def part_of(name: str) -> str:
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
