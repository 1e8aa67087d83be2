"""Advice on a size of model that fits the machine, where a run on a CPU names none."""

from __future__ import annotations

from command_kit import duration
from gpt2_train.config.settings import ModelConfig

SIZES = ((2, 128, 2), (4, 128, 4), (4, 256, 4), (6, 384, 6), (8, 512, 8), (12, 768, 12))
"""Layers, hidden, heads of models that fit machines from a busy laptop to a large server; the last is 124M."""

FIRST_RUN = 3600.0
"""Seconds within which a first run should be over."""


def size_advice(config: ModelConfig, tokens: int, flops_per_second: float) -> str | None:
    """A sentence on how long `config` takes for `tokens`, and the largest size that takes an hour at most.

    None if `config` itself takes no longer than that.
    """

    def seconds(shape: ModelConfig) -> float:
        return tokens * shape.flops_per_token / flops_per_second

    def in_words(shape: ModelConfig) -> str:
        days = seconds(shape) / 86400
        return f"{days:,.0f} days" if days >= 2 else duration(seconds(shape))

    if seconds(config) <= FIRST_RUN:
        return None
    shapes = [ModelConfig(*size, config.sequence_length, config.vocabulary_size) for size in SIZES]
    best = ([shape for shape in shapes if seconds(shape) <= FIRST_RUN] or shapes[:1])[-1]
    return (
        f"no model size given: GPT-2's smallest, 124M, would take roughly {in_words(config)} on this CPU; "
        f"--layers {best.layers} --hidden {best.hidden} --heads {best.heads} would take {in_words(best)}."
    )
