"""Counts casts of weights to bf16, and compares copies with autocast, also in data-parallel processes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.mesh import World, make_world
from gpt2_train.distributed.parallelize import (
    HalfCopies,
    free_gathered_parameters,
    parallelize,
    synchronize_gradients,
)
from gpt2_train.model.gpt2 import GPT2

CONFIG = ModelConfig(layers=2, hidden=32, heads=4, sequence_length=16, vocabulary_size=100, dropout=0.1)
TOKENS = torch.arange(32).view(2, 16)


class Casts(TorchDispatchMode):
    """Counts matrices of some shapes that are cast to bf16."""

    def __init__(self, shapes: Collection[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.count = shapes, 0

    @classmethod
    def of_weights(cls, model: GPT2) -> Casts:
        """Those of the linear layers of `model`."""
        return cls({module.weight.shape for module in model.modules() if isinstance(module, torch.nn.Linear)})

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        pairs: list[tuple[Tensor, Tensor]] = []
        if function is torch.ops.aten._foreach_copy_.default:
            pairs = list(zip(args[0], args[1], strict=True))
        elif function is torch.ops.aten._to_copy.default:
            pairs = [(found, args[0])]
        for to, of in pairs:
            is_cast = to.dtype is torch.bfloat16 and of.dtype is torch.float32
            self.count += is_cast and of.shape in self.shapes
        return found


def trained(world: World, *, copied: bool, steps: int = 2, micro_steps: int = 3) -> tuple[list[Tensor], int]:
    """(Gradients of the first step, weights cast) of a few steps in bf16, with an evaluation between two of them."""
    model = GPT2(CONFIG).initialise(torch.Generator().manual_seed(1)).train()
    casts = Casts.of_weights(model)
    parallelize(model, world)
    copies = HalfCopies(model, torch.bfloat16) if copied else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients: list[Tensor] = []
    with casts:
        for step in range(steps):
            for micro in range(micro_steps):
                torch.manual_seed(micro_steps * step + micro)
                synchronize_gradients(model, micro == micro_steps - 1)
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(TOKENS)
                logits.float().square().mean().backward()
            gradients = gradients or [p.grad.clone() for p in model.parameters() if p.grad is not None]
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                model.eval()(TOKENS)
            free_gathered_parameters(model.train())
            optimizer.step()
            optimizer.zero_grad()
            if copies is not None:
                copies.expire()
    return gradients, casts.count


def compare(world: World) -> None:
    """The gradients of autocast, to the last bit, for one cast of each of nine matrices per step.

    Only the tied matrix has three terms, which are added in another order.
    """
    expected, by_autocast = trained(world, copied=False)
    found, by_copies = trained(world, copied=True)
    assert (by_autocast, by_copies) == (9 * 2 * 4, 9 * 2), (by_autocast, by_copies)
    local = [getattr(tensor, "to_local", lambda tensor=tensor: tensor)() for tensor in (*expected, *found)]
    tied, *others = zip(local[: len(expected)], local[len(expected) :], strict=True)
    torch.testing.assert_close(*tied, rtol=1e-6, atol=1e-9)
    assert len(found) == len(expected) > 9 and all(torch.equal(one, other) for one, other in others)


def compare_here() -> None:
    """`compare` in one of several data-parallel processes."""
    compare(make_world(torch.device("cpu"), 1))
