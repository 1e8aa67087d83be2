"""GPT-2 in one file: token and position embeddings, pre-norm blocks, tied output (Radford et al. 2019).

Nothing here knows of processes. Tensor parallelism is applied from outside by splitting `qkv` and `up` by rows and
`out` and `down` by columns, which is why the fused qkv rows are interleaved per head, [heads, 3, head_dim]: any
contiguous share of the rows is then a set of whole heads, and the code below takes the number of heads from the
activations' width. Attention is `scaled_dot_product_attention`: memory linear in the sequence where a flash kernel
exists. GELU is the tanh approximation that GPT-2 was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.model.attention import PACKED, Context

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The types that `--precision` and `--dtype` name."""

INIT_STD = 0.02
"""Standard deviation of initial weights (Radford et al. 2018, section 4.1)."""


class Attention(nn.Module):
    """Causal self-attention: which earlier positions a token sees, its context says."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.number, self.head_dim = layer, config.head_dim
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.dropout = config.dropout
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor, context: Context = PACKED) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)."""
        batch, length, _ = x.shape
        fused = self.qkv(x).view(batch, length, -1, 3, self.head_dim)  # (B, T, heads, 3, d)
        mixed = context.attend(self, *fused.unbind(3))  # (B, T, heads, d)
        return self.out(mixed.reshape(batch, length, -1))


class FeedForward(nn.Module):
    """Two matrices with a GELU between them, four times as wide inside."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden)."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    The second sum is left to what follows, which begins with a norm of it: compiled, sum and norm are one kernel, and
    so are the norm's gradient and the two that the sum needs.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config, layer)
        self.feed_forward_norm = nn.LayerNorm(config.hidden)
        self.feed_forward = FeedForward(config)
        # One for each branch, so that each can have a seed of its own.
        self.attention_dropout = nn.Dropout(config.dropout)
        self.feed_forward_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, branch: Tensor | None = None, context: Context = PACKED) -> tuple[Tensor, Tensor]:
        """Two terms of the residual stream (B, T, hidden), of which the first block has one -> two."""
        if branch is not None:
            x = x + branch
        x = x + self.attention_dropout(self.attention(self.attention_norm(x), context))
        return x, self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x)))


def empty_embedding(ids: int, hidden: int) -> nn.Embedding:
    """A table (ids, hidden) without values.

    `nn.Embedding` draws some, which on the meta device imports torch's compiler: 1.2 s for nothing.
    """
    return nn.Embedding.from_pretrained(torch.empty(ids, hidden), freeze=False)


class GPT2(nn.Module):
    """The model: tokens in, logits of the next token out.

    Parameters are left as `nn.Module` makes them; call `initialise` for a new model, or load a checkpoint.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.residual: torch.dtype | None = None  # Type of the residual stream; None: as the embeddings, float32.
        self.token_embedding = empty_embedding(config.padded_vocabulary, config.hidden)
        self.position_embedding = empty_embedding(config.sequence_length, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden)
        self.output = nn.Linear(config.hidden, config.padded_vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the output matrix the token embedding itself; needed again after anything that replaces parameters."""
        self.output.weight = self.token_embedding.weight

    @property
    def is_tied(self) -> bool:
        """Whether output matrix and token embedding are one parameter."""
        return self.output.weight is self.token_embedding.weight

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        device: torch.device | str,
        change: Callable[[GPT2], object] | None = None,
    ) -> GPT2:
        """A model with memory on `device` and no values yet, in float32.

        `change` is given it before it has memory: a divided parameter then never takes that of the whole.
        """
        with torch.device("meta"):
            model = cls(config)
        if change is not None:
            change(model)
        torch_private.give_memory(model, device)
        model.tie()
        return model

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> GPT2:
        """Set new weights, as `initial_weights` makes them; returns itself."""
        parameters = dict(self.named_parameters())
        for name, values in self.initial_weights(generator):
            parameters[name].copy_(values)
        return self

    def initial_weights(self, generator: torch.Generator | None = None) -> Iterator[tuple[str, Tensor]]:
        """New values of each parameter by its name, whole, on the CPU: normal with deviation 0.02, biases 0, norms 1.

        They are drawn one matrix at a time when they are asked for: the same `generator`, one of the CPU, gives the
        same weights on any device and in any layout, for the price of one matrix on the host. The two matrices that
        add to the residual stream get 0.02/√(2·layers), so that its variance does not grow with depth (Radford et al.
        2019, section 2.3).
        """
        deviation = INIT_STD / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            values = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
            if parameter.dim() == 2:
                is_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
                values.normal_(0.0, deviation if is_residual else INIT_STD, generator=generator)
            else:
                values.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            yield name, values

    def forward(self, tokens: Tensor, context: Context = PACKED) -> Tensor:
        """Logits (B, T, padded vocabulary) for `tokens` (B, T), int64.

        The context says what each token sees and at which positions it is: `PACKED`, `Documents`, or a `CacheUpdate`,
        with which `tokens` (1, T) has the tokens of all its rows, concatenated, and there are logits of the last
        position of each row, (1, rows, padded vocabulary), all that a next token needs, and of others that it names.
        Padding ids get logits like any other: the loss never has them as targets, and generation must leave them out.
        Raises Gpt2UsageError if the positions run past the sequence length.
        """
        length, limit = tokens.size(1), self.config.sequence_length
        if context.last is None and length > limit:
            raise Gpt2UsageError(f"{length} positions asked of a model that has {limit}: shorten the input.")
        positions = torch.arange(length, device=tokens.device) if context.positions is None else context.positions
        x = self.embed(tokens, positions)
        x = self.dropout(x if self.residual is None else x.to(self.residual))  # (B, T, hidden)
        branch: Any = None  # Before the first block there is one term.
        for block in self.blocks:
            x, branch = block(x, branch, context)
        if context.last is not None:
            x, branch = x[:, context.last], branch[:, context.last]  # (1, rows, hidden)
        return self.logits(x, branch)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens (B, T) at positions (T,) or (B, T) -> (B, T, hidden)."""
        return self.token_embedding(tokens) + self.position_embedding(positions)

    def logits(self, x: Tensor, branch: Tensor | None) -> Tensor:
        """The two terms that the last block gives (B, T, hidden), or their sum -> (B, T, padded vocabulary)."""
        return self.output(self.final_norm(x if branch is None else x + branch))
