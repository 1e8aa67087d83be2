"""`--micro-batch-size auto`: the largest micro-batch that divides a process's share of the batch and fits its GPU.

Larger ones keep a GPU busier, up to a point, after which they only take memory: 32,768 tokens, which with GPT-2's
vocabulary are also the last power of two whose logits can be counted in 32 bits, in which kernels are faster. What fits
is worked out (`memory.py`) and not tried, so that all processes and `gpt2 estimate` come to the same. Where the
estimate was wrong, running out of memory lowers it: immediately in a run of one process; in one of several, of which
none knows how far the others are, when the run is started again. Needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_kit import UsageError
from command_kit.settings import as_table, read_toml
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.training.memory import memory_per_rank

GPU_MICRO_BATCH_TOKENS = 32_768
"""Tokens that keep a GPU busy; more at once cost memory and gain nothing."""

MARGIN = 0.1
"""The part of a GPU's free memory that is left for what is not counted: gaps, libraries' and NCCL's workspaces."""

_DECIDE_MEMORY = (
    *("layers", "hidden", "heads", "sequence_length", "vocabulary_size", "global_batch_size", "tensor_parallel"),
    *(
        "data_parallel",
        "data_parallel_replicate",
        "reshard",
        "sequence_parallel",
        "activation_checkpointing",
        "optimizer",
        "documents",
        "device",
    ),
)


def fitting_micro_batch(config: ModelConfig, share: int | None, free: float, **layout: Any) -> int:
    """The largest micro-batch that divides `share` sequences, has at most 32,768 tokens and fits `free` bytes.

    1 if none does. Without a `share` the micro-batch is all of it. `layout` is for `memory_per_rank`.
    """
    most = GPU_MICRO_BATCH_TOKENS // config.sequence_length
    if share is None:
        fitting = (size for size in range(most, 1, -1) if _fits(config, size, size, free, layout))
        return next(fitting, 1)
    most = min(share, most)
    for size in range(most, 1, -1):
        if share % size == 0 and _fits(config, size, share, free, layout):
            return size
    return 1


def _fits(config: ModelConfig, size: int, share: int, free: float, layout: dict[str, Any]) -> bool:
    memory = memory_per_rank(config, micro_batch=size, accumulation=share // size, **layout)
    return memory.peak <= free * (1 - MARGIN)


def choose_micro_batch(
    settings: TrainSettings,
    config: ModelConfig,
    free: float,
    *,
    recorded_in: Path,
    device: str,
    data_parallel: int,
    **layout: Any,
) -> int:
    """The micro-batch of a run whose processes have `free` bytes each: the largest that fits.

    One that began keeps its own, recorded in its `config.toml` (at `recorded_in`), while that fits: results of a run
    that resumes do not change for other roundings. `device` is the kind of device, `data_parallel` and `layout` are for
    `memory_per_rank`.
    """
    share = settings.global_batch_size // data_parallel
    layout |= {
        "data_parallel": data_parallel,
        "data_parallel_replicate": settings.data_parallel_replicate,
        "reshard": settings.reshard,
        "activation_checkpointing": settings.activation_checkpointing,
        "optimizer": settings.optimizer,
        "sequence_parallel": settings.sequence_parallel,
    }
    # As far as it is resolved. What else decides memory is the same in any run that resumes.
    now = as_table(settings) | config.as_table() | {"data_parallel": data_parallel, "device": device}
    recorded = _recorded(recorded_in, {name: now[name] for name in _DECIDE_MEMORY})
    if recorded is not None and share % recorded == 0 and _fits(config, recorded, share, free, layout):
        return recorded
    return fitting_micro_batch(config, share, free, **layout)


def _recorded(path: Path, layout: dict[str, Any]) -> int | None:
    """The micro-batch in a run's `config.toml`, None if there is none, or it is that of another layout."""
    try:
        table = read_toml(path).get("train", {})
    except UsageError:
        return None
    size = table.get("micro_batch_size")
    is_same = all(table.get(name) == value for name, value in layout.items())
    return size if is_same and isinstance(size, int) and size > 0 else None
