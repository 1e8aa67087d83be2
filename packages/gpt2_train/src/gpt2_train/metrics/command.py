"""`gpt2 plot`: the losses of one or more runs in the terminal, from what they recorded, also while they are running.

Needs no torch, nor anything beyond the packages installed with `gpt2`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import ClassVar

from command_kit import add_flags, setting, settings_from
from command_kit.settings import Removed
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.metrics.curves import loss_curves
from gpt2_train.metrics.records import read_runs

EXAMPLE = """\
example:
  gpt2 plot runs/quickstart/model
  gpt2 plot small=runs/quickstart/model large=work/model
"""
_PAGE = "`webtext report --run RUN` draws runs as a page; TensorBoard and W&B do by `gpt2 train --log-to`"


@dataclasses.dataclass(frozen=True)
class PlotSettings:
    """The settings of `gpt2 plot`. Raises Gpt2UsageError without a run."""

    runs: tuple[str, ...] = setting(
        (), "folders of `gpt2 train`, each with a name for it if that is wanted", metavar="[NAME=]RUN", positional=True
    )

    REMOVED: ClassVar[dict[str, Removed]] = {
        name: Removed(_PAGE) for name in ("output", "x", "only", "log", "smooth", "title")
    }

    def __post_init__(self) -> None:
        if not self.runs:
            raise Gpt2UsageError("gpt2 plot needs a RUN: give the folder that `gpt2 train --output` wrote.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 plot` to `parser`."""
    add_flags(parser, PlotSettings)


def run(arguments: argparse.Namespace) -> int:
    """Carry out `gpt2 plot`; returns the exit code. Raises Gpt2UsageError for a folder without a run."""
    settings = settings_from(PlotSettings, arguments, command="plot")
    print(loss_curves(read_runs(settings.runs), sys.stdout))
    return 0
