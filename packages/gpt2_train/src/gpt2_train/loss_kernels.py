"""The local work of the cross-entropy, over a matrix of logits: two numbers of each row, and the gradient.

Compiled, each is one kernel that reads the logits once, in their own precision, and computes in registers: on CUDA the
maximum and the sum of exponentials in one pass (torch calls it online softmax), so that a loss reads the logits twice
and writes them once. Columns of padding are masked instead of cut off, since rows of a width that powers of two divide
are read in wide loads. Not compiled, rows are taken in pieces, in float32: on a CPU what its cache holds.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from gpt2_train.loss_pieces import rows_at_a_time


class LossKernels(Protocol):
    """The local work, done in one way or another. N rows, of which this process has `width` columns."""

    def row_sums(self, logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
        """Log-sum-exp of each row, and the logit of its target, 0 if that is in no column: (N,) each.

        Args:
            logits: (N, width).
            local: column of each row's target (N,), int64; below 0, or `width` and more, if it is another process's.
            known: columns that count; the others are padding.
        """

    def write_gradient(
        self, result: Tensor, logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int
    ) -> None:
        """Write the gradient of the logits (N, width) to `result`, which may be `logits`.

        Args:
            logits, local, known: as in `row_sums`.
            total: log-sum-exp of each row over the whole vocabulary (N,).
            of_losses: gradient of each row's loss (N,).
        """


def _wide(logits: Tensor) -> torch.dtype:
    """What is computed in: float32, or float64 if the logits are."""
    return torch.promote_types(logits.dtype, torch.float32)


class Pieces:
    """Kernels of torch, one after the other, on a few rows at a time."""

    def row_sums(self, logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
        """See `LossKernels`."""
        rows, width = logits.shape
        total = torch.empty(rows, dtype=_wide(logits), device=logits.device)
        for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
            piece = slice(begin, begin + step)
            torch.logsumexp(logits[piece, :known].to(total.dtype), dim=1, out=total[piece])
        return total, _targets(logits, local)

    def write_gradient(
        self, result: Tensor, logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int
    ) -> None:
        """See `LossKernels`."""
        rows, width = logits.shape
        column, minus_one = local.clamp(0, width - 1)[:, None], -_is_here(local, width).to(total.dtype)[:, None]
        for begin in range(0, rows, step := rows_at_a_time(logits.device.type, width)):
            piece = slice(begin, begin + step)
            # Where it is as wide as what is computed, the gradient is made in its place: one copy less.
            is_wide = result.dtype == total.dtype
            softmax = logits[piece].to(total.dtype)
            softmax = torch.sub(softmax, total[piece, None], out=result[piece] if is_wide else softmax).exp_()
            softmax[:, known:] = 0.0
            softmax.scatter_add_(1, column[piece], minus_one[piece])
            softmax.mul_(of_losses[piece, None])
            if not is_wide:
                result[piece] = softmax
            del softmax  # The next piece takes its room.


class Compiled:
    """Kernels that torch.compile makes, of each shape once."""

    def row_sums(self, logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
        """See `LossKernels`."""
        total, target = _compiled(_row_sums, logits.shape, logits.dtype, known)(logits, local, known)
        return total, target

    def write_gradient(
        self, result: Tensor, logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int
    ) -> None:
        """See `LossKernels`."""
        kernel = _compiled(_overwrite if result is logits else _write, logits.shape, logits.dtype, known)
        kernel(*((result,) if result is logits else (result, logits)), local, total, of_losses, known)


def kernels_for(*, compiled: bool) -> LossKernels:
    """The kernels that are asked for."""
    return Compiled() if compiled else Pieces()


@functools.cache
def _compiled(function: Any, shape: torch.Size, dtype: torch.dtype, known: int) -> Any:
    """`function` compiled for one shape: each has a graph of its own, and none is ever compiled again."""
    # The type stubs do not know of isolate_recompiles.
    return torch.compile(function, dynamic=False, fullgraph=True, isolate_recompiles=True)  # type: ignore[call-overload]


def _row_sums(logits: Tensor, local: Tensor, known: int) -> tuple[Tensor, Tensor]:
    values = logits.to(_wide(logits))
    if known < logits.size(1):
        values = torch.where(_columns(logits) < known, values, -torch.inf)
    # Written out, since this is the form in which torch.compile finds that one pass is enough; where all is padding
    # (then the maximum is -inf) nothing is added.
    largest = values.amax(1, keepdim=True)
    sums = (values - largest).exp().sum(1, keepdim=True) if known else torch.zeros_like(largest)
    return (largest + sums.log()).squeeze(1), _targets(logits, local)


def _gradient(logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int) -> Tensor:
    columns = _columns(logits)
    softmax = (logits.to(_wide(logits)) - total[:, None]).exp()
    if known < logits.size(1):
        softmax = torch.where(columns < known, softmax, 0.0)
    return (softmax - (columns == local[:, None]).to(softmax.dtype)) * of_losses[:, None]


def _write(result: Tensor, logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int) -> None:
    result.copy_(_gradient(logits, local, total, of_losses, known))


def _overwrite(logits: Tensor, local: Tensor, total: Tensor, of_losses: Tensor, known: int) -> None:
    logits.copy_(_gradient(logits, local, total, of_losses, known))


def _columns(logits: Tensor) -> Tensor:
    return torch.arange(logits.size(1), device=logits.device)


def _is_here(local: Tensor, width: int) -> Tensor:
    return (local >= 0) & (local < width)


def _targets(logits: Tensor, local: Tensor) -> Tensor:
    """The logit of each row's target (N,), 0 where it is not here."""
    width = logits.size(1)
    found = logits.gather(1, local.clamp(0, width - 1)[:, None]).squeeze(1)
    return found.to(_wide(logits)) * _is_here(local, width)
