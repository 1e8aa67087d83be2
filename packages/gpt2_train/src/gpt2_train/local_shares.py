"""This process's shares of parameters and gradients, as plain tensors: what optimizers compute with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """This process's share of `tensor`, as a plain tensor of the same memory."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def part_of(whole: Tensor, parameter: Tensor) -> Tensor:
    """The part of `whole`, which has the global shape of `parameter`, that is this process's share of it: a view."""
    if not isinstance(parameter, DTensor):
        return whole
    # What torch.distributed.checkpoint asks of a tensor: where its one local piece lies.
    (piece,) = parameter.__create_chunk_list__()
    for dimension, (begin, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
        whole = whole.narrow(dimension, begin if size else 0, size)
    return whole


@torch.no_grad()
def fill(module: nn.Module, values: Iterable[tuple[str, Tensor]]) -> None:
    """Give the parameters of `module`, plain or sharded, their values: (name, the whole tensor), one at a time.

    Each process takes its own part; nothing is sent.
    """
    parameters = dict(module.named_parameters())
    for name, whole in values:
        local(parameters[name]).copy_(part_of(whole, parameters[name]))


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient of a parameter that has one."""
    assert parameter.grad is not None
    return parameter.grad


def settle_gradients(parameters: Iterable[Tensor]) -> None:
    """Add up gradients that tensor-parallel processes have in parts, so that each lies as its parameter does."""
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
