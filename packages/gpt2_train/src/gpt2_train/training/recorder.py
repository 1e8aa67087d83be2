"""What happens between the steps of a run: logging, validation, saving, samples and evaluation tasks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from command_kit import duration
from command_kit.settings import as_table
from gpt2_train.checkpoint.async_save import Saved
from gpt2_train.distributed.device import peak_memory
from gpt2_train.metrics.log import EpochNotes, Heartbeat, MetricsLog, line_of, metrics_row, peak_flops, step_of
from gpt2_train.metrics.sinks import open_feeds
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training.run_folder import write_config
from gpt2_train.training.samples_and_tasks import Observer
from gpt2_train.training.saving import Saver
from gpt2_train.training.setup import Run
from gpt2_train.training.state import StepResults, TrainState, summary
from gpt2_train.training.validate import validation_loss


class Recorder:
    """Records a run while it trains; all its processes call it together.

    Args:
        run, state: of the training.
        model: as it is trained.
        saver: saves its checkpoints.
        results: those of the steps; read before anything is recorded.
    """

    def __init__(self, run: Run, state: TrainState, model: GPT2, saver: Saver, results: StepResults) -> None:
        self.run, self.state, self.model, self.saver, self.results = run, state, model, saver, results
        # A new run keeps nothing of one that was killed in this folder before its first checkpoint.
        self.log = MetricsLog(run.folder, run.world.rank == 0, -1 if run.resumed is None else state.step)
        if run.world.rank == 0:
            table = as_table(run.resolved_settings())
            # Samples and scores of the step that is resumed may still come.
            self.log.send_to(open_feeds(run.settings.log_to, run.folder, table, state.step, run.world.say))
        self.observer = Observer(run, state, model, self.show, results.is_stopped)
        self.peak_flops = peak_flops(run.world.device, run.plan.precision)
        self.epoch_notes, self.heartbeat = EpochNotes(), Heartbeat()

    def write_config(self) -> None:
        """Write `config.toml`, on the first process."""
        if self.run.world.rank == 0:
            write_config(self.run.folder, self.run.resolved_settings())

    def show(self, values: Mapping[str, Any]) -> None:
        """Log a row about the current step, and show it as a line."""
        row = {"step": self.state.step, "tokens": self.state.step * self.run.plan.tokens_per_step, **values}
        self.log.write(row)
        self.run.world.say(line_of(row, self.state.steps))

    def show_micro_batch(self, number: int) -> None:
        """Show after `number` micro-batches how far a long step is, where a line is due."""
        if number < self.run.plan.accumulation and self.heartbeat.is_due():
            step = step_of(self.state.step + 1, self.state.steps)
            self.run.world.say(f"{step}  micro-batch {number:,} of {self.run.plan.accumulation:,}")

    def after_step(self) -> None:
        """Log, validate, save, write samples and run tasks, each where it is due."""
        settings, step = self.run.settings, self.state.step
        is_last = step == self.state.steps
        self.saver.poll()
        if step == 1 or step % settings.log_every == 0 or is_last:
            self.log_step()
        elif self.heartbeat.is_due() and self.state.clock.timed_steps:
            # Each process by its own clock, so nothing may be waited for here that all of them do together.
            self.run.world.say(line_of(self.row(), self.state.steps))
        if self.run.validation is not None and (is_last or (settings.eval_every and step % settings.eval_every == 0)):
            self.validate()
        if is_last or (settings.save_every and step % settings.save_every == 0):
            self.save()
        # After saving, so that a failure or a kill loses nothing.
        self.observe()

    def row(self) -> dict[str, Any]:
        """The numbers since the last logged step, of the steps whose result was read."""
        state, plan = self.state, self.run.plan
        seconds_left = state.schedule.seconds_left if state.schedule is not None else None
        if state.steps is not None:
            seconds_left = state.clock.seconds_left(state.steps - state.step)
        return metrics_row(
            state.clock,
            step=state.step,
            tokens_per_step=plan.tokens_per_step,
            epoch=self.run.epochs(state.step),
            rate=state.rate,
            loss_scale=state.scale.scale if state.scale.is_active else None,
            skipped=state.scale.skipped,
            processes=self.run.world.size,
            flops_per_token=self.run.config.flops_per_token,
            peak_flops=self.peak_flops,
            peak_memory_bytes=peak_memory(self.run.world.device),
            seconds_left=seconds_left,
        )

    def log_step(self) -> None:
        """Log the steps since the last row."""
        for line in self.epoch_notes.lines([stream.corpus.prefix for stream in self.run.training.streams]):
            self.run.world.say(f"{step_of(self.state.step, self.state.steps)}  {line}")
        self.results.finish_pending()
        self.show(self.row())
        self.heartbeat.reset()
        self.state.clock.reset()

    def validate(self) -> None:
        """Measure and log the validation loss."""
        run, schedule = self.run, self.state.schedule
        assert run.validation is not None
        self.results.finish_pending()
        with schedule.evaluating() if schedule is not None else contextlib.nullcontext():
            loss, tokens = validation_loss(
                self.model,
                run.world,
                run.validation,
                samples=run.settings.eval_batches * run.settings.global_batch_size,
                batches=run.batches,
                precision=run.plan.precision,
                compiled=run.plan.compilation is not None,
            )
        self.state.valid_loss = loss
        self.show({"valid_loss": loss, "valid_tokens": tokens})

    def save(self) -> None:
        """Save a checkpoint, unless the settings say otherwise. Raises Gpt2Error as `Saver.save` does."""
        if not self.run.settings.save:
            return
        self.results.finish_pending()
        state = self.state
        state.saved_step = state.step
        self.saver.save(
            goes_on=state.goes_past(state.step) and not state.stop_signal,
            step=state.step,
            samples=state.step * self.run.settings.global_batch_size,
            state=state.for_checkpoint(self.run),
        )

    def observe(self) -> None:
        """Write samples and run tasks that are due, which count for neither a step's time nor --minutes."""
        schedule, began = self.state.schedule, time.monotonic()
        with schedule.paused() if schedule is not None else contextlib.nullcontext():
            self.observer.observe()
        self.results.leave_out(time.monotonic() - began)

    def finish(self) -> None:
        """Save what is not saved yet, and wait for it. Raises Gpt2Error."""
        self.results.finish_pending()
        if self.state.step not in (0, self.state.saved_step):
            self.save()
        self.saver.finish()
        self.saver.close()

    def report(self) -> dict[str, Any]:
        """The run's summary; says so where a signal stopped it."""
        state, found = self.state, summary(self.run, self.state)
        if state.stop_signal:
            saved = "nothing saved (--no-save)"
            if self.run.settings.save:
                saved = "all saved; the same command resumes from here" if state.step else "nothing to save yet"
            length = f" of {state.steps:,}" if state.steps is not None else ""
            self.run.world.say(f"stopped by {found['stopped_by']} at step {state.step:,}{length}, {saved}.")
        return found

    def close(self) -> None:
        """Wait until all rows have arrived where they are sent to."""
        self.log.close()


def note_saved(run: Run, state: TrainState, saved: Saved) -> None:
    """Keep in `state`, and show, that a checkpoint is complete."""
    state.checkpoint = saved.folder
    if state.schedule is not None:
        state.schedule.saving_seconds = saved.seconds
    waited = "" if saved.waited == saved.seconds else f" (training waited {saved.waited:.2f} s)"
    step = step_of(saved.step, state.steps)
    run.world.say(f"{step}  saved {saved.folder} in {duration(saved.seconds)}{waited}")
