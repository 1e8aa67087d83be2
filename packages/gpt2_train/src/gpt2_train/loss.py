"""Cross-entropy over a vocabulary that may be spread over processes, without ever gathering the logits.

Each process turns its share of a row of logits into two numbers, the log of its sum of exponentials and the logit of
the target if it holds that; these are exchanged (8 bytes a token) and the rest is local, forward and backward. Rows
are taken in pieces in float32 while the logits stay in the precision that the model computed them in: next to the
logits and their gradient, 256 MB at most, where the usual way makes two float32 copies of all of them (3.3 GB for
8 sequences of GPT-2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PIECE_ELEMENTS = {"cpu": 1 << 21}
"""Logits that are turned into float32 at a time, by kind of device: what stays in a CPU's cache (three times as fast
there as passes over all logits at once), and else enough to keep a GPU busy."""
DEFAULT_PIECE_ELEMENTS = 1 << 26


def _rows_at_a_time(logits: Tensor) -> int:
    return max(1, PIECE_ELEMENTS.get(logits.device.type, DEFAULT_PIECE_ELEMENTS) // logits.size(1))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Losses (N,) in float32 for logits (N, share of the vocabulary) and targets (N,) in the whole vocabulary."""
        rows, width = logits.shape
        first = width * dist.get_rank(group) if group is not None else 0
        local = targets - first
        held = (local >= 0) & (local < width)
        local = local.clamp(0, width - 1)
        total = torch.empty(rows, dtype=torch.float32, device=logits.device)
        for begin in range(0, rows, step := _rows_at_a_time(logits)):
            torch.logsumexp(logits[begin : begin + step].float(), dim=1, out=total[begin : begin + step])
        target = logits.gather(1, local[:, None]).squeeze(1).float() * held
        if group is not None:
            mine = torch.stack([total, target])
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, mine, group=group)
            everyone = torch.stack(parts)  # (processes, 2, N)
            total, target = everyone[:, 0].logsumexp(0), everyone[:, 1].sum(0)
        ctx.save_for_backward(logits, local, held, total)
        return total - target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """softmax minus one at the target, times the gradient of each row's loss."""
        logits, local, held, total = ctx.saved_tensors
        (of_losses,) = gradients
        rows = logits.size(0)
        result = torch.empty_like(logits)
        for begin in range(0, rows, step := _rows_at_a_time(logits)):
            piece = slice(begin, begin + step)
            softmax = (logits[piece].float() - total[piece, None]).exp_()
            softmax.scatter_add_(1, local[piece, None], -held[piece, None].to(softmax.dtype))
            result[piece] = softmax.mul_(of_losses[piece, None])
        return result, None, None


def token_losses(logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The loss of each token, -log p(target), in nats: float32 of the shape of `targets`.

    Args:
        logits: (..., V), or this process's contiguous share of V where `group` is given.
        targets: token ids (...), int64, the same on all processes of `group`.
        group: the tensor-parallel group over which the vocabulary is spread, in the order of its ranks.
    """
    width = logits.size(-1)
    losses: Tensor = _CrossEntropy.apply(logits.reshape(-1, width), targets.reshape(-1), group)
    return losses.view(targets.shape)
