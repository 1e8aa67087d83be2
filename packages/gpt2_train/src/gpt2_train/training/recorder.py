"""What is checked of each step, and the work between steps: logging, validation, saving, samples, evaluation tasks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from command_kit import duration
from command_kit.settings import as_table
from gpt2_train.checkpoint.save import Saved, Saver
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.data.batches import check_vocabulary
from gpt2_train.data.streams import Blend
from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.device import autocast, peak_memory, widest_float
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.parallelize import free_gathered_parameters
from gpt2_train.metrics.log import MetricsLog, line_of, peak_flops, step_of
from gpt2_train.metrics.sinks import Feed, chosen_sinks
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import token_losses
from gpt2_train.training.samples_and_tasks import observe
from gpt2_train.training.setup import Run
from gpt2_train.training.state import StepResult, TrainState, summary


class Recorder:
    """Checks and records a run while it trains; all its processes call it together.

    With `is_late` (CUDA, except in fp16, where an overflow repeats a step) the result of a step is read when the
    gradient of the next one was given to the device, so that neither waits for the other. Until then it is `pending`.

    Args:
        run, state: of the training.
        model: as it is trained.
        saver: saves its checkpoints; its failures end the run.
        stop: whether this process was asked to stop.
        is_late: see above.
    """

    def __init__(
        self, run: Run, state: TrainState, model: GPT2, saver: Saver, stop: StopRequest, *, is_late: bool
    ) -> None:
        self.run, self.state, self.model, self.saver = run, state, model, saver
        self.stop, self.is_late = stop, is_late
        self.pending: StepResult | None = None
        self._begin = 0.0
        # A new run keeps nothing of one that was killed in this folder before its first checkpoint.
        self.log = MetricsLog(run.folder, run.world.rank == 0, -1 if run.resumed is None else state.step)
        if run.world.rank == 0:
            table = as_table(run.resolved_settings())
            # Samples and scores of the step that is resumed may still come.
            names = chosen_sinks(run.settings.log_to)
            self.log.send_to(Feed(name, run.folder, table, state.step, run.world.say) for name in names)
        self.peak_flops = peak_flops(run.world.device, run.plan.precision)
        self.taken = run.training.taken(state.step * run.settings.global_batch_size)
        """Samples of each stream by the last logged step."""

    def begin_step(self) -> None:
        """Start timing a step, unless the one before it is still timed."""
        if not self.is_late:
            self.read_pending()
        if self.pending is None:
            self._begin = time.monotonic()

    def take(self, step: int, loss: Tensor, norm: Tensor, waited: float) -> bool:
        """Add up over all processes what came of a step; whether the weights may move: not after an overflow of fp16.

        Raises as `read_pending` does: on late results for the step before.

        Args:
            step: its number.
            loss: this process's part of the mean over the batch.
            norm: of the gradient, the same on all.
            waited: seconds for the batch to be read.
        """
        planned = float(self.state.time.plan(step)) if self.state.time is not None else 0.0
        said = [waited, float(self.stop.signal), float(self.saver.has_failed), planned]
        sums = self.run.world.sum_on_device(loss, said)
        sums[0] /= self.run.world.tp_size  # Each of these processes has the whole loss.
        result = StepResult(step, norm, sums)
        if self.is_late:
            self.read_pending()
        elif not self._is_finite(result):
            return False
        self.pending = result
        return True

    def read_pending(self) -> None:
        """Check and record the result that is pending, if there is one.

        Raises Gpt2Error if a save has failed, or if the gradient is not finite and a lower fp16 loss scale can't help.
        """
        result, self.pending = self.pending, None
        if result is None:
            return
        if self.is_late:
            self._is_finite(result)
        now = time.monotonic()
        self.state.count_step(result, now - self._begin, self.run.world.world_size)
        self._begin = now

    def _is_finite(self, result: StepResult) -> bool:
        """Whether the gradient was finite; also learn which signals, failed saves and decisions were shared."""
        result.read()
        if result.failed_save:
            # Processes notice it at different moments; here all of them raise it.
            self.saver.finish()
        # Signals need not reach all processes alike: any one of them stops all, at the same step.
        self.state.stop_signal = self._signal_of_any() if result.signal else 0
        if math.isfinite(result.norm):
            self.state.steps = round(result.steps) or self.state.steps
            return True
        if not self.state.scale.is_active:
            raise Gpt2Error(
                f"the gradient of step {result.step:,} is not finite (loss {result.loss:g}): the run diverged; "
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
        self.read_pending()
        if not self.state.stop_signal and self.run.world.sum_over_processes([float(self.stop.signal)])[0]:
            self.state.stop_signal = self._signal_of_any()
        return bool(self.state.stop_signal)

    def _signal_of_any(self) -> int:
        return max(on_all_ranks(lambda: self.stop.signal))

    def show(self, values: Mapping[str, Any]) -> None:
        """Log a row about the current step, and show it as a line."""
        state = self.state
        row = {"step": state.step, "tokens": state.step * self.run.plan.tokens_per_step, **values}
        state.logged = state.scheduled or state.steps
        row |= {"steps": state.logged} | ({"used_seconds": state.time.seconds} if state.time is not None else {})
        self.log.write(row)
        self.run.world.say(line_of(row, self.state.steps))

    def after_step(self) -> None:
        """Log, validate, save, write samples and run tasks, each where it is due."""
        settings, step = self.run.settings, self.state.step
        is_last = step == self.state.steps
        self.saver.poll()
        is_planned = self.state.time is not None and self.state.scheduled != self.state.logged
        if step == 1 or step % settings.log_every == 0 or is_last or is_planned:
            self.log_step()
        elif self.state.heartbeat.is_due() and self.state.timed_steps:
            # Each process by its own clock, so nothing may be waited for here that all of them do together.
            self.run.world.show(line_of(self.row(), self.state.steps))
        if self.run.validation is not None and (is_last or (settings.eval_every and step % settings.eval_every == 0)):
            self.validate()
        if is_last or (settings.save_every and step % settings.save_every == 0):
            self.save()
        # After saving, so that a failure or a kill loses nothing.
        self.observe()

    def row(self) -> dict[str, Any]:
        """The numbers of the last step whose result was read, and the speed since the last logged one."""
        run, state = self.run, self.state
        speed = run.plan.tokens_per_step * state.timed_steps / state.seconds
        flops = run.config.flops_per_token
        return {
            "step": state.step,
            "tokens": state.step * run.plan.tokens_per_step,
            "epoch": run.epochs(state.step),
            "loss": state.loss,
            "lr": state.rate,
            "grad_norm": state.norm,
            **({"loss_scale": state.scale.scale} if state.scale.is_active else {}),
            "skipped": state.scale.skipped,
            "tokens_per_second": speed,
            "tokens_per_second_per_process": speed / run.world.world_size,
            "mfu": speed * flops / (self.peak_flops * run.world.world_size) if self.peak_flops else None,
            "peak_memory_bytes": peak_memory(run.world.device),
            "data_wait_share": min(1.0, state.waited / state.seconds),
            "seconds_left": state.seconds_left(),
        }

    def log_step(self) -> None:
        """Log the steps since the last row."""
        blend, before = self.run.training, self.taken
        self.taken = blend.taken(self.state.step * self.run.settings.global_batch_size)
        for stream, first, last in zip(blend.streams, before, self.taken, strict=True):
            ended = range(first // stream.per_epoch + 1, last // stream.per_epoch + 1)
            if ended:
                # A tiny corpus may end many times between two lines.
                epochs = f"epochs {ended[0]} to {ended[-1]}" if len(ended) > 1 else f"epoch {ended[0]}"
                step = step_of(self.state.step, self.state.steps)
                self.run.world.say(f"{step}  {epochs} of {stream.corpus.prefix} ended; the next one is shuffled again")
        self.read_pending()
        self.show(self.row())
        self.state.begin_row()

    def validate(self) -> None:
        """Measure and log the validation loss."""
        run, time_plan = self.run, self.state.time
        assert run.validation is not None
        self.read_pending()
        with time_plan.evaluating() if time_plan is not None else contextlib.nullcontext():
            loss, tokens = validation_loss(run, self.model, run.validation)
        self.state.valid_loss = loss
        self.show({"valid_loss": loss, "valid_tokens": tokens})

    def save(self) -> None:
        """Save a checkpoint, unless the settings say otherwise. Raises Gpt2Error as `Saver.save` does."""
        if not self.run.settings.save:
            return
        self.read_pending()
        self.log.flush()  # A run that resumes has the rows up to its step.
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
        time_plan, began = self.state.time, time.monotonic()
        with time_plan.paused() if time_plan is not None else contextlib.nullcontext():
            observe(
                self.run.due(self.state.step, self.state.steps),
                self.model,
                self.run.world,
                self.run.stored,
                precision=self.run.plan.precision,
                show=self.show,
                is_stopped=self.is_stopped,
            )
        self._begin += time.monotonic() - began

    def finish(self) -> None:
        """Save everything not saved yet, and wait for it. Raises Gpt2Error."""
        self.read_pending()
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


@torch.no_grad()
def validation_loss(run: Run, model: GPT2, blend: Blend) -> tuple[float, int]:
    """(mean loss in nats, predictions that count) over the first samples of a split, at most one pass.

    The same samples every time and for any batch, shared among the data-parallel processes.
    All processes call this together and make the same calls of the model, each of one micro-batch: where a process
    has fewer left it repeats some, which count for nothing, so that no shape is compiled for the last batch.
    """
    world, batches, vocabulary = run.world, run.batches, model.config.vocabulary_size
    micro_batch = batches.size
    count = min(run.settings.eval_sequences, blend.epoch_samples)
    places = blend.prepare(0, count)
    share = math.ceil(count / world.dp_size / micro_batch) * micro_batch
    own = places[world.dp_rank * share : (world.dp_rank + 1) * share]
    model.eval()
    total, tokens = torch.zeros((), dtype=widest_float(world.device), device=world.device), 0
    for begin in range(0, share, micro_batch):
        rows = own[begin : begin + micro_batch]
        # One that has no samples left takes the first.
        read = blend.read(rows or places[:1])
        check_vocabulary(read, vocabulary, "the validation data")
        padded = np.concatenate([read, np.repeat(read[:1], micro_batch - len(read), axis=0)])
        batch = batches.on_device(batches.on_host(padded)[0])
        with autocast(world.device, run.plan.precision):
            logits = model(batch.inputs, batch.context)
        losses = token_losses(logits, batch.targets, world.tp_group, vocabulary=vocabulary, compiled=run.plan.compiled)
        losses = batches.counted(losses, batch)[: len(rows)]
        total += losses.to(total.dtype).sum()
        tokens += batches.count(read) if rows else 0
    free_gathered_parameters(model)
    model.train()
    loss, tokens_everywhere = world.sum_over_processes([float(total), float(tokens)])
    return loss / max(1.0, tokens_everywhere), round(tokens_everywhere / world.tp_size)


def note_saved(run: Run, state: TrainState, saved: Saved) -> None:
    """Keep in `state`, and show, that a checkpoint is complete."""
    state.checkpoint = saved.folder
    if state.time is not None:
        state.time.saving_seconds = saved.seconds
    waited = "" if saved.waited == saved.seconds else f" (training waited {saved.waited:.2f} s)"
    step = step_of(saved.step, state.steps)
    run.world.say(f"{step}  saved {saved.folder} in {duration(saved.seconds)}{waited}")
