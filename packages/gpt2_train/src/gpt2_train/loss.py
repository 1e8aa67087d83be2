"""Cross-entropy, also vocabulary-parallel: over a vocabulary sharded over processes, without gathering the logits.

Each process turns its shard of a row of logits into two numbers, the log of its sum of exponentials and the logit of
the target if that is in the shard; these are exchanged (8 bytes per token) and the rest is local, forward and
backward. The logits stay in the precision that the model computed them in, and so does their gradient: the usual way
makes two float32 copies of all of them (3.3 GB for 8 sequences of GPT-2). Compiled, it is one pass over the logits
forward and one backward (`loss_kernels.py`); else rows are taken in pieces, 256 MB of float32 at most.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt2_train.loss_kernels import LossKernels, kernels_for

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclasses.dataclass(frozen=True)
class _Way:
    """How a loss is computed.

    Attributes:
        kernels: the local work.
        group: the processes that share the vocabulary.
        known: columns of this process's shard that are ids of the vocabulary; padding follows them.
        overwrites: whether the gradient takes the place of the logits.
    """

    kernels: LossKernels
    group: ProcessGroup | None
    known: int
    overwrites: bool


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, way: _Way) -> Tensor:
        """Losses (N,) for logits (N, shard of the vocabulary) and targets (N,) in the whole vocabulary."""
        local = targets - (logits.size(1) * way.group.rank() if way.group is not None else 0)
        # Detached, logits of training and of validation are the same to torch.compile.
        total, target = way.kernels.row_sums(logits.detach(), local, way.known)
        if way.group is not None:
            total, target = _over_all_shards(total, target, way.group)
        ctx.save_for_backward(logits, local, total)
        ctx.way = way
        return total - target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """softmax minus one at the target, times the gradient of each row's loss; 0 for padding."""
        logits, local, total = ctx.saved_tensors
        logits = logits.detach()
        # What changes saved logits is noticed: a second backward pass through them is an error.
        result = logits if ctx.way.overwrites else torch.empty_like(logits)
        ctx.way.kernels.write_gradient(result, logits, local, total, gradients[0], ctx.way.known)
        return result, None, None


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
    logits: Tensor,
    targets: Tensor,
    group: ProcessGroup | None = None,
    *,
    vocabulary: int | None = None,
    compiled: bool = False,
    overwrite_logits: bool = False,
) -> Tensor:
    """The loss of each token, -log p(target), in nats: of the shape of `targets`, float32 (or as wide as the logits).

    Args:
        logits: (..., V), or this process's contiguous shard of V where `group` is given.
        targets: token ids (...), int64, the same on all processes of `group`.
        group: the tensor-parallel group over which the vocabulary is sharded, in the order of its ranks.
        vocabulary: ids from this one on pad the embedding: they have no part in the softmax, and get no gradient.
            None if there are none.
        compiled: whether to use kernels made by torch.compile, one set for each shape: for shapes that come often.
        overwrite_logits: whether the backward pass may write the gradient into the memory of `logits`, so that both
            together take the room of one. Nothing else may need them after it, and it can't be repeated.
    """
    width = logits.size(-1)
    known = _known_columns(width, group, vocabulary)
    way = _Way(kernels_for(compiled=compiled), group, known, overwrite_logits)
    losses: Tensor = _CrossEntropy.apply(logits.reshape(-1, width), targets.reshape(-1), way)
    return losses.view(targets.shape)
