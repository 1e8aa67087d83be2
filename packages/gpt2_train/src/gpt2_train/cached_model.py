"""A model that remembers what it has read: rows of a static cache of keys and values, each with a length of its own.

`CachedModel.feed` is the only contact with the model while texts are written. It takes any number of new tokens for
any rows, and puts them one behind the other into a single sequence: matrices and norms don't care to which row a token
belongs, so nothing is padded, a prompt and rows that write share one reading of the weights, and only attention looks
at rows one by one. A new token costs one position of work and the reading of its row's cache.

The cache takes 2 · layers · rows · length · hidden elements, in the type that the matrices compute in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt2_train.cache_update import CacheUpdate, Span
from gpt2_train.device import autocast
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.model import GPT2

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CachedModel:
    """A model and the keys and values of the tokens that each of `rows` sequences has fed to it.

    Args:
        model: in evaluation mode; its weights are used as they are.
        rows: sequences that are remembered at once.
        length: positions of each; those of the model without it.
        precision: `fp32`, `bf16` or `fp16`: in what matrices multiply (by autocast), and the type of the cache.

    Attributes:
        lengths: positions that each row has filled.

    All arguments of its methods are plain numbers, and a method's result follows from the calls before it alone, so
    that processes which share a model can repeat each other's calls.
    Raises Gpt2UsageError if `length` is more than the model's positions.
    """

    def __init__(self, model: GPT2, rows: int, length: int | None = None, *, precision: str = "fp32") -> None:
        config = model.config
        self.model, self.rows, self.precision = model, rows, precision
        self.length = config.sequence_length if length is None else length
        if self.length > config.sequence_length:
            raise Gpt2UsageError(
                f"{self.length} positions asked of a model that has {config.sequence_length}: shorten prompt or output."
            )
        self.lengths = [0] * rows
        self.device = model.final_norm.weight.device
        shape = (config.layers, rows, local_heads(model), self.length, config.head_dim)
        with torch.inference_mode():
            self.keys = torch.zeros(shape, dtype=DTYPES[precision], device=self.device)
            self.values = torch.zeros_like(self.keys)

    def feed(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Logits of what follows the new `tokens` of each of `rows`: (len(rows), vocabulary), float32.

        Each row gets at least one token. Raises Gpt2UsageError if a row has no room for its tokens.
        """
        spans = self._spans(rows, tokens)
        counts = torch.tensor([len(new) for new in tokens])
        positions = torch.cat(
            [
                torch.arange(self.lengths[row], self.lengths[row] + len(new))
                for row, new in zip(rows, tokens, strict=True)
            ]
        )
        ids = torch.tensor([token for new in tokens for token in new])
        with torch.inference_mode(), autocast(self.device, self.precision):
            update = CacheUpdate(
                self.keys, self.values, spans, positions[None].to(self.device), (counts.cumsum(0) - 1).to(self.device)
            )
            logits = self.model(ids[None].to(self.device), update)[0]
        for row, new in zip(rows, tokens, strict=True):
            self.lengths[row] += len(new)
        return logits[:, : self.model.config.vocabulary_size].float()

    def forget(self, row: int) -> None:
        """Empty a row."""
        self.lengths[row] = 0

    def copy(self, row: int, to: int) -> None:
        """Let the row `to` remember what `row` does."""
        length = self.lengths[row]
        with torch.inference_mode():
            self.keys[:, to, :, :length] = self.keys[:, row, :, :length]
            self.values[:, to, :, :length] = self.values[:, row, :, :length]
        self.lengths[to] = length

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.device, non_blocking=True)

    def _spans(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[Span]:
        spans: list[Span] = []
        at = 0
        for row, new in zip(rows, tokens, strict=True):
            start, count = self.lengths[row], len(new)
            if start + count > self.length:
                raise Gpt2UsageError(f"{start + count} positions asked of a cache that has {self.length}.")
            before = spans[-1] if spans else None
            if before and (before.rows.stop, before.start, before.end) == (row, start, start + count):
                spans[-1] = Span(
                    slice(before.rows.start, row + 1), start, start + count, slice(before.tokens.start, at + count)
                )
            else:
                spans.append(Span(slice(row, row + 1), start, start + count, slice(at, at + count)))
            at += count
        return spans


def local_heads(model: GPT2) -> int:
    """Attention heads of this process: all of them, or its share where the matrices are split."""
    weight: Any = dict(model.named_parameters())["blocks.0.attention.qkv.weight"]
    rows = weight.to_local().size(0) if hasattr(weight, "to_local") else weight.size(0)
    return int(rows) // (3 * model.config.head_dim)
