"""Inference in several processes: each runs the same loop over the same prompts or texts, and the first one writes.

Nothing is sent but what the model needs: tensor-parallel neighbours divide its matrices and meet in their sums;
data-parallel groups, for evaluation, have the whole of it and take one batch each, whose scores all of them gather.
What only one process can know (what is read from standard input) the first one tells the others, and a token that
neighbours have chosen is the first one's, so that no rounding lets them part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import check_tensor_parallel
from gpt2_train.conversion.formats import ModelWeights, ReadOptions, located, open_weights
from gpt2_train.distributed.collectives import SHARED, from_first_rank, keep_on_all_ranks
from gpt2_train.distributed.device import DeviceKind
from gpt2_train.distributed.jobs import close_group, join
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.tensor_parallel import (
    DividedLayer,
    RowLinear,
    VocabParallelEmbedding,
    take_parameters_before,
)
from gpt2_train.model.gpt2 import GPT2, Block, empty_embedding

GROUP_TIMEOUT = datetime.timedelta(days=365)
"""The time that processes wait for each other: a conversation may rest for days. That one has ended is seen at once."""


def divide(model: GPT2, group: dist.ProcessGroup) -> None:
    """Make `model`, built on the meta device, this process's part of it, in place.

    The layers are the same as in training (`distributed.tensor_parallel`), with plain tensors for parameters: without
    gradients and optimizers DTensors would only add their cost to every operation.

    All have equally many rows of the embedding, more padding than in training where that is needed; logits are for
    this process's rows.
    """
    config, width = model.config, model.config.hidden // group.size()
    ids = math.ceil(config.padded_vocabulary / group.size())
    with torch.device("meta"):
        whole = empty_embedding(ids * group.size(), config.hidden)
    model.register_module("token_embedding", VocabParallelEmbedding(whole, group))
    model.output = nn.Linear(config.hidden, ids, bias=False, device="meta")
    model.tie()
    for block in model.blocks:
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        # Nothing is sent before a matrix: without gradients its rows are a plain layer, which may be packed.
        attention.qkv = nn.Linear(config.hidden, 3 * width, device="meta")
        feed_forward.up = nn.Linear(config.hidden, 4 * width, device="meta")
        attention.register_module("out", RowLinear(attention.out, group))
        feed_forward.register_module("down", RowLinear(feed_forward.down, group))
    take_parameters_before(model, [layer for layer in model.modules() if isinstance(layer, DividedLayer)])


def open_part(
    path: str, tokenizer: str | None, world: World, group: dist.ProcessGroup | None
) -> tuple[ModelWeights, Callable[[], GPT2]]:
    """What is stored of a model, and what reads it, in float32, or slice by slice this process's part of it.

    All processes call both together. Raises, on all of them, what `open_weights` raises.
    """
    from_first_rank(lambda: str(located(path)))  # A model of the hub is fetched once.
    options = ReadOptions(tokenizer=tokenizer, rank=world.rank, world_size=world.world_size)
    weights = keep_on_all_ranks(lambda: open_weights(path, options))
    part = functools.partial(weights.load, world.device)
    if group is not None:
        check_tensor_parallel(weights.config, group.size(), in_training=False)
        part = functools.partial(part, divide=functools.partial(divide, group=group), rank=group.rank())
    return weights, lambda: keep_on_all_ranks(part)


@contextlib.contextmanager
def joined(
    tensor_parallel: int, data_parallel: int, device: DeviceKind, threads: int | None
) -> Iterator[tuple[World, dist.ProcessGroup | None]]:
    """This process's place in a job, and the group that divides the model; only the first shows notes and progress.

    Raises, on all processes, Gpt2UsageError if the job has another number of processes.
    """
    world, size = World.of_environment(), tensor_parallel
    if world.world_size != size * data_parallel:
        with_data = f" times --data-parallel {data_parallel}" if data_parallel > 1 else ""
        error = Gpt2UsageError(
            f"the launcher started {world.world_size} processes, and --tensor-parallel {size}{with_data} asks for "
            f"{size * data_parallel}: make them equal."
        )
        error.add_note(SHARED)
        raise error
    world = world.take_device(device, threads)
    join(world, GROUP_TIMEOUT)
    # Every process takes part in making every group.
    firsts = range(0, world.world_size, size) if size > 1 else ()
    groups = [dist.new_group(list(range(first, first + size)), timeout=GROUP_TIMEOUT) for first in firsts]
    world = dataclasses.replace(world, dp_rank=world.rank // size, dp_size=data_parallel)
    with world.shown_by_first():
        yield world, groups[world.dp_rank] if groups else None
        close_group()
