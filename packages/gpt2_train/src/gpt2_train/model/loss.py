"""Cross-entropy, also vocabulary-parallel: over a vocabulary sharded over processes, without gathering the logits.

Each process turns its shard of a row of logits into two numbers, the log of its sum of exponentials and the logit of
the target if that is in the shard; these are exchanged (8 bytes per token) and the rest is local, forward and
backward. The logits stay in the precision that the model computed them in, and so does their gradient: the usual way
makes two float32 copies of all of them (3.3 GB for 8 sequences of GPT-2). The gradient
takes the place of the logits. Compiled, it is one pass over them for the losses and one for the gradient, or, where the
vocabulary is whole, one for both; else rows are taken in pieces, 256 MB of float32 at most.

Compiled, each piece of the local work is one kernel that reads the logits once, in their own precision, and computes in
registers: on CUDA the maximum and the sum of exponentials in one pass (torch calls it online softmax). Where losses
and gradient are taken together, each exponential is taken once, not compiled or by a kernel of ours (`kernels`); one
that torch compiles, as for fp16, comes back to a row that is still in the cache. Columns of padding are masked instead
of cut off, since rows of a width that powers of two divide are read in wide loads. Not compiled, rows are taken in
pieces, in float32: on a CPU what its cache holds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt2_train import torch_private
from gpt2_train.config.layout import PIECE_ELEMENTS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def token_losses(
    logits: Tensor,
    targets: Tensor,
    group: ProcessGroup | None = None,
    *,
    vocabulary: int | None = None,
    compiled: bool = False,
) -> Tensor:
    """The loss of each token, -log p(target), in nats: of the shape of `targets`, float32 (or as wide as the logits).

    It has no gradient: see `losses_and_gradient`.

    Args:
        logits: (..., V), or this process's contiguous shard of V where `group` is given.
        targets: token ids (...), int64, the same on all processes of `group`.
        group: the tensor-parallel group over which the vocabulary is sharded, in the order of its ranks.
        vocabulary: ids from this one on pad the embedding: they have no part in the softmax, and get no gradient.
            None if there are none.
        compiled: whether to use kernels made by torch.compile, one set for each shape: for shapes that come often.
    """
    rows, local, known = _rows(logits, targets, group, vocabulary)
    total, target = _sums_and_targets(rows, local, group, known, compiled)
    return (total - target).view(targets.shape)


def losses_and_gradient(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor,
    group: ProcessGroup | None = None,
    *,
    vocabulary: int | None = None,
    compiled: bool = False,
) -> Tensor:
    """The losses of `token_losses`; `logits`, contiguous, are overwritten with the gradient of their weighted sum.

    Both together take the room of one. `weights`, of the shape of `targets`, are what each loss counts in that sum;
    the other arguments are as there.
    """
    rows, local, known = _rows(logits.view(-1, logits.size(-1)), targets, group, vocabulary)
    weights = weights.reshape(-1)
    if group is None:
        return one_pass_of(rows, compiled)(rows, local, weights, known).view(targets.shape)
    total, target = _sums_and_targets(rows, local, group, known, compiled)
    overwrite = _compiled(_overwrite) if compiled else _overwrite_in_pieces
    overwrite(rows, local, total, weights, known)
    return (total - target).view(targets.shape)


class _Given(torch.autograd.Function):
    """A zero whose gradient by a tensor is given."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient  # Not saved by autograd, which refuses what is written into afterwards.
        return tensor.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient that `forward` was given, whatever comes from above."""
        gradient, ctx.gradient = ctx.gradient, None
        return gradient, None


def backward_root(tensor: Tensor, gradient: Tensor) -> Tensor:
    """A zero whose backward pass goes on from `tensor` with what `gradient` then holds.

    Where `gradient` is the memory of `tensor`, this is called before it is written: after that, autograd knows no way
    back from an output of a compiled model. Unlike `tensor.backward(gradient)`, the pass frees both as soon as they
    were used, if nothing else has them: for logits gigabytes, before the activations are.
    """
    zero: Tensor = _Given.apply(tensor, gradient)
    return zero


def _rows(
    logits: Tensor, targets: Tensor, group: ProcessGroup | None, vocabulary: int | None
) -> tuple[Tensor, Tensor, int]:
    """Logits (N, width), the column of each row's target in them, and the number of columns that count."""
    width = logits.size(-1)
    first = width * group.rank() if group is not None else 0
    known = width if vocabulary is None else min(width, max(0, vocabulary - first))
    # Detached, logits of training and of validation are the same to torch.compile.
    return logits.detach().reshape(-1, width), targets.reshape(-1) - first, known


