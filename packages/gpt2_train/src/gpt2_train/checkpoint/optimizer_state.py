"""The optimizer's state in a checkpoint: boxes of its tensors, from each process that wrote it to each that reads it.

Each process of a run has stored boxes of the optimizer's tensors (`PARAMETER.KIND@ROW:COLUMN`), as they were divided
then. A reader takes from all of them what lies in its own, whatever the number of processes was and is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2_train import torch_private
from gpt2_train.checkpoint.info import CheckpointInfo, check_files, damaged, problem_of_size
from gpt2_train.checkpoint.load import shapes_of
from gpt2_train.checkpoint.names import without_padding
from gpt2_train.checkpoint.tensor_files import Box, FileTensor, boxes_fill, open_tensors
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.distributed.collectives import keep_on_all_ranks, on_all_ranks, rank_and_size
from gpt2_train.distributed.mesh import local


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
