"""`gpt2 plot`: charts of one or more runs, from what they recorded, also while they are running.

Without --output the losses are drawn in the terminal. Needs no torch, nor anything beyond the packages installed with
`gpt2`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Literal

from command_kit import add_flags, setting, settings_from, write_text
from command_kit.errors import meant
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import given
from gpt2_train.metrics.plots import KEYS, View, loss_curves, page, panels_of
from gpt2_train.metrics.records import read_runs

EXAMPLE = """\
example:
  gpt2 plot runs/quickstart/model
  gpt2 plot runs/quickstart/model --output work/losses.html
  gpt2 plot small=runs/quickstart/model large=work/model --x tokens --only loss,validation --output work/both.html
"""


@dataclasses.dataclass(frozen=True)
class PlotSettings:
    """The settings of `gpt2 plot`. Raises Gpt2UsageError for one that is missing or unknown."""

    runs: tuple[str, ...] = setting(
        (), "folders of `gpt2 train`, each with a name for it if that is wanted", metavar="[NAME=]RUN", positional=True
    )
    output: str = setting(
        "", "the page to write, with all charts; without it the losses are drawn in the terminal",
        metavar="FILE.html",
    )  # fmt: skip
    x: Literal["steps", "tokens", "time"] = setting("steps", "what the charts go by")
    only: str = setting(
        "", "what to draw, separated by commas: loss, validation, learning-rate, throughput, gradient-norm, tasks",
        metavar="NAME,...",
    )  # fmt: skip
    log: str = setting("", "which of these get an axis of orders of magnitude", metavar="NAME,...")
    smooth: int | None = setting(
        None,
        "logged rows that each point of a noisy curve is the mean of, 1 for none; one in 50 of its rows without it",
        ge=1,
    )
    title: str = setting("", "the heading; the names of the runs without it")

    def __post_init__(self) -> None:
        if not self.runs:
            raise Gpt2UsageError("gpt2 plot needs a RUN: give the folder that `gpt2 train --output` wrote.")
        if self.output and Path(self.output).suffix.lower() != ".html":
            raise Gpt2UsageError(f"--output {self.output} should end in .html: charts are written as a page alone.")
        of_files = sorted(given(self) - {"runs", "output"})
        if of_files and not self.output:
            raise Gpt2UsageError(f"--{of_files[0]} is for a file: name one with --output, too.")
        for flag, names in (("--only", self.only), ("--log", self.log)):
            for name in _parts(names):
                if name not in KEYS:
                    raise Gpt2UsageError(f"{flag} {names}: no {name}; {meant(name, KEYS)}known are {', '.join(KEYS)}.")


SETTINGS = PlotSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 plot` to `parser`."""
    parser.epilog = EXAMPLE
    add_flags(parser, PlotSettings)


def run(arguments: argparse.Namespace) -> int:
    """Carry out `gpt2 plot`; returns the exit code. Raises Gpt2Error."""
    print(plot(settings_from(PlotSettings, arguments, command="plot")))
    return 0


def plot(settings: PlotSettings) -> str:
    """Draw what `settings` ask for; returns the text to print.

    Raises Gpt2UsageError for a folder without a run.
    """
    runs = read_runs(settings.runs)
    if not settings.output:
        return loss_curves(runs, sys.stdout)
    view = View(settings.x, _parts(settings.only), _parts(settings.log), settings.smooth)
    panels = panels_of(runs, view)
    output = Path(settings.output)
    if output.is_dir():
        raise Gpt2UsageError(f"--output {output} is a folder: give the name of a file, such as {output / 'plot.html'}.")
    title = settings.title or ", ".join(run.name for run in runs)
    write_text(output, page.html(panels, runs, title))
    return f"plot: {output}"


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.replace(" ", "").split(",") if part)
