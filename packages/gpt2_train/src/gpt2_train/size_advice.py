"""What a run without a model size would cost on a CPU, and a size that fits the machine."""

from __future__ import annotations

import time

import torch

from command_kit import duration
from gpt2_train.config import ModelConfig

SIZES = ((2, 128, 2), (4, 128, 4), (4, 256, 4), (6, 384, 6), (8, 512, 8), (12, 768, 12))
"""Layers, hidden, heads of models that fit machines from a busy laptop to a large server; the last is 124M."""

PATIENCE = 3600.0
"""Seconds within which a first run should be over."""

EFFICIENCY = 0.6
"""Share of the speed of large matrix products that training on a CPU reaches, all told."""


def size_advice(config: ModelConfig, tokens: int, flops_per_second: float) -> str | None:
    """A sentence on how long `config` takes for `tokens`, and the largest size that takes an hour at most.

    None if `config` itself takes no longer than that.
    """
    seconds = tokens * config.flops_per_token / flops_per_second
    if seconds <= PATIENCE:
        return None
    shapes = [
        ModelConfig(layers, hidden, heads, config.sequence_length, config.vocabulary_size)
        for layers, hidden, heads in SIZES
    ]
    fitting = [shape for shape in shapes if tokens * shape.flops_per_token / flops_per_second <= PATIENCE]
    best = fitting[-1] if fitting else shapes[0]
    needed = tokens * best.flops_per_token / flops_per_second
    return (
        f"no model size given: GPT-2's smallest, 124M, would take roughly {in_words(seconds)} on this CPU; "
        f"--layers {best.layers} --hidden {best.hidden} --heads {best.heads} would take {in_words(needed)}."
    )


def in_words(seconds: float) -> str:
    """`12:30`, `3:05:00`, or from two days on `9 days`."""
    return f"{seconds / 86400:,.0f} days" if seconds >= 2 * 86400 else duration(seconds)


def cpu_flops(seconds: float = 0.2, size: int = 768) -> float:
    """FLOPs per second of training on this process's threads, judged from matrix products for some `seconds`."""
    matrix = torch.ones(size, size)
    count, start = 0, time.monotonic()
    while count < 2 or time.monotonic() - start < seconds:
        matrix @ matrix
        count += 1
    return EFFICIENCY * 2 * size**3 * count / (time.monotonic() - start)
