"""Cross-entropy, also vocabulary-parallel: over a vocabulary sharded over processes, without gathering the logits.

Each process turns its shard of a row of logits into two numbers, the log of its sum of exponentials and the logit of
the target if that is in the shard; these are exchanged (8 bytes per token) and the rest is local, forward and
backward. The logits stay in the precision that the model computed them in, and so does their gradient: the usual way
makes two float32 copies of all of them (3.3 GB for 8 sequences of GPT-2). Compiled, it is one pass over the logits
forward and one backward, or one for both; else rows are taken in pieces, 256 MB of float32 at most.

Compiled, each piece of the local work is one kernel that reads the logits once, in their own precision, and computes in
registers: on CUDA the maximum and the sum of exponentials in one pass (torch calls it online softmax). Where the
gradients of the losses are known beforehand, losses and gradient are taken together: one kernel comes back to a row
that is still in the cache, and not compiled each exponential is taken once. Columns of padding are masked instead of
cut off, since rows of a width that powers of two divide are read in wide loads. Not compiled, rows are taken in pieces,
in float32: on a CPU what its cache holds.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt2_train.config.layout import rows_at_a_time

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _CrossEntropy(torch.autograd.Function):
    """Losses (N,) for logits (N, shard of the vocabulary) and targets (N,) in the whole vocabulary.

    `known` columns of the shard are ids of the vocabulary, and padding follows them. With `compiled` the local work is
    one kernel. The gradient takes the place of the logits.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, group: ProcessGroup | None, known: int, compiled: bool
    ) -> Tensor:
        local = targets - (logits.size(1) * group.rank() if group is not None else 0)
        # Detached, logits of training and of validation are the same to torch.compile.
        of_shard = _compiled(_row_sums) if compiled else _row_sums_in_pieces
        total, target = of_shard(logits.detach(), local, known)
        if group is not None:
            total, target = _over_all_shards(total, target, group)
        ctx.save_for_backward(logits, local, total)
        ctx.known, ctx.compiled = known, compiled
        return total - target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """softmax minus one at the target, times the gradient of each row's loss; 0 for padding."""
        # What changes saved logits is noticed: a second backward pass through them is an error.
        logits, local, total = ctx.saved_tensors
        write = _compiled(_overwrite) if ctx.compiled else _overwrite_in_pieces
        return write(logits.detach(), local, total, gradients[0], ctx.known), None, None, None, None


class _InOnePass(torch.autograd.Function):
    """Losses, and in the place of the logits their gradient, which follows from the known one of the losses."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, of_losses: Tensor, known: int, compiled: bool) -> Tensor:
        place = logits.detach()
        write = _compiled(_losses_and_gradient) if compiled else _losses_and_gradient_in_pieces
        losses: Tensor = write(place, targets, of_losses, known)
        ctx.save_for_backward(place)
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """What the forward pass has written."""
        return ctx.saved_tensors[0], None, None, None, None


def _over_all_shards(total: Tensor, target: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and target logit of each row over the whole vocabulary, each (N,), from this shard's."""
    import torch.distributed as dist  # A single process has no group and needs none of this.

    local_stats = torch.stack([total, target])
    parts = [torch.empty_like(local_stats) for _ in range(group.size())]
    dist.all_gather(parts, local_stats, group=group)
    all_stats = torch.stack(parts)  # (processes, 2, N)
    return all_stats[:, 0].logsumexp(0), all_stats[:, 1].sum(0)


def token_losses(
    logits: Tensor,
    targets: Tensor,
    group: ProcessGroup | None = None,
    *,
    vocabulary: int | None = None,
    compiled: bool = False,
    gradient: Tensor | None = None,
) -> Tensor:
    """The loss of each token, -log p(target), in nats: of the shape of `targets`, float32 (or as wide as the logits).

    The backward pass writes the gradient into the memory of `logits`, so that both together take the room of one.
    Nothing else may need them after it, and it can't be repeated.

    Args:
        logits: (..., V), or this process's contiguous shard of V where `group` is given.
        targets: token ids (...), int64, the same on all processes of `group`.
        group: the tensor-parallel group over which the vocabulary is sharded, in the order of its ranks.
        vocabulary: ids from this one on pad the embedding: they have no part in the softmax, and get no gradient.
            None if there are none.
        compiled: whether to use kernels made by torch.compile, one set for each shape: for shapes that come often.
        gradient: what the backward pass will give to each loss, of the shape of `targets`, if that is known: with the
            whole vocabulary here it is all that counts, and the logits are gone now.
    """
    width = logits.size(-1)
    first = width * group.rank() if group is not None else 0
    known = width if vocabulary is None else min(width, max(0, vocabulary - first))
    if gradient is not None and group is None:
        rows: Tensor = _InOnePass.apply(
            logits.reshape(-1, width), targets.reshape(-1), gradient.reshape(-1), known, compiled
        )
        return rows.view(targets.shape)
    losses: Tensor = _CrossEntropy.apply(logits.reshape(-1, width), targets.reshape(-1), group, known, compiled)
    return losses.view(targets.shape)


def _wide(logits: Tensor) -> torch.dtype:
    """The type of the computation: float32, or float64 if the logits are."""
    return torch.promote_types(logits.dtype, torch.float32)


