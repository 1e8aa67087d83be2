"""Processes of a job, which a command starts on its own machine or torchrun on any: how each joins, reports and ends.

Each child gets its settings through its standard input and ends when that closes, so that none survives a parent that
was killed; it runs in a session of its own, so that Ctrl-C on a terminal reaches the parent alone. What becomes of it
comes back through a pipe. The parent owns the rendezvous, a store on a port that the system chose and nobody can take
in between. Training and inference share all of this; what a process does once it has joined is theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist

from command_kit import available_cores
from command_kit.command import sentence_for
from command_kit.errors import CommandError
from command_kit.processes import end_after
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.distributed.device import DeviceKind, choose_device, use_threads

LOG_LEVEL, SILENT = "TORCH_CPP_LOG_LEVEL", "FATAL"
"""The variable by which PyTorch's C++ knows what to log, and the level at which it logs no error."""

_ERROR_OF_A_LIBRARY = re.compile(r"(\[rank\d+\]:)?\[[EF]\d{4}|terminate called|  what\(\)|.*\bNCCL (WARN|ERROR)")
MOST_WORDS = 8
"""Lines that are shown of what the libraries of a failed process said: a watchdog writes pages of stack traces."""

LONGEST_TEXT = 20_000
"""Bytes of an error, and of its traceback, that a child reports; a pipe holds 64 KiB without a reader."""


class Child:
    """One of them, which waits for `tell`.

    Args:
        module: run as `python -m`; all that it does is `work_as_child`.
        threads: CPU threads that its libraries may start.
        keeps_words: whether what libraries write to its standard error by themselves is kept for `last_words`.

    Attributes:
        process: the process itself.
    """

    def __init__(self, module: str, *, threads: int, keeps_words: bool = False) -> None:
        reading, writing = os.pipe()
        more = {"OMP_NUM_THREADS": str(threads)}
        self._words = None
        if keeps_words and os.environ.get(LOG_LEVEL) == SILENT:
            self._words = tempfile.TemporaryFile()  # noqa: SIM115
            more[LOG_LEVEL] = "ERROR"
        self._report, self._report_number = os.fdopen(reading, "rb"), writing
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=2,  # standard output is the parent's alone
            stderr=self._words,
            pass_fds=[writing],
            start_new_session=True,
            env=os.environ | more,
        )
        os.close(writing)

    def tell(self, config: dict[str, Any]) -> None:
        """Give it what `work_as_child` gives to its work, plain values."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(config | {"report": self._report_number}).encode() + b"\n")
            self.process.stdin.flush()

    def report(self) -> dict[str, Any]:
        """What it reported, once; waits for its end. Empty if it could not, and when asked again."""
        if self._report.closed:
            return {}
        with self._report as pipe:
            text = pipe.read()
        try:
            report = json.loads(text)
        except ValueError:
            return {}
        return report if isinstance(report, dict) else {}

    def last_words(self) -> list[str]:
        """What its libraries wrote by themselves, as `errors_in` picks it."""
        if self._words is None:
            return []
        with self._words as file:
            file.seek(0)
            return errors_in(file.read().decode(errors="replace"))

    def close(self) -> None:
        """Close the pipe of a report that nobody wants."""
        self._report.close()

    def end(self) -> None:
        """Kill it if it still runs; its report can still be read."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


def errors_in(text: str) -> list[str]:
    """The lines in which libraries of a process say what went wrong, without stack traces; else the last ones."""
    lines = text.splitlines()
    return [line for line in lines if _ERROR_OF_A_LIBRARY.match(line)][-MOST_WORDS:] or lines[-MOST_WORDS:]


