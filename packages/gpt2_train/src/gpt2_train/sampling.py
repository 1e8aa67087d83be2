"""Continuing sequences of token ids with a model: what to choose from its logits, and what it sees while it writes.

Sequences of different length share a batch without padding: all are fed up to the end of the shortest, and from there
one token at a time, those that still have prompt left taking their own next token instead of a chosen one. Each
sequence has a length, a way of sampling and random numbers of its own, so what it becomes does not depend on its
neighbours (but for the rounding of matrix products, which varies with the shape of a batch). A new token costs one
position of work and the memory of the cache. When the model's positions are used up it continues with the last half of
them as its whole past: one pass over half a sequence for every half a sequence of new tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gpt2_train.errors import Gpt2Error
from gpt2_train.model import GPT2, KeyValueCache

POSITIONS_AT_ONCE = 1 << 10
"""Positions of a prompt fed at a time, over the whole batch: bounds the activations that a long prompt takes."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: choose among the k most likely tokens only; 0 for all.
        top_p: choose among the most likely tokens that together have at least this probability (nucleus sampling;
            after temperature and top_k).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclasses.dataclass(frozen=True)
class TokenRequest:
    """A sequence to continue.

    Attributes:
        prompt: token ids, at least one; the model sees the last `sequence_length` of them.
        random: where its random numbers come from, one per token.
        tokens: how many to write at most.
        sampling: how to choose them.
        ignore_end: never choose the id that ends a text.
    """

    prompt: Sequence[int]
    random: np.random.Generator
    tokens: int
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    ignore_end: bool = False


def choose_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """One token id for each row: int64 (B,) from `logits` (B, V), float32, and `uniform` (B,), numbers in [0, 1).

    Each is the inverse of the cumulative distribution at its number (temperature, then top-k, then top-p, as Hugging
    Face orders them), so that a row's choice depends on that row alone. Ids with a logit of -inf are never chosen.
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=1)
    ids = None
    if 0 < sampling.top_k < logits.size(1):
        logits, ids = logits.topk(sampling.top_k, dim=1)
    elif sampling.top_p < 1:
        logits, ids = logits.sort(dim=1, descending=True, stable=True)
    # The largest is subtracted first: a tiny temperature then makes no infinities. Apple's GPUs have no float64.
    exact = logits.float() if logits.device.type == "mps" else logits.double()
    scaled = (exact - exact.max(dim=1, keepdim=True).values) / sampling.temperature
    probabilities = scaled.softmax(dim=1)
    if sampling.top_p < 1:
        above = probabilities.cumsum(dim=1) - probabilities
        probabilities = probabilities.masked_fill(above >= sampling.top_p, 0.0)
    cumulated = probabilities.cumsum(dim=1)
    total = cumulated[:, -1:]
    wanted = uniform.to(cumulated.dtype).to(cumulated.device)[:, None] * total
    # Rounding may put a number at the very end, behind which there is nothing.
    wanted = torch.minimum(wanted, total * (1 - torch.finfo(total.dtype).eps))
    places = torch.searchsorted(cumulated, wanted, right=True)
    return (places if ids is None else ids.gather(1, places)).squeeze(1)


def choose_for_each(logits: Tensor, uniform: Tensor, samplings: Sequence[Sampling]) -> list[int]:
    """One token id for each row of `logits` (B, V), each row with its own entry of `samplings`."""
    chosen = [0] * len(samplings)
    for sampling in dict.fromkeys(samplings):
        rows = [row for row, other in enumerate(samplings) if other == sampling]
        part = slice(None) if len(rows) == len(samplings) else rows
        for row, token in zip(rows, choose_tokens(logits[part], uniform[part], sampling).tolist(), strict=True):
            chosen[row] = token
    return chosen


class Window:
    """What a model sees of a batch of sequences that grow: all of it while it fits, then the last part.

    Args:
        model: in evaluation mode.
        batch: sequences.
        length: positions that will be fed at most; the model's number of them is enough for any length.
    """

    def __init__(self, model: GPT2, batch: int, length: int) -> None:
        self.model = model
        self.device = model.token_embedding.weight.device
        capacity = min(length, model.config.sequence_length)
        dtype = model.token_embedding.weight.dtype
        with torch.inference_mode():
            self.cache = KeyValueCache(model.config, batch, capacity, device=self.device, dtype=dtype)
        self._seen = torch.empty(batch, 0, dtype=torch.int64)

    @torch.inference_mode()
    def feed(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """The logits of what follows, (B, padded vocabulary) in float32, when `tokens` (B, T) come behind the earlier.

        When they don't fit, the window first moves on to the last half of the model's positions.
        """
        new = torch.tensor(tokens, dtype=torch.int64)
        limit = self.cache.capacity
        self._seen = torch.cat([self._seen, new], dim=1)[:, -limit:]
        if self.cache.length + new.size(1) > limit:
            self.cache.truncate(0)
            new = self._seen[:, -max(1, limit // 2) :]
        pieces = new.to(self.device).split(max(1, POSITIONS_AT_ONCE // len(new)), dim=1)
        for piece in pieces:
            logits = self.model(piece, self.cache, last_only=True)
        return logits[:, -1].float()


def continue_tokens(
    model: GPT2, requests: Sequence[TokenRequest], *, vocabulary_size: int, end: int | None = None
) -> Iterator[list[int | None]]:
    """Continue each of `requests`; yields, step by step, the new token of each, None where one is not writing.

    Args:
        model: in evaluation mode.
        requests: the sequences, written together.
        vocabulary_size: ids from here on (the rows that pad the embedding) are never chosen.
        end: the id at which a sequence ends; it is yielded as its last token.

    A prompt is never taken for its end, whatever ids it holds: only a token that was chosen ends a sequence.
    Raises Gpt2Error if the model's output is not finite.
    """
    limit = model.config.sequence_length
    prompts = [list(request.prompt[-limit:]) for request in requests]
    left = [request.tokens for request in requests]
    shortest = min(map(len, prompts))
    window = Window(model, len(prompts), max(map(len, prompts)) + max(left))
    ignoring = torch.tensor([request.ignore_end for request in requests])
    feed = [prompt[:shortest] for prompt in prompts]
    for place in itertools.count(shortest):
        logits = window.feed(feed)[:, :vocabulary_size]
        if not bool(torch.isfinite(logits).all()):
            raise Gpt2Error("the model's output is not finite (its training diverged): give an earlier checkpoint.")
        if end is not None and bool(ignoring.any()):
            column = logits[:, end].masked_fill(ignoring.to(logits.device), -torch.inf)
            logits = logits.index_copy(1, torch.tensor([end], device=logits.device), column[:, None])
        writing = [place >= len(prompt) and left[row] > 0 for row, prompt in enumerate(prompts)]
        numbers = [request.random.random() if writing[row] else 0.0 for row, request in enumerate(requests)]
        uniform = torch.tensor(numbers, dtype=torch.float64)
        chosen = choose_for_each(logits, uniform, [request.sampling for request in requests])
        for row in range(len(prompts)):
            if writing[row]:
                left[row] = 0 if chosen[row] == end else left[row] - 1
        yield [token if writing[row] else None for row, token in enumerate(chosen)]
        if not any(left):
            return
        feed = [
            [prompt[place] if place < len(prompt) else token] for prompt, token in zip(prompts, chosen, strict=True)
        ]
