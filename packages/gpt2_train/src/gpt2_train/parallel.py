"""Tensor and data parallelism, put on a plain model from outside, in one order.

First tensor parallelism (`tensor_parallel`), then activation checkpointing, then torch.compile of each block, then
FSDP2: parameters, gradients and Adam's moments are shared out over the data-parallel processes, or over those of each
copy of the model's state where there are several (HSDP). Parameters are gathered once per step in float32 and kept
until its end (as much traffic as averaging gradients costs), or, with `reshard`, block by block in each pass; the
arithmetic is the same in every layout, and autocast does the rest.
"""

from __future__ import annotations

import warnings
from typing import Literal

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from gpt2_train.activation_checkpointing import apply_activation_checkpointing
from gpt2_train.compilation import Compilation, apply_compile
from gpt2_train.errors import Gpt2Error
from gpt2_train.model import GPT2
from gpt2_train.tensor_parallel import apply_tensor_parallel
from gpt2_train.world import World


def apply_data_parallel(model: GPT2, world: World, *, reshard: bool = False) -> None:
    """Share parameters, gradients and optimizer state over the data-parallel processes; gradients are averaged.

    With `reshard` a block's parameters are gathered for its forward pass and again for its backward pass, and its
    gradients shared out in each micro-step. Embeddings and final norm, needed at both ends of a pass, stay gathered.
    """
    mesh = world.dp_mesh
    # It warns of in-place changes to the logits, which nothing here makes.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if not model.is_tied:
        raise Gpt2Error("data parallelism untied the embedding: this version of torch is not supported.")


def parallelize(
    model: GPT2,
    world: World,
    *,
    activation_checkpointing: Literal["none", "full", "selective"] = "none",
    compilation: Compilation | None = None,
    reshard: bool = False,
    sequence_parallel: bool = False,
) -> GPT2:
    """Put all that is asked for on `model`, in place, in the one order that works; returns it.

    In a single process only checkpointing and compilation remain. Raises as `apply_tensor_parallel` does.
    """
    if world.tp_size > 1:
        apply_tensor_parallel(model, world, sequence_parallel=sequence_parallel)
    apply_activation_checkpointing(model, activation_checkpointing, world.device)
    if compilation:
        apply_compile(model, compilation)
    if world.dp_size > 1:
        apply_data_parallel(model, world, reshard=reshard)
    return model


def synchronize_gradients(model: nn.Module, is_last: bool, *, reshard: bool = False) -> None:
    """Say whether the coming backward pass is the last of its step: only that one exchanges gradients.

    With `reshard` all of them share gradients out, and only the last one adds up those of several copies.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or reshard)
        model.set_requires_all_reduce(is_last)
        model.set_reshard_after_backward(is_last or reshard)


def free_gathered_parameters(model: nn.Module) -> None:
    """Drop the gathered parameters that a forward pass without a backward one leaves behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
