"""The state of a run from step to step, and its report at the end.

`TrainState` is the one object of a run that changes: trainer, recorder and results share it. `StepResults` reads what
came of each step: at once, or, on CUDA, while the device computes the next one.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from command_kit.colours import is_terminal
from gpt2_train.checkpoint.save import Saver
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.optim.gradients import LossScale
from gpt2_train.training.plan import EVALUATION_SHARE, TimePlan
from gpt2_train.training.setup import Run


class StepClock:
    """Adds up what happened since the last logged row: steps, time, and time spent waiting for data."""

    def __init__(self) -> None:
        self.norm = math.nan
        self.timed_steps, self.seconds, self.waited = 0, 0.0, 0.0
        self._first_seconds = 0.0
        self._run_start: float | None = None
        self._run_steps = 0

    def add(self, norm: float, seconds: float, waited: float) -> None:
        """Count one step."""
        self.norm = norm
        self.timed_steps, self.seconds, self.waited = self.timed_steps + 1, self.seconds + seconds, self.waited + waited
        if self._run_start is None:
            # The first step also pays for compiling and warming up: once there is a second, only that counts.
            self._run_start, self._first_seconds = time.monotonic(), seconds
        else:
            self._run_steps += 1

    def seconds_left(self, steps: int) -> float | None:
        """Seconds that `steps` more steps will take, evaluations and saving included; None before the first step."""
        if self._run_start is None:
            return None
        if not self._run_steps:
            return self._first_seconds * steps
        return (time.monotonic() - self._run_start) / self._run_steps * steps

    def reset(self) -> None:
        """Begin the next row."""
        self.timed_steps, self.seconds, self.waited = 0, 0.0, 0.0


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
        clock: times since the last logged step.
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
    """

    scale: LossScale
    clock: StepClock
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
            StepClock(),
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


class StepSums(NamedTuple):
    """Numbers that each process shares in a step, and their sums over all of them, on the device.

    Attributes:
        loss: its part of the mean over the batch.
        waited: seconds for the batch to be read.
        predictions: that count in the loss.
        signal: that asks it to stop, 0 for none.
        failed_save: 1 if a save in the background has failed.
        steps: that the first process plans for a run by time; 0 for no new plan.
    """

    loss: Any
    waited: Any
    predictions: Any
    signal: Any
    failed_save: Any
    steps: Any


class StepFigures(NamedTuple):
    """Figures of a step, all processes together: loss and norm of the gradient, the rest as in `StepSums`."""

    loss: Any
    norm: Any
    waited: Any
    signal: Any
    failed_save: Any
    steps: Any


class StepResult:
    """The figures of a step, on its device, whose copy to the host starts at once.

    Args:
        step: its number.
        figures: scalars of one type.
    """

    def __init__(self, step: int, figures: StepFigures) -> None:
        self.step = step
        values = torch.stack(figures)
        self._values, self._copied = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> StepFigures:
        """The figures as numbers; the first call waits until the device has computed them."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return StepFigures(*self._values.tolist())


class StepResults:
    """Checks and records the results of steps; all processes do so together.

    With `is_late` (CUDA, except in fp16, where an overflow repeats a step) a result is read when the gradient of the
    next step was given to the device, so that neither waits for the other. Until it is settled, it is `pending`.

    Args:
        run, state: of the training.
        saver: its failures end the run.
        stop: whether this process was asked to stop.
        is_late: see above.
    """

    def __init__(self, run: Run, state: TrainState, saver: Saver, stop: StopRequest, *, is_late: bool) -> None:
        self.run, self.state, self.saver, self.stop, self.is_late = run, state, saver, stop, is_late
        self.pending: StepResult | None = None
        self._begin = 0.0

    def begin_step(self) -> None:
        """Start timing a step, unless the one before it is still timed."""
        if not self.is_late:
            self.settle()
        if self.pending is None:
            self._begin = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Do not count `seconds` that have just passed as part of a step."""
        self._begin += seconds

    def sum_up(self, step: int, loss: Tensor, waited: float, predictions: int) -> StepSums:
        """The sums over all processes of what this one has computed in `step`, and of what it has to say."""
        steps = float(self.state.time.plan(step)) if self.state.time is not None else 0.0
        said = [waited, float(predictions), float(self.stop.signal), float(self.saver.has_failed), steps]
        return StepSums(*self.run.world.sum_on_device(loss, said))

    def take(self, result: StepResult) -> bool:
        """Keep the result of a step until `settle`; whether the weights may move: not after an overflow of fp16.

        Raises as `settle` does: on late results for the step before.
        """
        if self.is_late:
            self.settle()
        elif not self._is_finite(result):
            return False
        self.pending = result
        return True

    def settle(self) -> None:
        """Check and record the result that is pending, if there is one.

        Raises Gpt2Error if a save has failed, or if the gradient is not finite and a lower fp16 loss scale can't help.
        """
        result, self.pending = self.pending, None
        if result is None:
            return
        if self.is_late:
            self._is_finite(result)
        figures, now = result.read(), time.monotonic()
        self.state.clock.add(figures.norm, now - self._begin, figures.waited / self.run.world.size)
        self._begin, self.state.loss = now, figures.loss

    def _is_finite(self, result: StepResult) -> bool:
        """Whether the gradient was finite; also learn which signals, failed saves and decisions were shared."""
        figures = result.read()
        if figures.failed_save:
            # Processes notice it at different moments; here all of them raise it.
            self.saver.finish()
        # Signals need not reach all processes alike: any one of them stops all, at the same step.
        self.state.stop_signal = self._signal_of_any() if figures.signal else 0
        if math.isfinite(figures.norm):
            self.state.steps = round(figures.steps) or self.state.steps
            return True
        if not self.state.scale.is_active:
            raise Gpt2Error(
                f"the gradient of step {result.step:,} is not finite (loss {figures.loss:g}): the run diverged; "
                f"{self._way_back()}."
            )
        if not self.state.scale.after_overflow():
            raise Gpt2Error(
                f"the gradients of step {result.step:,} are infinite at any fp16 loss scale: the run diverged; "
                f"{self._way_back()}, or use --precision bf16 or fp32."
            )
        return False

    def _way_back(self) -> str:
        """Advice that can be followed: a run keeps its --lr, so that another one begins, from its weights if they are
        saved."""
        if self.state.checkpoint is None:
            return "nothing was saved before; begin again with a lower --lr in another --output"
        return f"begin another run, with a lower --lr and --output, by --init-from {self.state.checkpoint}"

    def is_stopped(self) -> bool:
        """Whether any process was asked to stop; all of them ask together."""
        self.settle()
        if not self.state.stop_signal and self.run.world.sum_over_processes([float(self.stop.signal)])[0]:
            self.state.stop_signal = self._signal_of_any()
        return bool(self.state.stop_signal)

    def _signal_of_any(self) -> int:
        return max(on_all_ranks(lambda: self.stop.signal))


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
