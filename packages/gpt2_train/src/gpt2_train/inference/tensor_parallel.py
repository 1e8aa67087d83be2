"""A model divided over processes for inference: each holds its part of every matrix, and no process the whole.

As in training (Shoeybi et al. 2019, section 3), qkv and up are divided by rows, so that a process has whole heads, and
out and down by columns, behind which the parts are summed over the processes: two sums a block. The embedding, which is
the output matrix, is divided by vocabulary. Parameters here are plain tensors: without gradients and optimizers
DTensors would only add their cost to every operation. The model is built without memory and filled with slices, one
tensor of the source in memory at a time, whatever layout that was saved in.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.megatron_names import share_of
from gpt2_train.conversion.weights import EMBEDDING, ModelWeights
from gpt2_train.model.gpt2 import GPT2, Block


class SummedLinear(nn.Linear):
    """A matrix of which this process has some columns, for inputs of which it has the same: (..., in) -> (..., out)."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__(inputs, outputs)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """The product of the whole matrix and the whole input, on every process."""
        product = F.linear(x, self.weight)
        dist.all_reduce(product, group=self.group)
        return product + self.bias.to(product.dtype)


class DividedEmbedding(nn.Embedding):
    """The embeddings of some ids, neighbours beginning with `first`; those of all ids come out on every process."""

    def __init__(self, ids: int, hidden: int, group: dist.ProcessGroup) -> None:
        super().__init__(ids, hidden, _weight=torch.empty(ids, hidden))
        self.first, self.group = ids * group.rank(), group

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (...) -> (..., hidden)."""
        local = tokens - self.first
        is_other = (local < 0) | (local >= self.num_embeddings)
        found = F.embedding(local.masked_fill(is_other, 0), self.weight).masked_fill(is_other[..., None], 0.0)
        dist.all_reduce(found, group=self.group)
        return found


def check_division(config: ModelConfig, size: int) -> None:
    """Raise Gpt2UsageError if a model's heads can't be divided among `size` processes."""
    if config.heads % size:
        divisors = [str(number) for number in range(1, config.heads + 1) if config.heads % number == 0]
        raise Gpt2UsageError(
            f"--tensor-parallel {size} does not divide the model's {config.heads} attention heads: choose one of "
            f"{', '.join(divisors)}."
        )


def divided_rows(config: ModelConfig, size: int) -> int:
    """Rows of the embedding when `size` processes have the same number each: the padded vocabulary, and what lacks."""
    return math.ceil(config.padded_vocabulary / size) * size


def divide(model: GPT2, group: dist.ProcessGroup) -> GPT2:
    """Make `model`, built on the meta device, this process's part of it, in place; returns it.

    Its logits are then those of this process's part of the vocabulary.
    """
    config, size = model.config, group.size()
    ids, width = divided_rows(config, size) // size, config.hidden // size
    model.token_embedding = DividedEmbedding(ids, config.hidden, group)
    model.output = nn.Linear(config.hidden, ids, bias=False)
    model.tie()
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.qkv = nn.Linear(config.hidden, 3 * width)
        block.attention.out = SummedLinear(width, config.hidden, group)
        block.feed_forward.up = nn.Linear(config.hidden, 4 * width)
        block.feed_forward.down = SummedLinear(4 * width, config.hidden, group)
    return model


@torch.no_grad()
def load_part(
    weights: ModelWeights, group: dist.ProcessGroup, device: torch.device | str, dtype: torch.dtype | None = None
) -> GPT2:
    """This process's part of a model, in evaluation mode, in float32 unless `dtype` says otherwise.

    Raises Gpt2UsageError if the model can't be divided so, or is damaged.
    """
    config = weights.config
    check_division(config, group.size())
    with torch.device("meta"):
        model = divide(GPT2(config), group)
    if dtype is not None:
        model = model.to(dtype)
    model.tie()
    model.materialise(device)
    rows = divided_rows(config, group.size())
    for name, parameter in model.named_parameters():
        whole = weights.read(name, rows=rows if name == EMBEDDING else None)
        # In version 3 of Megatron-LM's checkpoints the rows of qkv are as they are here.
        part = share_of(name, whole, rank=group.rank(), size=group.size(), version=3, heads=config.heads)
        parameter.copy_(part)
    return model.eval()


def whole_logits(part: Tensor, vocabulary: int, group: dist.ProcessGroup) -> Tensor:
    """Logits (..., vocabulary), on every process, from those of each process's part, (..., ids)."""
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim=-1)[..., :vocabulary]
