"""Tensor and data parallelism, put on a plain model from outside, in one order.

First tensor parallelism (`tensor_parallel`), then activation checkpointing, then torch.compile of each block, then
FSDP2: parameters, gradients and Adam's moments are shared out over the data-parallel processes, or over the processes
of each copy of the model's state where there are several (HSDP). Parameters are gathered once per step in float32 and
kept until its end (as much traffic as averaging gradients costs), or, with `reshard`, block by block in each pass; the
arithmetic is the same in every layout, and autocast does the rest.

With activation checkpointing the backward pass computes a block's activations again, which must draw the same random
numbers, or dropout would drop other elements than the loss was computed with, and the gradient would be wrong without a
word. torch keeps the generator's state for CPU and CUDA alone; for Apple's GPUs it is kept here. `full` costs a third
more work, `selective` little.

`--compile` compiles three graphs, for any number of layers: the first block, whose input is one tensor,
another for all that follow, which run the same code on tensors of the same shape, and the output; torch guards what it
has compiled by nothing else. A graph belongs to the shapes that it was made for: training has one, and validation,
without gradients and dropout, another.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.distributed.device import unkept_random_state
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.tensor_parallel import apply_tensor_parallel
from gpt2_train.model.gpt2 import GPT2


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
    compiled: bool = False,
    reshard: bool = False,
) -> GPT2:
    """Put all that is asked for on `model`, in place, in the one order that works; returns it.

    In a single process only checkpointing and compilation remain. Raises as `apply_tensor_parallel` does.
    """
    if world.tp_size > 1:
        apply_tensor_parallel(model, world)
    apply_activation_checkpointing(model, activation_checkpointing, world.device)
    if compiled:
        apply_compile(model)
    if world.dp_size > 1:
        apply_data_parallel(model, world, reshard=reshard)
    return model


def free_gathered_parameters(model: nn.Module) -> None:
    """Drop the gathered parameters that a forward pass without a backward one leaves behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


Contexts = tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]
"""The contexts around the forward pass, and around its repetition."""

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    *torch_private.ATTENTION_OPERATORS,
}
"""Saved because recomputing them is expensive: matrix products and attention."""


def _keep_products(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_kept = operation in _KEPT or str(operation) == torch_private.VARLEN_ATTENTION
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def repeated_random_numbers(device: Any, inner: Callable[[], Contexts] | None = None) -> Contexts:
    """Contexts in which the repetition draws the random numbers of the forward pass, around the contexts of `inner`.

    `device` gets and sets the state of the generator, as `torch.mps` does.
    """
    forward, again = inner() if inner is not None else (contextlib.nullcontext(), contextlib.nullcontext())
    kept: list[Tensor] = []

    @contextlib.contextmanager
    def recorded() -> Iterator[None]:
        kept.append(device.get_rng_state())
        with forward:
            yield

    @contextlib.contextmanager
    def repeated() -> Iterator[None]:
        now = device.get_rng_state()
        device.set_rng_state(kept[0])
        try:
            with again:
                yield
        finally:
            device.set_rng_state(now)

    return recorded(), repeated()


def apply_activation_checkpointing(
    model: GPT2, mode: Literal["none", "full", "selective"], device: torch.device | None = None
) -> None:
    """Recompute activations in the backward pass; `device` is where the model will be, if it has no memory yet.

    `full` keeps each block's input only: a third more work, the least memory. `selective` keeps the outputs of matrix
    products and attention, and computes norms, GELU and dropout again.
    """
    if mode == "none":
        return
    # Compiled, it warns of operations in place, which no block has.
    logging.getLogger(torch_private.CHECKPOINT_LOG).setLevel(logging.ERROR)
    contexts: Callable[[], Contexts] | None = None
    if mode == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    random = unkept_random_state(device or model.final_norm.weight.device)
    if random is not None and model.config.dropout > 0:
        contexts = functools.partial(repeated_random_numbers, random, contexts)
    options: dict[str, Any] = {"use_reentrant": False} | ({} if contexts is None else {"context_fn": contexts})
    for block in model.blocks:
        plain = block.forward

        def forward(*inputs: Any, plain: Any = plain) -> Any:
            x, branch = checkpoint(plain, *inputs, **options)
            return x + branch, None  # The sum is one tensor for the next block to keep, its terms are two.

        block.forward = forward


def missing_for_compilation(device: torch.device, *, is_asked: bool = False) -> str:
    """The part that `torch.compile` needs for a device and this machine lacks, as the end of a sentence; "" if nothing.

    On CUDA kernels are written in Triton, which compiles a launcher in C for each. Slim images have no compiler. On a
    CPU, where nothing is compiled unless it `is_asked` for, it needs one of C++.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if missing := _missing_compiler("C", "CC", ("gcc", "clang")):
            return missing
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
            return "Python's headers are missing (python3-dev)"
    return _missing_compiler("C++", "CXX", CPP_COMPILERS) if is_asked and device.type == "cpu" else ""


CPP_COMPILERS = ("clang++" if sys.platform == "darwin" else "g++",)
"""The compiler with which torch compiles C++ where CXX names none."""


def _missing_compiler(language: str, variable: str, usual: Sequence[str]) -> str:
    named = os.environ.get(variable)
    if named is not None:
        return "" if shutil.which(named) else f"{variable} is {named!r}, which is no program here"
    if any(map(shutil.which, usual)):
        return ""
    return f"there is no {language} compiler ({', '.join(usual)}, or what {variable} names)"


def is_compiled(asked: Literal["blocks"] | bool | None, device: torch.device) -> bool:
    """Whether blocks are compiled: as asked; on CUDA, where this machine can, if nothing was asked for.

    Raises Gpt2UsageError for what was asked for and this machine can't compile.
    """
    missing = missing_for_compilation(device, is_asked=bool(asked))
    if asked and missing:
        raise Gpt2UsageError(f"--compile: {missing}; install it, or give --no-compile.")
    return bool(asked) if asked is not None else device.type == "cuda" and not missing


def apply_compile(model: GPT2) -> None:
    """Compile each block and the output: whole, since a break would silently leave most uncompiled.

    The forward method is compiled, since the hooks around it (FSDP's) can't be.
    """
    for number, block in enumerate(model.blocks):
        # Isolated, the first block takes none of the graphs that torch allows the others' code.
        block.forward = torch_private.compiled_whole(block.forward, isolated=number == 0)
    model.logits = torch_private.compiled_whole(model.logits, isolated=False)  # type: ignore[method-assign]
