"""Reading the tensors of a model's folder, checked before use, without running code from it.

A file of a few bytes may claim a million layers. So what the files of any model claim is compared with their tensors
one at a time, up to the first that is missing, and with their size, before a module or a tensor is made
(`check_stored`). Only the files of the tensors asked for are opened: a model is read without the optimizer's state,
which is twice its size.

Each process of a run has stored boxes of the optimizer's tensors (`NAME@ROW:COLUMN`), as they were divided then. A
reader takes from all of them what lies in its own boxes, whatever the number of processes was and is.
"""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor

from command_kit.command import print_warning
from gpt2_train import torch_private
from gpt2_train.checkpoint.hugging_face import read_table
from gpt2_train.checkpoint.info import CheckpointInfo, check_files, damaged, problem_of_size
from gpt2_train.checkpoint.names import PREFIX, from_gpt2, gpt2_name, gpt2_shape
from gpt2_train.checkpoint.tensor_files import SUFFIX, Box, FileTensor, boxes_fill, open_tensors
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.collectives import keep_on_all_ranks, on_all_ranks, rank_and_size
from gpt2_train.distributed.mesh import local

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


@functools.lru_cache(maxsize=8)
def shapes_of(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of each parameter by its name, in the model's order; the embedding's rows are the vocabulary's."""
    return types.MappingProxyType(dict(parameter_shapes(config)))


def without_padding(name: str, shape: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
    """The shape of a parameter, or of its state in an optimizer, without rows of padding."""
    return (min(shape[0], config.vocabulary_size), *shape[1:]) if name == EMBEDDING else shape


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


# --- the model -------------------------------------------------------------------------------------------------------


def tensor_files(folder: Path, whole: str) -> list[Path]:
    """The files in which a model lies: `whole`, or those that its index names. None at all if there is neither.

    Raises Gpt2UsageError for a damaged index, or a file that is missing.
    """
    if (folder / whole).is_file():
        return [folder / whole]
    index = folder / f"{whole}.index.json"
    if not index.is_file():
        return []
    names = read_table(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Gpt2UsageError(f"{index} has no weight_map of tensors to files: it is damaged.")
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise Gpt2UsageError(f"{index} names {name}, which is not in {folder}: copy all files of the model.")
    return [folder / name for name in sorted(set(names.values()))]


def readers_of(
    origin: Path, config: ModelConfig, size: int, found: Mapping[str, FileTensor]
) -> dict[str, Callable[[], Tensor]]:
    """What reads each parameter of `GPT2(config)` from tensors in GPT-2's names (without prefix) and layout.

    Raises Gpt2UsageError as `check_stored` does.
    """

    def stored(name: str) -> StoredTensor | None:
        entry = found.get(gpt2_name(name))
        return None if entry is None else StoredTensor(gpt2_shape(name, entry.shape), entry.is_float)

    def read(name: str) -> Tensor:
        return from_gpt2(name, found[gpt2_name(name)].read(), config.heads)

    check_stored(origin, config, size, stored)
    return {name: functools.partial(read, name) for name, _ in parameter_shapes(config)}


def stored_model(folder: Path) -> tuple[int, dict[str, FileTensor]]:
    """Bytes of the files of a model, and the tensors in them by GPT-2's names; none where there is no such file."""
    files = tensor_files(folder, f"model{SUFFIX}")
    found = {entry.name.removeprefix(PREFIX): entry for file in files for entry in open_tensors(file)}
    return sum(file.stat().st_size for file in files), found


def check_model(info: CheckpointInfo) -> dict[str, Callable[[], Tensor]]:
    """What reads each parameter of a checkpoint, once all that its files claim was compared with their sizes.

    Raises Gpt2UsageError for a tensor that is missing or has another shape: then no model of that shape may be built.
    """
    for problem in filter(None, (problem_of_size(info, name) for name in info.names(of_optimizer=False))):
        raise damaged(info.folder, problem)
    for file in tensor_files(info.folder, f"model{SUFFIX}"):
        if problem := problem_of_size(info, file.name):
            raise damaged(info.folder, problem)
    try:
        size, found = stored_model(info.folder)
        return readers_of(info.folder, info.config, size, found)
    except Gpt2UsageError as error:
        raise damaged(info.folder, str(error).rstrip(".")) from error


# --- the optimizer ---------------------------------------------------------------------------------------------------


class _StoredBox(NamedTuple):
    """A box of a tensor, and where its values are."""

    box: Box
    values: FileTensor


_BOX = re.compile(r"([a-z0-9_.]{1,200})\.([a-z_]{1,40})@(\d{1,15}(?::\d{1,15})*)", re.ASCII)


def box_name(name: str, offsets: tuple[int, ...]) -> str:
    """The name under which a box of the tensor `name` is stored.

    >>> box_name("blocks.0.attention.qkv.weight.exp_avg", (64, 0))
    'blocks.0.attention.qkv.weight.exp_avg@64:0'
    """
    return f"{name}@{':'.join(map(str, offsets))}"


def stored_boxes(info: CheckpointInfo) -> dict[str, list[_StoredBox]]:
    """The boxes of each tensor of the optimizer, by the tensor's name (`blocks.0.attention.qkv.weight.exp_avg`).

    Raises Gpt2UsageError where they do not fill the parameter that the name begins with.
    """
    shapes, found = shapes_of(info.config), dict[str, list[_StoredBox]]()
    for file in info.names(of_optimizer=True):
        if problem := problem_of_size(info, file):
            raise damaged(info.folder, problem)
        try:
            entries = [*open_tensors(info.folder / file)]
        except Gpt2UsageError as error:
            raise damaged(info.folder, str(error).rstrip(".")) from error
        for entry in entries:
            match = _BOX.fullmatch(entry.name)
            if match is None or match[1] not in shapes or not entry.is_float:
                raise damaged(info.folder, f"{file} holds {entry.name!r:.80}, which is no part of an optimizer")
            offsets = tuple(map(int, match[3].split(":")))
            found.setdefault(f"{match[1]}.{match[2]}", []).append(_StoredBox((offsets, entry.shape), entry))
    for name, boxes in found.items():
        if not boxes_fill(shapes[name.rpartition(".")[0]], [box for box, _ in boxes]):
            raise damaged(info.folder, f"its files do not cover {name}, each value once")
    return found


def load_optimizer(info: CheckpointInfo, tensors: Mapping[str, Tensor]) -> None:
    """Fill an optimizer's tensors, plain or divided in any way, from a checkpoint; all processes call this together.

    Raises Gpt2UsageError, on all of them, if a file is damaged, or one of the tensors is not there.
    """
    rank, size = rank_and_size()
    names = info.names(of_optimizer=True)
    if not names:
        raise Gpt2UsageError(
            f"the checkpoint {info.folder} holds a model without its optimizer, from which no run can go on: begin "
            "another from its weights by --init-from, with another --output."
        )
    on_all_ranks(lambda: check_files(info, names, rank=rank, size=size))
    keep_on_all_ranks(lambda: _fill(info, tensors))


def _fill(info: CheckpointInfo, tensors: Mapping[str, Tensor]) -> None:
    stored = stored_boxes(info)
    for name, tensor in tensors.items():
        boxes, shape = stored.get(name.removeprefix("optimizer.")), tuple(tensor.shape)
        if boxes is None:
            raise Gpt2UsageError(f"the checkpoint {info.folder} has no {name}: it is of another kind of run.")
        parameter = name.removeprefix("optimizer.").rpartition(".")[0]
        expected = shapes_of(info.config)[parameter]
        if without_padding(parameter, shape, info.config) != expected:
            raise Gpt2UsageError(
                f"the checkpoint {info.folder} has {name} of shape {expected}, where {shape} is needed: it is of "
                "another size of model."
            )
        begins, lengths = box_of(tensor)
        target = local(tensor)
        if 0 in lengths:
            continue
        target.zero_()  # Rows of padding are not stored, and have never had a gradient.
        for (offsets, sizes), values in boxes:
            sides = [
                (max(begin, offset), min(begin + length, offset + stored_length))
                for begin, length, offset, stored_length in zip(begins, lengths, offsets, sizes, strict=True)
            ]
            if any(begin >= end for begin, end in sides):
                continue
            here = tuple(slice(begin - at, end - at) for (begin, end), at in zip(sides, begins, strict=True))
            there = [slice(begin - at, end - at) for (begin, end), at in zip(sides, offsets, strict=True)]
            target[here].copy_(values.part(there))


def box_of(tensor: Tensor) -> Box:
    """The part of `tensor` that this process has."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    offsets, sizes = torch_private.own_piece(tensor)
    return tuple(offsets), tuple(sizes)
