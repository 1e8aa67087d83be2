"""A process of a job: started by a command on this machine (`local_job`), or on many machines by torchrun.

It joins the group of the others (`mesh.World` says which it is), works, and ends with an error that the command
that started it shows; under torchrun it prints it itself. It ends with the command that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from command_kit.atomic import write_text
from command_kit.command import INTERRUPTED, exit_code_for, print_error, sentence_for
from command_kit.errors import CommandError
from command_kit.processes import end_after
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import JOB_FOLDER
from gpt2_train.distributed.collectives import is_shared
from gpt2_train.distributed.meeting import meet
from gpt2_train.distributed.mesh import World

PARENT = "GPT2_JOB_PARENT"
"""The variable by which a process of a local job knows that of the command."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torchrun's variable for the file of a process's error."""
LOG_LEVEL, SILENT, ERRORS = "TORCH_CPP_LOG_LEVEL", "FATAL", "ERROR"
"""The variable by which PyTorch's C++ knows what to log, and two of its levels."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
POLL_SECONDS = 0.05


def words_file(folder: Path, rank: int) -> Path:
    """The file of what the libraries of a process write to standard error by themselves."""
    return folder / f"words-{rank}"


def join(
    world: World,
    timeout: datetime.timedelta | None = None,
    patience: datetime.timedelta | None = None,
    look: Callable[[], None] = lambda: None,
) -> dist.Store:
    """Join the process group, whose operations wait for `timeout`; returns the store at which all have met.

    `patience` and `look` as in `meeting.meet`.

    Objects and barriers go over gloo, tensors of a GPU over nccl, which is given its GPU at once: it would
    otherwise guess it from the rank. Raises Gpt2UsageError if two processes were given one GPU.
    """
    is_local = world.folder is not None or os.environ.get("LOCAL_WORLD_SIZE") == str(world.world_size)
    if is_local and sys.platform == "linux":
        # The default asks for the address of the host's name, which may have none.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = meet_in_job(world, patience, look)
    is_gpu = world.device.type == "cuda"
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
            device_id=world.device if is_gpu else None,
            store=store,
            rank=world.rank,
            world_size=world.world_size,
            timeout=timeout,
        )
    except RuntimeError as error:
        if "Duplicate GPU" in str(error):
            raise Gpt2UsageError(
                "two processes of the job were given the same GPU: start one process for each GPU."
            ) from error
        raise
    return store


def meet_in_job(
    world: World, patience: datetime.timedelta | None = None, look: Callable[[], None] = lambda: None
) -> dist.Store:
    """The store of the job; of a local one, on a port that the system chooses and the first process tells."""
    if world.folder is None:
        return meet(world.rank, world.world_size, patience, look)
    port = world.folder / "port"
    if world.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        write_text(port, str(store.port), durable=False)
        return store
    while not port.exists():
        time.sleep(POLL_SECONDS)
    return dist.TCPStore("127.0.0.1", int(port.read_text()))


def work_in_job(work: Callable[[], int], *, debug: bool = False) -> NoReturn:
    """Do the `work` of a process of a job, which returns the exit code, and end with it.

    Only the first process writes to standard output.
    """
    world = World.of_environment()
    if world.folder is not None:
        parent = int(os.environ[PARENT])
        folder = world.folder
        end_after(lambda: outlive(parent, folder))
        if os.environ.get(LOG_LEVEL) == ERRORS:
            _keep_words(words_file(world.folder, world.rank))
    if world.rank > 0:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        code = work()
    except BaseException as error:
        end_with(error, debug=debug)
    leave(code)


def outlive(parent: int, folder: Path) -> None:
    """Wait until `parent` is no longer the process that started this one, and clear away the folder of its job."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def _keep_words(path: Path) -> None:
    """Redirect to a file what libraries write to standard error by themselves."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    os.close(file)


def end_with(error: BaseException, *, debug: bool = False) -> NoReturn:
    """End this process of a job with an error, which goes to the command that started it, or, under torchrun, is
    printed: once if all processes raise it.

    The group is left as it is: others may be inside a collective.
    """
    is_interrupt = isinstance(error, KeyboardInterrupt)
    if path := os.environ.get(ERROR_FILE):
        report = failure(error)
        extra = {"py_callstack": report["traceback"], "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            table = {"message": {"message": report["error"], "extraInfo": extra}, "gpt2": report}
            write_text(Path(path), json.dumps(table), durable=False)
    if JOB_FOLDER not in os.environ and not is_interrupt:
        if debug:
            traceback.print_exception(error)
        if os.environ["RANK"] == "0" or not is_shared(error):
            lost = "another process of the job has ended: what it printed says why."
            print_error("gpt2", lost if is_lost_connection(error) else sentence_for(error))
    leave(INTERRUPTED if is_interrupt else exit_code_for(error))


def failure(error: BaseException) -> dict[str, Any]:
    """The report of a process that `error` ended."""
    return {
        "error": sentence_for(error),
        "exit_code": exit_code_for(error),
        "is_expected": isinstance(error, CommandError | OSError),
        "time": time.monotonic(),
        "traceback": "".join(traceback.format_exception(error)),
    }


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that another process of the group has gone."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)


class Stopped(Exception):
    """A signal has come while this process waited for the others."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


class StopRequest:
    """Remembers that a signal asked the run to stop; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal = 0

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1; only the main thread can."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._received)

    def end_if_asked(self) -> None:
        """Raise Stopped if a signal has come: before the run begins there is nothing to save."""
        if self.signal:
            raise Stopped(self.signal)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


def close_group() -> None:
    """Synchronise and destroy the process group, after all work is done."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End a process of a group at once: gloo's threads can abort an interpreter that shuts down the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
