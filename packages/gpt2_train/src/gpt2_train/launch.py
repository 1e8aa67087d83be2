"""Starting a run: in this process, in local processes of its own, or as one process of a torchrun job.

Under torchrun (RANK and WORLD_SIZE are set) this process is one of the job's; otherwise `gpt2 train` is the parent of
its own local processes, or, where one is enough, does the work itself.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from command_kit.command import exit_code_for, print_error, sentence_for
from gpt2_train.absence import Attendance
from gpt2_train.collectives import is_shared
from gpt2_train.config import TrainSettings
from gpt2_train.device import choose_device, keep_freed_memory, use_threads
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.layout import check_layout
from gpt2_train.local_processes import LocalProcesses
from gpt2_train.stopping import StopRequest
from gpt2_train.train import train
from gpt2_train.worker import arrange, close_group, finish, join_group, leave
from gpt2_train.world import make_world


def launch(settings: TrainSettings, *, as_json: bool = False, debug: bool = False) -> int:
    """Run `gpt2 train` with `settings` on as many processes as they ask for; return the exit code.

    128 plus its number after a signal, as shells have it. Raises Gpt2Error where the run fails.
    """
    if settings.compile or (settings.compile is None and settings.device != "cpu"):
        use_compile_cache(settings)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _work_under_torchrun(settings, as_json=as_json, debug=debug)
    wanted = processes_wanted(settings)
    if wanted > 1:
        summary = LocalProcesses(settings, wanted, debug).run()
        return finish(summary, settings, as_json=as_json) if isinstance(summary, dict) else summary
    stop = StopRequest()
    stop.install()
    use_threads(settings.threads)
    device = choose_device(settings.device)
    keep_freed_memory(device)
    return finish(
        train(settings, make_world(device, settings.tensor_parallel, settings.data_parallel_replicate), stop),
        settings,
        as_json=as_json,
    )


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


def use_compile_cache(settings: TrainSettings, environment: Callable[[str, str], Any] = os.environ.setdefault) -> None:
    """Give this run a cache of compiled kernels of its own, on this machine's disk, where a resumed run finds it again.

    Jobs that share one can read each other's half-written files, and network storage makes compiling slow. The code in
    it is run, so a folder that others may write to is not used.
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
    name = hashlib.sha256(str(Path(settings.output).resolve()).encode()).hexdigest()[:16]
    environment("TORCHINDUCTOR_CACHE_DIR", str(root / f"inductor-{name}"))


def _work_under_torchrun(settings: TrainSettings, *, as_json: bool, debug: bool) -> NoReturn:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attendance: Attendance | None = None

    def end(error: BaseException) -> NoReturn:
        if debug:
            traceback.print_exception(error)
        # What all processes raise is said once.
        if rank == 0 or not is_shared(error):
            print_error("gpt2", sentence_for(error))
        leave(exit_code_for(error))

    try:
        stop = StopRequest()
        stop.install()
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        wanted = settings.data_parallel
        if wanted is not None and wanted * settings.tensor_parallel != size:
            raise Gpt2UsageError(
                f"torchrun started {size} processes, --tensor-parallel {settings.tensor_parallel} times "
                f"--data-parallel {wanted} asks for {wanted * settings.tensor_parallel}: make them equal."
            )
        use_threads(settings.threads, local_size)
        device = choose_device(settings.device, local_rank=local_rank, local_size=local_size, sees_own_only=True)
        keep_freed_memory(device)
        store, _, _ = next(dist.rendezvous("env://"))
        join_group(device, store=store, rank=rank, world_size=size)
        attendance = Attendance(store, rank, size)
        summary = train(settings, arrange(attendance, settings, device, end), stop)
        status = finish(summary, settings, as_json=as_json and rank == 0)
        close_group()
    except BaseException as error:
        end(error if attendance is None else attendance.explained(error))
    leave(status)
