"""Attention in all its forms: packed sequences, separate documents, a cache of keys and values, a CUDA graph's step.

What the tokens of a forward pass see is one object, a `Context`, which goes through the whole model, and every layer
asks it to `attend`. It has `positions`, int64 (B, T) or (T,), of the tokens, None for 0 to T - 1, and `last`, int64,
the tokens of the only row whose logits are asked for, None for all.

With a cache the new tokens of all rows are concatenated in a single sequence; attention alone looks at rows one by one.
That is as fast as one call over all rows under a mask, reads no more of the cache than each row has filled, and gives a
row what it would get alone.

In training a sequence is cut out of many concatenated documents. `packed` lets each token attend to all before it,
in any document; `separate` only to tokens of its own document, whose positions begin at 0. A document
begins with the end-of-text token after the one before it: it is what generation begins with, too, and so no prediction,
that of a document's first token included, sees another document. What precedes the first end of text in a sequence is
the rest of a document, and begins at 0 as well.

Where documents begin is found in the token ids, on the host, in the thread that reads ahead: the GPU is never waited
for. Attention then has one of three forms, equal but for rounding: torch's `varlen_attn` on GPUs (flash attention over
concatenated documents), a loop over documents on CPU, and elsewhere a mask of all pairs of positions. The first two
cost the sum of the squares of the documents' lengths, the last twice as much as packed attention on CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionLayer(Protocol):
    """A layer of attention, as far as a context asks for it.

    Attributes:
        number: of the layer.
        dropout: of attention weights, in training.
        training: whether it is trained.
    """

    number: int
    dropout: float
    training: bool


class Packed:
    """Each token sees all before it in its row."""

    positions: Tensor | None = None
    last: Tensor | None = None

    def attend(self, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """softmax(QKᵀ/√d)V of what each token sees, with dropout in training: (B, T, heads, d) three times and back."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # (B, heads, T, d)
        dropout = layer.dropout if layer.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return mixed.transpose(1, 2)


PACKED = Packed()


Span = tuple[slice, slice, slice]
"""Neighbouring rows of a cache that get as many tokens at the same positions, those positions, and the places of the
tokens in what is fed: their attention is one call."""


