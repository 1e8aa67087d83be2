"""The losses of runs as curves of text: they stand at the end of `gpt2 train`, and are what `gpt2 plot` draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from command_kit.charts.numbers import smoothed
from command_kit.charts.terminal import MARKS, can_show, text_curves
from command_kit.colours import columns_of
from gpt2_train.metrics.records import RecordedRun

ROWS, WIDEST = 7, 110
SMOOTHED_SHARE = 50
"""The number of points of a smoothed curve: each is the mean of as many rows."""


def loss_curves(runs: Sequence[RecordedRun], stream: TextIO) -> str:
    """The training and validation losses of each run, as wide as `stream`, in characters that it can show."""
    plain = not can_show(stream.encoding)
    return "\n\n".join("\n".join(loss_curve(run, min(columns_of(stream), WIDEST), plain=plain)) for run in runs)


def loss_curve(run: RecordedRun, columns: int, *, plain: bool = False) -> list[str]:
    """Lines of text with the losses of one run; only what was measured last if there is nothing to draw yet."""
    training, validation = (
        [(float(step), value) for step, value in run.values.get(name, ())] for name in ("loss", "valid_loss")
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
    head = f"{run.name}: {', '.join(last) or 'no loss logged yet'}, step {run.last_step:,}"
    return [head, *lines]
