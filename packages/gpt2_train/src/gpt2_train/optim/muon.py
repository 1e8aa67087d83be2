"""Muon (Jordan et al. 2024) for the matrices of the blocks: momentum, made orthogonal, is the step.

A matrix moves by the nearest matrix whose singular values are about one, which a few products approximate (Newton and
Schulz). Steps are scaled by 0.2·√max(rows, columns), the size of AdamW's, so that its learning rate and weight decay
serve as they are (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2). Queries, keys and values are made
orthogonal each for itself, although they are rows of one matrix: they are three maps, whose gradients differ in size,
and together the largest would leave the others next to nothing.

Sharded matrices are gathered, since the step follows from the whole one. Processes share the work: each takes one
matrix of a round, and sends what it has found to all. Costs up to 30 FLOPs for each parameter, step and row or column
(the fewer of the two), divided by the processes, where training costs 6 for each token.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from gpt2_train.distributed.device import is_fast_in_bf16
from gpt2_train.distributed.mesh import gradient_of, local

MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of a quintic polynomial that drives singular values to between 0.7 and 1.2 (Jordan et al. 2024)."""

MATCH_ADAMW = 0.2
"""The root mean square of AdamW's steps, measured by Liu et al."""


def orthogonalised(matrices: Tensor) -> Tensor:
    """UVᵀ of each matrix USVᵀ, about: ([batch,] rows, columns) -> the same.

    In bf16 where the device multiplies faster in it (Jordan et al. found it to be exact enough), else in float32.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16 if is_fast_in_bf16(matrices.device) else torch.float32)
    is_tall = x.size(-2) > x.size(-1)
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    multiply_add = torch.baddbmm if x.dim() == 3 else torch.addmm
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


def direction(update: Tensor, head_dim: int | None) -> Tensor:
    """The step of a whole matrix (rows, columns) at a learning rate of 1.

    With `head_dim` its rows are queries, keys and values in turn, [heads, 3, head_dim].
    """
    if head_dim is None:
        return orthogonalised(update) * (MATCH_ADAMW * math.sqrt(max(update.shape)))
    columns = update.size(1)
    parts = update.view(-1, 3, head_dim, columns).transpose(0, 1).reshape(3, -1, columns)
    scaled = orthogonalised(parts) * (MATCH_ADAMW * math.sqrt(max(parts.shape[1:])))
    return scaled.view(3, -1, head_dim, columns).transpose(0, 1).reshape(update.shape)


def directions(
    updates: Iterable[tuple[str, Tensor]], head_dim: Callable[[str], int | None]
) -> Iterator[tuple[str, Tensor]]:
    """The steps of matrices by name, in the layout of each; sharded ones are computed by one process each, and sent."""
    size, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    waiting = iter(updates)
    while together := list(itertools.islice(waiting, size)):
        whole = [update.full_tensor() if isinstance(update, DTensor) else update for _, update in together]
        steps = [
            # NCCL sends memory as it is: contiguous on all of them.
            direction(update, head_dim(name)).contiguous()
            if number == rank
            else torch.empty_like(update, memory_format=torch.contiguous_format)
            for number, ((name, _), update) in enumerate(zip(together, whole, strict=True))
        ]
        for number, ((name, update), step) in enumerate(zip(together, steps, strict=True)):
            if isinstance(update, DTensor):
                dist.broadcast(step, src=number)
                mesh = update.device_mesh
                replicated = DTensor.from_local(step, mesh, [Replicate()] * mesh.ndim, run_check=False)
                yield name, replicated.redistribute(placements=update.placements)
            else:
                yield name, step


class Muon:
    """Muon for matrices, another optimizer for the rest, with the methods of `AdamW`.

    Args:
        parameters: matrices by name; ones whose name ends with `qkv.weight` hold queries, keys and values.
        weight_decay: decoupled, as AdamW's.
        head_dim: rows of a head in queries, keys and values.
        rest: the optimizer of all other parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        weight_decay: float,
        head_dim: int,
        rest: Any,
    ) -> None:
        self.parameters, self.weight_decay, self.head_dim, self.rest = dict(parameters), weight_decay, head_dim, rest
        self.means = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """The momentum of each matrix, and the state of the rest."""
        return {f"optimizer.{name}.momentum": mean for name, mean in self.means.items()} | self.rest.tensors()

    def set_step(self, step: int) -> None:
        """Set the step counter, on which the rest alone depends."""
        self.rest.set_step(step)

    @torch.no_grad()
    def step(self, rate: float, factor: Tensor, is_finite: Tensor) -> None:
        """Move the parameters, as `AdamW.step` does."""
        rate_now = is_finite.float() * rate  # 0 where nothing may change.
        names = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        updates = ((name, self._update(name, factor, is_finite)) for name in names)
        for name, step in directions(updates, lambda name: self.head_dim if name.endswith("qkv.weight") else None):
            parameter, update, decay = local(self.parameters[name]), local(step), rate_now * self.weight_decay
            parameter.mul_(1 - decay).sub_(update * rate_now)
        self.rest.step(rate, factor, is_finite)

    def _update(self, name: str, factor: Tensor, is_finite: Tensor) -> Tensor:
        """Momentum with this step's gradient once more (Nesterov's), in the layout of the parameter."""
        parameter, mean = self.parameters[name], local(self.means[name])
        gradient = local(gradient_of(parameter)) * factor.float()
        gradient = torch.where(is_finite, gradient, 0.0)
        mean.lerp_(gradient, is_finite.float() * (1 - MOMENTUM))
        update = gradient.lerp(mean, MOMENTUM)
        if not isinstance(parameter, DTensor):
            return update
        mesh, placements = parameter.device_mesh, parameter.placements
        return DTensor.from_local(
            update, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )
