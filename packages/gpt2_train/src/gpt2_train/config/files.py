"""The names of what a run writes into its folder, how its rows and settings are read, and the files of a checkpoint.

See docs/formats.md. Rows are read from `metrics.jsonl`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_kit import parse_json
from command_kit.settings import command_table, read_toml

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"
CACHE_FOLDER = "cache"
SINKS_FOLDER = "sinks"
TENSORBOARD_FOLDER = "tensorboard"
WANDB_FOLDER = "wandb"
LOCK_FILE = ".lock"

OF_A_RUN = (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    SINKS_FOLDER,
    TENSORBOARD_FOLDER,
    WANDB_FOLDER,
    CACHE_FOLDER,
    CONFIG_FILE,
)
"""The entries that a run writes in its folder, besides the lock."""

CHECKPOINT_FILE = "checkpoint.json"
LATEST_FILE = "latest"


def read_records(path: Path, size: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of `metrics.jsonl`, without a line that is being written or was cut by a crash.

    With `size` only rows in the first `size` bytes.
    """
    with path.open("rb") as file:
        at = 0
        for line in file:
            at += len(line)
            if size is not None and at > size:
                return
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict) and is_number(row.get("step")):
                yield row


def is_number(value: Any) -> bool:
    """Whether a value of a JSON object is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def run_settings(folder: Path) -> dict[str, Any]:
    """The settings that the run in `folder` has recorded. Raises UsageError if they can't be read."""
    return command_table(read_toml(folder / CONFIG_FILE), "train")
