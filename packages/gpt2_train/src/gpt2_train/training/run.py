"""`gpt2 train` in one process of a run: hold its folder, set up, train."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError, explained_out_of_memory, is_out_of_memory
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.device import is_emulated
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import missing_for_compilation
from gpt2_train.distributed.processes import StopRequest
from gpt2_train.metrics.plots import loss_curves
from gpt2_train.metrics.records import read_run
from gpt2_train.training.calibrate import cpu_flops, size_advice
from gpt2_train.training.run_folder import check_shared, lock_folder, write_config
from gpt2_train.training.samples_and_tasks import due
from gpt2_train.training.setup import Run, describe_run, set_up
from gpt2_train.training.state import TrainState, summary
from gpt2_train.training.trainer import Trainer


def train(settings: TrainSettings, world: World, stop: StopRequest) -> dict[str, Any]:
    """Train, as one process of `world`; returns the run's summary.

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
    steps = run.plan.steps
    if steps is not None and run.step >= steps and due(run, run.step, steps).is_empty:
        run.world.say(
            f"{run.folder} is at step {run.step:,} of {run.plan.steps:,} already: nothing to do; "
            f"ask for more {'--steps' if run.settings.minutes is None else '--minutes'} to train it further."
        )
        return summary(run, TrainState.of(run))
    for line in describe_run(run):
        run.world.say(line)
    if run.settings.compile is None and (missing := missing_for_compilation(run.world.device)):
        run.world.say(f"not compiled, and so slower: {missing}.")
    is_open = run.resumed is None and not run.settings.names_a_size
    if run.world.device.type == "cpu" and is_open and run.plan.steps is not None:
        advice = size_advice(run.config, run.plan.steps * run.plan.tokens_per_step, run.world.size * cpu_flops())
        if advice is not None:
            run.world.say(advice)
    if is_emulated(run.world.device, run.plan.precision):
        run.world.say(
            f"warning: this CPU has no {run.plan.precision} instructions and emulates them, many times slower than "
            "--precision fp32."
        )
    found = _fit(run, stop)
    if run.world.rank == 0 and found["stopped_by"] is None:
        show_losses(run.folder)
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
            if run.world.size > 1 or trainer.state.step > run.step:
                write_config(run.folder, smaller.resolved_settings())
                raise Gpt2Error(
                    f"out of memory with the micro-batch of {run.plan.micro_batch} that --micro-batch-size auto chose: "
                    f"start the same command again, and it takes {size}."
                ) from error
        trainer.saver.close()
        run.world.say(f"out of memory with a micro-batch of {run.plan.micro_batch}: beginning again with {size}.")
        run = smaller
        del trainer
        if run.plan.compilation is not None:
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


def show_losses(folder: Path) -> None:
    """Draw the losses of the run in `folder` on standard error: in a terminal as in a log, where they are read later.

    A run never fails for want of a picture.
    """
    with contextlib.suppress(OSError, Gpt2UsageError):
        print(loss_curves([read_run(folder, str(folder))], sys.stderr), file=sys.stderr, flush=True)
