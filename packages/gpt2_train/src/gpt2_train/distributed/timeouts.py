"""Waiting for other processes in vain: one sentence that says for which ones, and where they run.

torch says that an operation took too long, not who was missing. So each process leaves the name of its machine in the
store at which they met, and a note once it has waited in vain. Those that waited with it do the same at about the same
time: whoever leaves no note within some seconds did not arrive. gloo raises an error where it gives up. NCCL gives up
in a thread of its own, which then aborts the process with a page of its own messages; `watch` asks it every second, to
end the process with the sentence first.
"""

from __future__ import annotations

import datetime
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from gpt2_train.config.errors import Gpt2Error

NOTE_SECONDS = 2.0
"""How much later than this one other processes may run out of patience."""

ANSWER_SECONDS = 10.0
"""How long the store may take to answer; it may be on the machine that is gone."""

POLL_SECONDS = 1.0

_SIGNS = re.compile(r"Timed out waiting \d+ ?ms|wait timeout after|Watchdog caught collective operation timeout")
"""What gloo, the store and NCCL say when they give up."""


class Attendance:
    """Which processes of a group are there, as far as the store knows.

    Args:
        store: where they met.
        rank, size: this process's number among all.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store = dist.PrefixStore("attendance", store)
        self.rank, self.size = rank, size
        self.patience: datetime.timedelta | None = None
        self.store.set(f"host/{rank}", socket.gethostname())

    def be_patient(self, groups: Iterable[dist.ProcessGroup], minutes: float | None) -> None:
        """Have operations of `groups` wait so long for other processes; as long as torch has it if that is None."""
        if minutes is not None:
            self.patience = datetime.timedelta(minutes=minutes)
            for group in groups:
                group.set_timeout(self.patience)

    def explained(self, error: BaseException) -> BaseException:
        """`error`, or, if it or its cause is that this process waited in vain, a Gpt2Error that says for whom."""
        return self.absence(operation_of(error)) if is_time_out(error) else error

    def absence(self, operation: str | None) -> Gpt2Error:
        """The error of a process that waited in vain, in an `operation` if that is known."""
        found: list[dict[int, str]] = []
        # Asking an answer of a machine that is gone can take forever.
        asking = threading.Thread(target=lambda: found.append(self._missing()), daemon=True)
        asking.start()
        asking.join(ANSWER_SECONDS)
        if not found:
            who = "others did not take part (their store does not answer, either)"
        elif not found[0]:
            who = "others came too late"
        else:
            names = [f"{rank} on {host}" for rank, host in sorted(found[0].items())]
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            who = f"process{'es' if len(names) > 1 else ''} {shown} did not take part"
        where = f" ({operation})" if operation else ""
        long = f" for {self.patience.total_seconds() / 60:.3g} minutes" if self.patience is not None else ""
        return Gpt2Error(
            f"process {self.rank} of {self.size} waited{long} in an exchange{where} in vain: {who}; look there for an "
            "error, memory that ran out, or a disk or network that hangs. The same command resumes from the last "
            "checkpoint; --distributed-timeout MINUTES waits longer."
        )

    def _missing(self) -> dict[int, str]:
        """The machines of the processes that leave no note, by their numbers."""
        self.store.set(f"waited/{self.rank}", "")
        missing, deadline = set(range(self.size)), time.monotonic() + NOTE_SECONDS
        while missing and time.monotonic() < deadline:
            missing -= {rank for rank in missing if self.store.check([f"waited/{rank}"])}
            time.sleep(0.05)
        return {rank: self._host(rank) for rank in missing}

    def _host(self, rank: int) -> str:
        key = f"host/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else "an unknown machine"

    def watch(self, groups: Iterable[dist.ProcessGroup], end: Callable[[BaseException], object]) -> None:
        """From now on, call `end` with the error if NCCL gives up in one of `groups`; in a thread."""
        backends = [group._get_backend(torch.device("cuda")) for group in groups]

        def ask() -> None:
            while not any(_has_given_up(backend) for backend in backends):
                time.sleep(POLL_SECONDS)
            end(self.absence("NCCL"))

        threading.Thread(target=ask, name="nccl-watch", daemon=True).start()


def _has_given_up(backend: Any) -> bool:
    return str(backend.get_error()).endswith("TIMEOUT")


def is_time_out(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that an exchange between processes took too long."""
    while error is not None:
        if _SIGNS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def operation_of(error: BaseException | None) -> str | None:
    """The function of torch.distributed in which an error was raised (`all_reduce`); None if it is not known."""
    found = None
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            name = frame.f_code.co_name
            if frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d" and not name.startswith("_"):
                found = name
        error = error.__cause__ or error.__context__
    return found
