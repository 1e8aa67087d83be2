"""The training loop: a prepared run in, a trained model out, as each process runs it.

What a step does is a function of the settings, the step's number and the last checkpoint: batch, learning rate and
dropout follow from the step, so a run that is stopped, killed or made longer continues as if nothing had happened, bit
for bit on CPU with the same number of threads and processes. In a run by time the learning rate follows from the clock,
and what the clock said is recorded. Signals end the loop between two steps, after saving.
`Trainer.fit` is the loop; read `train_step` next, then `after_step`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from command_kit import duration
from command_kit.settings import as_table
from gpt2_train.checkpoint.async_save import BackgroundSaver, Saved
from gpt2_train.checkpoint.info import FOLDER
from gpt2_train.checkpoint.load import model_tensors
from gpt2_train.checkpoint.restore import load_tensors
from gpt2_train.checkpoint.save import Checkpointer
from gpt2_train.config.errors import Gpt2Error, explained_compile_failure
from gpt2_train.data.batches import BatchReader
from gpt2_train.data.micro_batches import MicroBatch
from gpt2_train.distributed.collectives import barrier, group_for_a_thread, on_all_ranks
from gpt2_train.distributed.device import autocast, peak_memory, works_by_itself
from gpt2_train.distributed.dtensors import settle_gradients
from gpt2_train.distributed.parallelize import synchronize_gradients
from gpt2_train.distributed.processes import StopRequest
from gpt2_train.distributed.randomness import seed_micro_step
from gpt2_train.distributed.weight_casts import half_copies
from gpt2_train.metrics.log import (
    EpochNotes,
    Heartbeat,
    MetricsLog,
    StepClock,
    line_of,
    metrics_row,
    peak_flops,
    step_of,
)
from gpt2_train.metrics.sender import open_feeds
from gpt2_train.model.attention_kernels import attention_by
from gpt2_train.model.loss import token_losses
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.optim.gradients import LossScale, gradient_norm
from gpt2_train.optim.schedule import learning_rate, learning_rate_by_time
from gpt2_train.training.calibrate import choose_threads, measured_state
from gpt2_train.training.run_folder import write_config
from gpt2_train.training.samples_and_tasks import Observer
from gpt2_train.training.setup import Prepared, build_model
from gpt2_train.training.state import StepOutcome, TrainState, open_schedule, summary
from gpt2_train.training.validate import validation_loss

CLIP_EPSILON = 1e-6


class Trainer:
    """The model, its optimizer and the loop over steps, in one process of a run."""

    def __init__(self, run: Prepared, stop: StopRequest) -> None:
        self.run, self.stop = run, stop
        self.settings, self.world, self.plan = run.settings, run.world, run.plan
        self.state = TrainState.resumed(run)
        # To the end of `fit`: what is compiled has the kernel in it.
        self.until_the_end = contextlib.ExitStack()
        self.until_the_end.enter_context(attention_by(self.plan.attention))
        self.model = build_model(run)
        mode, reshard = self.settings.activation_checkpointing, self.settings.reshard
        self.copies = half_copies(self.model, self.world, self.plan.precision, mode, reshard=reshard)
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, self.settings, self.world.device)
        self.tensors = model_tensors(self.model) | self.optimizer.tensors()
        self.scale = LossScale.for_precision(self.plan.precision)
        self.clock = StepClock()
        # An overflow of fp16 repeats its step, so that it has to be known before the next one.
        self.reads_late = works_by_itself(self.world.device) and not self.scale.is_active
        self.waiting: StepOutcome | None = None
        self.begin = 0.0
        if run.resumed is not None:
            self._restore(run.resumed.folder, run.resumed.state)
        self.checkpointer = Checkpointer(
            run.folder / FOLDER,
            config=run.config,
            tokenizer=run.tokenizer,
            settings=run.identity,
            data=run.data,
            keep=self.settings.keep_checkpoints,
        )
        self.background = self._background_saver() if run.saves_in_background else None
        # A new run keeps nothing of one that was killed in this folder before its first checkpoint.
        self.log = MetricsLog(run.folder, self.world.rank == 0, -1 if run.resumed is None else self.state.step)
        if self.world.rank == 0:
            table = as_table(run.resolved_settings())
            # Samples and scores of the step that is resumed may still come.
            first_step = self.state.step if run.resumed is not None else 0
            self.log.send_to(open_feeds(self.settings.log_to, run.folder, table, first_step, self.world.say))
        self.observer = Observer(run, self.model, self.log, self.is_stopped)
        self.peak_flops = peak_flops(self.world.device, self.plan.precision)
        self.epoch_notes, self.heartbeat = EpochNotes(), Heartbeat()
        self.reader = BatchReader(
            run.training,
            global_batch=self.settings.global_batch_size,
            rank=self.world.dp_rank,
            size=self.world.dp_size,
            vocabulary_size=run.config.vocabulary_size,
            finish=run.batches.on_host,
        )
        # Where outcomes are read late, what is said in a step is known everywhere before the next but one.
        self.schedule = open_schedule(run, self.state.step, ahead=2 if self.reads_late else 0)

    def _background_saver(self) -> BackgroundSaver:
        self.checkpointer.group = group_for_a_thread(self.settings.distributed_timeout)
        return BackgroundSaver(self.checkpointer, self.tensors, self.note_saved)

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        load_tensors(folder, self.tensors)
        self.optimizer.set_step(self.state.step)
        self.scale.restore(state)
        self.clock = StepClock(state["loss_sum"], state["loss_steps"])
        self.world.say(f"resuming {self.run.folder} at step {self.state.step:,}")

    def _write_config(self) -> None:
        if self.world.rank == 0:
            write_config(self.run.folder, self.run.resolved_settings())

    def fit(self) -> dict[str, Any]:
        """Train to the end, or to the step in which a signal came; save; return the summary."""
        state = self.state
        # What there is now stays: looking through a million objects for garbage would stop every process now and then.
        gc.collect()
        gc.freeze()
        try:
            with explained_compile_failure():
                if self.settings.threads == "auto" and self.world.device.type == "cpu":
                    choose_threads(self.run, self.practice_step)
                on_all_ranks(self._write_config)
                self.observe()
                while self.plan.goes_past(state.step) and not state.stop_signal:
                    if self.train_step():
                        self.after_step()
            self.settle()
            if state.saved_step != state.step and state.step:
                self.save()
            self.finish_saving()
            if self.background is not None:
                self.background.close()
        except Exception:
            # What a save in the background has copied is good, whatever failed since; its own failure is not news.
            with contextlib.suppress(Exception):
                self.finish_saving()
            raise
        finally:
            self.reader.close()
            self.until_the_end.close()
            gc.unfreeze()
            self.log.close()
            if self.schedule is not None:
                self.schedule.close()
        barrier()
        found = summary(self.run, state)
        if state.stop_signal:
            saved = "nothing saved (--no-save)"
            if self.settings.save:
                saved = "all saved; the same command resumes from here" if state.step else "nothing to save yet"
            length = f" of {self.plan.steps:,}" if self.plan.steps is not None else ""
            self.world.say(f"stopped by {found['stopped_by']} at step {state.step:,}{length}, {saved}.")
        return found

    # --- a step ------------------------------------------------------------------------------------------------------

    def train_step(self) -> bool:
        """Take the next step; False if an overflow of fp16 skipped it, so that it has to be repeated.

        Where the device works by itself (CUDA), what came of the step is read after the next one was given to it.
        Raises Gpt2Error if the gradient is not finite in another precision than fp16.
        """
        if self.waiting is None:
            self.begin = time.monotonic()
        batches, waited = self.next_batches()
        loss_here = self.forward_backward(batches)
        settle_gradients(self.parameters, self.world.tp_group if self.settings.sequence_parallel else None)
        norm = gradient_norm(self.parameters)
        counted = sum(batch.counted for batch in batches)
        failed_save = self.background is not None and self.background.has_failed
        said = [self.schedule.decide(self.state.step + 1)] if self.schedule is not None else []
        sums = self.world.sum_on_device(
            loss_here, [waited, float(counted), float(self.stop.signal), float(failed_save), *said]
        )
        # The gradient is that of a sum over all predictions, divided by their number: not all of them may count.
        correction = self.plan.tokens_per_step * self.world.tp_size / sums[2].clamp(min=1)
        norm, loss = norm / self.scale.scale * correction, sums[0] / self.world.tp_size * correction
        done = StepOutcome(self.state.step + 1, torch.stack([loss, norm, sums[1], *sums[3:]]))
        if not self.reads_late and not self.look_at(done):
            return False
        self.optimizer_step(norm, correction)
        self.state.step += 1
        if not self.reads_late:
            self.count(done)
            return True
        before, self.waiting = self.waiting, done
        if before is not None and self.look_at(before):
            self.count(before)
        return True

    def practice_step(self) -> float:
        """Take the next step, wait for it, and drop its gradient, whose norm is returned."""
        batches, _ = self.reader.take(self.state.step + 1)
        self.forward_backward(batches)
        settle_gradients(self.parameters, self.world.tp_group if self.settings.sequence_parallel else None)
        norm = gradient_norm(self.parameters)
        self.model.zero_grad()
        return float(norm)

    def follow(self, step: int, progress: float) -> None:
        """Keep to what the first process said in `step` of a run by time: how far it is, and which step is the last."""
        if self.schedule is None or self.plan.steps is not None:
            return
        self.schedule.follow(step, progress)
        if progress == 1:
            self.plan = dataclasses.replace(self.plan, steps=step + self.schedule.ahead)
            self.run = self.observer.run = dataclasses.replace(self.run, plan=self.plan)

    def settle(self) -> None:
        """Wait for what came of the last step, where that is still on its way. Raises as `train_step` does."""
        done, self.waiting = self.waiting, None
        if done is not None and self.look_at(done):
            self.count(done)

    def look_at(self, done: StepOutcome) -> bool:
        """Whether a step counts; also finds out whether any process was asked to stop. Raises as `skip` does."""
        loss, norm, _, signals, failed_saves, *said = done.read()
        if failed_saves:
            # Processes notice it at different moments; here all of them raise it.
            self.finish_saving()
        # Signals need not reach all processes alike: any one of them stops all, at the same step.
        self.state.stop_signal = max(on_all_ranks(lambda: self.stop.signal)) if signals else 0
        if not math.isfinite(norm):
            self.skip(done.step, loss)
            return False
        if said:
            self.follow(done.step, said[0])
        return True

    def count(self, done: StepOutcome) -> None:
        """Add a step to what is logged."""
        loss, norm, waited, *_ = done.read()
        now = time.monotonic()
        self.clock.add(loss, norm, now - self.begin, waited / self.world.size)
        self.begin = now
        self.state.loss = loss

    def next_batches(self) -> tuple[list[MicroBatch], float]:
        """This process's micro-batches of the next step, still on the host, and seconds spent waiting for them."""
        begin = time.monotonic()
        batches, epochs_ended = self.reader.take(self.state.step + 1)
        waited = time.monotonic() - begin
        self.epoch_notes.set(self.state.step + 1, epochs_ended)
        if self.plan.goes_past(self.state.step + 1):
            # Asked for again, and read again, only if an overflow repeats this step.
            self.reader.request(self.state.step + 2)
        return batches, waited

    def forward_backward(self, batches: Sequence[MicroBatch]) -> Tensor:
        """Add the gradient of `batches` to the parameters.

        Returns this process's part of the global batch's mean loss, a scalar on its device.
        """
        total = torch.zeros((), device=self.world.device)
        for micro, waiting in enumerate(batches):
            batch = self.run.batches.on_device(waiting)
            seed_micro_step(self.model, self.settings.seed, self.state.step, micro, self.world)
            is_last = micro == self.plan.accumulation - 1
            synchronize_gradients(self.model, is_last, reshard=self.settings.reshard)
            # Kept to the end of the forward pass, they would be most of what resharding gives back.
            keeps_copies = not self.settings.reshard
            with autocast(self.world.device, self.plan.precision, keeps_copies=keeps_copies):
                logits = self.model(batch.inputs, documents=batch.documents)
            losses = token_losses(
                logits,
                batch.targets,
                self.world.tp_group,
                vocabulary=self.model.config.vocabulary_size,
                compiled=self.plan.compilation is not None,
                overwrite_logits=True,
            )
            del logits  # What is left of them is their gradient, which nothing needs once the output layer had it.
            share = self.run.batches.counted(losses, batch).sum() / self.plan.tokens_per_step
            # Data parallelism averages gradients where the loss of the global batch is a sum.
            (share * (self.world.dp_size * self.scale.scale)).backward()
            total += share.detach()
            del losses, share
            if micro + 1 < self.plan.accumulation and self.heartbeat.is_due():
                step = step_of(self.state.step + 1, self.plan.steps)
                self.world.say(f"{step}  micro-batch {micro + 1:,} of {self.plan.accumulation:,}")
        return total

    def is_stopped(self) -> bool:
        """Whether any process was asked to stop; all of them ask together."""
        self.settle()
        if not self.state.stop_signal and self.world.sum_over_processes([float(self.stop.signal)])[0]:
            self.state.stop_signal = max(on_all_ranks(lambda: self.stop.signal))
        return bool(self.state.stop_signal)

    def optimizer_step(self, norm: Tensor, correction: Tensor) -> None:
        """Clip the gradient, whose norm is `norm` after `correction`, and move the weights at this step's rate."""
        factor = correction / self.scale.scale
        if self.settings.clip:
            factor = factor * (self.settings.clip / (norm + CLIP_EPSILON)).clamp(max=1.0)
        self.optimizer.step(self.learning_rate(self.state.step + 1), factor, torch.isfinite(norm))
        if self.copies is not None:
            self.copies.expire()
        self.model.zero_grad()
        self.scale.after_step()

    def learning_rate(self, step: int) -> float:
        """The learning rate of `step`."""
        if self.schedule is not None:
            return learning_rate_by_time(step, self.schedule.progress(step), self.settings)
        assert self.plan.steps is not None  # known from the start
        return learning_rate(step, self.plan.steps, self.settings)

    def skip(self, step: int, loss: float) -> None:
        """Drop a gradient that is not finite. Raises Gpt2Error unless a lower fp16 loss scale can help."""
        self.model.zero_grad()
        if not self.scale.is_active:
            raise Gpt2Error(
                f"the gradient of step {step:,} is not finite (loss {loss:g}): the run diverged; "
                "resume from the last checkpoint with a lower --lr in another --output."
            )
        self.scale.after_overflow()

    # --- between steps -----------------------------------------------------------------------------------------------

    def after_step(self) -> None:
        """Log, validate, save, and show what the model can do, where it is time to."""
        settings, step = self.settings, self.state.step
        is_last = step == self.plan.steps
        if self.background is not None:
            self.background.poll()
        if step == 1 or step % settings.log_every == 0 or is_last:
            self.log_step()
        elif self.heartbeat.is_due() and self.clock.timed_steps:
            # Each process by its own clock, so nothing may be waited for here that all of them do together.
            self.world.say(line_of(self.row(), self.plan.steps))
        if self.run.validation is not None and (is_last or (settings.eval_every and step % settings.eval_every == 0)):
            self.validate()
        if is_last or (settings.save_every and step % settings.save_every == 0):
            self.save()
        # Behind saving, so that a failure or a kill loses nothing.
        self.observe()

    def observe(self) -> None:
        """Write samples and run tasks, which is no part of a step that is still to be counted, nor of --minutes."""
        began = time.monotonic()
        with self.schedule.paused() if self.schedule is not None else contextlib.nullcontext():
            self.observer.observe(self.state.step)
        self.begin += time.monotonic() - began

    def row(self) -> dict[str, Any]:
        """The numbers since the last logged step, of the steps whose outcome is known."""
        return metrics_row(
            self.clock,
            step=self.state.step,
            tokens_per_step=self.plan.tokens_per_step,
            epoch=self.run.epochs(self.state.step),
            rate=self.learning_rate(self.state.step),
            loss_scale=self.scale.scale if self.scale.is_active else None,
            skipped=self.scale.skipped,
            processes=self.world.size,
            flops_per_token=self.run.config.flops_per_token,
            peak_flops=self.peak_flops,
            peak_memory_bytes=peak_memory(self.world.device),
            seconds_left=self.seconds_left(),
        )

    def seconds_left(self) -> float | None:
        """How long the run will take from here, as far as that is known."""
        if self.plan.steps is not None:
            return self.clock.seconds_left(self.plan.steps - self.state.step)
        return self.schedule.seconds_left if self.schedule is not None else None

    def log_step(self) -> None:
        """Write a row of metrics and show it."""
        for line in self.epoch_notes.lines([stream.corpus.prefix for stream in self.run.training.streams]):
            self.world.say(f"{step_of(self.state.step, self.plan.steps)}  {line}")
        self.settle()
        row = self.row()
        self.log.write(row)
        self.world.say(line_of(row, self.plan.steps))
        self.heartbeat.reset()
        self.clock.reset()

    def validate(self) -> None:
        """Measure the validation loss; write and show it."""
        assert self.run.validation is not None
        self.settle()
        with self.schedule.evaluating() if self.schedule is not None else contextlib.nullcontext():
            self.state.valid_loss, tokens = validation_loss(
                self.model,
                self.world,
                self.run.validation,
                samples=self.settings.eval_batches * self.settings.global_batch_size,
                batches=self.run.batches,
                precision=self.plan.precision,
                compiled=self.plan.compilation is not None,
            )
        row = {
            "step": self.state.step,
            "tokens": self.state.step * self.plan.tokens_per_step,
            "valid_loss": self.state.valid_loss,
            "valid_tokens": tokens,
        }
        self.log.write(row)
        self.world.say(line_of(row, self.plan.steps))

    def save(self) -> None:
        """Save a checkpoint; all processes together. Waits for it only where the run ends.

        Raises Gpt2Error if it, or the one before it, can't be written.
        """
        if not self.settings.save:
            return
        self.settle()
        state = self.state
        what: dict[str, Any] = {
            "step": state.step,
            "samples": state.step * self.settings.global_batch_size,
            "state": self.scale.state()
            | {"loss_sum": self.clock.loss_sum, "loss_steps": self.clock.steps}
            | {"loss": state.loss, "valid_loss": state.valid_loss}
            | (self.plan.attention.state() if self.plan.attention is not None else {})
            | measured_state(self.run)
            | self.time_state(),
        }
        state.saved_step = state.step
        goes_on = self.plan.goes_past(state.step) and not state.stop_signal
        if goes_on and self.background is None and self.settings.async_checkpoint:
            try:
                self.background = self._background_saver()
            except Gpt2Error as error:  # No memory for it: what was learned so far is saved while training waits.
                self.world.say(f"warning: {error}")
        if goes_on and self.background is not None:
            self.background.start(**what)
            return
        self.finish_saving()
        begin = time.monotonic()
        folder = self.checkpointer.save(self.tensors, **what)
        seconds = time.monotonic() - begin
        self.note_saved(Saved(state.step, folder, seconds, seconds))

    def time_state(self) -> dict[str, Any]:
        """What a checkpoint stores of the time used; a run that goes on by steps keeps what it had used before."""
        used = self.schedule.used(self.state.step) if self.schedule is not None else self.plan.used
        return used.state() if used is not None else {}

    def finish_saving(self) -> None:
        """Wait for a save in the background; all processes together. Raises Gpt2Error if it failed."""
        if self.background is not None:
            self.background.finish()

    def note_saved(self, saved: Saved) -> None:
        """Remember and show a checkpoint that is complete."""
        self.state.checkpoint = saved.folder
        if self.schedule is not None:
            self.schedule.saving_seconds = saved.seconds
        waited = "" if saved.waited == saved.seconds else f" (training waited {saved.waited:.2f} s)"
        step = step_of(saved.step, self.plan.steps)
        self.world.say(f"{step}  saved {saved.folder} in {duration(saved.seconds)}{waited}")
