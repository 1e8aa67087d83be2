"""The numbers of a run: `metrics.jsonl`, and lines on standard error.

One JSON object per logged step. A run that resumes first cuts off the rows after its checkpoint, so that each step is
there once however often the run was killed. Each row has the `seconds` that the run has trained by then, without the
time between two processes of it.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from command_kit import atomic_file, duration
from command_kit.atomic import sync_file
from gpt2_train.config.errors import shortened
from gpt2_train.config.files import METRICS_FILE, read_records
from gpt2_train.metrics.records import task_name
from gpt2_train.metrics.sinks import Feed

PEAK_FLOPS: dict[str, float | None] = {
    "Laptop": None,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "A40": 150e12,
    "A10G": 70e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,
    "T4": 65e12,
    "RTX 4090 D": None,
    "RTX 4090": 165e12,
    "RTX 3090 Ti": None,
    "RTX 3090": 71e12,
}
"""Dense bf16 or fp16 FLOPs per second with float32 sums, from the makers' data sheets, by words of a GPU's name.

The first that fits counts; None where a longer name is another GPU whose number is not known here.
"""


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The most FLOPs per second that a GPU can do in this precision; None where that is not known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    return peak_flops_of(torch.cuda.get_device_name(device))


def peak_flops_of(gpu: str) -> float | None:
    """The entry of `PEAK_FLOPS` for a GPU's name, compared by whole words: an L40 is not an L4."""
    for words, value in PEAK_FLOPS.items():
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(words)}(?![A-Za-z0-9])", gpu):
            return value
    return None


def cut_rows_after(path: Path, step: int) -> float:
    """Remove from `metrics.jsonl` the rows of steps after `step`, and a last line that was never finished.

    Returns the seconds of training in the last row that stays, 0 if none has them.
    """
    if not path.is_file():
        return 0.0
    kept = [row for row in read_records(path) if row["step"] <= step]
    with atomic_file(path) as file:
        file.writelines(f"{json.dumps(row)}\n".encode() for row in kept)
    return max((row.get("seconds") or 0.0 for row in kept), default=0.0)


class MetricsLog:
    """Appends rows to `metrics.jsonl` and shows them; on processes other than the first it does nothing."""

    def __init__(self, folder: Path, is_first: bool, resumed_step: int) -> None:
        self._path = folder / METRICS_FILE if is_first else None
        self._feeds: list[Feed] = []
        self._begin = time.monotonic()
        if self._path is not None:
            self._begin -= cut_rows_after(self._path, resumed_step)

    def write(self, row: dict[str, Any]) -> None:
        """Add one row, with the seconds so far; a value that JSON has no number for (NaN) is stored as null."""
        if self._path is None:
            return
        row = row | {"seconds": round(time.monotonic() - self._begin, 3)}
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")
        for feed in self._feeds:
            feed.put(clean)

    def flush(self) -> None:
        """Flush the rows so far to the disk: a power cut takes at most those after. Raises OSError."""
        if self._path is not None and self._path.exists():
            sync_file(self._path)

    def send_to(self, feeds: Iterable[Feed]) -> None:
        """Send all rows from now on to `feeds`, too."""
        self._feeds += feeds

    def close(self) -> None:
        """Wait until all that was sent has arrived."""
        for feed in self._feeds:
            feed.close()
        self._feeds.clear()


def step_of(step: int, steps: int | None) -> str:
    """A step as a person reads it; `steps` is their number in the run, None where its last one is not known yet."""
    return f"step {step:,}" if steps is None else f"step {step:,}/{steps:,}"


def line_of(row: dict[str, Any], steps: int | None) -> str:
    """A row as a person reads it, with `steps` as in `step_of`."""
    step = step_of(row["step"], steps)
    if row.get("kind") == "sample":
        # In quotation marks, on one line, with what a terminal would act on made visible.
        return f"{step}  sample  {shortened(row['prompt'])!r} {shortened(row['text'], 100)!r}"
    if row.get("kind") == "task":
        return f"{step}  {_task_line(row)}  ({duration(row['took_seconds'])})"
    if "valid_loss" in row:
        return f"{step}  valid loss {row['valid_loss']:.4f}  ({row['valid_tokens']:,} tokens)"
    parts = [
        step,
        f"loss {row['loss']:.4f}",
        f"lr {row['lr']:.3g}",
        f"grad {row['grad_norm']:.3g}",
        f"{row['tokens_per_second']:,.0f} tokens/s",
    ]
    if "loss_scale" in row:
        parts.append(f"scale {row['loss_scale']:.0f}")
    if row["mfu"] is not None:
        parts.append(f"MFU {row['mfu']:.0%}")
    if row["data_wait_share"] >= 0.05:
        parts.append(f"waiting for data {row['data_wait_share']:.0%}")
    if row["seconds_left"] is not None:
        parts.append(f"{duration(row['seconds_left'])} left")
    return "  ".join(parts)


def _task_line(row: dict[str, Any]) -> str:
    """The name of a task and its figures: its fractions, or, if it has none, its whole numbers, which count."""
    numbers = {name: value for name, value in row["result"].items() if type(value) in (int, float)}
    figures = {name: value for name, value in numbers.items() if isinstance(value, float)} or numbers
    return "  ".join([task_name(row), *(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())])
