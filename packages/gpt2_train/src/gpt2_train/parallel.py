"""Tensor and data parallelism, put on a plain model from outside, in one order.

First tensor parallelism (`tensor_parallel`), then activation checkpointing, then torch.compile of each block, then
FSDP2: parameters, gradients and Adam's moments are shared out over the data-parallel processes. Parameters are gathered
once per step in float32 and kept until its end (as much traffic as averaging gradients costs), so the arithmetic is the
same in every layout; autocast does the rest.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from gpt2_train.activation_checkpointing import apply_activation_checkpointing
from gpt2_train.compilation import Compilation, apply_compile
from gpt2_train.device import widest_float
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.model import GPT2
from gpt2_train.tensor_parallel import apply_tensor_parallel


@dataclasses.dataclass(frozen=True)
class World:
    """This process's place among all of them.

    Attributes:
        device: where it computes.
        rank, size: its number among all processes; tensor-parallel neighbours have neighbouring numbers.
        dp_rank, dp_size: on the data-parallel axis.
        tp_rank, tp_size: on the tensor-parallel axis.
        mesh: axes `dp` and `tp`; None in a single process without a group.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    dp_rank: int = 0
    dp_size: int = 1
    tp_rank: int = 0
    tp_size: int = 1
    mesh: DeviceMesh | None = None

    @property
    def tp_group(self) -> dist.ProcessGroup | None:
        """The group that shares the vocabulary; None where each process has all of it."""
        return self.mesh.get_group("tp") if self.mesh is not None and self.tp_size > 1 else None

    def say(self, line: str) -> None:
        """Show a line on standard error, from the first process only."""
        if self.rank == 0:
            print(line, file=sys.stderr, flush=True)

    def sum_on_device(self, here: Tensor, values: list[float]) -> Tensor:
        """The sums of `here`, a scalar on the device, and of `values` over all processes: (1 + values,).

        Nothing is waited for: they are on the device.
        """
        kind = widest_float(self.device)
        rest = torch.tensor(values, dtype=kind)
        rest = rest.pin_memory() if self.device.type == "cuda" else rest
        total = torch.cat([here.detach().to(kind)[None], rest.to(self.device, non_blocking=True)])
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def sum_over_processes(self, values: list[float]) -> list[float]:
        """The sums of `values` over all processes, in float64 (float32 on MPS)."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=widest_float(self.device), device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]


def make_world(device: torch.device, tensor_parallel: int) -> World:
    """The world of this process, from the default process group if there is one.

    Raises Gpt2UsageError if the number of processes is not a multiple of `tensor_parallel`.
    """
    if not dist.is_initialized():
        if tensor_parallel != 1:
            raise Gpt2UsageError(f"--tensor-parallel {tensor_parallel} needs that many processes: there is one.")
        return World(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size % tensor_parallel:
        raise Gpt2UsageError(
            f"{size} processes can't be divided by --tensor-parallel {tensor_parallel}: choose a divisor of {size}."
        )
    data_parallel = size // tensor_parallel
    mesh = init_device_mesh(device.type, (data_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))
    dp_rank, tp_rank = divmod(rank, tensor_parallel)
    return World(device, rank, size, dp_rank, data_parallel, tp_rank, tensor_parallel, mesh)


# --- data parallelism ------------------------------------------------------------------------------------------------


def apply_data_parallel(model: GPT2, world: World) -> None:
    """Share parameters, gradients and optimizer state over the `dp` axis; gradients are averaged over it."""
    assert world.mesh is not None
    mesh = world.mesh["dp"]
    # It warns of in-place changes to the logits, which nothing here makes.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if not model.is_tied:
        raise Gpt2Error("data parallelism untied the embedding: this version of torch is not supported.")


def parallelize(
    model: GPT2,
    world: World,
    *,
    activation_checkpointing: Literal["none", "full", "selective"] = "none",
    compilation: Compilation | None = None,
) -> GPT2:
    """Put all that is asked for on `model`, in place, in the one order that works; returns it.

    In a single process only checkpointing and compilation remain. Raises as `apply_tensor_parallel` does.
    """
    if world.tp_size > 1:
        apply_tensor_parallel(model, world)
        # What is recomputed inside a graph would have to keep DTensor's mesh, which torch 2.13 can't.
        if compilation:
            apply_compile(model, compilation)
        apply_activation_checkpointing(model, activation_checkpointing)
    else:
        apply_activation_checkpointing(model, activation_checkpointing)
        if compilation:
            apply_compile(model, compilation)
    if world.dp_size > 1:
        apply_data_parallel(model, world)
    return model


def synchronize_gradients(model: nn.Module, is_last: bool) -> None:
    """Say whether the coming backward pass is the last of its step: only that one exchanges gradients."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        model.set_reshard_after_backward(is_last)


def free_gathered_parameters(model: nn.Module) -> None:
    """Drop the gathered parameters that a forward pass without a backward one leaves behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
