"""Starting a run: in this process, in local processes of its own, or as one process of a torchrun job.

Under torchrun (RANK and WORLD_SIZE are set) this process is one of the job's; otherwise `gpt2 train` is the parent of
its own local processes, or, where one is enough, does the work itself.

There all ranks are children of the command, which trains nothing itself: it passes signals on, so that Ctrl-C reaches
each of them once. When one child fails the others are ended, and its one sentence is what the user reads.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from command_kit.command import exit_code_for, print_error, sentence_for
from command_kit.settings import as_table, make_settings
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.layout import check_layout
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed.collectives import is_shared
from gpt2_train.distributed.device import choose_device, keep_freed_memory, use_threads
from gpt2_train.distributed.mesh import make_world
from gpt2_train.distributed.processes import (
    STOP_SIGNALS,
    Child,
    Place,
    StopRequest,
    arrange,
    close_group,
    describe_death,
    end_child,
    finish,
    leave,
    start_children,
    work_as_child,
)
from gpt2_train.distributed.timeouts import Attendance
from gpt2_train.training.run import train


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
    place = Place.under_torchrun()

    def end(error: BaseException) -> NoReturn:
        if debug:
            traceback.print_exception(error)
        # What all processes raise is said once.
        if place.rank == 0 or not is_shared(error):
            print_error("gpt2", sentence_for(error))
        leave(exit_code_for(error))

    try:
        stop = StopRequest()
        stop.install()
        wanted = settings.data_parallel
        if wanted is not None and wanted * settings.tensor_parallel != place.size:
            raise Gpt2UsageError(
                f"torchrun started {place.size} processes, --tensor-parallel {settings.tensor_parallel} times "
                f"--data-parallel {wanted} asks for {wanted * settings.tensor_parallel}: make them equal."
            )
        summary = _take_part(place, settings, stop, end)
    except BaseException as error:
        end(error)
    leave(finish(summary, settings, as_json=as_json and place.rank == 0))


def _take_part(
    place: Place, settings: TrainSettings, stop: StopRequest, end: Callable[[BaseException], NoReturn]
) -> dict[str, Any]:
    """Train as one process of a job, from joining its group to closing it; returns the run's summary.

    `end` ends this process with an error of NCCL, which gives up in a thread of its own.
    """
    device = place.take_device(settings.device, settings.threads)
    keep_freed_memory(device)
    attendance = Attendance(place.join(device), place.rank, place.size)
    try:
        summary = train(settings, arrange(attendance, settings, device, end), stop)
        close_group()
    except BaseException as error:
        explained = attendance.explained(error)
        if explained is error:
            raise
        raise explained from None
    return summary


POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0
"""How long the other processes may take to report their own errors after one has failed."""

STOP_SECONDS = 60.0
"""How long they may take to save after a signal, once one of them has."""


class LocalProcesses:
    """Starts the processes of a run, passes signals on, and gathers what becomes of them."""

    def __init__(self, settings: TrainSettings, size: int, debug: bool) -> None:
        self.settings, self.size, self.debug = settings, size, debug
        self.children: list[Child] = []
        self.signal = 0
        self.killed: dict[int, int] = {}
        """The signal that ended a child, by rank, of those that were the first to end."""

    def run(self) -> dict[str, Any] | int:
        """Start the children and wait for them; return the run's summary, or the exit code if there is none.

        Raises Gpt2Error if one of them failed.
        """
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            self._store = start_children(
                self.children,
                "gpt2_train.training.launch",
                range(self.size),
                self.size,
                threads=self.settings.threads,
                settings=as_table(self.settings),
            )
            self._wait()
        finally:
            for child in self.children:
                child.end()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._outcome([child.report() for child in self.children])

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        for child in self.children:
            if child.process.poll() is None:
                child.process.send_signal(number)

    def _wait(self) -> None:
        deadline = None
        processes = [child.process for child in self.children]
        while any(process.poll() is None for process in processes):
            if deadline is None and any(process.poll() for process in processes):
                # One has failed, or was stopped by a signal before it could take it: those that wait for it
                # would wait forever.
                self._note_killed()
                if self.killed and not self.signal:
                    # It can't report, and what the others would report is a lost connection.
                    return
                deadline = time.monotonic() + (GRACE_SECONDS if not self._all_stop() else STOP_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        if deadline is None:
            self._note_killed()

    def _note_killed(self) -> None:
        numbers = {rank: child.killed_by for rank, child in enumerate(self.children)}
        self.killed = {rank: number for rank, number in numbers.items() if number is not None}

    def _all_stop(self) -> bool:
        """Whether those that ended did so because a signal asked for it, after saving."""
        ended = [child.process.returncode for child in self.children if child.process.poll()]
        return all(code == 128 + self.signal for code in ended) if self.signal else False

    def _outcome(self, reports: list[dict[str, Any]]) -> dict[str, Any] | int:
        failed = [report for report in reports if "error" in report]
        if any(report.get("is_interrupt") for report in failed):
            raise KeyboardInterrupt
        # The first to fail names the cause; what others say of lost connections is only its echo.
        first = min(failed, key=lambda report: (not report["is_expected"], report["time"]), default=None)
        if first is not None and self.debug:
            sys.stderr.write(first["traceback"])
        if self.killed and not self.signal:
            rank, number = next(iter(self.killed.items()))
            # A process that fails may abort on its way out, but it never kills itself.
            if number == signal.SIGKILL or first is None or not first["is_expected"]:
                raise self._death(rank, number)
        if first is not None:
            raise (Gpt2UsageError if first["exit_code"] == 2 else Gpt2Error)(first["error"])
        if all("summary" in report for report in reports):
            summary: dict[str, Any] = reports[0]["summary"]
            return summary
        if self.signal:
            print("gpt2: stopped before the first step, nothing was changed.", file=sys.stderr)
            return 128 + self.signal
        rank = next(rank for rank, report in enumerate(reports) if "summary" not in report)
        raise self._death(rank, -self.children[rank].process.returncode)

    def _death(self, rank: int, number: int) -> Gpt2Error:
        """The error of a child that ended without a report, by the signal `number`, or with the status `-number`."""
        death = describe_death(rank, self.size, number)
        return Gpt2Error(f"{death}: the same command resumes from the last checkpoint.")


def _child() -> NoReturn:
    stop = StopRequest()
    stop.install()

    def work(place: Place, config: dict[str, Any]) -> tuple[dict[str, Any], int]:
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in config["settings"].items()}
        settings = make_settings(TrainSettings, values, "the parent process")
        summary = _take_part(place, settings, stop, functools.partial(end_child, config))
        # Whether a stop counts as a failure is for the parent to say, which waits for all to stop.
        return {"summary": summary}, 128 + signal.Signals[summary["stopped_by"]] if summary["stopped_by"] else 0

    work_as_child(work)


if __name__ == "__main__":
    _child()
