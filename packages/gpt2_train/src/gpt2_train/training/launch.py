"""Starting a run: in this process, in several on this machine, or as one process of a torchrun job.

`gpt2 train` that is to use several GPUs starts itself once for each (`LocalJob`), and trains nothing itself;
each of these processes, like one that torchrun has started, is told by its environment that it is one of a job's.
What a process then does is `trainer.train`.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from command_kit.command import print_note
from command_kit.processes import keep_freed_memory
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.config.layout import check_layout, is_in_job
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed import jobs
from gpt2_train.distributed.collectives import SHARED, TimeoutReporter
from gpt2_train.distributed.device import choose_device, use_threads
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.local_job import LocalJob
from gpt2_train.distributed.mesh import World, make_world
from gpt2_train.training.memory import RESERVE, fitting_micro_batch, layout_of
from gpt2_train.training.setup import open_first_weights
from gpt2_train.training.trainer import train


def launch(settings: TrainSettings, *, as_json: bool = False, debug: bool = False) -> int:
    """Train in as many processes as `settings` ask for; return the exit code.

    128 plus its number after a signal, as shells have it. Raises Gpt2Error where the run fails.
    """
    if settings.compile or (settings.compile is None and settings.device != "cpu"):
        use_compile_cache()
    stop = StopRequest()
    if is_in_job():
        stop.install()

        def take_part() -> int:
            found = _take_part(settings, stop, debug=debug)
            return finish(found, settings, as_json=as_json)

        jobs.work_in_job(take_part, debug=debug)
    wanted = processes_wanted(settings)
    if wanted > 1:
        check_batch(settings, wanted)
        again = "the same command resumes from the last checkpoint"
        job = LocalJob(
            ["train"], [settings], wanted, threads=settings.threads, as_json=as_json, debug=debug, resumes=again
        )
        return job.run()
    stop.install()
    use_threads(settings.threads)
    device = choose_device(settings.device)
    if device.type == "cpu":
        keep_freed_memory(all_of_it=True)
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


def check_batch(settings: TrainSettings, processes: int) -> None:
    """Refuse the default batch, which is for one GPU, for a new run in several `processes` on GPUs.

    Raises Gpt2UsageError with one that fits the model, that of --init-from if it is given. Not chosen for the user:
    what a model learns depends on it.
    """
    data_parallel = processes // settings.tensor_parallel
    is_on_gpus = settings.device in ("auto", "cuda") and torch.cuda.is_available()
    if (
        settings.has_batch
        or data_parallel == 1
        or not is_on_gpus
        or (Path(settings.output) / CHECKPOINTS_FOLDER).exists()
    ):
        return
    precision = "bf16" if settings.precision in (None, "auto") else settings.precision
    layout = layout_of(settings, data_parallel, settings.tensor_parallel, precision, compiled=True)
    room = torch.cuda.get_device_properties(0).total_memory - RESERVE
    first = open_first_weights(settings, None)
    config = first.config if first is not None else settings.model_config()
    fitting = fitting_micro_batch(config, None, room, **layout)
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
    environment("TRITON_CACHE_DIR", str(root / f"triton-{torch.__version__}"))


def _take_part(settings: TrainSettings, stop: StopRequest, *, debug: bool) -> dict[str, Any]:
    """Train in one process of a job, from joining its group to closing it; returns the run's summary."""
    world = World.of_environment()
    wanted = settings.data_parallel
    try:
        if wanted is not None and wanted * settings.tensor_parallel != world.world_size:
            raise Gpt2UsageError(
                f"the launcher started {world.world_size} processes, --tensor-parallel {settings.tensor_parallel} "
                f"times --data-parallel {wanted} asks for {wanted * settings.tensor_parallel}: make them equal."
            )
        if world.folder is None:
            check_batch(settings, world.world_size)
    except Gpt2UsageError as error:
        error.add_note(SHARED)
        raise
    world = world.take_device(settings.device, settings.threads)
    if world.device.type == "cpu":
        keep_freed_memory(all_of_it=True)
    minutes = settings.distributed_timeout
    patience = datetime.timedelta(minutes=minutes) if minutes else None
    try:
        store = jobs.join(world, patience=patience, look=stop.end_if_asked)
    except jobs.Stopped as stopped:
        print_note(f"stopped by {stopped.signal.name} while this process waited for the others: nothing had begun")
        return {"stopped_by": stopped.signal.name}
    timeouts = TimeoutReporter(store, world.rank, world.world_size)
    try:
        world = make_world(world.device, settings.tensor_parallel, settings.data_parallel_replicate)
        assert world.mesh is not None
        groups = {
            group.group_name: group for group in (dist.group.WORLD, *world.mesh.get_all_groups()) if group is not None
        }
        timeouts.set_timeout(groups.values(), settings.distributed_timeout)
        if world.device.type == "cuda":
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
