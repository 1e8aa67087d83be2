"""Copies of the weights in half precision, made once per step, where autocast makes them in each micro-batch.

The parameters stay in float32; autocast casts each one that is multiplied, in every forward pass. Here a copy is kept
and made again only when the optimizer has moved the weights: the first pass after that does it, for all matrices at
once, or block by block as FSDP2 gathers them. The gradient of a copy is added to that of its parameter as it comes, in
half precision, where autocast makes one in float32 first. Values and gradients are the same as with autocast, to the
last bit (for the tied matrix but for the order of a sum). It costs no memory where activations are kept, since the
backward pass needs the cast weights then; where they are recomputed, weights are left to autocast.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from gpt2_train.distributed.mesh import World
from gpt2_train.model.gpt2 import DTYPES, GPT2


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
        torch._foreach_copy_([copy for copy, _ in pairs], [parameter for _, parameter in pairs])
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
