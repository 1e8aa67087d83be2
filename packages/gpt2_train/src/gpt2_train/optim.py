"""What an optimizer is told of a step: the learning rate, the norm of the gradient, the loss scale of fp16.

The learning rate is a pure function of the settings and the step, or, in a run by time, of how far the clock said that
the run was in this step, which is recorded (`time_budget.py`): a run that resumes has the rates that an uninterrupted
one would have had. `optimizers.py` has what then changes the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2_train.config import TrainSettings
from gpt2_train.device import widest_float
from gpt2_train.errors import Gpt2Error

FIRST_LOSS_SCALE = 2.0**16
"""High enough for small gradients; 2^32, a common start, wastes the first 16 steps on overflows."""

FIRST_SHARE = 0.1
"""Of the peak, the learning rate of a run by time in its first step, before there is a time to go by."""

LARGEST_LOSS_SCALE = 2.0**24
LOSS_SCALE_GROWS_AFTER = 2000
"""Steps without an overflow after which the scale is doubled (Micikevicius et al. 2018; torch's own default)."""


def warmup_steps(settings: TrainSettings, steps: int) -> int:
    """Steps of warm-up in a run of `steps`: `warmup` itself if it is 1 or more, else that fraction of the run."""
    return round(settings.warmup if settings.warmup >= 1 else settings.warmup * steps)


def learning_rate(step: int, steps: int, settings: TrainSettings) -> float:
    """The learning rate of step `step`, the first of which is 1, in a run of `steps`.

    It rises in equal parts to `lr`, reached at the last step of the warm-up, and is above 0 from the first step on.
    From there it falls to `min_lr` at the last step: along half a cosine, a line, not at all (constant), or along a
    line over the last `cooldown` of the run (wsd). After the last step it stays.
    """
    step = min(step, steps)
    warm = warmup_steps(settings, steps)
    if step < warm:
        return settings.lr * step / warm
    start = max(1, warm)
    if settings.schedule == "wsd":
        start = max(start, steps - round(settings.cooldown * steps))
    if settings.schedule == "constant" or step <= start:
        return settings.lr
    return _decayed((step - start) / (steps - start), settings)


def learning_rate_by_time(step: int, progress: float, settings: TrainSettings) -> float:
    """The learning rate of step `step`, the first of which is 1, where `progress` of the run's time is over.

    `progress` is 0 in the first step and 1 in the last. A `warmup` below 1 is a fraction of the time, in which the rate
    rises from a tenth of `lr`; one of 1 or more are steps, in which the rate is reduced as with --steps. The decay goes
    by the time: from the warm-up's end, or over the last `cooldown` (wsd), to `min_lr` in the last step.
    """
    by_steps = settings.warmup >= 1
    warm = 0.0 if by_steps else settings.warmup
    share = min(1.0, step / round(settings.warmup)) if by_steps else 1.0
    if progress < warm:
        return settings.lr * (FIRST_SHARE + (1 - FIRST_SHARE) * progress / warm)
    start = max(warm, 1 - settings.cooldown) if settings.schedule == "wsd" else warm
    if settings.schedule == "constant" or progress <= start:
        return settings.lr * share
    return _decayed((progress - start) / (1 - start), settings) * share


def _decayed(done: float, settings: TrainSettings) -> float:
    """The learning rate where `done` of the decay is over."""
    share = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return settings.min_lr + (settings.lr - settings.min_lr) * share


NORM_PIECE = 1 << 12
"""Elements that are squared and added in float32 at a time: one sum over a large matrix is wrong in the third digit."""


@torch.no_grad()  # Else each DTensor's part would be taken for autograd.
def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of the whole gradient, a scalar on its device, the same on all processes; infinite or NaN if it is.

    On CPU it is exact to float32's last digits, and so the same in every layout: norms of pieces, combined in float64.
    On GPUs, whose kernels add in a tree, it is a norm of each tensor, combined in float64. Gradients must be settled.
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
            gradient = gradient.to_local()
        by_copies.setdefault(copies, []).append(gradient)
    total = torch.zeros((), dtype=widest_float(device), device=device)
    for copies, gradients in by_copies.items():
        if device.type == "cpu":
            for gradient in gradients:
                total += _sum_of_squares(gradient.reshape(-1)) / copies
        elif filled := [gradient for gradient in gradients if gradient.numel()]:
            total += torch.stack(torch._foreach_norm(filled)).to(total.dtype).square().sum() / copies
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
        """What a checkpoint stores."""
        return {"loss_scale": self.scale, "good_steps": self.good_steps, "skipped": self.skipped}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from what a checkpoint stored."""
        self.scale, self.good_steps, self.skipped = state["loss_scale"], state["good_steps"], state["skipped"]

    def after_step(self) -> None:
        """Count a step without overflow; grow when it is time to."""
        self.good_steps += 1
        if self.is_active and self.good_steps >= LOSS_SCALE_GROWS_AFTER:
            self.scale, self.good_steps = min(self.scale * 2, LARGEST_LOSS_SCALE), 0

    def after_overflow(self) -> None:
        """Halve the scale. Raises Gpt2Error once it is so small that the gradients themselves must be infinite."""
        self.scale, self.good_steps, self.skipped = self.scale / 2, 0, self.skipped + 1
        if self.scale < 1:
            raise Gpt2Error(
                "the gradients are infinite at any fp16 loss scale: the run diverged; resume from an earlier "
                "checkpoint with a lower --lr, or use --precision bf16 or fp32."
            )
