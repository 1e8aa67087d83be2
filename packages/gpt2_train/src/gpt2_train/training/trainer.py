"""The training loop of a run, in each of its processes: `Trainer.fit`, then `train_step`, then `forward_backward`.

What a step does is a function of the settings, the step's number and the last checkpoint: batch, learning rate and
dropout follow from the step. So a run that is stopped, killed or made longer continues as if nothing had happened, bit
for bit on CPU with the same number of threads and processes. In a run by time the steps are planned by the clock, and
the plans recorded. Signals end the loop between two steps, after saving. What happens between the steps is
`Recorder.after_step`; how a step's result reaches the host is `StepResults`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpt2_train.checkpoint.load import model_tensors
from gpt2_train.checkpoint.save import Checkpointer, Saver, load_tensors
from gpt2_train.config.errors import explained_compile_failure
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.data.batches import BatchReader, MicroBatch
from gpt2_train.distributed.collectives import barrier, from_first_rank
from gpt2_train.distributed.device import autocast, works_by_itself
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import all_reduce_replicated_grads, seed_micro_step
from gpt2_train.distributed.parallelize import synchronize_gradients
from gpt2_train.model.attention_kernels import attention_by
from gpt2_train.model.loss import losses_and_gradient, with_gradient
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.optim.gradients import gradient_norm
from gpt2_train.optim.schedule import learning_rate
from gpt2_train.training.recorder import Recorder, note_saved
from gpt2_train.training.run_folder import write_config
from gpt2_train.training.setup import Run, build_model
from gpt2_train.training.state import StepFigures, StepResult, StepResults, TrainState, open_time_plan

CLIP_EPSILON = 1e-6


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
            load_tensors(run.resumed.folder, tensors)
            self.optimizer.set_step(self.state.step)
            world.say(f"resuming {run.folder} at step {self.state.step:,}")
        # An overflow of fp16 repeats its step, so that it has to be known before the next one.
        is_late = works_by_itself(world.device) and not self.state.scale.is_active
        self.saver = Saver(
            Checkpointer(
                run.folder / CHECKPOINTS_FOLDER,
                config=run.config,
                tokenizer=run.tokenizer,
                settings=run.identity,
                data=run.source.data,
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
        self.results = StepResults(run, self.state, self.saver, stop, is_late=is_late)
        self.recorder = Recorder(run, self.state, self.model, self.saver, self.results)
        self.reader = BatchReader(
            run.training,
            global_batch=settings.global_batch_size,
            rank=world.dp_rank,
            size=world.dp_size,
            vocabulary_size=run.config.vocabulary_size,
            finish=run.batches.on_host,
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
        step, scale = state.step + 1, state.scale.scale
        self.results.begin_step()
        # The next batch is read again only if an overflow repeats this step.
        batches, waited = self.reader.take(step, read_ahead=state.goes_past(step))

        loss_here, norm = self.gradient(batches)
        sums = self.results.sum_up(step, loss_here, waited, sum(batch.counted for batch in batches))
        # The gradient is that of a sum over all predictions, divided by their number: not all of them may count.
        token_normaliser = run.plan.tokens_per_step * run.world.tp_size / sums.predictions.clamp(min=1)
        norm, loss = norm / scale * token_normaliser, sums.loss / run.world.tp_size * token_normaliser
        figures = StepFigures(loss, norm, sums.waited, sums.signal, sums.failed_save, sums.steps)
        if not self.results.take(StepResult(step, figures)):
            self.model.zero_grad()
            return False

        factor = token_normaliser / scale
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

    def gradient(self, batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor]:
        """(what `forward_backward` returns, the norm of the gradient over all processes), both on the device."""
        loss_here = self.forward_backward(batches)
        parameters = self.parameters.values()
        all_reduce_replicated_grads(
            parameters, self.run.world.tp_group if self.run.settings.sequence_parallel else None
        )
        return loss_here, gradient_norm(parameters)

    def forward_backward(self, batches: Sequence[MicroBatch]) -> Tensor:
        """Add the gradient of `batches` to the parameters.

        Returns this process's part of the global batch's mean loss, a scalar on its device.
        """
        settings, world, plan = self.run.settings, self.run.world, self.run.plan
        total = torch.zeros((), device=world.device)
        for micro, on_host in enumerate(batches):
            batch = self.run.batches.on_device(on_host)
            seed_micro_step(self.model, settings.seed, self.state.step, micro, world)
            is_last = micro == plan.accumulation - 1
            synchronize_gradients(self.model, is_last, reshard=settings.reshard)
            # Kept to the end of the forward pass, they would be most of what resharding gives back.
            keeps_copies = not settings.reshard
            with autocast(world.device, plan.precision, keeps_copies=keeps_copies):
                logits = self.model(batch.inputs, batch.context)
            # Data parallelism averages gradients where the loss of the global batch is a sum.
            loss_factor = world.dp_size * self.state.scale.scale
            of_each = torch.full(batch.targets.shape, loss_factor / plan.tokens_per_step, device=world.device)
            gradient = logits.detach()  # The same memory: it holds the logits until the losses are known.
            losses = losses_and_gradient(
                gradient,
                batch.targets,
                self.run.batches.counted(of_each, batch),
                world.tp_group,
                vocabulary=self.model.config.vocabulary_size,
                compiled=plan.compiled,
            )
            share = self.run.batches.counted(losses, batch).sum() / plan.tokens_per_step
            total += share
            loss = with_gradient(share, logits, gradient)
            del losses, logits, gradient  # The backward pass frees the gradient when the output layer had it.
            loss.backward()
            self.recorder.show_micro_batch(micro + 1)
        return total

    def close(self) -> None:
        """End the thread that reads batches, close open files, and wait for what is sent elsewhere."""
        self.reader.close()
        self.until_the_end.close()
        self.recorder.log.close()
