"""How likely a model thought tokens, from its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt2_train.sampling import on_device

Likelihood = tuple[float, tuple[tuple[int, float], ...]]
"""Of a token at its place: the natural logarithm of its probability, and the most likely ids with theirs."""


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
