"""What changes from step to step in a run, and its report at the end.

`TrainState` is the one object of a run that changes: trainer, recorder and results share it. `StepResults` reads what
came of each step: at once, or, on CUDA, while the device computes the next one.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2_train.checkpoint.save import Saver
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.metrics.log import StepClock
from gpt2_train.optim.gradients import LossScale
from gpt2_train.training.calibrate import THREADS_STATE
from gpt2_train.training.plan import EVALUATION_SHARE, TimeSchedule
from gpt2_train.training.setup import Run


@dataclasses.dataclass
class TrainState:
    """What changes from step to step.

    Attributes:
        scale: the loss scale of fp16.
        clock: losses and times since the last logged step.
        step: optimizer steps taken.
        steps: the last step of the run; None until the clock of a run by time says which it is.
        rate: the learning rate of the last step.
        loss: of the last step, in nats per token.
        valid_loss: of the last validation.
        checkpoint: the newest one, None before the first.
        saved_step: its step, -1 before the first.
        stop_signal: the signal that ends the run, 0 for none.
        schedule: decides rates and end of a run by time; None for a run by steps.
    """

    scale: LossScale
    clock: StepClock
    step: int = 0
    steps: int | None = None
    rate: float = 0.0
    loss: float | None = None
    valid_loss: float | None = None
    checkpoint: Path | None = None
    saved_step: int = -1
    stop_signal: int = 0
    schedule: TimeSchedule | None = None

    @classmethod
    def of(cls, run: Run) -> TrainState:
        """The state in which `run` begins or resumes, its schedule aside."""
        scale, info = LossScale.for_precision(run.plan.precision), run.resumed
        saved = info.state if info is not None else {}
        if info is not None:
            scale.restore(saved)
        return cls(
            scale,
            StepClock(saved.get("loss_sum", 0.0), saved.get("loss_steps", 0)),
            step=run.step,
            steps=run.plan.steps,
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
        used = self.schedule.used(self.step) if self.schedule is not None else run.plan.used
        return (
            self.scale.state()
            | {"loss_sum": self.clock.loss_sum, "loss_steps": self.clock.steps}
            | {"loss": self.loss, "valid_loss": self.valid_loss}
            | (run.plan.attention.state() if run.plan.attention is not None else {})
            | ({THREADS_STATE: torch.get_num_threads()} if run.settings.threads == "auto" else {})
            | (used.state() if used is not None else {})
        )


class StepResult:
    """What came of a step: a few numbers on its device, whose copy to the host starts at once.

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
        """The numbers; the first call waits until the device has computed them."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return [float(value) for value in self._values.tolist()]


class StepResults:
    """Checks and records the results of steps; all processes do so together.

    With `is_late` (CUDA, except in fp16, where an overflow repeats a step) a result is read after the next step was
    given to the device, so that neither waits for the other. Until then it is `pending`.

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
        if self.pending is None:
            self._begin = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Do not count `seconds` that have just passed as part of a step."""
        self._begin += seconds

    def to_share(self, step: int) -> list[float]:
        """What this process tells the others in `step`: a signal, a failed save, how far a run by time is."""
        schedule = self.state.schedule
        progress = [schedule.decide(step)] if schedule is not None else []
        return [float(self.stop.signal), float(self.saver.has_failed), *progress]

    def is_good(self, result: StepResult) -> bool:
        """Whether the weights may move: False for an overflow of fp16. Raises as `check` does."""
        return self.is_late or self.check(result)

    def add(self, result: StepResult) -> None:
        """Record the step just taken; with `is_late` check and record the one before it. Raises as `check` does."""
        if not self.is_late:
            self.record(result)
            return
        self.finish_pending()
        self.pending = result

    def finish_pending(self) -> None:
        """Check and record the result that was not read yet, if there is one. Raises as `check` does."""
        result, self.pending = self.pending, None
        if result is not None and self.check(result):
            self.record(result)

    def check(self, result: StepResult) -> bool:
        """Whether the gradient was finite; also learn which signals, failed saves and decisions were shared.

        Raises Gpt2Error if a save has failed, or if the gradient is not finite and a lower fp16 loss scale can't help.
        """
        loss, norm, _, signals, failed_saves, *progress = result.read()
        if failed_saves:
            # Processes notice it at different moments; here all of them raise it.
            self.saver.finish()
        # Signals need not reach all processes alike: any one of them stops all, at the same step.
        self.state.stop_signal = self._signal_of_any() if signals else 0
        if math.isfinite(norm):
            if progress:
                self._follow(result.step, progress[0])
            return True
        if not self.state.scale.is_active:
            raise Gpt2Error(
                f"the gradient of step {result.step:,} is not finite (loss {loss:g}): the run diverged; "
                "resume from the last checkpoint with a lower --lr in another --output."
            )
        self.state.scale.after_overflow()
        return False

    def _follow(self, step: int, progress: float) -> None:
        """Keep to what the first process said in `step` of a run by time: how far it is, and which step is the last."""
        schedule = self.state.schedule
        if schedule is None or self.state.steps is not None:
            return
        schedule.follow(step, progress)
        if progress == 1:
            self.state.steps = step + schedule.ahead

    def record(self, result: StepResult) -> None:
        """Add a step to the logged figures."""
        loss, norm, waited, *_ = result.read()
        now = time.monotonic()
        self.state.clock.add(loss, norm, now - self._begin, waited / self.run.world.size)
        self._begin = now
        self.state.loss = loss

    def is_stopped(self) -> bool:
        """Whether any process was asked to stop; all of them ask together."""
        self.finish_pending()
        if not self.state.stop_signal and self.run.world.sum_over_processes([float(self.stop.signal)])[0]:
            self.state.stop_signal = self._signal_of_any()
        return bool(self.state.stop_signal)

    def _signal_of_any(self) -> int:
        return max(on_all_ranks(lambda: self.stop.signal))


def open_schedule(run: Run, step: int, *, ahead: int) -> TimeSchedule | None:
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


def summary(run: Run, state: TrainState) -> dict[str, Any]:
    """What `--json` prints at the end of a run, its duration aside."""
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
