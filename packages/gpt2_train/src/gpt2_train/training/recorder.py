"""The work between the steps of a run: logging, validation, saving, samples and evaluation tasks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from command_kit import duration
from command_kit.settings import as_table
from gpt2_train.checkpoint.save import Saved, Saver
from gpt2_train.data.batches import check_vocabulary
from gpt2_train.data.streams import Blend
from gpt2_train.distributed.device import autocast, peak_memory, widest_float
from gpt2_train.distributed.parallelize import free_gathered_parameters
from gpt2_train.metrics.log import MetricsLog, line_of, peak_flops, step_of
from gpt2_train.metrics.sinks import open_feeds
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import token_losses
from gpt2_train.training.samples_and_tasks import observe
from gpt2_train.training.setup import Run
from gpt2_train.training.state import StepResults, TrainState, summary


class Recorder:
    """Records a run while it trains; all its processes call it together.

    Args:
        run, state: of the training.
        model: as it is trained.
        saver: saves its checkpoints.
        results: of the steps; read before anything is recorded.
    """

    def __init__(self, run: Run, state: TrainState, model: GPT2, saver: Saver, results: StepResults) -> None:
        self.run, self.state, self.model, self.saver, self.results = run, state, model, saver, results
        # A new run keeps nothing of one that was killed in this folder before its first checkpoint.
        self.log = MetricsLog(run.folder, run.world.rank == 0, -1 if run.resumed is None else state.step)
        if run.world.rank == 0:
            table = as_table(run.resolved_settings())
            # Samples and scores of the step that is resumed may still come.
            self.log.send_to(open_feeds(run.settings.log_to, run.folder, table, state.step, run.world.say))
        self.peak_flops = peak_flops(run.world.device, run.plan.precision)
        self.taken = run.training.taken(state.step * run.settings.global_batch_size)
        """Samples of each stream by the last logged step."""

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
        elif self.state.heartbeat.is_due() and self.state.clock.timed_steps:
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
        run, state, clock = self.run, self.state, self.state.clock
        seconds_left = clock.seconds_left(state.steps - state.step) if state.steps is not None else None
        speed = run.plan.tokens_per_step * clock.timed_steps / clock.seconds
        flops = run.config.flops_per_token
        return {
            "step": state.step,
            "tokens": state.step * run.plan.tokens_per_step,
            "epoch": run.epochs(state.step),
            "loss": state.loss,
            "lr": state.rate,
            "grad_norm": clock.norm,
            **({"loss_scale": state.scale.scale} if state.scale.is_active else {}),
            "skipped": state.scale.skipped,
            "tokens_per_second": speed,
            "tokens_per_second_per_process": speed / run.world.size,
            "mfu": speed * flops / (self.peak_flops * run.world.size) if self.peak_flops else None,
            "peak_memory_bytes": peak_memory(run.world.device),
            "data_wait_share": min(1.0, clock.waited / clock.seconds),
            "seconds_left": seconds_left,
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
        self.results.settle()
        self.show(self.row())
        self.state.heartbeat.reset()
        self.state.clock.reset()

    def validate(self) -> None:
        """Measure and log the validation loss."""
        run, time_plan = self.run, self.state.time
        assert run.validation is not None
        self.results.settle()
        with time_plan.evaluating() if time_plan is not None else contextlib.nullcontext():
            loss, tokens = validation_loss(run, self.model, run.validation)
        self.state.valid_loss = loss
        self.show({"valid_loss": loss, "valid_tokens": tokens})

    def save(self) -> None:
        """Save a checkpoint, unless the settings say otherwise. Raises Gpt2Error as `Saver.save` does."""
        if not self.run.settings.save:
            return
        self.results.settle()
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
                is_stopped=self.results.is_stopped,
            )
        self.results.leave_out(time.monotonic() - began)

    def finish(self) -> None:
        """Save everything not saved yet, and wait for it. Raises Gpt2Error."""
        self.results.settle()
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
