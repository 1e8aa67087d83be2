"""What one forward pass adds to a cache of keys and values, and how its tokens attend to what is there.

The new tokens of all rows lie one behind the other in a single sequence; attention alone looks at rows one by one. That
is as fast as one call over all rows under a mask, reads no more of the cache than each row has filled, and gives a row
what it would get alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Span:
    """Neighbouring rows that get as many tokens at the same position: their attention is one call.

    Attributes:
        rows: which rows of the cache.
        start, end: the positions of the new tokens.
        tokens: their places in the sequence that is fed.
    """

    rows: slice
    start: int
    end: int
    tokens: slice

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, new tokens of each)."""
        return self.rows.stop - self.rows.start, self.end - self.start


class CacheUpdate:
    """One forward pass over new tokens of some rows: where they are, and what they see.

    Attributes:
        positions: (1, T), int64: the position of each token in its row.
        last: (rows,), int64: where among the T the last token of each row is, and others whose logits are asked for.
    """

    def __init__(self, keys: Tensor, values: Tensor, spans: Sequence[Span], positions: Tensor, last: Tensor) -> None:
        self._keys, self._values, self._spans = keys, values, spans
        self.positions, self.last = positions, last

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the new keys and values, and mix those that each token sees: (1, T, heads, d) for each and returned."""
        keys, values = self._keys[layer], self._values[layer]
        parts = []
        for span in self._spans:
            new = [
                part[0, span.tokens].unflatten(0, span.shape).transpose(1, 2) for part in (query, key, value)
            ]  # (rows, heads, new, d)
            keys[span.rows, :, span.start : span.end] = new[1]
            values[span.rows, :, span.start : span.end] = new[2]
            seen = keys[span.rows, :, : span.end], values[span.rows, :, : span.end]
            parts.append(_attention(new[0], *seen).transpose(1, 2).flatten(0, 1))
        return torch.cat(parts)[None]


def _attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(QKᵀ/√d)V of (B, heads, T, d), which are the last of (B, heads, S, d)."""
    new, seen = query.size(2), keys.size(2)
    mask = None
    if 1 < new < seen:
        mask = torch.ones(new, seen, dtype=torch.bool, device=query.device).tril(seen - new)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=1 < new == seen)


def spans_of(rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> list[Span]:
    """The spans of `counts` new tokens for each of `rows`, which lie one behind the other, from positions `starts`."""
    spans: list[Span] = []
    at = 0
    for row, start, count in zip(rows, starts, counts, strict=True):
        before = spans[-1] if spans else None
        if before and (before.rows.stop, before.start, before.end) == (row, start, start + count):
            together = slice(before.rows.start, row + 1), slice(before.tokens.start, at + count)
            spans[-1] = dataclasses.replace(before, rows=together[0], tokens=together[1])
        else:
            spans.append(Span(slice(row, row + 1), start, start + count, slice(at, at + count)))
        at += count
    return spans
