"""Seeds: all random numbers of a run follow from its seed and from where they are drawn.

Each micro-step begins by seeding from (seed, step, micro-step, data-parallel rank), so that dropout repeats exactly
when a run resumes and differs between data-parallel ranks. Tensor-parallel ranks seed the device's generator each for
itself, for the attention weights of their own heads, and share the seeds of the residual stream's dropout.

That dropout has a mask that follows from a seed tensor: all must drop the same there, and the device's generator
differs between them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gpt2_train.distributed.mesh import World
from gpt2_train.model.gpt2 import GPT2


def mixed_seed(*numbers: int) -> int:
    """One well-mixed 63-bit seed from several numbers."""
    return int(np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_micro_step(model: nn.Module, seed: int, step: int, micro_step: int, world: World) -> None:
    """Make all randomness that follows a function of seed, step, micro-step and this process's place."""
    numbers = (seed, step, micro_step, world.dp_rank)
    # On a CPU `torch.manual_seed` takes 0.2 ms to note, with a stack trace, what a GPU is to do once it is there.
    seed_all = torch.default_generator.manual_seed if world.device.type == "cpu" else torch.manual_seed
    if world.tp_size == 1:
        seed_all(mixed_seed(*numbers))
        return
    seed_all(mixed_seed(*numbers, world.tp_rank))
    shared: Tensor | None = getattr(model, "dropout_seeds", None)
    if shared is not None:
        state = np.random.SeedSequence(list(numbers)).generate_state(shared.numel(), np.uint32)
        seeds = torch.from_numpy(state.astype(np.int64)).view(shared.shape)
        shared.copy_(seeds.pin_memory() if shared.is_cuda else seeds, non_blocking=True)


class SharedDropout(nn.Module):
    """Dropout with a mask that follows from a seed tensor, the same on all tensor-parallel ranks.

    The device's generator differs between these ranks and is left alone. The seed is a tensor, so that a compiled
    graph takes it as an input, and recomputation in activation checkpointing drops the same elements again.

    Args:
        probability: of an element to be dropped.
        seed: int64 (2,), each below 2^32; whoever changes it in place changes the mask.
        part: which part a process has: concatenated, the parts, all of one size, are the whole tensor.
    """

    def __init__(self, probability: float, seed: Tensor, part: int = 0) -> None:
        super().__init__()
        self.probability, self.part = probability, part
        self.seed: Tensor
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` with elements dropped and the others scaled up, in training; else `x`."""
        if not self.training:
            return x
        count = x.numel()
        index = torch.arange(self.part * count, (self.part + 1) * count, device=x.device).view(x.shape)
        bits = _mixed_bits(_mixed_bits(index ^ self.seed[0]) ^ self.seed[1])
        kept = bits >= round(self.probability * 2**32)
        return x * (kept / (1 - self.probability)).to(x.dtype)


def _mixed_bits(x: Tensor) -> Tensor:
    """A bijection of 32-bit numbers, held in int64, in which each bit of `x` changes half of the result's."""
    for _ in range(2):
        # The factor is small enough for the product to stay below 2^63.
        x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
    return (x >> 16) ^ x


def share_dropout(model: GPT2, device: torch.device | None = None, part: int = 0) -> None:
    """Replace dropout on the residual stream by `SharedDropout`; `seed_micro_step` then seeds it.

    The seeds are on `device`, where the model will be if it has no memory yet. `part` is this process's where each has
    a share of the tokens.
    """
    places = [(module, name) for module in model.modules() for name, child in module.named_children()
              if isinstance(child, nn.Dropout)]  # fmt: skip
    seeds = torch.zeros(len(places), 2, dtype=torch.int64, device=device or model.final_norm.weight.device)
    model.register_buffer("dropout_seeds", seeds, persistent=False)
    for (module, name), seed in zip(places, seeds, strict=True):
        setattr(module, name, SharedDropout(model.config.dropout, seed, part))
