"""Tensor and data parallelism, put on a plain model from outside, in one order.

First tensor parallelism: each matrix is split over the processes of one group, qkv and up by rows, out and down by
columns, the embedding by vocabulary; two sums over the group a block, forward and backward. Norms and positions stay
whole but become DTensors like the rest, since clipping needs all parameters of one kind. Then activation
checkpointing, then torch.compile of each block, then FSDP2: parameters, gradients and Adam's moments are shared out
over the data-parallel processes. Parameters are gathered once per step in float32 and kept until its end (as much
traffic as averaging gradients costs), so the arithmetic is the same in every layout; autocast does the rest.

Random numbers: each micro-step begins by seeding from (seed, step, micro-step, data-parallel rank), so that dropout
repeats exactly when a run resumes and differs between data-parallel ranks. Tensor-parallel ranks hold different heads
and drop different attention weights, but the same residual stream, where all must drop the same: they seed the device's
generator each for itself, and `SharedDropout` makes its masks from seeds that all of them share.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpt2_train.activation_checkpointing import apply_activation_checkpointing
from gpt2_train.device import widest_float
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.layout import check_tensor_parallel
from gpt2_train.model import GPT2


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


# --- tensor parallelism ----------------------------------------------------------------------------------------------


def _replicate(module: nn.Module, mesh: DeviceMesh) -> None:
    """Make the parameters of `module` replicated DTensors, while plain tensors go in and come out."""

    def wrap(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return tuple(DTensor.from_local(value, mesh, [Replicate()], run_check=False) for value in inputs)

    def unwrap(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
        return output.to_local()

    # The type stubs know only of older signatures of the two hooks.
    distribute_module(module, mesh, input_fn=wrap, output_fn=unwrap)  # type: ignore[arg-type]


def apply_tensor_parallel(model: GPT2, world: World) -> None:
    """Split the matrices of `model` over the `tp` axis; its logits are then this process's share of the vocabulary.

    Raises Gpt2UsageError if the model can't be shared among so many.
    """
    check_tensor_parallel(model.config, world.tp_size)
    assert world.mesh is not None
    mesh = world.mesh["tp"]
    parallelize_module(
        model,
        mesh,
        {
            "token_embedding": RowwiseParallel(input_layouts=Replicate()),
            "blocks.*.attention.qkv": ColwiseParallel(),
            "blocks.*.attention.out": RowwiseParallel(),
            "blocks.*.feed_forward.up": ColwiseParallel(),
            "blocks.*.feed_forward.down": RowwiseParallel(),
            "output": ColwiseParallel(output_layouts=Shard(-1)),
        },
    )
    # Splitting makes new parameters, each for itself: without this the two copies would drift apart without an error.
    model.tie()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) or module is model.position_embedding:
            _replicate(module, mesh)
    if not model.is_tied or any(not isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Gpt2Error("tensor parallelism left a parameter untied or whole: this version of torch is not supported.")
    if model.config.dropout > 0:
        share_dropout(model)


class SharedDropout(nn.Module):
    """Dropout with a mask that follows from a seed tensor, the same on all tensor-parallel ranks.

    The device's generator differs between those ranks and is left alone. The seed is a tensor, so that a compiled
    graph takes it as an input, and recomputation in activation checkpointing drops the same elements again.

    Args:
        probability: of an element to be dropped.
        seed: int64 (2,), each below 2^32; whoever changes it in place changes the mask.
    """

    def __init__(self, probability: float, seed: Tensor) -> None:
        super().__init__()
        self.probability = probability
        self.seed: Tensor
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` with elements dropped and the others scaled up, in training; else `x`."""
        if not self.training:
            return x
        index = torch.arange(x.numel(), device=x.device).view(x.shape)
        bits = _mixed_bits(_mixed_bits(index ^ self.seed[0]) ^ self.seed[1])
        kept = bits >= round(self.probability * 2**32)
        return x * (kept / (1 - self.probability)).to(x.dtype)


def _mixed_bits(x: Tensor) -> Tensor:
    """A bijection of 32-bit numbers, held in int64, in which each bit of `x` changes half of the result's."""
    for _ in range(2):
        # The factor is small enough for the product to stay below 2^63.
        x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
    return (x >> 16) ^ x


def share_dropout(model: GPT2) -> None:
    """Replace dropout on the residual stream by `SharedDropout`; `seed_micro_step` then seeds it."""
    places = [(module, name) for module in model.modules() for name, child in module.named_children()
              if isinstance(child, nn.Dropout)]  # fmt: skip
    seeds = torch.zeros(len(places), 2, dtype=torch.int64, device=model.final_norm.weight.device)
    model.register_buffer("dropout_seeds", seeds, persistent=False)
    for (module, name), seed in zip(places, seeds, strict=True):
        setattr(module, name, SharedDropout(model.config.dropout, seed))


def mixed_seed(*numbers: int) -> int:
    """One well-mixed 63-bit seed from several numbers."""
    return int(np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_micro_step(model: nn.Module, seed: int, step: int, micro_step: int, world: World) -> None:
    """Make all randomness that follows a function of seed, step, micro-step and this process's place."""
    numbers = (seed, step, micro_step, world.dp_rank)
    if world.tp_size == 1:
        torch.manual_seed(mixed_seed(*numbers))
        return
    torch.manual_seed(mixed_seed(*numbers, world.tp_rank))
    shared: Tensor | None = getattr(model, "dropout_seeds", None)
    if shared is not None:
        state = np.random.SeedSequence(list(numbers)).generate_state(shared.numel(), np.uint32)
        seeds = torch.from_numpy(state.astype(np.int64)).view(shared.shape)
        shared.copy_(seeds.pin_memory() if shared.is_cuda else seeds, non_blocking=True)


# --- compilation -----------------------------------------------------------------------------------------------------


def apply_compile(model: GPT2) -> None:
    """Compile each block, whole or not at all: a break in its graph would silently leave most of it uncompiled.

    The forward method is compiled, since the hooks around it (FSDP's) can't be.
    """
    for block in model.blocks:
        block.forward = torch.compile(block.forward, dynamic=False, fullgraph=True)


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
    compile_blocks: bool = False,
) -> GPT2:
    """Put all that is asked for on `model`, in place, in the one order that works; returns it.

    In a single process only checkpointing and compilation remain. Raises as `apply_tensor_parallel` does.
    """
    if world.tp_size > 1:
        apply_tensor_parallel(model, world)
        # What is recomputed inside a graph would have to keep DTensor's mesh, which torch 2.13 can't.
        if compile_blocks:
            apply_compile(model)
        apply_activation_checkpointing(model, activation_checkpointing)
    else:
        apply_activation_checkpointing(model, activation_checkpointing)
        if compile_blocks:
            apply_compile(model)
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
