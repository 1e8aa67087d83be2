"""This process's shares of parameters and gradients, as plain tensors: what optimizers compute with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
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


@torch.no_grad()
def settle_gradients(parameters: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Add up over `group` the gradients of parameters that are whole on each of its processes, in one message.

    With sequence parallelism each of them has the gradient of its own tokens; once all micro-batches of a step are
    through, and data parallelism has averaged them, is early enough. None: there is nothing to add up.
    """
    if group is None:
        return
    gradients = [local(gradient_of(parameter)) for parameter in parameters if is_whole_in(parameter, "tp")]
    together = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(together, group=group)
    parts = together.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)])


def is_whole_in(parameter: Tensor, axis: str) -> bool:
    """Whether each process along an axis of the mesh has the same part of a parameter."""
    if not isinstance(parameter, DTensor) or axis not in (parameter.device_mesh.mesh_dim_names or ()):
        return True
    assert parameter.device_mesh.mesh_dim_names is not None
    return parameter.placements[parameter.device_mesh.mesh_dim_names.index(axis)].is_replicate()
