"""The names of what a run writes into its folder, and of the files in a checkpoint. See docs/formats.md."""

from __future__ import annotations

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"
SCHEDULE_FILE = "schedule.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"
AVERAGE_FOLDER = "average"
CACHE_FOLDER = "cache"
SINKS_FOLDER = "sinks"
TENSORBOARD_FOLDER = "tensorboard"
WANDB_FOLDER = "wandb"
LOCK_FILE = ".lock"

OF_A_RUN = (
    CHECKPOINTS_FOLDER,
    AVERAGE_FOLDER,
    METRICS_FILE,
    SCHEDULE_FILE,
    SINKS_FOLDER,
    TENSORBOARD_FOLDER,
    WANDB_FOLDER,
    CACHE_FOLDER,
    CONFIG_FILE,
)
"""What a run writes in its folder, besides the lock."""

CHECKPOINT_FILE = "checkpoint.json"
LATEST_FILE = "latest"
TOKENIZER_FOLDER = "tokenizer"
