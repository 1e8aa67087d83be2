"""Loading tensors of a checkpoint in all processes of a training run together, sharded in any way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from gpt2_train.checkpoint.info import CheckpointInfo, read_info
from gpt2_train.checkpoint.load import by_part, check_files, check_shapes, read_tensors
from gpt2_train.checkpoint.storage import TensorReader
from gpt2_train.distributed.collectives import check_is_shared, from_first_rank, on_all_ranks, rank_and_size


def load_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> CheckpointInfo:
    """Fill `tensors` in place from the checkpoint that `path` means, and return what it says.

    Tensors may be plain or sharded in any way (DTensor); a name or a global shape that the checkpoint does not have
    is an error, and so is a damaged file: no tensor keeps the value that it had before. All processes call this
    together; the first one decides which checkpoint it is. Raises Gpt2UsageError, on all of them.
    """
    rank, size = rank_and_size()
    info = from_first_rank(lambda: read_info(path))
    check_is_shared(info.folder)
    parts = by_part(tensors)
    on_all_ranks(lambda: check_files(info, parts, rank=rank, size=size))
    on_all_ranks(lambda: check_shapes(info, parts))
    for part, group in parts.items():
        read_tensors(info, TensorReader(info.folder, part), group, in_one_process=size == 1)
    return info