# Of all functions below: `logits` are (N, width), of which `known` columns count; `local` is the column of each row's
# target (N,), below 0, or `width` and more, if it is another process's; `total` is the log-sum-exp of each row over the
# whole vocabulary (N,); `of_losses` the gradient of each row's loss (N,).


def _row_sums_in_pieces(logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
    """As `_row_sums`, by kernels of torch, one after the other, on a few rows at a time."""
    rows, width = logits.shape
    total = torch.empty(rows, dtype=_wide(logits), device=logits.device)
    for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
        piece = slice(begin, begin + step)
        torch.logsumexp(logits[piece, :known].to(total.dtype), dim=1, out=total[piece])
    return total, _targets(logits, local)


def _overwrite_in_pieces(logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int) -> Tensor:
    """As `_overwrite`, a few rows at a time."""
    rows, width = logits.shape
    column, minus_one = local.clamp(0, width - 1)[:, None], -_is_here(local, width).to(total.dtype)[:, None]
    for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
        piece = slice(begin, begin + step)
        softmax = logits[piece].to(total.dtype)  # itself, if it is as wide
        softmax.sub_(total[piece, None]).exp_()
        softmax[:, known:] = 0.0
        softmax.scatter_add_(1, column[piece], minus_one[piece])
        softmax.mul_(of_losses[piece, None])
        if softmax.dtype != logits.dtype:
            logits[piece] = softmax
        del softmax  # The next piece takes its room.
    return logits


def _losses_and_gradient_in_pieces(logits: Tensor, targets: Tensor, of_losses: Tensor, known: int) -> Tensor:
    """As `_losses_and_gradient`, a few rows at a time: one exponential of each logit for both."""
    rows, width = logits.shape
    losses = torch.empty(rows, dtype=_wide(logits), device=logits.device)
    logits[:, known:] = -torch.inf
    for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
        piece = slice(begin, begin + step)
        column, scale = targets[piece, None], of_losses[piece, None].to(losses.dtype)
        values = logits[piece].to(losses.dtype)  # itself, if it is as wide
        found, largest = values.gather(1, column), values.amax(1, keepdim=True)
        sums = values.sub_(largest).exp_().sum(1, keepdim=True)
        losses[piece] = (largest + sums.log() - found).squeeze(1)
        values.mul_(scale / sums).scatter_add_(1, column, -scale)
        if values.dtype != logits.dtype:
            logits[piece] = values
    return losses


def _compiled(function: Any) -> Any:
    """`function`, whose last argument is `known`, compiled."""
    return lambda logits, *rest: _graph(function, logits.shape, logits.dtype, rest[-1])(logits, *rest)


@functools.cache
def _graph(function: Any, shape: torch.Size, dtype: torch.dtype, known: int) -> Any:
    """`function` compiled for one shape: each has a graph of its own, and none is ever compiled again."""
    # The type stubs do not know of isolate_recompiles.
    return torch.compile(function, dynamic=False, fullgraph=True, isolate_recompiles=True)  # type: ignore[call-overload]


def _row_sums(logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of the columns that count, and the logit of the target, 0 if that is not here: (N,) each."""
    values = logits.to(_wide(logits))
    if known < logits.size(1):
        values = torch.where(_columns(logits) < known, values, -torch.inf)
    # Written out, since this is the form in which torch.compile finds that one pass is enough; where all is padding
    # (then the maximum is -inf) nothing is added.
    largest = values.amax(1, keepdim=True)
    sums = (values - largest).exp().sum(1, keepdim=True) if known else torch.zeros_like(largest)
    return (largest + sums.log()).squeeze(1), _targets(logits, local)


def _overwrite(logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int) -> Tensor:
    """The gradient of the logits, in their type and their place."""
    columns = _columns(logits)
    softmax = (logits.to(_wide(logits)) - total[:, None]).exp()
    if known < logits.size(1):
        softmax = torch.where(columns < known, softmax, 0.0)
    return logits.copy_((softmax - (columns == local[:, None]).to(softmax.dtype)) * of_losses[:, None])


def _losses_and_gradient(logits: Tensor, targets: Tensor, of_losses: Tensor, known: int) -> Tensor:
    """Losses (N,) of logits of the whole vocabulary, whose gradient takes their place."""
    total, _ = _row_sums(logits, targets, known)
    # A sum over the row, since a gather of what is overwritten would be a kernel of its own.
    found = torch.where(_columns(logits) == targets[:, None], logits.to(total.dtype), 0.0).sum(1)
    _overwrite(logits, targets, total, of_losses, known)
    return total - found


def _columns(logits: Tensor) -> Tensor:
    return torch.arange(logits.size(1), device=logits.device)


def _is_here(local: Tensor, width: int) -> Tensor:
    return (local >= 0) & (local < width)


def _targets(logits: Tensor, local: Tensor) -> Tensor:
    """The logit of each row's target (N,), 0 where it is not here."""
    width = logits.size(1)
    found = logits.gather(1, local.clamp(0, width - 1)[:, None]).squeeze(1)
    return found.to(_wide(logits)) * _is_here(local, width)
