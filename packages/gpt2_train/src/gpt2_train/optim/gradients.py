"""The gradient of a step: how processes exchange it, its norm over all of them, and the loss scale of fp16."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gpt2_train import torch_private
from gpt2_train.distributed.device import widest_float

FIRST_LOSS_SCALE = 2.0**16
"""High enough for small gradients; 2^32, a common start, wastes the first 16 steps on overflows."""

LARGEST_LOSS_SCALE = 2.0**24
LOSS_SCALE_GROWS_AFTER = 2000
"""Steps without an overflow after which the scale is doubled (Micikevicius et al. 2018; torch's own default)."""

NORM_PIECE = 1 << 12
"""Elements that are squared and added in float32 at a time: one sum over a large matrix is wrong in the third digit."""


def synchronize_gradients(model: nn.Module, is_last: bool, *, reshard: bool = False) -> None:
    """Mark the coming backward pass as the last of its step or not: only that one exchanges gradients.

    With `reshard` all of them share gradients out, and only the last one adds up the gradients of several copies.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or reshard)
        model.set_requires_all_reduce(is_last)
        model.set_reshard_after_backward(is_last or reshard)


@torch.no_grad()  # Else each DTensor's part would be taken for autograd.
def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of the whole gradient, a scalar on its device, the same on all processes; infinite or NaN if it is.

    On CPU it is exact to float32's last digits, and so the same in every layout: norms of pieces, combined in float64.
    On GPUs, whose kernels add in a tree, it is a norm of each tensor, combined in float64. Gradients must be reduced.
    """
    by_copies: dict[int, list[Tensor]] = {}
    is_sharded, device = False, torch.device("cpu")
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is None:
            continue
        copies, device = 1, gradient.device
        if isinstance(gradient, DTensor):
            is_sharded = True
            sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
            copies = math.prod(size for placement, size in sizes if placement.is_replicate())
            gradient = torch_private.local_tensor(gradient)
        by_copies.setdefault(copies, []).append(gradient)
    total = torch.zeros((), dtype=widest_float(device), device=device)
    for copies, gradients in by_copies.items():
        if device.type == "cpu":
            for gradient in gradients:
                total += _sum_of_squares(gradient.reshape(-1)) / copies
        elif filled := [gradient for gradient in gradients if gradient.numel()]:
            total += torch.stack(torch_private.foreach_norm(filled)).to(total.dtype).square().sum() / copies
    if is_sharded:
        dist.all_reduce(total)
    return total.sqrt()


def _sum_of_squares(values: Tensor) -> Tensor:
    """The sum of squares of (n,) values, in float64."""
    whole = values.numel() // NORM_PIECE * NORM_PIECE
    rest = torch.linalg.vector_norm(values[whole:]).double().square()
    if not whole:
        return rest
    pieces = torch.linalg.vector_norm(values[:whole].view(-1, NORM_PIECE), dim=1)
    return pieces.double().square().sum() + rest


@dataclasses.dataclass
class LossScale:
    """The factor that keeps small fp16 gradients from vanishing; 1 and idle in other precisions.

    torch.amp.GradScaler does the same, but looks for overflows on each process and in each shard. Here the norm of
    the whole gradient, which clipping needs anyway and which all processes share, says whether there was one: all of
    them skip, or none.

    Attributes:
        scale: the loss is multiplied by it, the gradient divided.
        good_steps: steps without overflow since it last changed.
        skipped: steps that had to be repeated, in all.
    """

    scale: float = 1.0
    good_steps: int = 0
    skipped: int = 0
    is_active: bool = False

    @classmethod
    def for_precision(cls, precision: str) -> LossScale:
        """An active scale for fp16, an idle one otherwise."""
        return cls(FIRST_LOSS_SCALE, is_active=True) if precision == "fp16" else cls()

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint stores."""
        return {"loss_scale": self.scale, "good_steps": self.good_steps, "skipped": self.skipped}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from what a checkpoint stored."""
        self.scale, self.good_steps, self.skipped = state["loss_scale"], state["good_steps"], state["skipped"]

    def after_step(self) -> None:
        """Count a step without overflow; grow when it is time to."""
        self.good_steps += 1
        if self.is_active and self.good_steps >= LOSS_SCALE_GROWS_AFTER:
            self.scale, self.good_steps = min(self.scale * 2, LARGEST_LOSS_SCALE), 0

    def after_overflow(self) -> bool:
        """Halve the scale; False once it is so small that the gradients themselves must be infinite."""
        self.scale, self.good_steps, self.skipped = self.scale / 2, 0, self.skipped + 1
        return self.scale >= 1
