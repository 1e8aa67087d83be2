"""The training of a run, in each of its processes: `train`, then `Trainer.fit`, `train_step` and `forward_backward`.

What a step does is a function of the settings, the step's number and the last checkpoint: batch, learning rate and
dropout follow from the step. So a run that is stopped, killed or made longer continues as if nothing had happened, bit
for bit on CPU with the same number of threads and processes. In a run by time the steps are planned by the clock, and
the plans recorded. Signals end the loop between two steps, after saving. What happens between the steps is
`Recorder.after_step`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from command_kit import UsageError
from gpt2_train.checkpoint.optimizer_state import load_optimizer
from gpt2_train.checkpoint.save import Checkpointer, Saver, model_tensors
from gpt2_train.config.errors import (
    Gpt2Error,
    Gpt2UsageError,
    explained_compile_failure,
    explained_out_of_memory,
    is_out_of_memory,
)
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.config.settings import TrainSettings
from gpt2_train.data.batches import BatchReader, MicroBatch
from gpt2_train.distributed.collectives import barrier, from_first_rank, on_all_ranks
from gpt2_train.distributed.device import autocast, works_by_itself
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import World, seed_micro_step
from gpt2_train.metrics.curves import loss_curves
from gpt2_train.metrics.log import step_of
from gpt2_train.metrics.records import read_run
from gpt2_train.model.attention_kernels import attention_by
from gpt2_train.model.loss import backward_root, losses_and_gradient
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.optim.gradients import gradient_norm, synchronize_gradients
from gpt2_train.optim.schedule import learning_rate
from gpt2_train.training.recorder import Recorder, note_saved
from gpt2_train.training.run_folder import check_shared, lock_folder, write_config
from gpt2_train.training.setup import Run, build_model, describe_run, set_up
from gpt2_train.training.state import TrainState, open_time_plan, summary

CLIP_EPSILON = 1e-6


def train(settings: TrainSettings, world: World, stop: StopRequest) -> dict[str, Any]:
    """Train as one process of `world`; returns the run's summary.

    Raises Gpt2UsageError for settings, data or a folder that don't fit, Gpt2Error where the run fails.
    """
    if not settings.output:
        raise Gpt2UsageError("no --output: give a folder for the run.")
    started, folder = time.monotonic(), Path(settings.output)
    with contextlib.ExitStack() as held:

        def lock() -> None:
            if world.rank == 0:
                held.enter_context(lock_folder(folder, say=world.say))

        on_all_ranks(lock)
        check_shared(folder)
        try:
            with explained_out_of_memory(
                "lower --micro-batch-size, or give --activation-checkpointing full or more --tensor-parallel; "
                "`gpt2 estimate` says what fits"
            ):
                found = _train(set_up(settings, world, folder), stop)
                return found | {"seconds": time.monotonic() - started}
        finally:
            # The last references to the model go before the process group does.
            gc.collect()


def _train(run: Run, stop: StopRequest) -> dict[str, Any]:
    steps, say = run.plan.steps, run.world.say
    if steps is not None and run.step >= steps and run.due(run.step, steps).is_empty:
        say(
            f"{run.folder} is at step {run.step:,} of {steps:,} already: nothing to do; "
            f"ask for more {'--steps' if run.settings.minutes is None else '--minutes'} to train it further."
        )
        return summary(run, TrainState.of(run))
    for line in describe_run(run):
        say(line)
    found = _fit(run, stop)
    if run.world.rank == 0 and found["stopped_by"] is None:
        # A run never fails for want of a picture, in a terminal or in a log, where it is read later.
        with contextlib.suppress(OSError, UsageError):
            print(loss_curves([read_run(run.folder, str(run.folder))], sys.stderr), file=sys.stderr, flush=True)
    return found


def _fit(run: Run, stop: StopRequest) -> dict[str, Any]:
    """Train; where memory decided the micro-batch, and it is not enough after all, with a smaller one.

    Only a process that is alone can begin again: others would wait for the one that ran out of memory.
    Raises Gpt2Error.
    """
    while True:
        trainer = Trainer(run, stop)
        try:
            return trainer.fit()
        except (MemoryError, RuntimeError) as error:
            smaller = _with_smaller_micro_batch(run) if is_out_of_memory(error) else None
            if smaller is None:
                raise
            size = smaller.plan.micro_batch
            if run.world.world_size > 1 or trainer.state.step > run.step:
                write_config(run.folder, smaller.resolved_settings())
                raise Gpt2Error(
                    f"out of memory with the micro-batch of {run.plan.micro_batch} that --micro-batch-size auto chose: "
                    f"start the same command again, and it takes {size}."
                ) from error
        trainer.saver.close()
        run.world.say(f"out of memory with a micro-batch of {run.plan.micro_batch}: beginning again with {size}.")
        run = smaller
        del trainer
        if run.plan.compiled:
            # Graphs of a size that is not taken again would count against torch's limit of 8 for one function.
            torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


def _with_smaller_micro_batch(run: Run) -> Run | None:
    """`run` with the next smaller micro-batch; None if memory did not decide its size, or there is none."""
    plan = run.plan
    share = plan.micro_batch * plan.accumulation
    smaller = [size for size in range(1, plan.micro_batch) if share % size == 0]
    if not (plan.chosen_by_memory and smaller):
        return None
    plan = dataclasses.replace(plan, micro_batch=smaller[-1], accumulation=share // smaller[-1])
    return dataclasses.replace(run, plan=plan, batches=dataclasses.replace(run.batches, size=smaller[-1]))


def _changed_rate(run: Run, before: float | None) -> str | None:
    """A line on the learning rate of a run whose new length has another one at this step; None if it is the same."""
    steps, step = run.plan.steps, run.step
    if run.settings.minutes is not None or steps is None or before is None or step >= steps:
        return None
    here, following = (learning_rate(at, steps, run.settings) for at in (step, step + 1))
    if any(math.isclose(rate, before, rel_tol=0.01) for rate in (here, following)):
        return None
    return (
        f"note: the learning rate goes on at {following:.3g}, where it was {before:.3g} at step {step:,}: as a run of "
        f"{steps:,} steps has it there (--schedule {run.settings.schedule})."
    )


class Trainer:
    """The model, its optimizer and the loop over steps, in one process of a run."""

    def __init__(self, run: Run, stop: StopRequest) -> None:
        settings, world = run.settings, run.world
        self.run, self.state = run, TrainState.of(run)
        # To the end of `fit`: what is compiled has the kernel in it.
        self.until_the_end = contextlib.ExitStack()
        self.until_the_end.enter_context(attention_by(run.plan.attention))
        self.model = build_model(run)
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        self.optimizer = make_optimizer(self.model, settings, world.device)
        tensors = model_tensors(self.model) | self.optimizer.tensors()
        if run.resumed is not None:
            load_optimizer(run.resumed, self.optimizer.tensors())
            self.optimizer.set_step(self.state.step)
            world.say(f"resuming {run.folder} at step {self.state.step:,}")
            if told := _changed_rate(run, run.resumed.state.get("rate")):
                world.say(told)
        # An overflow of fp16 repeats its step, so that it has to be known before the next one.
        is_late = works_by_itself(world.device) and not self.state.scale.is_active
        self.saver = Saver(
            Checkpointer(
                run.folder / CHECKPOINTS_FOLDER,
                config=run.config,
                tokenizer=run.known_tokenizer,
                settings=run.identity,
                data=run.stored.data,
                keep=settings.keep_checkpoints,
            ),
            tensors,
            functools.partial(note_saved, run, self.state),
            in_background=settings.async_checkpoint,
            minutes=settings.distributed_timeout,
            warn=world.say,
        )
        if run.saves_in_background:
            self.saver.prepare()
        self.recorder = Recorder(run, self.state, self.model, self.saver, stop, is_late=is_late)
        self.reader = BatchReader(
            run.training,
            global_batch=settings.global_batch_size,
            rank=world.dp_rank,
            size=world.dp_size,
            vocabulary_size=run.config.vocabulary_size,
            batches=run.batches,
        )
        # Where results are read late, what is said in a step is known everywhere before the end of the next one.
        self.state.time = open_time_plan(run, late=1 if is_late else 0)

    def fit(self) -> dict[str, Any]:
        """Train to the end, or to the step in which a signal came; save; return the summary."""
        state = self.state
        # What there is now stays: looking through a million objects for garbage would stop every process now and then.
        gc.collect()
        gc.freeze()
        try:
            with explained_compile_failure():
                from_first_rank(lambda: write_config(self.run.folder, self.run.resolved_settings()))
                self.recorder.observe()
                while state.goes_past(state.step) and not state.stop_signal:
                    if self.train_step():
                        self.recorder.after_step()
            self.recorder.finish()
        except Exception:
            # What a save in the background has copied is good, whatever failed since; its own failure is not news.
            with contextlib.suppress(Exception):
                self.saver.finish()
            raise
        finally:
            self.close()
            gc.unfreeze()
        barrier()
        return self.recorder.report()

    def train_step(self) -> bool:
        """Take the next step; False if an overflow of fp16 skipped it, so that it has to be repeated.

        Raises Gpt2Error if the gradient is not finite in another precision: on CUDA after the next step has begun.
        """
        run, state = self.run, self.state
        step = state.step + 1
        self.recorder.begin_step()
        # The next batch is read again only if an overflow repeats this step.
        batches, waited = self.reader.take(step, read_ahead=state.goes_past(step))

        loss_here = self.forward_backward(batches)
        norm = gradient_norm(self.parameters.values()) / state.scale.scale
        if not self.recorder.take(step, loss_here, norm, waited):
            self.model.zero_grad()
            return False

        factor = torch.full_like(norm, 1 / state.scale.scale)
        if run.settings.clip:
            factor = factor * (run.settings.clip / (norm + CLIP_EPSILON)).clamp(max=1.0)
        if state.time is not None and step in state.time.since:
            state.steps, _ = state.time.since[step]
        state.scheduled, state.rate = state.steps, learning_rate(step, state.steps, run.settings)
        self.optimizer.step(state.rate, factor, torch.isfinite(norm))
        self.model.zero_grad()
        state.scale.after_step()
        state.step = step
        return True

    def forward_backward(self, batches: Sequence[MicroBatch]) -> Tensor:
        """Add the gradient of `batches` to the parameters.

        Returns this process's part of the global batch's mean loss, a scalar on its device.
        """
        settings, world, plan = self.run.settings, self.run.world, self.run.plan
        total = torch.zeros((), device=world.device)
        predictions = self.predictions(batches)
        # Data parallelism averages gradients where the loss of the global batch is a sum.
        loss_factor = world.dp_size * self.state.scale.scale
        weights = torch.full(batches[0].targets.shape, loss_factor, device=world.device) / predictions
        for micro, on_host in enumerate(batches):
            batch = self.run.batches.on_device(on_host)
            seed_micro_step(self.model, settings.seed, self.state.step, micro, world)
            is_last = micro == plan.accumulation - 1
            synchronize_gradients(self.model, is_last, reshard=settings.reshard)
            # Kept to the end of the forward pass, they would be most of what resharding gives back.
            keeps_copies = not settings.reshard
            with autocast(world.device, plan.precision, keeps_copies=keeps_copies):
                logits = self.model(batch.inputs, batch.context)
            gradient = logits.detach()  # The same memory: it holds the logits until the losses are known.
            root = backward_root(logits, gradient)
            losses = losses_and_gradient(
                gradient,
                batch.targets,
                self.run.batches.counted(weights, batch),
                world.tp_group,
                vocabulary=self.model.config.vocabulary_size,
                compiled=plan.compiled,
            )
            total += self.run.batches.counted(losses, batch).sum() / predictions
            del losses, logits, gradient  # The backward pass frees the gradient when the output layer had it.
            root.backward()
            if not is_last and self.state.heartbeat.is_due():
                step = step_of(self.state.step + 1, self.state.steps)
                world.show(f"{step}  micro-batch {micro + 1:,} of {plan.accumulation:,}")
        return total

    def predictions(self, batches: Sequence[MicroBatch]) -> int | Tensor:
        """The predictions of the global batch that count in its loss; on the device where not all of them may."""
        if not self.run.settings.mask_end_of_text:
            return self.run.plan.tokens_per_step
        world, here = self.run.world, float(sum(batch.counted for batch in batches))
        everywhere = world.sum_on_device(torch.zeros((), device=world.device), [here])[1]
        return (everywhere / world.tp_size).clamp(min=1)

    def close(self) -> None:
        """End the thread that reads batches, close open files, and wait for what is sent elsewhere."""
        self.reader.close()
        self.until_the_end.close()
        self.recorder.log.close()
