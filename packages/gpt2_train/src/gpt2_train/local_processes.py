"""The local processes of a run: started together, signalled together, ended together.

The parent owns the rendezvous, a store on a port that the system chose and nobody can take in between. Each child
gets its settings through its standard input and ends when that closes, so that none survives a parent that was killed;
it runs in a session of its own, and the parent passes signals on, so that Ctrl-C reaches it once. When one child fails
the others are ended, and its one sentence is what the user reads.
"""

from __future__ import annotations

import contextlib
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

import torch.distributed as dist

from command_kit import available_cores
from command_kit.command import sentence_for
from command_kit.errors import CommandError
from command_kit.settings import as_table, make_settings
from gpt2_train.config import TrainSettings
from gpt2_train.device import choose_device, keep_freed_memory, use_threads
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.parallel import make_world
from gpt2_train.stopping import STOP_SIGNALS, StopRequest
from gpt2_train.train import train
from gpt2_train.worker import close_group, join_group, leave

POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0
"""How long the other processes may take to report their own errors after one has failed."""

STOP_SECONDS = 60.0
"""How long they may take to save after a signal, once one of them has."""


class LocalProcesses:
    """Starts the processes of a run, passes signals on, and gathers what becomes of them."""

    def __init__(self, settings: TrainSettings, size: int, debug: bool) -> None:
        self.settings, self.size, self.debug = settings, size, debug
        self.children: list[subprocess.Popen[bytes]] = []
        self.reports: list[int] = []
        self.signal = 0
        self.killed: dict[int, int] = {}
        """The signal that ended a child, by rank, of those that were the first to end."""

    def run(self) -> dict[str, Any] | int:
        """Start the children and wait for them; return the run's summary, or the exit code if there is none.

        Raises Gpt2Error if one of them failed.
        """
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            for rank in range(self.size):
                self._start(rank, store.port)
            self._wait()
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._outcome([self._read_report(end) for end in self.reports])

    def _start(self, rank: int, port: int) -> None:
        reading, writing = os.pipe()
        self.reports.append(reading)
        environment = os.environ | {"OMP_NUM_THREADS": str(self._threads())}
        if sys.platform == "linux":
            # All are on this machine; the default asks for the address of the host's name, which may have none.
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        child = subprocess.Popen(
            [sys.executable, "-m", "gpt2_train.local_processes"],
            stdin=subprocess.PIPE,
            stdout=2,  # standard output is the summary's alone
            pass_fds=[writing],
            start_new_session=True,
            env=environment,
        )
        os.close(writing)
        self.children.append(child)
        worker_config = {
            "settings": as_table(self.settings),
            "rank": rank,
            "size": self.size,
            "port": port,
            "report": writing,
            "debug": self.debug,
        }
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(worker_config).encode() + b"\n")
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
        codes = {rank: child.poll() for rank, child in enumerate(self.children)}
        self.killed = {rank: -code for rank, code in codes.items() if code is not None and code < 0}

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
        raise self._death(rank, -self.children[rank].returncode)

    def _death(self, rank: int, number: int) -> Gpt2Error:
        """The error of a child that ended without a report, by the signal `number`, or with the status `-number`."""
        how = f"was killed by {signal.Signals(number).name}" if number > 0 else f"ended with status {-number}"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return Gpt2Error(
            f"process {rank} of {self.size} {how}{hint}: the same command resumes from the last checkpoint."
        )


def _die_with_parent() -> None:
    """End this process as soon as its standard input closes, which the parent's death does."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _read_config() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            os._exit(1)
        line += part
    config: dict[str, Any] = json.loads(line)
    return config


def _child() -> NoReturn:
    stop = StopRequest()
    stop.install()
    config = _read_config()
    _die_with_parent()

    def report(content: dict[str, Any]) -> None:
        os.write(config["report"], json.dumps(content).encode())

    try:
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in config["settings"].items()}
        settings = make_settings(TrainSettings, values, "the parent process")
        rank, size = config["rank"], config["size"]
        use_threads(settings.threads, size)
        device = choose_device(settings.device, local_rank=rank, local_size=size)
        keep_freed_memory(device)
        store = dist.TCPStore("127.0.0.1", config["port"], is_master=False)
        join_group(device, store=store, rank=rank, world_size=size)
        summary = train(settings, make_world(device, settings.tensor_parallel), stop)
        close_group()
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
        leave(1)
    report({"summary": summary})
    # Whether a stop counts as a failure is for the parent to say, which waits for all to stop.
    leave(128 + signal.Signals[summary["stopped_by"]] if summary["stopped_by"] else 0)


if __name__ == "__main__":
    _child()
