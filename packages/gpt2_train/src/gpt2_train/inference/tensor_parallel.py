"""A model divided over processes for inference: each holds its part of every matrix, and no process the whole.

The layers are those of training (`distributed.tensor_parallel`), with plain tensors for parameters: without gradients
and optimizers DTensors would only add their cost to every operation. The model is built without memory and filled with
slices, one tensor of the source in memory at a time, whatever layout that was saved in.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.weights import ModelWeights
from gpt2_train.distributed.tensor_parallel import (
    DividedEmbedding,
    DividedLayer,
    Part,
    RowLinear,
    take_parameters_before,
)
from gpt2_train.model.gpt2 import GPT2, Block, empty_embedding


def check_division(config: ModelConfig, size: int) -> None:
    """Raise Gpt2UsageError if a model's heads can't be divided among `size` processes."""
    if config.heads % size:
        divisors = [str(number) for number in range(1, config.heads + 1) if config.heads % number == 0]
        raise Gpt2UsageError(
            f"--tensor-parallel {size} does not divide the model's {config.heads} attention heads: choose one of "
            f"{', '.join(divisors)}."
        )


def divide(model: GPT2, part: Part) -> None:
    """Make `model`, built on the meta device, this process's part of it, in place.

    All have equally many rows of the embedding, more padding than in training where that is needed; logits are those of
    this process's rows.
    """
    config, width = model.config, model.config.hidden // part.size
    ids = math.ceil(config.padded_vocabulary / part.size)
    with torch.device("meta"):
        model.token_embedding = empty_embedding(ids * part.size, config.hidden)
    DividedEmbedding.divide(model.token_embedding, part)
    model.output = nn.Linear(config.hidden, ids, bias=False, device="meta")
    model.tie()
    for block in model.blocks:
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        # Nothing is sent before a matrix: without gradients its rows are a plain layer, which may be packed.
        attention.qkv = nn.Linear(config.hidden, 3 * width, device="meta")
        feed_forward.up = nn.Linear(config.hidden, 4 * width, device="meta")
        RowLinear.divide(attention.out, part)
        RowLinear.divide(feed_forward.down, part)
    take_parameters_before(model, [layer for layer in model.modules() if isinstance(layer, DividedLayer)])


def load_part(weights: ModelWeights, group: dist.ProcessGroup, device: torch.device | str) -> GPT2:
    """This process's part of a model, in evaluation mode, in float32.

    Raises Gpt2UsageError if the model can't be divided so, or is damaged.
    """
    check_division(weights.config, group.size())
    part = Part.of(group)
    return weights.load(device, divide=functools.partial(divide, part=part), rank=part.rank, size=part.size)


def whole_logits(part: Tensor, vocabulary: int, group: dist.ProcessGroup) -> Tensor:
    """Logits (..., vocabulary), on every process, from those of each process's part, (..., ids)."""
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim=-1)[..., :vocabulary]
