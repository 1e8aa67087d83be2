"""Tensor and data parallelism, put on a plain model from outside, in one order.

First tensor parallelism: each matrix is split over the processes of one group, qkv and up by rows, out and down by
columns, the embedding by vocabulary; two sums over the group a block, forward and backward. Norms and positions stay
whole but become DTensors like the rest, since clipping needs all parameters of one kind. Then activation
checkpointing, then torch.compile of each block, then FSDP2: parameters, gradients and Adam's moments are shared out
over the data-parallel processes. Parameters are gathered once a step in float32 and kept until its end (as much
traffic as averaging gradients costs), so the arithmetic is the same in every layout; autocast does the rest.

Random numbers: each micro-step begins by seeding from (seed, step, micro-step, data-parallel rank), so that dropout
repeats exactly when a run resumes and differs between data-parallel ranks. Tensor-parallel ranks share the seed, since
they hold the same residual stream, except inside attention, where they hold different heads.
"""

from __future__ import annotations

import dataclasses
import functools
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
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2_train.config import check_tensor_parallel
from gpt2_train.device import widest_float
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.model import GPT2, AttentionCore


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
        """The group over which the vocabulary is spread; None where it is not."""
        return self.mesh.get_group("tp") if self.mesh is not None and self.tp_size > 1 else None

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
    for core in model.modules():
        if isinstance(core, AttentionCore):
            give_own_dropout(core, world.tp_rank)


def give_own_dropout(core: AttentionCore, tp_rank: int) -> None:
    """Let attention dropout differ between tensor-parallel ranks and leave the common generator in step.

    All ranks draw the same number from the common generator and mix their rank into it; recomputation in activation
    checkpointing sets the generator back and so draws the same number again.
    """
    plain = core.forward

    @torch.compiler.disable
    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not core.training or core.dropout == 0:
            return plain(query, key, value)
        number = int(torch.randint(2**62, ()))
        devices = [query.device.index or 0] if query.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(mixed_seed(number, tp_rank))
            return plain(query, key, value)

    core.forward = forward  # type: ignore[method-assign]


def mixed_seed(*numbers: int) -> int:
    """One well-mixed 63-bit seed from several numbers."""
    return int(np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_micro_step(seed: int, step: int, micro_step: int, dp_rank: int) -> None:
    """Make all randomness that follows a function of these four numbers."""
    torch.manual_seed(mixed_seed(seed, step, micro_step, dp_rank))


# --- activation checkpointing ----------------------------------------------------------------------------------------

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What is dear to compute again: matrix products and attention."""


def _keep_products(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def apply_activation_checkpointing(model: GPT2, mode: Literal["none", "full", "selective"]) -> None:
    """Recompute activations in the backward pass.

    `full` keeps each block's input only: a third more work, the least memory. `selective` keeps the outputs of matrix
    products and attention, and computes norms, GELU and dropout again.
    """
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    for block in model.blocks:
        plain = block.forward

        def forward(x: Tensor, cache: Any = None, plain: Any = plain) -> Tensor:
            return checkpoint(plain, x, cache, **options)

        block.forward = forward


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
    apply_activation_checkpointing(model, activation_checkpointing)
    if compile_blocks:
        for block in model.blocks:
            block.compile(dynamic=False)
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


def gather_vocabulary(logits: Tensor, world: World) -> Tensor:
    """Logits (..., V) on all processes from each one's share (..., V / tp), for sampling."""
    if world.tp_group is None:
        return logits
    parts = [torch.empty_like(logits) for _ in range(world.tp_size)]
    dist.all_gather(parts, logits.contiguous(), group=world.tp_group)
    return torch.cat(parts, dim=-1)
