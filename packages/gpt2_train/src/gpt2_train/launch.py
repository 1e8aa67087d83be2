"""Starting the processes of a run and ending them together.

Under torchrun (RANK and WORLD_SIZE are set) this process is one of the job's; otherwise `gpt2 train` is the parent of
its own local processes, or, where one is enough, does the work itself. The parent owns the meeting point, a store on
a port that the system chose and nobody can take in between. Each child gets its orders through its standard input and
ends when that closes, so that none survives a parent that was killed; it runs in a session of its own, and the parent
passes signals on, so that Ctrl-C reaches it once. When one child fails the others are ended, and its one sentence is
what the user reads.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from command_kit import available_cores
from command_kit.command import sentence_for
from command_kit.errors import CommandError
from command_kit.settings import as_table, make_settings
from gpt2_train.config import TrainSettings
from gpt2_train.device import choose_device, keep_freed_memory, use_threads
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.parallel import make_world
from gpt2_train.train import STOP_SIGNALS, StopRequest, train, use_compile_cache

POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0
"""How long the other processes may take to report their own errors after one has failed."""


def processes_wanted(settings: TrainSettings) -> int:
    """Local processes of a run: --tensor-parallel times --data-parallel, by default every GPU, or one on CPU.

    Raises Gpt2UsageError if --tensor-parallel does not divide the GPUs of the default.
    """
    if settings.data_parallel is not None:
        return settings.tensor_parallel * settings.data_parallel
    if settings.device in ("auto", "cuda") and torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if gpus % settings.tensor_parallel:
            raise Gpt2UsageError(
                f"--tensor-parallel {settings.tensor_parallel} does not divide the {gpus} GPUs of this machine: "
                "choose a divisor, or give --data-parallel."
            )
        return gpus
    return settings.tensor_parallel


def launch(settings: TrainSettings, *, as_json: bool = False, debug: bool = False) -> int:
    """Run `gpt2 train` with `settings` on as many processes as they ask for; return the exit code.

    128 plus its number after a signal, as shells have it. Raises Gpt2Error where the run fails.
    """
    settings.corpora()
    if not settings.output:
        raise Gpt2UsageError("no --output: give a folder for the run.")
    if settings.compile or (settings.compile is None and settings.device != "cpu"):
        use_compile_cache(settings)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _work_under_torchrun(settings, as_json=as_json, debug=debug)
    wanted = processes_wanted(settings)
    if wanted == 1:
        stop = StopRequest()
        stop.install()
        use_threads(settings.threads)
        device = choose_device(settings.device)
        keep_freed_memory(device)
        world = make_world(device, settings.tensor_parallel)
        return _finish(train(settings, world, stop), as_json)
    return _Parent(settings, wanted, debug).run(as_json)


def _finish(summary: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps(summary), flush=True)
    stopped_by = summary["stopped_by"]
    return 128 + signal.Signals[stopped_by] if stopped_by else 0


def _backend(device: torch.device) -> str:
    # Objects and barriers of checkpoints go over gloo, tensors of a GPU over nccl.
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _leave(status: int) -> NoReturn:
    """End a process of a group at once: gloo's threads can abort an interpreter that shuts down the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _close_group() -> None:
    """Part from the group in good order, after all work is done."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


# --- under torchrun --------------------------------------------------------------------------------------------------


def _work_under_torchrun(settings: TrainSettings, *, as_json: bool, debug: bool) -> NoReturn:
    try:
        stop = StopRequest()
        stop.install()
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        wanted = settings.data_parallel
        if wanted is not None and wanted * settings.tensor_parallel != size:
            raise Gpt2UsageError(
                f"torchrun started {size} processes, --tensor-parallel {settings.tensor_parallel} times "
                f"--data-parallel {wanted} asks for {wanted * settings.tensor_parallel}: make them equal."
            )
        use_threads(settings.threads, local_size)
        device = choose_device(settings.device, local_rank=local_rank, local_size=local_size)
        keep_freed_memory(device)
        dist.init_process_group(_backend(device))
        summary = train(settings, make_world(device, settings.tensor_parallel), stop)
        status = _finish(summary, as_json and rank == 0)
        _close_group()
    except BaseException as error:
        if debug:
            traceback.print_exc()
        print(f"gpt2: error: {sentence_for(error)}", file=sys.stderr)
        _leave(error.exit_code if isinstance(error, CommandError) else 1)
    _leave(status)


# --- own children ----------------------------------------------------------------------------------------------------


class _Parent:
    """Starts the children of a run, passes signals on, and gathers what becomes of them."""

    def __init__(self, settings: TrainSettings, size: int, debug: bool) -> None:
        self.settings, self.size, self.debug = settings, size, debug
        self.children: list[subprocess.Popen[bytes]] = []
        self.reports: list[int] = []
        self.signal = 0
        self.killed: dict[int, int] = {}
        """The signal that ended a child, by rank, of those that ended before the parent ended the rest."""

    def run(self, as_json: bool) -> int:
        """Start the children, wait for them, return the exit code. Raises Gpt2Error if one of them failed."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            for rank in range(self.size):
                self._start(rank, store.port)
            self._wait()
            codes = {rank: child.poll() for rank, child in enumerate(self.children)}
            self.killed = {rank: -code for rank, code in codes.items() if code is not None and code < 0}
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._outcome([self._read_report(end) for end in self.reports], as_json)

    def _start(self, rank: int, port: int) -> None:
        reading, writing = os.pipe()
        self.reports.append(reading)
        environment = os.environ | {"OMP_NUM_THREADS": str(self._threads())}
        if sys.platform == "linux":
            # All are on this machine; the default asks for the address of the host's name, which may have none.
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        child = subprocess.Popen(
            [sys.executable, "-m", "gpt2_train.launch"],
            stdin=subprocess.PIPE,
            stdout=2,  # standard output is the summary's alone
            pass_fds=[writing],
            start_new_session=True,
            env=environment,
        )
        os.close(writing)
        self.children.append(child)
        orders = {
            "settings": as_table(self.settings),
            "rank": rank,
            "size": self.size,
            "port": port,
            "report": writing,
            "debug": self.debug,
        }
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(orders).encode() + b"\n")
            child.stdin.flush()

    def _threads(self) -> int:
        return self.settings.threads or max(1, available_cores() // self.size)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        for child in self.children:
            if child.poll() is None:
                child.send_signal(number)

    def _wait(self) -> None:
        deadline = None
        while any(child.poll() is None for child in self.children):
            if deadline is None and any(child.poll() for child in self.children):
                # One has failed, or was stopped by a signal before it could take it: those that wait for it
                # would wait for ever.
                deadline = time.monotonic() + (GRACE_SECONDS if not self._all_stop() else 60.0)
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)

    def _all_stop(self) -> bool:
        """Whether those that ended did so because a signal asked for it, after saving."""
        ended = [child.returncode for child in self.children if child.poll()]
        return all(code == 128 + self.signal for code in ended) if self.signal else False

    def _end_all(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()

    @staticmethod
    def _read_report(descriptor: int) -> dict[str, Any]:
        with os.fdopen(descriptor, "rb") as pipe:
            text = pipe.read()
        try:
            report = json.loads(text)
        except ValueError:
            return {}
        return report if isinstance(report, dict) else {}

    def _outcome(self, reports: list[dict[str, Any]], as_json: bool) -> int:
        failed = [report for report in reports if "error" in report]
        if any(report.get("is_interrupt") for report in failed):
            raise KeyboardInterrupt
        if failed:
            # The first to fail names the cause; what others say of lost connections is only its echo.
            first = min(failed, key=lambda report: (not report["is_expected"], report["time"]))
            if self.debug:
                sys.stderr.write(first["traceback"])
            if self.killed and not first["is_expected"] and not self.signal:
                raise self._death(*next(iter(self.killed.items())))
            raise (Gpt2UsageError if first["exit_code"] == 2 else Gpt2Error)(first["error"])
        if all("summary" in report for report in reports):
            return _finish(reports[0]["summary"], as_json)
        if self.signal:
            print("gpt2: stopped before the first step, nothing was changed.", file=sys.stderr)
            return 128 + self.signal
        rank = next(rank for rank, report in enumerate(reports) if "summary" not in report)
        raise self._death(rank, -self.children[rank].returncode)

    def _death(self, rank: int, number: int) -> Gpt2Error:
        """The error of a child that ended without a report, by the signal `number`, or with the status `-number`."""
        how = f"was killed by {signal.Signals(number).name}" if number > 0 else f"ended with status {-number}"
        hint = " (was there too little memory?)" if number == signal.SIGKILL else ""
        return Gpt2Error(
            f"process {rank} of {self.size} {how}{hint}: the same command goes on from the last checkpoint."
        )


def _die_with_parent() -> None:
    """End this process as soon as its standard input closes, which the parent's death does."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _read_orders() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            os._exit(1)
        line += part
    orders: dict[str, Any] = json.loads(line)
    return orders


def _child() -> NoReturn:
    stop = StopRequest()
    stop.install()
    orders = _read_orders()
    _die_with_parent()

    def report(content: dict[str, Any]) -> None:
        os.write(orders["report"], json.dumps(content).encode())

    try:
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in orders["settings"].items()}
        settings = make_settings(TrainSettings, values, "the parent process")
        rank, size = orders["rank"], orders["size"]
        use_threads(settings.threads, size)
        device = choose_device(settings.device, local_rank=rank, local_size=size)
        keep_freed_memory(device)
        store = dist.TCPStore("127.0.0.1", orders["port"], is_master=False)
        dist.init_process_group(_backend(device), store=store, rank=rank, world_size=size)
        summary = train(settings, make_world(device, settings.tensor_parallel), stop)
        _close_group()
    except BaseException as error:
        # The group is left as it is: the others may be inside a collective operation.
        report(
            {
                "error": sentence_for(error),
                "exit_code": error.exit_code if isinstance(error, CommandError) else 1,
                "is_expected": isinstance(error, CommandError | OSError),
                "is_interrupt": isinstance(error, KeyboardInterrupt),
                "time": time.monotonic(),
                "traceback": "".join(traceback.format_exception(error))[-20000:],
            }
        )
        _leave(1)
    report({"summary": summary})
    _leave(128 + signal.Signals[summary["stopped_by"]] if summary["stopped_by"] else 0)


if __name__ == "__main__":
    _child()
