"""Cross-entropy, also vocabulary-parallel: over a vocabulary sharded over processes, without gathering the logits.

Each process turns its shard of a row of logits into two numbers, the log of its sum of exponentials and the logit of
the target if that is in the shard; these are exchanged (8 bytes per token) and the rest is local, forward and
backward. Rows are taken in pieces in float32 while the logits stay in the precision that the model computed them in:
next to the logits and their gradient, 256 MB at most, where the usual way makes two float32 copies of all of them
(3.3 GB for 8 sequences of GPT-2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt2_train.loss_pieces import rows_at_a_time

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, group: ProcessGroup | None, vocabulary: int | None
    ) -> Tensor:
        """Losses (N,) in float32 for logits (N, shard of the vocabulary) and targets (N,) in the whole vocabulary."""
        rows, width = logits.shape
        known = _known_columns(width, group, vocabulary)
        local = targets - (width * group.rank() if group is not None else 0)
        in_shard = (local >= 0) & (local < width)
        local = local.clamp(0, width - 1)
        total = torch.empty(rows, dtype=torch.float32, device=logits.device)
        for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
            torch.logsumexp(logits[begin : begin + step, :known].float(), dim=1, out=total[begin : begin + step])
        target = logits.gather(1, local[:, None]).squeeze(1).float() * in_shard
        if group is not None:
            total, target = _over_all_shards(total, target, group)
        ctx.save_for_backward(logits, local, in_shard, total)
        ctx.known = known
        return total - target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """softmax minus one at the target, times the gradient of each row's loss; 0 for padding."""
        logits, local, in_shard, total = ctx.saved_tensors
        (of_losses,) = gradients
        rows, width = logits.shape
        result = torch.empty_like(logits)
        for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
            piece = slice(begin, begin + step)
            # In float32 the gradient is made in its place: one copy less, 45 of 500 ms of a small model's step.
            place = result[piece] if result.dtype == torch.float32 else None
            softmax = torch.sub(logits[piece].float(), total[piece, None], out=place).exp_()
            softmax[:, ctx.known :] = 0.0
            softmax.scatter_add_(1, local[piece, None], -in_shard[piece, None].to(softmax.dtype))
            softmax.mul_(of_losses[piece, None])
            if place is None:
                result[piece] = softmax
        return result, None, None, None


def _over_all_shards(total: Tensor, target: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and target logit of each row over the whole vocabulary, each (N,), from those of this shard."""
    import torch.distributed as dist  # A single process has no group and needs none of this.

    local_stats = torch.stack([total, target])
    parts = [torch.empty_like(local_stats) for _ in range(group.size())]
    dist.all_gather(parts, local_stats, group=group)
    all_stats = torch.stack(parts)  # (processes, 2, N)
    return all_stats[:, 0].logsumexp(0), all_stats[:, 1].sum(0)


def _known_columns(width: int, group: ProcessGroup | None, vocabulary: int | None) -> int:
    """How many of the `width` columns of this process's shard are ids of the vocabulary; padding follows them."""
    if vocabulary is None:
        return width
    return min(width, max(0, vocabulary - (width * group.rank() if group is not None else 0)))


def token_losses(
    logits: Tensor, targets: Tensor, group: ProcessGroup | None = None, *, vocabulary: int | None = None
) -> Tensor:
    """The loss of each token, -log p(target), in nats: float32 of the shape of `targets`.

    Args:
        logits: (..., V), or this process's contiguous shard of V where `group` is given.
        targets: token ids (...), int64, the same on all processes of `group`.
        group: the tensor-parallel group over which the vocabulary is sharded, in the order of its ranks.
        vocabulary: ids from this one on pad the embedding: they have no part in the softmax, and get no gradient.
            None if there are none.
    """
    width = logits.size(-1)
    losses: Tensor = _CrossEntropy.apply(logits.reshape(-1, width), targets.reshape(-1), group, vocabulary)
    return losses.view(targets.shape)
