"""A model that is being trained, as a plain one: for writing texts and for evaluation tasks between two steps.

The parameters of a training run are sharded (FSDP2, DTensors), and its blocks compiled or recomputed. None of that is
used here: `plain_view` builds the modules again without memory and gives them the very tensors that are trained, so
that inference runs as it does on a checkpoint, in evaluation mode and with shapes of its own, and the training's
modules, graphs and random numbers are not touched. It costs what training holds anyway during a step: all parameters
of this process's tensor-parallel part, gathered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gpt2_train.model import GPT2
from gpt2_train.parallel import World, free_gathered_parameters
from gpt2_train.shards import divide


@contextlib.contextmanager
def plain_view(model: GPT2, world: World) -> Iterator[GPT2]:
    """A plain model, in evaluation mode, with the weights of `model`, which must not be changed meanwhile.

    All processes of the data-parallel groups enter and leave together; in between each computes for itself. With tensor
    parallelism it is this process's part of the model, as `shards.divide` makes it.
    """
    with torch.device("meta"):
        plain = GPT2(model.config)
        if world.tp_group is not None:
            plain = divide(plain, world.tp_group)
    try:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
        for name, parameter in model.named_parameters():
            place, _, leaf = name.rpartition(".")
            setattr(plain.get_submodule(place), leaf, nn.Parameter(_local(parameter), requires_grad=False))
        plain.tie()
        yield plain.eval()
    finally:
        free_gathered_parameters(model)


def _local(parameter: Tensor) -> Tensor:
    """The tensor itself that this process holds of a parameter."""
    detached = parameter.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached
