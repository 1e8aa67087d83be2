"""What moves from step to step in a run, and what is reported of it at the end."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2_train.training.plan import EVALUATION_SHARE, TimeSchedule
from gpt2_train.training.setup import Prepared


class StepOutcome:
    """What came of a step: a few numbers on its device, on their way to the host from the start.

    Args:
        step: its number.
        values: float (n,).
    """

    def __init__(self, step: int, values: Tensor) -> None:
        self.step = step
        self._values, self._copied = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[float]:
        """The numbers; waits, the first time, until the device has come so far."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return [float(value) for value in self._values.tolist()]


@dataclasses.dataclass
class TrainState:
    """What moves from step to step.

    Attributes:
        step: optimizer steps taken.
        loss: of the last step, in nats per token.
        valid_loss: of the last validation.
        checkpoint: the newest one, None before the first.
        saved_step: its step, -1 before the first.
        stop_signal: the signal that ends the run, 0 for none.
    """

    step: int = 0
    loss: float | None = None
    valid_loss: float | None = None
    checkpoint: Path | None = None
    saved_step: int = -1
    stop_signal: int = 0

    @classmethod
    def resumed(cls, run: Prepared) -> TrainState:
        """The state in which `run` begins."""
        info = run.resumed
        if info is None:
            return cls()
        return cls(info.step, info.state.get("loss"), info.state.get("valid_loss"), info.folder, info.step)


def open_schedule(run: Prepared, step: int, *, ahead: int) -> TimeSchedule | None:
    """What decides the learning rates and the end of a run by time, after `step`; None for a run by steps.

    `ahead` as in `TimeSchedule`.
    """
    settings = run.settings
    if settings.minutes is None:
        return None
    batches = run.validation.epoch_samples / settings.global_batch_size if run.validation is not None else 0.0
    return TimeSchedule(
        settings.minutes,
        run.plan.used,
        step,
        folder=run.folder if run.world.rank == 0 else None,
        ahead=ahead,
        evaluation=min(batches, settings.eval_batches) * EVALUATION_SHARE,
        evaluate_every=settings.eval_every if batches else 0,
        parameters=run.config.parameters if settings.save else 0,
    )


def summary(run: Prepared, state: TrainState) -> dict[str, Any]:
    """What `--json` prints at the end of a run, its duration aside."""
    return {
        "output": str(run.folder),
        "parameters": run.config.parameters,
        "steps": run.plan.steps,
        "step": state.step,
        "tokens": state.step * run.plan.tokens_per_step,
        "epochs": run.epochs(state.step),
        "loss": state.loss,
        "valid_loss": state.valid_loss,
        "checkpoint": str(state.checkpoint) if state.checkpoint else None,
        "stopped_by": signal.Signals(state.stop_signal).name if state.stop_signal else None,
    }
