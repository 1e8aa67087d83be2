"""A model that remembers what it has read: rows of a static cache of keys and values, each with a length of its own.

`CachedModel.feed` is the only contact with the model while texts are written. It takes any number of new tokens for
any rows, and puts them one behind the other into a single sequence: matrices and norms don't care to which row a token
belongs, so nothing is padded, a prompt and rows that write share one reading of the weights, and only attention looks
at rows one by one. A new token costs one position of work and the reading of its row's cache.

The cache takes 2 · layers · rows · length · hidden elements, in the type that the matrices compute in.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.distributed.device import autocast
from gpt2_train.inference.cuda_graphs import StaticSteps
from gpt2_train.inference.sampling import on_device
from gpt2_train.model.attention import CacheUpdate, spans_of
from gpt2_train.model.gpt2 import DTYPES, GPT2


class CachedModel:
    """A model and the keys and values of the tokens that each of `rows` sequences has fed to it.

    Args:
        model: in evaluation mode; its weights are used as they are.
        rows: sequences that are remembered at once.
        length: positions of each; those of the model without it.
        precision: `fp32`, `bf16` or `fp16`: in what matrices multiply (by autocast), and the type of the cache.
        static: feed single tokens by `StaticSteps`, which are CUDA graphs on a GPU; only there without it, and not
            where the matrices are shared by processes.

    Attributes:
        lengths: positions that each row has filled.

    All arguments of its methods are plain numbers, and a method's result follows from the calls before it alone, so
    that processes which share a model can repeat each other's calls.
    Raises Gpt2UsageError if `length` is more than the model's positions.
    """

    def __init__(
        self,
        model: GPT2,
        rows: int,
        length: int | None = None,
        *,
        precision: str = "fp32",
        static: bool | None = None,
    ) -> None:
        config = model.config
        self.model, self.rows, self.precision = model, rows, precision
        self.length = config.sequence_length if length is None else length
        if self.length > config.sequence_length:
            raise Gpt2UsageError(
                f"{self.length} positions asked of a model that has {config.sequence_length}: shorten prompt or output."
            )
        self.lengths = [0] * rows
        self.device = model.final_norm.weight.device
        heads = local_heads(model)
        # One place more than a row may fill: for rows that a static step covers and nobody feeds.
        shape = (config.layers, rows, heads, self.length + 1, config.head_dim)
        with torch.inference_mode():
            self.keys = torch.zeros(shape, dtype=DTYPES[precision], device=self.device)
            self.values = torch.zeros_like(self.keys)
        self._static: StaticSteps | None = None
        if static or (static is None and self.device.type == "cuda" and heads == config.heads):
            self._static = StaticSteps(model, self.keys, self.values, precision)

    def feed(self, rows: Sequence[int], tokens: Sequence[Sequence[int]], every: Sequence[int] = ()) -> Tensor:
        """Logits of what follows the new `tokens` of each of `rows`: (len(rows), vocabulary), float32.

        For the places `every` of `rows` they are those of each of its tokens, in order, instead of the last alone:
        they take 4 bytes for each token of the vocabulary. Each row gets at least one token. Raises Gpt2UsageError if
        a row has no room for its tokens.
        """
        for row, new in zip(rows, tokens, strict=True):
            if self.lengths[row] + len(new) > self.length:
                raise Gpt2UsageError(
                    f"{self.lengths[row] + len(new)} positions asked of a cache that has {self.length}."
                )
        with torch.inference_mode():
            way = self._feed_any if self._static is None else self._feed_apart
            logits = way(rows, tokens, every)
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

    def _feed_any(self, rows: Sequence[int], tokens: Sequence[Sequence[int]], every: Sequence[int]) -> Tensor:
        """Logits (one for each of `rows`, or of its tokens, padded vocabulary), by one pass over all tokens."""
        starts = [self.lengths[row] for row in rows]
        positions = [start + at for start, new in zip(starts, tokens, strict=True) for at in range(len(new))]
        ends = itertools.accumulate(map(len, tokens))
        asked = [at for end, count in zip(ends, asked_of(tokens, every), strict=True) for at in range(end - count, end)]
        ids = [token for new in tokens for token in new]
        spans = spans_of(rows, starts, [len(new) for new in tokens])
        with autocast(self.device, self.precision):
            update = CacheUpdate(
                self.keys, self.values, spans, on_device(positions, self.device)[None], on_device(asked, self.device)
            )
            logits: Tensor = self.model(on_device(ids, self.device)[None], update)[0]
        return logits

    def _feed_apart(self, rows: Sequence[int], tokens: Sequence[Sequence[int]], every: Sequence[int]) -> Tensor:
        """The same by a static step for single tokens, and then a pass over the others."""
        assert self._static is not None
        single = [place for place, new in enumerate(tokens) if len(new) == 1]
        others = [place for place, new in enumerate(tokens) if len(new) != 1]
        parts = []
        if single:
            ids = [tokens[place][0] for place in single]
            parts.append(self._static.feed([rows[place] for place in single], ids, self.lengths))
        if others:
            among = [number for number, place in enumerate(others) if place in every]
            fed = [rows[place] for place in others], [tokens[place] for place in others]
            parts.append(self._feed_any(*fed, among))
        if len(parts) == 1:
            return parts[0]
        counts = asked_of(tokens, every)
        order = [place for place in single + others for _ in range(counts[place])]
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat(parts).index_select(0, on_device(inverse, self.device))


def asked_of(tokens: Sequence[Sequence[int]], every: Sequence[int]) -> list[int]:
    """How many logits each of `tokens` gets, where the places `every` get those of all."""
    return [len(new) if place in every else 1 for place, new in enumerate(tokens)]


def local_heads(model: GPT2) -> int:
    """Attention heads of this process: all of them, or its part where the matrices are divided."""
    weight = dict(model.named_parameters()).get("blocks.0.attention.out.weight")
    return model.config.heads if weight is None else weight.size(1) // model.config.head_dim
