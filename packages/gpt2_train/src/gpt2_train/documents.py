"""Documents that share a sequence: where each begins, and attention that stays inside it.

A sequence is cut out of many documents laid end to end. `packed` lets each token attend to all before it, whatever
document they are of; `separate` to those of its own document alone, whose positions begin at 0. A document begins with
the end-of-text token behind the one before it: it is what generation begins with, too, and so no prediction, that of a
document's first token included, sees another document. What precedes the first end of text in a sequence is the rest of
a document, and begins at 0 as well.

Where documents begin is found in the token ids, on the host, in the thread that reads ahead: the GPU is never waited
for. Attention then has one of three forms, equal but for rounding: torch's `varlen_attn` on GPUs (flash attention over
documents laid end to end), a loop over documents on CPU, and elsewhere a mask of all pairs of positions. The first two
cost the sum of the squares of the documents' lengths, the last twice as much as packed attention on CPU.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

DocumentAttention = Literal["varlen", "loop", "mask"]

FEWEST_BOUNDS = 64
"""Documents of a micro-batch for which there is room at least: bounds have few sizes, or each is compiled again."""

FIRST_FLASH_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs that flash attention runs on (Ampere)."""


class Documents(NamedTuple):
    """Where documents lie in a micro-batch of rows (B, T).

    Attributes:
        positions: int64 (B, T), the place of each token in its document.
        bounds: int32 (n + 1,), where documents begin in the rows laid end to end, then B·T over and over; for `varlen`.
        mask: bool (B, 1, T, T), which positions (last axis) each position attends to; for `mask`.
        lengths: tokens of each document, over all rows; for `loop`.
    """

    positions: Tensor
    bounds: Tensor | None = None
    mask: Tensor | None = None
    lengths: tuple[int, ...] | None = None

    def to(self, device: torch.device) -> Documents:
        """The same on `device`; pinned memory is copied without waiting."""
        bounds = self.bounds.to(device, non_blocking=True) if self.bounds is not None else None
        return self._replace(positions=self.positions.to(device, non_blocking=True), bounds=bounds)

    def pinned(self) -> Documents:
        """The same in memory that a GPU copies from by itself."""
        bounds = self.bounds.pin_memory() if self.bounds is not None else None
        return self._replace(positions=self.positions.pin_memory(), bounds=bounds)

    def with_mask(self) -> Documents:
        """The same with `mask`, made where the positions are."""
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


def attend_inside(query: Tensor, key: Tensor, value: Tensor, documents: Documents) -> Tensor:
    """Causal attention inside documents, without dropout: three of (B, heads, T, d) -> (B, heads, T, d)."""
    if documents.mask is not None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=documents.mask)
    batch, _, length, _ = query.shape
    query, key, value = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))  # (B·T, heads, d)
    if documents.bounds is not None:
        # A longest document of T, whatever is in the batch: the true one would be compiled into the graph.
        from torch.nn.attention.varlen import varlen_attn  # Takes seconds, and nothing else needs it.

        bounds, causal = documents.bounds, (-1, 0)
        mixed = varlen_attn(query, key, value, bounds, bounds, length, length, window_size=causal)
        assert isinstance(mixed, Tensor)  # A pair only where more is asked for.
    else:
        assert documents.lengths is not None
        parts = zip(*(part.transpose(0, 1)[None].split(documents.lengths, dim=2) for part in (query, key, value)),
                    strict=True)  # fmt: skip
        mixed = torch.cat([F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in parts], dim=2)
        mixed = mixed[0].transpose(0, 1)
    return mixed.view(batch, length, *mixed.shape[1:]).transpose(1, 2)
