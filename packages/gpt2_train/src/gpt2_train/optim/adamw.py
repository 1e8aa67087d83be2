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
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed.device import has_fused_adamw
from gpt2_train.distributed.mesh import gradient_of, local
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.muon import Muon

ADAM_EPSILON = 1e-8


class AdamW:
    """AdamW (Loshchilov and Hutter 2019), by torch's fused kernel where there is one.

    Args:
        parameters: by name.
        betas: decay of the mean gradient and of the squared one.
        weight_decay: of matrices; biases and norms have none.
        device: where they are.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        betas: tuple[float, float],
        weight_decay: float,
        device: torch.device,
    ) -> None:
        self.parameters, self.betas = dict(parameters), betas
        self.is_fused = has_fused_adamw(device)
        self.means = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        self.squares = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        # Only a fused kernel reads them on the device; others would fetch them from there for each parameter.
        self.steps = torch.zeros(len(self.parameters), device=device if self.is_fused else "cpu")
        self._steps = dict(zip(self.parameters, self.steps.unbind(), strict=True))
        self.decayed = {name: weight_decay if p.dim() >= 2 else 0.0 for name, p in parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """The mean gradients (`exp_avg`) and the mean squared ones (`exp_avg_sq`), in the layout of the parameters."""
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
        """Move the parameters.

        Args:
            rate: the learning rate.
            factor: a scalar by which the gradients are to be multiplied first.
            is_finite: a scalar, whether the gradients are; if not, nothing changes. (On devices without a fused
                kernel the caller has to find out before.)
        """
        fused: dict[str, Any] = {"grad_scale": 1 / factor.float(), "found_inf": 1 - is_finite.float()}
        for decay in sorted(set(self.decayed.values()), reverse=True):
            # A share may be empty, where a parameter has fewer rows than there are processes.
            names = [
                name
                for name, parameter in self.parameters.items()
                if self.decayed[name] == decay and parameter.grad is not None and local(parameter).numel()
            ]
            gradients = [local(gradient_of(self.parameters[name])) for name in names]
            if not self.is_fused:
                for gradient in gradients:
                    gradient.mul_(factor.float())
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
                weight_decay=decay,
                eps=ADAM_EPSILON,
                maximize=False,
            )


def make_optimizer(model: GPT2, settings: TrainSettings, device: torch.device) -> AdamW | Muon:
    """The optimizer that the settings ask for, over the parameters of `model`, plain or sharded.

    Muon gets the matrices of the blocks; embeddings, norms and biases have AdamW with either.
    """
    parameters = dict(model.named_parameters())
    betas, decay = (settings.beta1, settings.beta2), settings.weight_decay
    if settings.optimizer == "adamw":
        return AdamW(parameters, betas, decay, device)
    matrices = {name: p for name, p in parameters.items() if name.startswith("blocks.") and p.dim() == 2}
    others = {name: p for name, p in parameters.items() if name not in matrices}
    return Muon(matrices, decay, model.config.head_dim, AdamW(others, betas, decay, device))
