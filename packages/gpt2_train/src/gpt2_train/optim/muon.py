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

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from gpt2_train import torch_private
from gpt2_train.config.layout import MUON_STACK
from gpt2_train.distributed.device import is_fast_in_bf16
from gpt2_train.distributed.mesh import gradient_of, local

MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of a quintic polynomial that drives singular values to between 0.7 and 1.2 (Jordan et al. 2024)."""

MATCH_ADAMW = 0.2
"""The root mean square of AdamW's steps, measured by Liu et al."""


def orthogonalised(matrices: Tensor) -> Tensor:
    """UVᵀ of each matrix USVᵀ, about: (batch, rows, columns) -> the same. It costs less where rows are the fewer.

    In bf16 where the device multiplies faster in it (Jordan et al. found it to be exact enough), else in float32.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16 if is_fast_in_bf16(matrices.device) else torch.float32)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.to(matrices.dtype)


def directions(updates: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """The steps of whole matrices (rows, columns) by name, at a learning rate of 1.

    Those of one shape, lying or upright, are one stack. Rows of a `qkv.weight` are queries, keys and values in turn,
    [heads, 3, head_dim].
    """
    stacks: dict[tuple[int, int], dict[str, Tensor]] = {}
    for name, update in updates.items():
        parts, columns = update[None], update.size(1)
        if name.endswith("qkv.weight"):
            parts = update.view(-1, 3, head_dim, columns).transpose(0, 1).reshape(3, -1, columns)
        shape = min(parts.shape[1:]), max(parts.shape[1:])
        stacks.setdefault(shape, {})[name] = parts
    found = {}
    for shape, members in stacks.items():
        lying = [parts if parts.shape[1:] == shape else parts.mT for parts in members.values()]
        steps = orthogonalised(torch.cat(lying)) * (MATCH_ADAMW * math.sqrt(shape[1]))
        for (name, parts), step in zip(members.items(), steps.split(list(map(len, lying))), strict=True):
            step = step if step.shape == parts.shape else step.mT
            if len(step) == 3:
                step = step.view(3, -1, head_dim, step.size(2)).transpose(0, 1)
            found[name] = step.reshape(updates[name].shape)
    return found


def shared_directions(updates: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """`directions` of matrices in the layout of each; sharded ones are computed by one process each, and sent."""
    if not any(isinstance(update, DTensor) for update in updates.values()):
        return directions(updates, head_dim)
    names, size, rank = list(updates), dist.get_world_size(), dist.get_rank()
    found: dict[str, Tensor] = {}
    for together in (names[begin : begin + size] for begin in range(0, len(names), size)):
        whole = {name: updates[name].full_tensor() for name in together}  # type: ignore[attr-defined]
        own = directions({name: whole[name] for name in together[rank : rank + 1]}, head_dim)
        for number, name in enumerate(together):
            # NCCL sends memory as it is: contiguous on all of them.
            step = own[name].contiguous() if name in own else torch.empty(whole[name].shape, device=whole[name].device)
            dist.broadcast(step, src=number)
            update: Any = updates[name]
            replicated = DTensor.from_local(
                step, update.device_mesh, [Replicate()] * update.device_mesh.ndim, run_check=False
            )
            found[name] = replicated.redistribute(placements=update.placements)
    return found


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
        self.chunks = [(names, self._zeros(names)) for names in self._names_together()]
        means = {name: mean for names, flat in self.chunks for name, mean in self._split(flat, names).items()}
        self.means = {name: means[name] for name in parameters}

    def _names_together(self) -> Iterator[list[str]]:
        """The names of matrices that are taken together: no fewer than there are processes to share them."""
        least = dist.get_world_size() if dist.is_initialized() else 1
        together: list[str] = []
        for name in sorted(self.parameters, key=lambda name: sorted(self.parameters[name].shape)):
            parameter = self.parameters[name]
            size = sum(self.parameters[name].numel() for name in together) + parameter.numel()
            if len(together) >= least and size > MUON_STACK[parameter.device.type]:
                yield together
                together = []
            together.append(name)
        yield together

    def _zeros(self, names: Sequence[str]) -> Tensor:
        """Memory for as many numbers as this process has of the matrices `names`."""
        here = [local(self.parameters[name]) for name in names]
        return torch.zeros(sum(part.numel() for part in here), dtype=here[0].dtype, device=here[0].device)

    def _split(self, flat: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """The parts of `flat`, each in the layout of its parameter."""
        here = {name: local(self.parameters[name]) for name in names}
        parts = dict(zip(names, flat.split([part.numel() for part in here.values()]), strict=True))
        views = {name: parts[name].view(part.shape) for name, part in here.items()}
        return {
            name: torch_private.as_part_of(view, parameter) if isinstance(parameter, DTensor) else view
            for name, view in views.items()
            for parameter in (self.parameters[name],)
        }

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
        for names, means in self.chunks:
            # Momentum with this step's gradient once more (Nesterov's).
            update = self._flat([gradient_of(self.parameters[name]) for name in names]).mul_(factor.float())
            update = torch.where(is_finite, update, 0.0)
            means.lerp_(update, is_finite.float() * (1 - MOMENTUM))
            steps = shared_directions(self._split(update.lerp_(means, MOMENTUM), names), self.head_dim)
            moves = self._split(self._flat([steps[name] for name in names]).mul_(rate_now), names)
            parameters = [local(self.parameters[name]) for name in names]
            torch_private.foreach_mul_(parameters, 1 - rate_now * self.weight_decay)
            torch_private.foreach_sub_(parameters, [local(move) for move in moves.values()])
        self.rest.step(rate, factor, is_finite)

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """This process's parts of `tensors`, one after the other."""
        return torch.cat([local(tensor).reshape(-1) for tensor in tensors])
