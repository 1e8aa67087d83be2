"""The choice of a token from the model's logits by a random number that is given: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt2_train.inference.kv_cache import on_device


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The way in which the next token is chosen.

    Attributes:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: choose among the k most likely tokens only; 0 for all.
        top_p: choose among the most likely tokens that together have at least this probability (nucleus sampling;
            after temperature and top_k); 0 takes the most likely token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def choose_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """One token id for each row: int64 (B,) from `logits` (B, V), float32, and `uniform` (B,), numbers in [0, 1).

    Each is the inverse of the cumulative distribution at its number (temperature, then top-k, then top-p, as Hugging
    Face orders them), so that a row's choice depends on that row alone. Ids with a logit of -inf are never chosen.
    """
    if sampling.temperature == 0 or sampling.top_p == 0:
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
    wanted = uniform.to(cumulated.dtype).to(cumulated.device, non_blocking=True)[:, None] * total
    # Rounding may put a number at the very end, after which there is nothing.
    wanted = torch.minimum(wanted, total * (1 - torch.finfo(total.dtype).eps))
    places = torch.searchsorted(cumulated, wanted, right=True)
    return (places if ids is None else ids.gather(1, places)).squeeze(1)


def choose_for_each(logits: Tensor, uniform: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """One token id for each row of `logits` (B, V), int64 (B,), each row with its own entry of `samplings`."""
    different = list(dict.fromkeys(samplings))
    if len(different) == 1:
        return choose_tokens(logits, uniform, different[0])
    chosen = torch.zeros(len(samplings), dtype=torch.int64, device=logits.device)
    for sampling in different:
        rows = [row for row, other in enumerate(samplings) if other == sampling]
        places = on_device(rows, logits.device)
        found = choose_tokens(logits.index_select(0, places), uniform[rows], sampling)
        chosen.index_copy_(0, places, found)
    return chosen


Likelihood = tuple[float, tuple[tuple[int, float], ...]]
"""A token's likelihood at its place: the natural logarithm of its probability, and the most likely ids with theirs."""


class Likelihoods:
    """Log-probabilities at the rows `asked` of `logits` (B, V), as the model gave them."""

    def __init__(self, logits: Tensor, asked: list[int]) -> None:
        self._asked = asked
        self._rows = on_device(asked, logits.device)
        self._all = logits.index_select(0, self._rows).log_softmax(dim=1)

    def of(self, chosen: Tensor, wanted: Sequence[int]) -> dict[int, Likelihood]:
        """Row asked for to (log-probability of its `chosen` id, the `wanted` most likely ids with theirs)."""
        own = self._all.gather(1, chosen.index_select(0, self._rows)[:, None])
        most = min(max(wanted), self._all.size(1))
        values, ids = self._all.topk(most, dim=1)
        # Ids are below 2^24, so that float32 has them exactly: one transfer.
        table = torch.cat([own, values, ids.to(values.dtype)], dim=1).tolist()
        return {
            row: (line[0], tuple(zip(map(int, line[1 + most :]), line[1 : 1 + most], strict=True))[: wanted[row]])
            for row, line in zip(self._asked, table, strict=True)
        }
