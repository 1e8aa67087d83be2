"""The optimizer and the learning-rate schedule.

AdamW, fused where torch has a fused kernel, with weight decay on matrices only. The learning rate is a pure function
of the step and the settings: nothing about it is stored, so that a run that resumes has the rate that an uninterrupted
one would have had. Its state is made at the start, not at the first step, so that the memory of a run is known before
the run and a checkpoint has somewhere to go.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from gpt2_train.config import TrainSettings
from gpt2_train.device import has_fused_adamw
from gpt2_train.errors import Gpt2Error

ADAM_EPSILON = 1e-8

FIRST_LOSS_SCALE = 2.0**16
"""High enough for small gradients; 2^32, a common start, wastes the first 16 steps on overflows."""

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
    done = (step - start) / (steps - start)
    share = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return settings.min_lr + (settings.lr - settings.min_lr) * share


def make_optimizer(model: nn.Module, settings: TrainSettings, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the parameters of `model`, plain or sharded, with its state in place."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    is_fused = has_fused_adamw(device)
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=ADAM_EPSILON,
        fused=is_fused,
    )
    # Only a fused kernel reads it on the device; others would fetch it from there for each parameter.
    step_device = device if is_fused else torch.device("cpu")
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=step_device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state under the names that checkpoints use: `optimizer.<parameter>.exp_avg` and `exp_avg_sq`."""
    return {
        f"optimizer.{name}.{part}": optimizer.state[parameter][part]
        for name, parameter in model.named_parameters()
        for part in ("exp_avg", "exp_avg_sq")
    }


def set_step(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Tell Adam that `step` steps were taken, as its bias correction asks."""
    for state in optimizer.state.values():
        state["step"].fill_(step)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def local_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """This process's shares of the gradients, as plain tensors that share their memory."""
    gradients: list[Any] = [p.grad for p in parameters if p.grad is not None]
    return [g.to_local() if hasattr(g, "to_local") else g for g in gradients]


NORM_PIECE = 1 << 12
"""Elements that are squared and added in float32 at a time: one sum over a large matrix is wrong in the third digit."""


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """The 2-norm of the whole gradient, the same number on all processes; infinite or NaN after an overflow.

    On CPU it is exact to float32's last digits, and so the same in every layout: norms of pieces, combined in float64.
    On GPUs, whose kernels add in a tree, it is torch's own.
    """
    gradients: list[Any] = [p.grad for p in parameters if p.grad is not None]
    if gradients and gradients[0].device.type == "cpu":
        return _exact_norm(gradients)
    norm: Any = torch.nn.utils.get_total_norm(gradients)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _exact_norm(gradients: Sequence[Any]) -> float:
    total = torch.zeros((), dtype=torch.float64)
    is_sharded = False
    for gradient in gradients:
        copies = 1
        if isinstance(gradient, DTensor):
            is_sharded = True
            if any(placement.is_partial() for placement in gradient.placements):
                gradient = gradient.redistribute(placements=[Replicate()] * len(gradient.placements))
            sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
            copies = math.prod(size for placement, size in sizes if placement.is_replicate())
            gradient = gradient.to_local()
        total += _sum_of_squares(gradient.reshape(-1)) / copies
    if is_sharded:
        dist.all_reduce(total)
    return math.sqrt(total) if total >= 0 else math.nan


def _sum_of_squares(values: Tensor) -> Tensor:
    """The sum of squares of (n,) values, in float64."""
    whole = values.numel() // NORM_PIECE * NORM_PIECE
    pieces = torch.linalg.vector_norm(values[:whole].view(-1, NORM_PIECE), dim=1)
    rest = torch.linalg.vector_norm(values[whole:])
    return pieces.double().square().sum() + rest.double().square()


def scale_gradients(parameters: Iterable[Tensor], factor: float) -> None:
    """Multiply all gradients by `factor`, in place."""
    gradients = [g for g in local_gradients(parameters) if g.numel()]
    if factor != 1.0 and gradients:
        torch._foreach_mul_(gradients, factor)


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
