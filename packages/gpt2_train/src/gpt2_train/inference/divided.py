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
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import ModelWeights, ReadOptions, find_model, open_weights
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


def check_division(config: ModelConfig, size: int) -> None:
    """Raise Gpt2UsageError if a model's heads can't be divided among `size` processes."""
    if config.heads % size:
        divisors = [str(number) for number in range(1, config.heads + 1) if config.heads % number == 0]
        raise Gpt2UsageError(
            f"--tensor-parallel {size} does not divide the model's {config.heads} attention heads: choose one of "
            f"{', '.join(divisors)}."
        )


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


def load_part(weights: ModelWeights, group: dist.ProcessGroup, device: torch.device | str) -> GPT2:
    """This process's part of a model, in evaluation mode, in float32, read slice by slice.

    Raises Gpt2UsageError if it is damaged.
    """
    return weights.load(device, divide=functools.partial(divide, group=group), rank=group.rank())


@contextlib.contextmanager
def joined(
    path: str,
    *,
    tokenizer: str | None,
    tensor_parallel: int,
    data_parallel: int,
    device: DeviceKind,
    threads: int | None,
) -> Iterator[tuple[ModelWeights, Callable[[], GPT2], World, dist.ProcessGroup | None]]:
    """The model that `path` names, in this process of a job; only the first shows notes and progress.

    Gives what is stored, what reads the model or this process's part of it, this process's place, and the group that
    divides the model.

    Raises, on all processes, Gpt2UsageError if the job has another number of processes, or what `open_model` raises.
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
    where = world.device
    # Every process takes part in making every group.
    firsts = range(0, world.world_size, size) if size > 1 else ()
    groups = [dist.new_group(list(range(first, first + size)), timeout=GROUP_TIMEOUT) for first in firsts]
    world = dataclasses.replace(world, dp_rank=world.rank // size, dp_size=data_parallel)
    group = groups[world.dp_rank] if groups else None

    def read() -> ModelWeights:
        options = ReadOptions(tokenizer=tokenizer, rank=world.rank, world_size=world.world_size)
        return open_weights(find_model(path), options)

    with contextlib.ExitStack() as shown:
        if world.rank > 0:
            shown.enter_context(contextlib.redirect_stderr(shown.enter_context(Path(os.devnull).open("w"))))
        from_first_rank(lambda: str(find_model(path)))  # A model of the hub is fetched once.
        weights = keep_on_all_ranks(read)
        check_division(weights.config, size)
        part = functools.partial(weights.load, where)
        if group is not None:
            part = functools.partial(load_part, weights, group, where)
        yield weights, lambda: keep_on_all_ranks(part), world, group
        close_group()
