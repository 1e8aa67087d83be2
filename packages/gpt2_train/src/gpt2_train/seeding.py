"""Seeds: all random numbers of a run follow from its seed and from where they are drawn.

Each micro-step begins by seeding from (seed, step, micro-step, data-parallel rank), so that dropout repeats exactly
when a run resumes and differs between data-parallel ranks. Tensor-parallel ranks seed the device's generator each for
itself, for the attention weights of their own heads, and share the seeds of the residual stream's dropout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from gpt2_train.world import World


def mixed_seed(*numbers: int) -> int:
    """One well-mixed 63-bit seed from several numbers."""
    return int(np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_micro_step(model: nn.Module, seed: int, step: int, micro_step: int, world: World) -> None:
    """Make all randomness that follows a function of seed, step, micro-step and this process's place."""
    numbers = (seed, step, micro_step, world.dp_rank)
    if world.tp_size == 1:
        torch.manual_seed(mixed_seed(*numbers))
        return
    torch.manual_seed(mixed_seed(*numbers, world.tp_rank))
    shared: Tensor | None = getattr(model, "dropout_seeds", None)
    if shared is not None:
        state = np.random.SeedSequence(list(numbers)).generate_state(shared.numel(), np.uint32)
        seeds = torch.from_numpy(state.astype(np.int64)).view(shared.shape)
        shared.copy_(seeds.pin_memory() if shared.is_cuda else seeds, non_blocking=True)
