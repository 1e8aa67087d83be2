"""Starting a run: in this process, in local processes of its own, or as one process of a torchrun job.

Under torchrun (RANK and WORLD_SIZE are set) this process is one of the job's; otherwise `gpt2 train` is the parent of
its own local processes, or, where one is enough, does the work itself.

There all ranks are children of the command, which trains nothing itself: it passes signals on, so that Ctrl-C reaches
each of them once. When one child fails the others are ended, and its one sentence is what the user reads.
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
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from command_kit import UsageError
from command_kit.command import exit_code_for, print_error, sentence_for
from command_kit.settings import as_table, make_settings
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError, explained_out_of_memory, is_out_of_memory
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.config.layout import check_layout
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed import processes
from gpt2_train.distributed.collectives import Attendance, is_shared, on_all_ranks
from gpt2_train.distributed.device import choose_device, cpu_flops, keep_freed_memory, note_emulated, use_threads
from gpt2_train.distributed.mesh import World, make_world
from gpt2_train.distributed.parallelize import missing_for_compilation
from gpt2_train.distributed.processes import STOP_SIGNALS, Child, Place, StopRequest
from gpt2_train.metrics.plots import loss_curves
from gpt2_train.metrics.records import read_run
from gpt2_train.training.calibrate import size_advice
from gpt2_train.training.memory import RESERVE, fitting_micro_batch, layout_of
from gpt2_train.training.run_folder import check_shared, lock_folder, write_config
from gpt2_train.training.setup import Run, describe_run, set_up
from gpt2_train.training.state import TrainState, summary
from gpt2_train.training.trainer import Trainer


def launch(settings: TrainSettings, *, as_json: bool = False, debug: bool = False, has_batch: bool = True) -> int:
    """Run `gpt2 train` with `settings` on as many processes as they ask for; return the exit code.

    128 plus its number after a signal, as shells have it. `has_batch` says whether somebody chose the batch: the
    default is refused on several GPUs. Raises Gpt2Error where the run fails.
    """
    if settings.compile or (settings.compile is None and settings.device != "cpu"):
        use_compile_cache()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _work_under_torchrun(settings, as_json=as_json, debug=debug, has_batch=has_batch)
    wanted = processes_wanted(settings)
    if wanted > 1:
        check_batch(settings, wanted, has_batch=has_batch)
        found = LocalProcesses(settings, wanted, debug).run()
        return finish(found, settings, as_json=as_json) if isinstance(found, dict) else found
    stop = StopRequest()
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
    layout = {"data_parallel": data_parallel, "tensor_parallel": settings.tensor_parallel, "compiled": True}
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


def _work_under_torchrun(settings: TrainSettings, *, as_json: bool, debug: bool, has_batch: bool) -> NoReturn:
    place = Place.under_torchrun()

    def end(error: BaseException) -> NoReturn:
        if debug:
            traceback.print_exception(error)
        # What all processes raise is said once.
        if place.rank == 0 or not is_shared(error):
            print_error("gpt2", sentence_for(error))
        processes.leave(exit_code_for(error))

    try:
        stop = StopRequest()
        stop.install()
        wanted = settings.data_parallel
        if wanted is not None and wanted * settings.tensor_parallel != place.size:
            raise Gpt2UsageError(
                f"torchrun started {place.size} processes, --tensor-parallel {settings.tensor_parallel} times "
                f"--data-parallel {wanted} asks for {wanted * settings.tensor_parallel}: make them equal."
            )
        check_batch(settings, place.size, has_batch=has_batch)
        found = _take_part(place, settings, stop, end)
    except BaseException as error:
        end(error)
    processes.leave(finish(found, settings, as_json=as_json and place.rank == 0))


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
        world = make_world(device, settings.tensor_parallel, settings.data_parallel_replicate)
        assert world.mesh is not None
        groups = {
            group.group_name: group for group in (dist.group.WORLD, *world.mesh.get_all_groups()) if group is not None
        }
        attendance.be_patient(groups.values(), settings.distributed_timeout)
        if device.type == "cuda":
            attendance.watch(groups.values(), end)
        found = train(settings, world, stop)
        processes.close_group()
    except BaseException as error:
        explained = attendance.explained(error)
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
        """The signal that ended a child, by rank, of the children that were the first to end."""

    def run(self) -> dict[str, Any] | int:
        """Start the children and wait for them; return the run's summary, or the exit code if there is none.

        Raises Gpt2Error if one of them failed.
        """
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            self._store = processes.start_children(
                self.children,
                "gpt2_train.training.launch",
                range(self.size),
                self.size,
                threads=self.settings.threads,
                keeps_words=True,
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
        started = [child.process for child in self.children]
        while any(process.poll() is None for process in started):
            if deadline is None and any(process.poll() for process in started):
                # One has failed, or was stopped by a signal before it could take it: processes that wait for it
                # would wait forever.
                self.killed = self._killed_by_now()
                if self.killed and not self.signal:
                    # It can't report, and what the others would report is a lost connection.
                    return
                deadline = time.monotonic() + (GRACE_SECONDS if not self._all_stop() else STOP_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        if deadline is None:
            self.killed = self._killed_by_now()

    def _killed_by_now(self) -> dict[int, int]:
        codes = [child.process.poll() for child in self.children]
        return {rank: -code for rank, code in enumerate(codes) if code is not None and code < 0}

    def _all_stop(self) -> bool:
        """Whether the processes that ended did so because a signal asked for it, after saving."""
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
            self._show_last_words(rank)
            # A process that fails may abort on its way out, but it never kills itself.
            if number == signal.SIGKILL or first is None or not first["is_expected"]:
                raise self._death(rank, number)
        if first is not None:
            if not self.killed:
                self._show_last_words(reports.index(first))
            raise (Gpt2UsageError if first["exit_code"] == 2 else Gpt2Error)(first["error"])
        if all("summary" in report for report in reports):
            found: dict[str, Any] = reports[0]["summary"]
            return found
        if self.signal:
            print("gpt2: stopped before the first step, nothing was changed.", file=sys.stderr)
            return 128 + self.signal
        rank = next(rank for rank, report in enumerate(reports) if "summary" not in report)
        raise self._death(rank, -self.children[rank].process.returncode)

    def _show_last_words(self, rank: int) -> None:
        for child in self.children[rank : rank + 1]:
            for line in child.last_words():
                print(f"process {rank} of {self.size}: {line}", file=sys.stderr)

    def _death(self, rank: int, number: int) -> Gpt2Error:
        """The error of a child that ended without a report, by the signal `number`, or with the status `-number`."""
        death = processes.describe_death(rank, self.size, number)
        return Gpt2Error(f"{death}: the same command resumes from the last checkpoint.")


def _child() -> NoReturn:
    stop = StopRequest()
    stop.install()

    def work(place: Place, config: dict[str, Any]) -> tuple[dict[str, Any], int]:
        settings = make_settings(TrainSettings, config["settings"], "the parent process")
        found = _take_part(place, settings, stop, functools.partial(processes.end_child, config))
        # Whether a stop counts as a failure is for the parent to say, which waits for all to stop.
        return {"summary": found}, 128 + signal.Signals[found["stopped_by"]] if found["stopped_by"] else 0

    processes.work_as_child(work)


if __name__ == "__main__":
    _child()
