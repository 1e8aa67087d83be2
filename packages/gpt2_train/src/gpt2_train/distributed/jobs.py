"""A job of several processes: started on this machine by torch's own launcher, or on many machines by torchrun.

A command that is to use four GPUs starts itself four times, by the part of torchrun that runs the processes of one
machine: each gets torchrun's variables, a session of its own, so that Ctrl-C on a terminal reaches the command alone,
and a file for its error. The command passes signals on; when one process fails it ends the others, and the sentence of
the first is what the user reads. A process ends with the command that started it, however that ends.

Under torchrun the same processes print their errors themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    SubprocessContext,
    start_processes,
)

from command_kit.atomic import write_text
from command_kit.command import INTERRUPTED, exit_code_for, print_error, sentence_for
from command_kit.errors import CommandError
from command_kit.machine import physical_cores
from command_kit.processes import end_after
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.layout import JOB_FOLDER
from gpt2_train.distributed.collectives import is_shared
from gpt2_train.distributed.device import DeviceKind, choose_device, use_threads

PARENT = "GPT2_JOB_PARENT"
"""The variable by which a process of a local job knows that of the command."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torchrun's variable for the file of a process's error."""
LOG_LEVEL, SILENT, ERRORS = "TORCH_CPP_LOG_LEVEL", "FATAL", "ERROR"
"""The variable by which PyTorch's C++ knows what to log, and two of its levels."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0
"""Seconds that the other processes may take to report their own errors after one has failed."""
STOP_SECONDS = 60.0
"""Seconds that they may take to save after a signal, once one of them has."""

_ERROR_OF_A_LIBRARY = re.compile(r"(\[rank\d+\]:)?\[[EF]\d{4}|terminate called|  what\(\)|.*\bNCCL (WARN|ERROR)")
MOST_WORDS = 8
"""Lines that are shown of what the libraries of a failed process said: a watchdog writes pages of stack traces."""


# --- the command that starts them ------------------------------------------------------------------------------------


class LocalJob:
    """Processes on this machine that run the same command line.

    Args:
        words: the arguments of `gpt2`.
        size: how many processes.
        threads: CPU threads of each; the cores shared among them without it.
        debug: whether to show the traceback of an error.
        resumes: what a user does after a process was killed, added to the sentence.
    """

    def __init__(
        self,
        words: Sequence[str],
        size: int,
        *,
        threads: int | None = None,
        debug: bool = False,
        resumes: str = "the command ends with it",
    ) -> None:
        self.words, self.size, self.debug, self.resumes = list(words), size, debug, resumes
        self.threads = threads or max(1, physical_cores() // size)
        self.signal = 0
        self.ended_first: dict[int, int] = {}
        """The exit codes of those that had ended when it was first seen that one has failed."""
        self._processes: dict[int, Any] = {}

    def run(self) -> int:
        """Start the processes and wait for them; return the exit code, 128 plus its number after a signal.

        Raises Gpt2Error with the sentence of the first process that failed, KeyboardInterrupt after Ctrl-C.
        """
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it tells what is told here
        before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP, signal.SIGQUIT)}
        with tempfile.TemporaryDirectory(prefix="gpt2-job-") as folder:
            job: PContext | None = None
            try:
                job = self._start(Path(folder))
                self._wait()
            except SignalException as error:  # torch's own, while processes are started
                self.signal = int(error.sigval)
            finally:
                if job is not None:
                    job.close(signal.SIGKILL)
                for number, handler in before.items():
                    signal.signal(number, handler)
            return self._outcome(Path(folder), job)

    def _start(self, folder: Path) -> PContext:
        shared: dict[str, object] = {
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.size,
            "OMP_NUM_THREADS": self.threads,
        }
        shared |= {JOB_FOLDER: folder, PARENT: os.getpid()}
        if os.environ.get(LOG_LEVEL) == SILENT:
            shared[LOG_LEVEL] = ERRORS
        ranks = range(self.size)
        environments = {
            rank: {name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            for rank in ranks
        }
        words = dict.fromkeys(ranks, ("-m", "gpt2_train", *self.words))
        job = start_processes("gpt2", sys.executable, words, environments, DefaultLogsSpecs(log_dir=str(folder)))
        for number in STOP_SIGNALS:
            signal.signal(number, self._pass_on)
        assert isinstance(job, SubprocessContext)
        self._processes = {rank: started.proc for rank, started in job.subprocess_handlers.items()}
        return job

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def _codes(self) -> dict[int, int]:
        """The exit codes of the processes that have ended, negative for a signal."""
        return {rank: process.returncode for rank, process in self._processes.items() if process.poll() is not None}

    def _wait(self) -> None:
        """Wait until all have ended, or one has failed and the others had their time to report."""
        deadline = None
        while len(codes := self._codes()) < self.size:
            if deadline is None and any(codes.values()):
                # Processes that wait for one that has failed would wait forever.
                self.ended_first = codes
                if self.signal == 0 and any(code < 0 for code in codes.values()):
                    return  # It can't report, and what the others would report is a lost connection.
                has_stopped = self.signal and all(code in (0, 128 + self.signal) for code in codes.values())
                deadline = time.monotonic() + (STOP_SECONDS if has_stopped else GRACE_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        if deadline is None:
            self.ended_first = codes

    def _outcome(self, folder: Path, job: PContext | None) -> int:
        codes, files = self._codes(), {} if job is None else job.error_files
        reports = {rank: read_report(Path(files[rank])) for rank, code in codes.items() if code}
        return self.judge(codes, {rank: report for rank, report in reports.items() if report}, folder)

    def judge(self, codes: dict[int, int], reports: dict[int, dict[str, Any]], folder: Path) -> int:
        """The exit code of the job whose processes ended with `codes` and left `reports`. Raises as `run` does."""
        failed = {rank: code for rank, code in codes.items() if code}
        if len(codes) == self.size and not failed:
            return 0
        # The first to fail names the cause; what others say of lost connections is only its echo.
        first = min(reports, key=lambda rank: (not reports[rank]["is_expected"], reports[rank]["time"]), default=None)
        is_expected = first is not None and reports[first]["is_expected"]
        if self.signal and not is_expected:
            if self.signal == signal.SIGINT and (reports or -signal.SIGINT in failed.values()):
                raise KeyboardInterrupt
            if any(code < 0 for code in failed.values()):
                print(f"gpt2: stopped by {signal.Signals(self.signal).name}.", file=sys.stderr)
            return 128 + self.signal
        if first is not None and self.debug:
            sys.stderr.write(reports[first]["traceback"])
        killed = next(((rank, -code) for rank, code in self.ended_first.items() if code < 0), None)
        if killed is not None and (killed[1] == signal.SIGKILL or not is_expected):
            # A process that fails may abort on its way out, but it never kills itself.
            raise self._death(*killed, folder)
        if first is None:
            raise self._death(next(iter(failed)), -next(iter(failed.values())), folder)
        self._show_words(first, folder)
        raise (Gpt2UsageError if reports[first]["exit_code"] == 2 else Gpt2Error)(reports[first]["error"])

    def _death(self, rank: int, number: int, folder: Path) -> Gpt2Error:
        """The error of a process that ended without a report, by the signal `number`, or with the status `-number`."""
        self._show_words(rank, folder)
        how = f"was killed by {signal.Signals(number).name}" if number > 0 else f"ended with status {-number}"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return Gpt2Error(f"process {rank} of {self.size} {how}{hint}: {self.resumes}.")

    def _show_words(self, rank: int, folder: Path) -> None:
        with contextlib.suppress(OSError):
            text = words_file(folder, rank).read_text(errors="replace")
            for line in errors_in(text):
                print(f"process {rank} of {self.size}: {line}", file=sys.stderr)


def errors_in(text: str) -> list[str]:
    """The lines in which libraries of a process say what went wrong, without stack traces; else the last ones."""
    lines = text.splitlines()
    return [line for line in lines if _ERROR_OF_A_LIBRARY.match(line)][-MOST_WORDS:] or lines[-MOST_WORDS:]


def words_file(folder: Path, rank: int) -> Path:
    """The file of what the libraries of a process write to standard error by themselves."""
    return folder / f"words-{rank}"


def read_report(path: Path) -> dict[str, Any]:
    """The report of a process on its error; empty where it could not write one."""
    try:
        found = json.loads(path.read_text())["gpt2"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(found)


# --- in each process of a job ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of this process in a job.

    Attributes:
        rank, size: its number among all, and how many there are.
        local_rank, local_size: the same on its machine.
        folder: of a local job; None under torchrun.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    folder: Path | None = None

    @classmethod
    def of_environment(cls) -> Place:
        """The place that the command, torchrun, or another launcher has put into the environment."""
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        folder = os.environ.get(JOB_FOLDER)
        return cls(rank, size, local_rank, local_size, Path(folder) if folder else None)

    def take_device(self, kind: DeviceKind, threads: int | None) -> torch.device:
        """This process's device, its share of CPU threads set. Raises Gpt2UsageError as `choose_device` does."""
        use_threads(threads, self.local_size)
        sees_own_only = self.folder is None
        return choose_device(kind, local_rank=self.local_rank, local_size=self.local_size, sees_own_only=sees_own_only)

    def join(self, device: torch.device, timeout: datetime.timedelta | None = None) -> dist.Store:
        """Join the process group, whose operations wait for `timeout`; returns the store at which all have met.

        Objects and barriers go over gloo, tensors of a GPU over nccl, which is given its GPU at once: it would
        otherwise guess it from the rank. Raises Gpt2UsageError if two processes were given one GPU.
        """
        is_local = self.folder is not None or os.environ.get("LOCAL_WORLD_SIZE") == str(self.size)
        if is_local and sys.platform == "linux":
            # The default asks for the address of the host's name, which may have none.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = self.meet()
        is_gpu = device.type == "cuda"
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
                device_id=device if is_gpu else None,
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=timeout,
            )
        except RuntimeError as error:
            if "Duplicate GPU" in str(error):
                raise Gpt2UsageError(
                    "two processes of the job were given the same GPU: start one process for each GPU."
                ) from error
            raise
        return store

    def meet(self) -> dist.Store:
        """The store of the job; of a local one, on a port that the system chooses and the first process tells."""
        if self.folder is None:
            return next(dist.rendezvous("env://"))[0]
        port = self.folder / "port"
        if self.rank == 0:
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
    place = Place.of_environment()
    if place.folder is not None:
        parent = int(os.environ[PARENT])
        folder = place.folder
        end_after(lambda: outlive(parent, folder))
        if os.environ.get(LOG_LEVEL) == ERRORS:
            _keep_words(words_file(place.folder, place.rank))
    if place.rank > 0:
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


class StopRequest:
    """Remembers that a signal asked the run to stop; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal = 0

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1; only the main thread can."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._received)

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
