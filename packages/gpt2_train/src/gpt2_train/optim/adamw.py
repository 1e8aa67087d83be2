"""Optimizers on this process's shares of the parameters, without host-device synchronisation.

torch's own classes work on DTensors, each of whose operations costs tens of microseconds: 38 ms in a step of AdamW on
292 parameters where the arithmetic is 6. Here the same kernels get the plain tensors inside; the state keeps the layout
of the parameters, so that a checkpoint of any layout loads in any other. Clipping and loss scale come as a tensor, and
so does whether the gradient is finite: where it is not, fused kernels change nothing, and the host need not wait.
State is made at the start, not at the first step: the memory of a run is known before it, and a checkpoint has
somewhere to go. It is kept under `optimizer.<parameter>.<part>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gpt2_train import torch_private
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed.device import has_fused_adamw
from gpt2_train.distributed.mesh import gradient_of, local
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.muon import Muon

ADAM_EPSILON = 1e-8


class Optimizer(Protocol):
    """Updates parameters by their gradients."""

    def step(self, rate: float, factor: Tensor, is_finite: Tensor) -> None:
        """Move the parameters.

        Args:
            rate: the learning rate.
            factor: a scalar by which the gradients are to be multiplied first.
            is_finite: a scalar, whether the gradients are; if not, nothing changes. (On devices without a fused
                kernel the caller has to find out before.)
        """

    def tensors(self) -> dict[str, Tensor]:
        """All state but the number of steps, in the layout of the parameters, by the names in checkpoints."""

    def set_step(self, step: int) -> None:
        """Set the step counter."""


class AdamW:
    """AdamW (Loshchilov and Hutter 2019), by torch's fused kernel where there is one.

    Args:
        parameters: by name.
        betas: decay of the mean gradient and of the squared one.
        weight_decay: of matrices; biases and norms have none.
        device: where they are.
        is_cautious: whether only weights that a step moves towards 0 decay in it (Chen et al. 2025, arXiv 2510.12402).
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        betas: tuple[float, float],
        weight_decay: float,
        device: torch.device,
        *,
        is_cautious: bool = False,
    ) -> None:
        self.parameters, self.betas, self.is_cautious = dict(parameters), betas, is_cautious
        self.is_fused = has_fused_adamw(device)
        self.means = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        self.squares = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        # Only a fused kernel reads them on the device; others would fetch them from there for each parameter.
        self.steps = torch.zeros(len(self.parameters), device=device if self.is_fused else "cpu")
        self._steps = dict(zip(self.parameters, self.steps.unbind(), strict=True))
        self.decayed = {name: weight_decay if p.dim() >= 2 else 0.0 for name, p in parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """The mean gradients (`exp_avg`) and the mean squared ones (`exp_avg_sq`)."""
        found = {}
        for name in self.parameters:
            found[f"optimizer.{name}.exp_avg"] = self.means[name]
            found[f"optimizer.{name}.exp_avg_sq"] = self.squares[name]
        return found

    def set_step(self, step: int) -> None:
        """Set the step counter, by which the means are corrected."""
        self.steps.fill_(step)

    @torch.no_grad()
    def step(self, rate: float, factor: Tensor, is_finite: Tensor) -> None:
        """Move the parameters; see `Optimizer`."""
        fused: dict[str, Any] = {"grad_scale": 1 / factor.float(), "found_inf": 1 - is_finite.float()}
        for decay in sorted(set(self.decayed.values()), reverse=True):
            # A share may be empty, where a parameter has fewer rows than there are processes.
            names = [
                name
                for name, parameter in self.parameters.items()
                if self.decayed[name] == decay and parameter.grad is not None and local(parameter).numel()
            ]
            gradients = [local(gradient_of(self.parameters[name])) for name in names]
            if not self.is_fused and names:
                torch_private.foreach_multiply(gradients, factor.float())
            adamw(
                [local(self.parameters[name]) for name in names],
                gradients,
                [local(self.means[name]) for name in names],
                [local(self.squares[name]) for name in names],
                [],
                [self._steps[name] for name in names],
                fused=self.is_fused,
                **(fused if self.is_fused else {}),
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=rate,
                weight_decay=0.0 if self.is_cautious else decay,
                eps=ADAM_EPSILON,
                maximize=False,
            )
            for name in names if self.is_cautious and decay else ():
                # The mean gradient has the sign of the move against which it points.
                decay_cautiously(
                    local(self.parameters[name]), local(self.means[name]), is_finite.float() * rate * decay
                )


def decay_cautiously(parameter: Tensor, update: Tensor, share: Tensor) -> None:
    """Take `share` off each weight that has the sign of `update`, which is subtracted from it."""
    parameter.sub_(parameter * (parameter * update > 0) * share)


def make_optimizer(model: GPT2, settings: TrainSettings, device: torch.device) -> Optimizer:
    """The optimizer that the settings ask for, over the parameters of `model`, plain or sharded.

    Muon gets the matrices of the blocks; embeddings, norms and biases have AdamW with either.
    """
    parameters = dict(model.named_parameters())
    betas, decay = (settings.beta1, settings.beta2), settings.weight_decay
    is_cautious = settings.cautious_decay
    if settings.optimizer == "adamw":
        return AdamW(parameters, betas, decay, device, is_cautious=is_cautious)
    matrices = {name: p for name, p in parameters.items() if name.startswith("blocks.") and p.dim() == 2}
    others = {name: p for name, p in parameters.items() if name not in matrices}
    rest = AdamW(others, betas, decay, device, is_cautious=is_cautious)
    return Muon(matrices, decay, model.config.head_dim, rest, is_cautious=is_cautious)


class TailAverage:
    """The mean of a model's weights over the last steps of a run, which is often a better model than the last ones.

    Weights of the last steps scatter around a minimum; their mean lies closer to it (Polyak and Juditsky 1992; Izmailov
    et al. 2018, Averaging Weights Leads to Wider Optima). It costs 4 bytes and one pass over each parameter.

    Attributes:
        steps: how many it is the mean of.
    """

    def __init__(self, parameters: Mapping[str, Tensor], steps: int = 0) -> None:
        self._parameters = parameters
        self._means = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        self.steps = steps

    def tensors(self, part: str = "average") -> dict[str, Tensor]:
        """The means in the layout of the parameters, by the names in checkpoints, as those of a `part`."""
        return {f"{part}.{name}": mean for name, mean in self._means.items()}

    @torch.no_grad()
    def update(self, *, is_tail: bool) -> None:
        """Take the weights of one more step; before the tail of the run there is nothing to take."""
        self.steps = self.steps + 1 if is_tail else 0
        if is_tail:
            for name, parameter in self._parameters.items():
                local(self._means[name]).lerp_(local(parameter), 1 / self.steps)