class CacheUpdate:
    """One forward pass over new tokens of some rows: where they are, and what they see.

    Attributes:
        positions: (1, T), int64: the position of each token in its row.
        last: (rows,), int64: where among the T the last token of each row is.
    """

    def __init__(self, keys: Tensor, values: Tensor, spans: Sequence[Span], positions: Tensor, last: Tensor) -> None:
        self._keys, self._values, self._spans = keys, values, spans
        self.positions, self.last = positions, last

    def attend(self, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the new keys and values, and mix what each token sees: (1, T, heads, d) for each and returned."""
        keys, values = self._keys[layer.number], self._values[layer.number]
        parts = []
        for rows, positions, tokens in self._spans:
            shape = rows.stop - rows.start, positions.stop - positions.start
            new = [
                part[0, tokens].unflatten(0, shape).transpose(1, 2) for part in (query, key, value)
            ]  # (rows, heads, new, d)
            keys[rows, :, positions] = new[1]
            values[rows, :, positions] = new[2]
            seen = keys[rows, :, : positions.stop], values[rows, :, : positions.stop]
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
    """The spans of `counts` new tokens for each of `rows`, concatenated, from positions `starts`."""
    spans: list[Span] = []
    at = 0
    for row, start, count in zip(rows, starts, counts, strict=True):
        first, begin, positions = row, at, slice(start, start + count)
        if spans and spans[-1][0].stop == row and spans[-1][1] == positions:
            rows_before, _, tokens_before = spans.pop()
            first, begin = rows_before.start, tokens_before.start
        at += count
        spans.append((slice(first, row + 1), positions, slice(begin, at)))
    return spans


DocumentAttention = Literal["varlen", "loop", "mask"]

FEWEST_BOUNDS = 64
"""Documents of a micro-batch for which there is room at least: bounds have few sizes, or each is compiled again."""

FIRST_FLASH_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs that flash attention runs on (Ampere)."""


class Documents(NamedTuple):
    """The places of documents in a micro-batch of rows (B, T).

    Attributes:
        positions: int64 (B, T), the place of each token in its document.
        bounds: int32 (n + 1,), where documents begin in the concatenated rows, then B·T over and over; for `varlen`.
        mask: bool (B, 1, T, T), which positions (last axis) each position attends to; for `mask`.
        lengths: tokens of each document, over all rows; for `loop`.
    """

    positions: Tensor
    bounds: Tensor | None = None
    mask: Tensor | None = None
    lengths: tuple[int, ...] | None = None

    @property
    def last(self) -> None:
        """Places whose logits are asked for; None for all."""
        return None

    def attend(self, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention inside documents, without dropout: (B, T, heads, d) three times -> (B, T, heads, d)."""
        batch, length, *_ = query.shape
        if self.mask is not None:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask).transpose(1, 2)
        query, key, value = (part.flatten(0, 1) for part in (query, key, value))  # (B·T, heads, d)
        if self.bounds is not None:
            # A longest document of T for any batch: the true one would be compiled into the graph.
            from torch.nn.attention.varlen import varlen_attn  # Takes seconds, and nothing else needs it.

            bounds, causal = self.bounds, (-1, 0)
            mixed = varlen_attn(query, key, value, bounds, bounds, length, length, window_size=causal)
            assert isinstance(mixed, Tensor)  # A pair only where more is asked for.
        else:
            assert self.lengths is not None
            split = zip(*(part.transpose(0, 1)[None].split(self.lengths, dim=2) for part in (query, key, value)),
                        strict=True)  # fmt: skip
            mixed = torch.cat([F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in split], dim=2)
            mixed = mixed[0].transpose(0, 1)
        return mixed.view(batch, length, *mixed.shape[1:])

    def to(self, device: torch.device) -> Documents:
        """These places on `device`; pinned memory is copied without waiting."""
        bounds = self.bounds.to(device, non_blocking=True) if self.bounds is not None else None
        return self._replace(positions=self.positions.to(device, non_blocking=True), bounds=bounds)

    def pinned(self) -> Documents:
        """These places in memory that a GPU copies from by itself."""
        bounds = self.bounds.pin_memory() if self.bounds is not None else None
        return self._replace(positions=self.positions.pin_memory(), bounds=bounds)

    def with_mask(self) -> Documents:
        """These places with `mask`, made where the positions are."""
        place = torch.arange(self.positions.size(1), device=self.positions.device)
        start = place - self.positions  # (B, T)
        attended = (place >= start[:, :, None]) & (place <= place[:, None])
        return self._replace(mask=attended[:, None])


def attention_kind(device: torch.device, precision: str, *, is_compiled: bool = False) -> DocumentAttention:
    """The fastest form of attention inside documents on `device`.

    `varlen` needs a GPU since Ampere and half precision, `loop` has shapes that torch.compile would compile each time.
    """
    if device.type == "cuda" and precision != "fp32":
        return "varlen" if torch.cuda.get_device_capability(device) >= FIRST_FLASH_CAPABILITY else "mask"
    return "loop" if device.type == "cpu" and not is_compiled else "mask"


def find_documents(tokens: npt.NDArray[np.int64], end_of_text: int, kind: DocumentAttention) -> Documents:
    """The documents in `tokens` (B, T), in memory of the host; `mask` is left to `Documents.with_mask`."""
    rows, length = tokens.shape
    is_first = tokens == end_of_text
    is_first[:, 0] = True
    place = np.arange(length)
    positions = torch.from_numpy(place - np.maximum.accumulate(np.where(is_first, place, 0), axis=1))
    if kind == "mask":
        return Documents(positions)
    starts = np.flatnonzero(is_first)
    if kind == "loop":
        return Documents(positions, lengths=tuple(np.diff(starts, append=rows * length).tolist()))
    room = max(FEWEST_BOUNDS, 1 << (len(starts) - 1).bit_length())
    bounds = np.full(room + 1, rows * length, np.int32)
    bounds[: len(starts)] = starts
    return Documents(positions, bounds=torch.from_numpy(bounds))


class StaticUpdate(CacheUpdate):
    """One token for each of the first rows of a cache, in tensors that are filled again for every step.

    Attributes:
        ids: (1, rows), int64: the tokens.
        positions: (1, rows), int64: their positions in the model.
        places: (rows,), int64: where in the cache their keys and values go; each row sees what lies up to there.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: int, length: int) -> None:
        numbers = torch.zeros(3, rows, dtype=torch.int64, device=keys.device)
        super().__init__(keys[:, :rows], values[:, :rows], (), numbers[1:2], torch.arange(rows, device=keys.device))
        self._numbers, self.ids, self.places = numbers, numbers[0:1], numbers[2]
        self._columns = torch.arange(length, device=keys.device)
        self._mask = self._columns

    def fill(self, numbers: Tensor) -> None:
        """Take ids, positions and places, (3, rows), int64, on any device."""
        self._numbers.copy_(numbers, non_blocking=True)

    def begin(self) -> None:
        """Begin a step: note which places each row sees."""
        self._mask = (self._columns <= self.places[:, None])[:, None, None]  # (rows, 1, 1, length)

    def attend(self, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`CacheUpdate.attend` for all rows in one call."""
        keys, values = self._keys[layer.number], self._values[layer.number]  # (rows, heads, all places, d)
        keys[self.last, :, self.places] = key[0]
        values[self.last, :, self.places] = value[0]
        length = len(self._columns)
        mixed = F.scaled_dot_product_attention(
            query[0, :, :, None], keys[:, :, :length], values[:, :, :length], attn_mask=self._mask
        )  # (rows, heads, 1, d)
        return mixed[None, :, :, 0]


Context = Packed | CacheUpdate | Documents
"""The tokens that each token of a forward pass sees."""
