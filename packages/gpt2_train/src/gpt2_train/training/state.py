"""What came of a step (`StepResult`), and the state of a run from step to step (`TrainState`).

`TrainState` is the one object of a run that changes: trainer and recorder share it.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from command_kit.colours import is_terminal
from gpt2_train.optim.gradients import LossScale
from gpt2_train.training.plan import EVALUATION_SHARE, TimePlan
from gpt2_train.training.setup import Run

REDRAW_SECONDS, LINE_SECONDS = 0.5, 30.0
"""Seconds between two lines that show where a run is, if no step is logged meanwhile: on a terminal, and in a log."""


class Heartbeat:
    """The clock of lines between logged ones, by which a slow run shows that it lives.

    Args:
        every: seconds between lines.
        now: the clock.
    """

    def __init__(self, every: float, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every, now
        self._last = now()

    def is_due(self) -> bool:
        """Whether the last line is long enough ago; if so, the next one is counted from now."""
        if self._now() - self._last < self._every:
            return False
        self.reset()
        return True

    def reset(self) -> None:
        """A line was shown now."""
        self._last = self._now()


@dataclasses.dataclass
class TrainState:
    """The state that changes from step to step.

    Attributes:
        scale: the loss scale of fp16.
        heartbeat: says when a line is due though no step is.
        step: optimizer steps taken.
        steps: the last step of the run, as planned by now; None in the first steps of a run by time.
        rate: the learning rate of the last step.
        loss: of the last step, in nats per token.
        valid_loss: of the last validation.
        checkpoint: the newest one, None before the first.
        saved_step: its step, -1 before the first.
        stop_signal: the signal that ends the run, 0 for none.
        time: plans the steps of a run by time; None for a run by steps.
        scheduled: steps of the run by which the rate of the last step was computed.
        logged: steps of the run in the last row.
        norm: of the gradient of the last step.
        timed_steps: since the last row of steps.
        seconds, waited: that these took, and that they waited for data.
    """

    scale: LossScale
    heartbeat: Heartbeat
    step: int = 0
    steps: int | None = None
    rate: float = 0.0
    loss: float | None = None
    valid_loss: float | None = None
    checkpoint: Path | None = None
    saved_step: int = -1
    stop_signal: int = 0
    time: TimePlan | None = None
    scheduled: int | None = None
    logged: int | None = None
    norm: float = math.nan
    timed_steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    _first_seconds: float = 0.0
    _run_start: float | None = None
    _run_steps: int = 0

    @classmethod
    def of(cls, run: Run) -> TrainState:
        """The state in which `run` begins or resumes, its `time` aside."""
        scale, info = LossScale.for_precision(run.plan.precision), run.resumed
        saved = info.state if info is not None else {}
        steps, used, minutes = run.plan.steps, run.plan.used, run.settings.minutes
        if steps is None and used is not None and minutes is not None:
            steps = used.planned(run.step, minutes)
        if info is not None:
            scale.restore(saved)
        return cls(
            scale,
            Heartbeat(REDRAW_SECONDS if is_terminal(sys.stderr) else LINE_SECONDS),
            step=run.step,
            steps=steps,
            loss=saved.get("loss"),
            valid_loss=saved.get("valid_loss"),
            checkpoint=info.folder if info is not None else None,
            saved_step=run.step if info is not None else -1,
        )

    def goes_past(self, step: int) -> bool:
        """Whether more steps follow `step`, as far as is known."""
        return self.steps is None or step < self.steps

    def count_step(self, result: StepResult, seconds: float, processes: int) -> None:
        """Take the figures of a step that took `seconds`."""
        self.loss, self.norm = result.loss, result.norm
        self.timed_steps, self.seconds = self.timed_steps + 1, self.seconds + seconds
        self.waited += result.waited / processes
        if self._run_start is None:
            # The first step also pays for compiling and warming up: once there is a second, only that counts.
            self._run_start, self._first_seconds = time.monotonic(), seconds
        else:
            self._run_steps += 1

    def seconds_left(self) -> float | None:
        """Seconds to the last step, evaluations and saving included; None before the first, or where it is not known
        which one is the last."""
        if self._run_start is None or self.steps is None:
            return None
        steps = self.steps - self.step
        if not self._run_steps:
            return self._first_seconds * steps
        return (time.monotonic() - self._run_start) / self._run_steps * steps

    def begin_row(self) -> None:
        """Time the steps of the next row."""
        self.timed_steps, self.seconds, self.waited = 0, 0.0, 0.0
        self.heartbeat.reset()

    def for_checkpoint(self, run: Run) -> dict[str, Any]:
        """The plain values that a checkpoint stores for a run that resumes."""
        # A run that goes on by steps keeps the time that it had used before.
        used = self.time.used(self.steps or self.step + 1) if self.time is not None else run.plan.used
        return (
            self.scale.state()
            | {"rate": self.rate, "loss": self.loss, "valid_loss": self.valid_loss}
            | (run.plan.attention.state() if run.plan.attention is not None else {})
            | (used.state() if used is not None else {})
        )


class StepResult:
    """What came of a step, over all processes: on its device, from which its copy to the host starts at once, until it
    is `read`.

    Attributes, once it is read:
        step: its number.
        loss: mean over the predictions of the batch, in nats.
        norm: of the gradient; infinite or NaN if that is.
        waited: seconds for the batch to be read, in all processes together.
        signal: above 0 if one of them was asked to stop.
        failed_save: above 0 if one of them could not save in the background.
        steps: that the first process plans for a run by time; 0 for no new plan.

    Args:
        norm: a scalar on the device.
        sums: (5,), the others in their order.
    """

    loss: float
    norm: float
    waited: float
    signal: float
    failed_save: float
    steps: float

    def __init__(self, step: int, norm: Tensor, sums: Tensor) -> None:
        self.step = step
        values = torch.cat([norm[None], sums])
        self._values, self._copied = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> None:
        """Set the attributes; the first call waits until the device has computed them."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        self.norm, self.loss, self.waited, self.signal, self.failed_save, self.steps = self._values.tolist()


def open_time_plan(run: Run, *, late: int) -> TimePlan | None:
    """The plan of the steps of a run by time; None for a run by steps. `late` as in `TimePlan`."""
    settings = run.settings
    if settings.minutes is None:
        return None
    batches = run.validation.epoch_samples / settings.global_batch_size if run.validation is not None else 0.0
    return TimePlan(
        settings.minutes,
        run.plan.used,
        decides=run.world.rank == 0,
        late=late,
        evaluation=min(batches, settings.eval_sequences / settings.global_batch_size) * EVALUATION_SHARE,
        evaluate_every=settings.eval_every if batches else 0,
        parameters=run.config.parameters if settings.save else 0,
    )


def summary(run: Run, state: TrainState) -> dict[str, Any]:
    """The object that `--json` prints at the end of a run, its duration aside."""
    return {
        "output": str(run.folder),
        "parameters": run.config.parameters,
        "steps": state.steps,
        "step": state.step,
        "tokens": state.step * run.plan.tokens_per_step,
        "epochs": run.epochs(state.step),
        "loss": state.loss,
        "valid_loss": state.valid_loss,
        "checkpoint": str(state.checkpoint) if state.checkpoint else None,
        "stopped_by": signal.Signals(state.stop_signal).name if state.stop_signal else None,
    }
