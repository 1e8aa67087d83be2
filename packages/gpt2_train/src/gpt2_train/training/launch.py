"""Starting a run: in this process, in several on this machine, or as one process of a torchrun job.

`gpt2 train` that is to use several GPUs starts itself once for each (`distributed.jobs`), and trains nothing itself;
each of these processes, like one that torchrun has started, is told by its environment that it is one of a job's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from command_kit import UsageError
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError, explained_out_of_memory, is_out_of_memory
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.config.layout import check_layout, is_in_job
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed import jobs
from gpt2_train.distributed.collectives import SHARED, TimeoutReporter, on_all_ranks
from gpt2_train.distributed.device import choose_device, cpu_flops, keep_freed_memory, note_emulated, use_threads
from gpt2_train.distributed.jobs import LocalJob, Place, StopRequest
from gpt2_train.distributed.mesh import World, make_world
from gpt2_train.distributed.parallelize import missing_for_compilation
from gpt2_train.metrics.plots import loss_curves
from gpt2_train.metrics.records import read_run
from gpt2_train.training.memory import RESERVE, fitting_micro_batch, layout_of
from gpt2_train.training.run_folder import check_shared, lock_folder, write_config
from gpt2_train.training.setup import Run, describe_run, set_up
from gpt2_train.training.size_advice import size_advice
from gpt2_train.training.state import TrainState, summary
from gpt2_train.training.trainer import Trainer


def launch(
    settings: TrainSettings,
    words: Sequence[str],
    *,
    as_json: bool = False,
    debug: bool = False,
    has_batch: bool = True,
) -> int:
    """Run `gpt2 train` with `settings` on as many processes as they ask for; return the exit code.

    128 plus its number after a signal, as shells have it. `words` are the command line, which several processes are
    given again; `has_batch` says whether somebody chose the batch: the default is refused on several GPUs. Raises
    Gpt2Error where the run fails.
    """
    if settings.compile or (settings.compile is None and settings.device != "cpu"):
        use_compile_cache()
    stop = StopRequest()
    if is_in_job():
        stop.install()

        def work() -> int:
            return finish(_take_part(settings, stop, debug=debug, has_batch=has_batch), settings, as_json=as_json)

        jobs.work_in_job(work, debug=debug)
    wanted = processes_wanted(settings)
    if wanted > 1:
        check_batch(settings, wanted, has_batch=has_batch)
        again = "the same command resumes from the last checkpoint"
        return LocalJob(words, wanted, threads=settings.threads, debug=debug, resumes=again).run()
    stop.install()
    use_threads(settings.threads)
    device = choose_device(settings.device)
    keep_freed_memory(device)
    world = make_world(device, settings.tensor_parallel, settings.data_parallel_replicate)
    return finish(train(settings, world, stop), settings, as_json=as_json)


def finish(found: dict[str, Any], settings: TrainSettings, *, as_json: bool) -> int:
    """Print a run's summary if that was asked for; return the exit code.

    0 for a run that ended; for one that a signal stopped 128 plus its number, unless --exit-zero-on-stop.
    """
    if as_json:
        print(json.dumps(found), flush=True)
    stopped_by = found["stopped_by"]
    return 128 + signal.Signals[stopped_by] if stopped_by and not settings.exit_zero_on_stop else 0


def processes_wanted(settings: TrainSettings) -> int:
    """Local processes of a run: --tensor-parallel times --data-parallel, by default as many GPUs as the batch allows.

    Says so where that leaves GPUs idle. Raises Gpt2UsageError if the layout needs more GPUs than there are.
    """
    gpus = torch.cuda.device_count() if settings.device in ("auto", "cuda") and torch.cuda.is_available() else 0
    data_parallel = check_layout(settings, gpus)
    wanted = settings.tensor_parallel * data_parallel
    if wanted < gpus and settings.data_parallel is None:
        print(
            f"using {wanted} of {gpus} GPUs (data parallel {data_parallel}): a --global-batch-size of "
            f"{settings.global_batch_size} can't be shared equally among more of them; raise it to use all.",
            file=sys.stderr,
        )
    return wanted


def check_batch(settings: TrainSettings, processes: int, *, has_batch: bool) -> None:
    """Refuse the default batch, which is for one GPU, for a new run in several `processes` on GPUs.

    Raises Gpt2UsageError with one that fits. Not chosen for the user: what a model learns depends on it.
    """
    data_parallel = processes // settings.tensor_parallel
    is_on_gpus = settings.device in ("auto", "cuda") and torch.cuda.is_available()
    if has_batch or data_parallel == 1 or not is_on_gpus or (Path(settings.output) / CHECKPOINTS_FOLDER).exists():
        return
    precision = "bf16" if settings.precision in (None, "auto") else settings.precision
    layout: dict[str, Any] = {
        "data_parallel": data_parallel,
        "tensor_parallel": settings.tensor_parallel,
        "compiled": True,
    }
    layout |= layout_of(settings) | {"precision": precision}
    room = torch.cuda.get_device_properties(0).total_memory - RESERVE
    fitting = fitting_micro_batch(settings.model_config(), None, room, **layout)
    raise Gpt2UsageError(
        f"no batch is given, and the default of {settings.global_batch_size} sequences leaves most of "
        f"{processes} GPUs idle: add --global-batch-size {fitting * data_parallel} ({fitting:,} sequences fit each "
        f"GPU), or another multiple of {data_parallel}; it decides what the model learns."
    )


def use_compile_cache(environment: Callable[[str, str], Any] = os.environ.setdefault) -> None:
    """Keep compiled kernels on this machine's disk, in one folder for all runs of a version of torch.

    torch writes its files whole or not at all, so that runs can share it; network storage makes compiling slow. The
    code in it is run, so a folder that others may write to is not used.
    """
    root = Path(tempfile.gettempdir()) / f"gpt2-train-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    except OSError:
        is_private = False
    if not is_private:
        root = Path(tempfile.mkdtemp(prefix="gpt2-train-"))
    environment("TORCHINDUCTOR_CACHE_DIR", str(root / f"inductor-{torch.__version__}"))


def _take_part(settings: TrainSettings, stop: StopRequest, *, debug: bool, has_batch: bool) -> dict[str, Any]:
    """Train as one process of a job, from joining its group to closing it; returns the run's summary."""
    place = Place.of_environment()
    wanted = settings.data_parallel
    try:
        if wanted is not None and wanted * settings.tensor_parallel != place.size:
            raise Gpt2UsageError(
                f"torchrun started {place.size} processes, --tensor-parallel {settings.tensor_parallel} times "
                f"--data-parallel {wanted} asks for {wanted * settings.tensor_parallel}: make them equal."
            )
        check_batch(settings, place.size, has_batch=has_batch or place.folder is not None)
    except Gpt2UsageError as error:
        error.add_note(SHARED)
        raise
    device = place.take_device(settings.device, settings.threads)
    keep_freed_memory(device)
    timeouts = TimeoutReporter(place.join(device), place.rank, place.size)
    try:
        world = make_world(device, settings.tensor_parallel, settings.data_parallel_replicate)
        assert world.mesh is not None
        groups = {
            group.group_name: group for group in (dist.group.WORLD, *world.mesh.get_all_groups()) if group is not None
        }
        timeouts.set_timeout(groups.values(), settings.distributed_timeout)
        if device.type == "cuda":
            # NCCL gives up in a thread of its own.
            timeouts.watch(groups.values(), functools.partial(jobs.end_with, debug=debug))
        found = train(settings, world, stop)
        jobs.close_group()
    except BaseException as error:
        explained = timeouts.explained(error)
        if explained is error:
            raise
        raise explained from None
    return found


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
    steps, say, plan, device = run.plan.steps, run.world.say, run.plan, run.world.device
    if steps is not None and run.step >= steps and run.due(run.step, steps).is_empty:
        say(
            f"{run.folder} is at step {run.step:,} of {steps:,} already: nothing to do; "
            f"ask for more {'--steps' if run.settings.minutes is None else '--minutes'} to train it further."
        )
        return summary(run, TrainState.of(run))
    lines = describe_run(run)
    if run.settings.compile is None and (missing := missing_for_compilation(device)):
        lines.append(f"not compiled, and so slower: {missing}.")
    is_open = run.resumed is None and not run.settings.names_a_size
    if device.type == "cpu" and is_open and steps is not None:
        advice = size_advice(run.config, steps * plan.tokens_per_step, run.world.size * cpu_flops())
        lines += [advice] if advice is not None else []
    if note := note_emulated(device, plan.precision):
        lines.append(f"warning: {note}")
    for line in lines:
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
