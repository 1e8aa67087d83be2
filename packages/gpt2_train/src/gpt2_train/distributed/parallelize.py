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

Weights are copied in half precision once per step (`HalfCopies`), where autocast does so in each micro-batch. The
parameters stay in float32; autocast casts each one that is multiplied, in every forward pass. Here a copy is kept and
made again only when the optimizer has moved the weights: the first pass after that does it, for all matrices at once,
or block by block as FSDP2 gathers them. The gradient of a copy is added to that of its parameter as it comes, in half
precision, where autocast makes one in float32 first. Values and gradients are the same as with autocast, to the last
bit (for the tied matrix but for the order of a sum). It costs no memory where activations are kept, since the backward
pass needs the cast weights then; where they are recomputed, weights are left to autocast.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import sys
import sysconfig
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.distributed.device import unkept_random_state
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.tensor_parallel import apply_tensor_parallel
from gpt2_train.model.gpt2 import DTYPES, GPT2


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
    sequence_parallel: bool = False,
) -> GPT2:
    """Put all that is asked for on `model`, in place, in the one order that works; returns it.

    In a single process only checkpointing and compilation remain. Raises as `apply_tensor_parallel` does.
    """
    if world.tp_size > 1:
        apply_tensor_parallel(model, world, sequence_parallel=sequence_parallel)
    apply_activation_checkpointing(model, activation_checkpointing, world.device)
    if compiled:
        apply_compile(model)
    if world.dp_size > 1:
        apply_data_parallel(model, world, reshard=reshard)
    return model


def synchronize_gradients(model: nn.Module, is_last: bool, *, reshard: bool = False) -> None:
    """Say whether the coming backward pass is the last of its step: only that one exchanges gradients.

    With `reshard` all of them share gradients out, and only the last one adds up the gradients of several copies.
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


Contexts = tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]
"""What surrounds the forward pass, and what surrounds its repetition."""

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
    """What `torch.compile` needs for a device and this machine lacks, as the end of a sentence; "" if nothing.

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
"""What torch compiles C++ with where CXX names nothing."""


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
    options: dict[str, Any] = {"dynamic": False, "fullgraph": True}
    for number, block in enumerate(model.blocks):
        # Isolated, the first block takes none of the graphs that torch allows the others' code. (Not in the stubs.)
        block.forward = torch.compile(block.forward, **options | {"isolate_recompiles": number == 0})
    model.logits = torch.compile(model.logits, **options)  # type: ignore[method-assign]


class _LinearByCopies(nn.Linear):
    """A linear layer that multiplies by copies of its parameters."""

    weight_copy: Tensor
    bias_copy: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight_copy, self.bias_copy)


def half_copies(
    model: GPT2,
    world: World,
    precision: str,
    activation_checkpointing: Literal["none", "full", "selective"],
    *,
    reshard: bool = False,
) -> HalfCopies | None:
    """Copies of the weights of a model that is trained; None where there is nothing to gain, or memory to lose.

    That is in fp32, with activation checkpointing, where gathered parameters are dropped after each use (`reshard`),
    and with tensor parallelism, whose processes cast a share each.
    """
    if precision == "fp32" or activation_checkpointing != "none" or reshard or world.tp_size > 1:
        return None
    return HalfCopies(model, DTYPES[precision])


class HalfCopies:
    """Makes the linear layers of a model multiply by copies of their parameters; forward passes need autocast then.

    Args:
        model: on its device, whole or shared out by FSDP2; not split by tensor parallelism.
        dtype: of the copies: autocast's.
    """

    def __init__(self, model: GPT2, dtype: torch.dtype) -> None:
        # What FSDP2 gathers as one is copied as one: its hooks, which come first, have the whole parameters there.
        gathered: list[nn.Module] = [module for module in model.modules() if isinstance(module, FSDPModule)]
        gathered = gathered or [model]
        # A layer belongs to the innermost of them, which comes last.
        owners = {layer: owner for owner in gathered for layer in owner.modules() if isinstance(layer, nn.Linear)}
        self._layers: dict[nn.Module, list[_LinearByCopies]] = {module: [] for module in gathered}
        for layer, owner in owners.items():
            self._layers[owner].append(_with_copies(layer, dtype))
        for module in gathered:
            module.register_forward_pre_hook(self._refresh)
        self.expire()

    def expire(self) -> None:
        """Say that the weights have changed: the next forward pass copies them again."""
        self._stale = {module for module, layers in self._layers.items() if layers}

    @torch.no_grad()
    def _refresh(self, module: nn.Module, _: Any) -> None:
        if module not in self._stale:
            return
        pairs = [
            (copy, parameter)
            for layer in self._layers[module]
            for copy, parameter in ((layer.weight_copy, layer.weight), (layer.bias_copy, layer.bias))
            if copy is not None
        ]
        torch_private.foreach_copy([copy for copy, _ in pairs], [parameter for _, parameter in pairs])
        self._stale.remove(module)


def _with_copies(layer: nn.Linear, dtype: torch.dtype) -> _LinearByCopies:
    """`layer` itself, as one that has copies."""
    layer.__class__ = _LinearByCopies
    assert isinstance(layer, _LinearByCopies)
    device = layer.weight.device
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        copy = None
        if parameter is not None:
            # Of the whole shape also where this process holds a share.
            copy = torch.empty(parameter.shape, dtype=dtype, device=device, requires_grad=True)
            # Weakly, since the layer has the copy: Python finds no circle through a tensor's hooks.
            copy.register_post_accumulate_grad_hook(functools.partial(_give_gradient, weakref.ref(layer), name))
        layer.register_buffer(f"{name}_copy", copy, persistent=False)
    return layer


def _give_gradient(layer: weakref.ref[nn.Linear], name: str, copy: Tensor) -> None:
    """Add the gradient that has come to `copy` to that of the parameter, which FSDP2 has whole then."""
    parameter, gradient = getattr(layer(), name), copy.grad
    assert gradient is not None
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)
    copy.grad = None
