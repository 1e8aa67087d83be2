"""The numbers of a run: `metrics.jsonl`, and lines on standard error.

One JSON object a logged step. A run that resumes first cuts off the rows behind its checkpoint, so that each step is
there once however often the run was killed.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from command_kit import atomic_file, duration

PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A40": 150e12,
    "A10G": 70e12,
    "L40S": 362e12,
    "L4": 121e12,
    "B200": 2250e12,
    "V100": 125e12,
    "T4": 65e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bf16 or fp16 FLOPs a second with float32 sums, from the makers' data sheets; longer names first."""

FILE = "metrics.jsonl"


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The most that a GPU can do a second in this precision; None where it is not known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for part, value in PEAK_FLOPS.items() if part in name), None)


def cut_rows_after(path: Path, step: int) -> None:
    """Remove from `metrics.jsonl` the rows of steps after `step`, and a last line that was never finished."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("step", math.inf) <= step:
            kept.append(line + b"\n")
    with atomic_file(path) as file:
        file.writelines(kept)


class MetricsLog:
    """Appends rows to `metrics.jsonl` and shows them; on processes other than the first it does nothing."""

    def __init__(self, folder: Path, is_first: bool, resumed_step: int) -> None:
        self._path = folder / FILE if is_first else None
        if self._path is not None:
            cut_rows_after(self._path, resumed_step)

    def write(self, row: dict[str, Any]) -> None:
        """Add one row; a value that JSON has no number for (NaN) is stored as null."""
        if self._path is None:
            return
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")


class StepClock:
    """Adds up what happened since the last logged row: losses, time, and time spent waiting for data."""

    def __init__(self, loss_sum: float = 0.0, steps: int = 0) -> None:
        self.loss_sum, self.steps = loss_sum, steps
        """Since the last row, also of steps before a resume, so that the logged mean is that of an unbroken run."""
        self.timed_steps, self.seconds, self.waited = 0, 0.0, 0.0
        self._run_start: float | None = None
        self._run_steps = 0

    def add(self, loss: float, seconds: float, waited: float) -> None:
        """Count one step."""
        self.loss_sum, self.steps = self.loss_sum + loss, self.steps + 1
        self.timed_steps, self.seconds, self.waited = self.timed_steps + 1, self.seconds + seconds, self.waited + waited
        if self._run_start is None:
            # The first step also pays for compiling and warming up: the time left is judged from the second on.
            self._run_start = time.monotonic()
        else:
            self._run_steps += 1

    def seconds_left(self, steps: int) -> float | None:
        """How long `steps` more steps will take, evaluations and saving included; None before the second step."""
        if self._run_start is None or not self._run_steps:
            return None
        return (time.monotonic() - self._run_start) / self._run_steps * steps

    def reset(self) -> None:
        """Begin the next row."""
        self.loss_sum, self.steps, self.timed_steps, self.seconds, self.waited = 0.0, 0, 0, 0.0, 0.0


def line_of(row: dict[str, Any], steps: int) -> str:
    """A row as a person reads it."""
    if "valid_loss" in row:
        return f"step {row['step']:,}/{steps:,}  valid loss {row['valid_loss']:.4f}  ({row['valid_tokens']:,} tokens)"
    parts = [
        f"step {row['step']:,}/{steps:,}",
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