def start_children(
    children: list[Child],
    module: str,
    ranks: Sequence[int],
    size: int,
    *,
    threads: int | Literal["auto"] | None,
    keeps_words: bool = False,
    **config: Any,
) -> dist.TCPStore:
    """Start the processes with the numbers `ranks` of a job of `size` processes; returns the store at which they meet.

    Each is added to `children` at once: where one can't be started, the caller ends the others. The store, which
    answers in a thread, is made after them: what a thread has locked while its process forks stays locked in the fork.
    `threads` are for each, the cores shared among them without it; `config` are further plain values for `module`.
    """
    of_each = threads if isinstance(threads, int) else max(1, available_cores() // size)
    for _ in ranks:
        children.append(Child(module, threads=of_each, keeps_words=keeps_words))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for rank, child in zip(ranks, children, strict=True):
        child.tell(config | {"rank": rank, "size": size, "port": store.port, "threads": threads})
    return store


def describe_death(rank: int, size: int, number: int) -> str:
    """How a process ended without a report: by the signal `number`, or with the status `-number`."""
    how = f"was killed by {signal.Signals(number).name}" if number > 0 else f"ended with status {-number}"
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    return f"process {rank} of {size} {how}{hint}"


# --- in each process of a job ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Which process of a job this one is, and where they meet.

    Attributes:
        rank, size: its number among all, and how many there are.
        local_rank, local_size: the same on its machine.
        port: of the store that the command which started the job has on this machine; None under torchrun.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    port: int | None = None

    @classmethod
    def local(cls, rank: int, size: int, port: int) -> Place:
        """That of a process of this machine, which a command starts, or which is the command itself."""
        return cls(rank, size, rank, size, port)

    @classmethod
    def under_torchrun(cls) -> Place:
        """That which torchrun, or another launcher, has put into the environment."""
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        here = os.environ.get("LOCAL_RANK", rank), os.environ.get("LOCAL_WORLD_SIZE", size)
        return cls(*map(int, (rank, size, *here)))

    def take_device(self, kind: DeviceKind, threads: int | Literal["auto"] | None) -> torch.device:
        """This process's device, its share of CPU threads set. Raises Gpt2UsageError as `choose_device` does."""
        use_threads(threads, self.local_size)
        sees_own_only = self.port is None
        return choose_device(kind, local_rank=self.local_rank, local_size=self.local_size, sees_own_only=sees_own_only)

    def join(
        self, device: torch.device, store: dist.Store | None = None, timeout: datetime.timedelta | None = None
    ) -> dist.Store:
        """Join the process group, whose operations wait for `timeout`; returns the store at which all have met.

        Objects and barriers go over gloo, tensors of a GPU over nccl, which is given its GPU at once: it would
        otherwise guess it from the rank. Raises Gpt2UsageError if two processes were given one GPU.
        """
        is_local = self.port is not None or os.environ.get("LOCAL_WORLD_SIZE") == str(self.size)
        if is_local and sys.platform == "linux":
            # The default asks for the address of the host's name, which may have none.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if store is None:
            port = self.port
            store = next(dist.rendezvous("env://"))[0] if port is None else dist.TCPStore("127.0.0.1", port)
        store.set(f"here {self.rank}", "")
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


def work_as_child(work: Callable[[Place, dict[str, Any]], tuple[dict[str, Any], int]], farewell: str = "") -> NoReturn:
    """Do the `work` of a process that a command has started, report what became of it, and end.

    Args:
        work: what it does from joining the group to closing it, with its place and the values that it was started
            with; gives the reports, and the exit status.
        farewell: said when the parent has gone, with `{rank}` and `{size}`.
    """
    config = _read_config()
    # What is said to the user goes where the parent says it; standard error may be a file of the libraries' own words.
    sys.stderr = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    place = Place.local(config["rank"], config["size"], config["port"])

    def until_the_parent_ends() -> None:
        while os.read(0, 4096):  # its death closes standard input
            pass
        if farewell:
            with contextlib.suppress(OSError):
                os.write(2, f"{farewell.format(rank=place.rank, size=place.size)}\n".encode())

    end_after(until_the_parent_ends)
    try:
        report, status = work(place, config)
    except BaseException as error:
        end_child(config, error)
    send_report(config["report"], report)
    leave(status)


def end_child(config: dict[str, Any], error: BaseException) -> NoReturn:
    """End a child with the report of an error. The group is left as it is: others may be inside a collective."""
    send_report(config["report"], failure(error))
    leave(1)


def _read_config() -> dict[str, Any]:
    """What the parent gave this process; ends it if the parent is gone."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            os._exit(1)
        line += part
    config: dict[str, Any] = json.loads(line)
    return config


def send_report(descriptor: int, content: dict[str, Any]) -> None:
    """Tell the parent, once, what became of this process."""
    os.write(descriptor, _as_json(content))


def failure(error: BaseException) -> dict[str, Any]:
    """The report of a process that `error` ended."""
    return {
        "error": beginning(sentence_for(error), LONGEST_TEXT),
        "exit_code": error.exit_code if isinstance(error, CommandError) else 1,
        "is_expected": isinstance(error, CommandError | OSError),
        "is_interrupt": isinstance(error, KeyboardInterrupt),
        "time": time.monotonic(),
        "traceback": beginning("".join(traceback.format_exception(error))[::-1], LONGEST_TEXT)[::-1],
    }


def beginning(text: str, most: int) -> str:
    """As much of `text` as takes at most `most` bytes in a report."""
    sizes = itertools.accumulate(len(_as_json(character)) - 2 for character in text[:most])
    return text[: sum(size <= most for size in sizes)]


def _as_json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode(errors="replace")


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


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