def _sums_and_targets(
    rows: Tensor, local: Tensor, group: ProcessGroup | None, known: int, compiled: bool
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and target logit of each row over the whole vocabulary, each (N,)."""
    total, target = (_compiled(_row_sums) if compiled else _row_sums_in_pieces)(rows, local, known)
    return (total, target) if group is None else _over_all_shards(total, target, group)


def _over_all_shards(total: Tensor, target: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and target logit of each row over the whole vocabulary, each (N,), from this shard's."""
    all_stats = torch.stack(gathered(torch.stack([total, target]), group))  # (processes, 2, N)
    return all_stats[:, 0].logsumexp(0), all_stats[:, 1].sum(0)


def gathered(part: Tensor, group: ProcessGroup) -> list[Tensor]:
    """What each process of a group has, of one shape, on all of them."""
    import torch.distributed as dist  # A single process has no group and needs none of this.

    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts


def _wide(logits: Tensor) -> torch.dtype:
    """The type of the computation: float32, or float64 if the logits are."""
    return torch.promote_types(logits.dtype, torch.float32)


# Of all functions below: `logits` are (N, width), of which `known` columns count; `local` is the column of each row's
# target (N,), below 0, or `width` and more, if it is another process's; `total` is the log-sum-exp of each row over the
# whole vocabulary (N,); `weights` what each row's loss counts (N,).


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Whole rows that are taken at a time, at least one."""
    step = max(1, PIECE_ELEMENTS[logits.device.type] // logits.size(1))
    return (slice(begin, begin + step) for begin in range(0, logits.size(0), step))


def _row_sums_in_pieces(logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
    """`_row_sums` by kernels of torch, one after the other, on a few rows at a time."""
    total = torch.empty(logits.size(0), dtype=_wide(logits), device=logits.device)
    for piece in _pieces(logits):
        torch.logsumexp(logits[piece, :known].to(total.dtype), dim=1, out=total[piece])
    return total, _targets(logits, local)


def _overwrite_in_pieces(logits: Tensor, local: Tensor, total: Tensor, weights: Tensor, known: int) -> Tensor:
    """`_overwrite`, a few rows at a time."""
    width = logits.size(1)
    column, minus_one = local.clamp(0, width - 1)[:, None], -_is_here(local, width).to(total.dtype)[:, None]
    for piece in _pieces(logits):
        softmax = logits[piece].to(total.dtype)  # itself, if it is as wide
        softmax.sub_(total[piece, None]).exp_()
        softmax[:, known:] = 0.0
        softmax.scatter_add_(1, column[piece], minus_one[piece])
        softmax.mul_(weights[piece, None])
        if softmax.dtype != logits.dtype:
            logits[piece] = softmax
        del softmax  # The next piece takes its room.
    return logits


def _one_pass_in_pieces(logits: Tensor, targets: Tensor, weights: Tensor, known: int) -> Tensor:
    """`_one_pass`, a few rows at a time: one exponential of each logit for both."""
    losses = torch.empty(logits.size(0), dtype=_wide(logits), device=logits.device)
    logits[:, known:] = -torch.inf
    for piece in _pieces(logits):
        column, scale = targets[piece, None], weights[piece, None].to(losses.dtype)
        values = logits[piece].to(losses.dtype)  # itself, if it is as wide
        found, largest = values.gather(1, column), values.amax(1, keepdim=True)
        sums = values.sub_(largest).exp_().sum(1, keepdim=True)
        losses[piece] = (largest + sums.log() - found).squeeze(1)
        values.mul_(scale / sums).scatter_add_(1, column, -scale)
        if values.dtype != logits.dtype:
            logits[piece] = values
    return losses


def one_pass_of(logits: Tensor, compiled: bool) -> Any:
    """The way in which losses and gradient of the whole vocabulary are computed."""
    if compiled and logits.is_cuda and logits.dtype in (torch.bfloat16, torch.float32):
        from gpt2_train.model import kernels  # Needs Triton, which is there where anything is compiled for a GPU.

        return kernels.one_pass
    return _compiled(_one_pass) if compiled else _one_pass_in_pieces


def _compiled(function: Any) -> Any:
    """`function`, whose last argument is `known`, compiled."""
    return lambda logits, *rest: _graph(function, logits.shape, logits.dtype, rest[-1])(logits, *rest)


@functools.cache
def _graph(function: Any, shape: torch.Size, dtype: torch.dtype, known: int) -> Any:
    """`function` compiled for one shape: each has a graph of its own, and none is ever compiled again."""
    return torch_private.compiled_whole(function, isolated=True)


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


def _overwrite(logits: Tensor, local: Tensor, total: Tensor, weights: Tensor, known: int) -> Tensor:
    """The gradient of the logits, in their type and their place."""
    columns = _columns(logits)
    softmax = (logits.to(_wide(logits)) - total[:, None]).exp()
    if known < logits.size(1):
        softmax = torch.where(columns < known, softmax, 0.0)
    return logits.copy_((softmax - (columns == local[:, None]).to(softmax.dtype)) * weights[:, None])


def _one_pass(logits: Tensor, targets: Tensor, weights: Tensor, known: int) -> Tensor:
    """Losses (N,) of logits of the whole vocabulary, whose gradient takes their place."""
    total, _ = _row_sums(logits, targets, known)
    # A sum over the row, since a gather of what is overwritten would be a kernel of its own.
    found = torch.where(_columns(logits) == targets[:, None], logits.to(total.dtype), 0.0).sum(1)
    _overwrite(logits, targets, total, weights, known)
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
