"""`gpt2 train --minutes`: a length in time, turned into a number of optimizer steps once, when the run begins.

The number is fixed before the first step, so that warm-up and decay are those of `--steps`, and the run is, to the last
bit, the one that `--steps` with this number gives. Each checkpoint records it: a run that resumes keeps it, whatever
the machine's speed by then. Needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpt2_train.checkpoint.info import CheckpointInfo
from gpt2_train.config import TrainSettings
from gpt2_train.errors import Gpt2UsageError

UNSETTLED = sys.maxsize
"""The steps of a run whose time budget is not yet turned into steps."""

STATE_KEY = "time_budget"

EVALUATION_SHARE = 1 / 3
"""What a sequence costs in an evaluation, a forward pass, as a share of what it costs in training."""


@dataclass(frozen=True)
class TimeBudget:
    """How many steps a time budget was found to hold.

    Attributes:
        minutes: asked for.
        steps: that fit.
    """

    minutes: float
    steps: int

    def steps_in(self, minutes: float) -> int:
        """The steps of a run of `minutes` at the same speed."""
        return max(1, round(self.steps * minutes / self.minutes))

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {STATE_KEY: {"minutes": self.minutes, "steps": self.steps}}


def recorded_budget(settings: TrainSettings, resumed: CheckpointInfo | None) -> TimeBudget | None:
    """The time budget of the run that is resumed, None if it had none or is new.

    Raises Gpt2UsageError if the settings ask for minutes and it had none: what its steps took is not known.
    """
    found: Mapping[str, Any] | None = resumed.state.get(STATE_KEY) if resumed is not None else None
    if found is not None:
        return TimeBudget(found["minutes"], found["steps"])
    if resumed is not None and settings.minutes is not None:
        raise Gpt2UsageError(
            f"{settings.output} holds a run that did not begin with --minutes: give its length as --steps, --epochs or "
            "--tokens, or another --output."
        )
    return None


def steps_that_fit(seconds: float, step_seconds: float, evaluation: float, evaluate_every: int) -> int:
    """Optimizer steps that fit into `seconds`, at least 1.

    Args:
        seconds: what is left of the time budget.
        step_seconds: of one step.
        evaluation: the cost of one evaluation, in steps; there is one at the end.
        evaluate_every: steps between evaluations, 0 for none but the last.
    """
    each = 1 + (evaluation / evaluate_every if evaluate_every else 0)
    return max(1, int((seconds / step_seconds - evaluation) / each))
