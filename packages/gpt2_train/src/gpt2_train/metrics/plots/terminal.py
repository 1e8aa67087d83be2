"""The losses of runs as a small curve of text: at the end of `gpt2 train`, and by `gpt2 plot` without --output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from command_kit.charts.curves import smoothed
from command_kit.charts.terminal import MARKS, can_show, text_curves
from gpt2_train.metrics.plots.panels import SMOOTHED_SHARE
from gpt2_train.metrics.plots.runs import Run

ROWS, WIDEST, FALLBACK_COLUMNS = 7, 110, 80


def loss_curves(runs: Sequence[Run], stream: TextIO) -> str:
    """The training and validation losses of each run, as wide as `stream`, in characters that it can show."""
    plain = not can_show(stream.encoding)
    return "\n\n".join("\n".join(loss_curve(run, min(_columns(stream), WIDEST), plain=plain)) for run in runs)


def loss_curve(run: Run, columns: int, *, plain: bool = False) -> list[str]:
    """Lines of text with the losses of one run; only what was measured last if there is nothing to draw yet."""
    training, validation = (
        [(float(place.step), value) for place, value in run.values.get(name, ())] for name in ("loss", "valid_loss")
    )
    window = max(1, len(training) // SMOOTHED_SHARE)
    lines = text_curves(
        [smoothed(training, window), validation],
        columns=columns,
        rows=ROWS,
        plain=plain,
        show_up=lambda value: f"{value:.2f}",
        show_across=lambda step: f"{step:,.0f}",
    )
    last = [f"training loss {training[-1][1]:.4f} (line)"] if training else []
    last += [f"validation loss {validation[-1][1]:.4f} ({MARKS[1]})"] if validation else []
    head = f"{run.name}: {', '.join(last) or 'no loss logged yet'}, step {run.last.step:,}"
    return [head, *lines]


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or FALLBACK_COLUMNS
    except (OSError, ValueError):
        return FALLBACK_COLUMNS
