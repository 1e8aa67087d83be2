"""Working on all processes so that none is left waiting when one of them fails.

An exception on one process, while the others are on their way into a collective operation, hangs the whole job. What
may fail on its own (a disk, a damaged file) is therefore done by one of these functions, after which all processes
continue, or all of them raise. In a single process without a group they are plain calls.

Where a process waits in vain all the same, one sentence says for which ones, and where they run.
torch says that an operation took too long, not who was missing. So each process leaves the name of its machine in the
store at which they met, and a note once it has waited in vain. The others that waited do the same at about the same
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
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch.distributed as dist

from command_kit import CommandError
from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2Error

Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def barrier() -> None:
    """Wait until all processes are here."""
    on_all_ranks(lambda: None)


def on_all_ranks(work: Callable[[], Result], group: dist.ProcessGroup | None = None) -> list[Result]:
    """Do `work` on each process; return the results by rank, or raise on all processes the first failure of any.

    Results are pickled and sent to every process: keep them small. `group` is a group of all processes: what runs in
    a thread next to the training loop needs one of its own, or its messages would mix with the loop's.
    """
    rank, size = rank_and_size()
    result: Result | None = None
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    outcomes: list = [(result, failure)]
    if size > 1:
        outcomes = [None] * size
        dist.all_gather_object(outcomes, (result, None if failure is None else _picklable(failure)), group=group)
        outcomes[rank] = (result, failure)
    for _, found in outcomes:
        if found is not None:
            found.add_note(SHARED)
            raise found
    return [result for result, _ in outcomes]


def group_for_a_thread(minutes: float | None = None) -> dist.ProcessGroup | None:
    """A group of all processes, over gloo, for one thread next to the training loop; None in a single process.

    All processes call this together. Its operations wait `minutes` for the others, as long as torch has it without.
    """
    if rank_and_size()[1] == 1:
        return None
    return dist.new_group(backend="gloo", timeout=datetime.timedelta(minutes=minutes) if minutes else None)


def keep_on_all_ranks(work: Callable[[], Result]) -> Result:
    """Do `work` on each process and return this one's result, or raise on all processes the first failure of any."""
    results: list[Result] = []
    on_all_ranks(lambda: results.append(work()))
    return results[0]


def from_first_rank(work: Callable[[], Result]) -> Result:
    """Do `work` on the first process and return its result on all of them; all raise if it fails.

    What processes must agree on (which checkpoint is the newest) is determined once: on network storage two processes
    can see different listings of one folder.
    """
    rank, _ = rank_and_size()
    return on_all_ranks(lambda: work() if rank == 0 else None)[0]  # type: ignore[return-value]


SHARED = "raised on all processes"
"""The note on an error that every process raises: it need be shown by one of them only."""


def is_shared(error: BaseException | None) -> bool:
    """Whether all processes raise this error, or raised the one that caused it."""
    while error is not None:
        if SHARED in getattr(error, "__notes__", ()):
            return True
        error = error.__cause__
    return False


def _picklable(error: Exception) -> Exception:
    """An error of the same meaning that can be sent to other processes."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return type(error)(str(error)) if isinstance(error, CommandError) else Gpt2Error(f"{type(error).__name__}: {error}")


_SIGNS = re.compile(r"Timed out waiting \d+ ?ms|wait timeout after|Watchdog caught collective operation timeout")
"""The words of gloo, the store and NCCL when they give up."""


class TimeoutReporter:
    """A reporter of the processes that others wait for in vain, as far as the store knows.

    Args:
        store: where they met.
        rank, size: this process's number among all.
        later: seconds by which other processes may give up later than this one.
        answer: seconds that the store may take to answer; it may be on the machine that is gone.
        poll: seconds between two questions to NCCL.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, *, later: float = 2.0, answer: float = 10.0, poll: float = 1.0
    ) -> None:
        self.store = dist.PrefixStore("timeouts", store)
        self.rank, self.size, self.later, self.answer, self.poll = rank, size, later, answer, poll
        self.timeout: datetime.timedelta | None = None
        self.store.set(f"host/{rank}", socket.gethostname())

    def set_timeout(self, groups: Iterable[dist.ProcessGroup], minutes: float | None) -> None:
        """Set how long operations of `groups` wait for other processes; torch's own time if `minutes` is None."""
        if minutes is not None:
            self.timeout = datetime.timedelta(minutes=minutes)
            for group in groups:
                group.set_timeout(self.timeout)

    def explained(self, error: BaseException) -> BaseException:
        """`error`, or, if it or its cause is that this process waited in vain, a Gpt2Error that says for whom."""
        return self.absence(operation_of(error)) if is_time_out(error) else error

    def absence(self, operation: str | None) -> Gpt2Error:
        """The error of a process that waited in vain, in an `operation` if that is known."""
        found: list[dict[int, str]] = []
        # Asking an answer of a machine that is gone can take forever.
        asking = threading.Thread(target=lambda: found.append(self._missing()), daemon=True)
        asking.start()
        asking.join(self.answer)
        if not found:
            who = "others did not take part (their store does not answer, either)"
        elif not found[0]:
            who = "others came too late"
        else:
            names = [f"{rank} on {host}" for rank, host in sorted(found[0].items())]
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            who = f"process{'es' if len(names) > 1 else ''} {shown} did not take part"
        where = f" ({operation})" if operation else ""
        long = f" for {self.timeout.total_seconds() / 60:.3g} minutes" if self.timeout is not None else ""
        return Gpt2Error(
            f"process {self.rank} of {self.size} waited{long} in an exchange{where} in vain: {who}; look there for an "
            "error, memory that ran out, or a disk or network that hangs. The same command resumes from the last "
            "checkpoint; --distributed-timeout MINUTES waits longer."
        )

    def _missing(self) -> dict[int, str]:
        """The machines of the processes that leave no note, by their numbers."""
        self.store.set(f"waited/{self.rank}", "")
        missing, deadline = set(range(self.size)), time.monotonic() + self.later
        while missing and time.monotonic() < deadline:
            missing -= {rank for rank in missing if self.store.check([f"waited/{rank}"])}
            time.sleep(0.05)
        return {rank: self._host(rank) for rank in missing}

    def _host(self, rank: int) -> str:
        key = f"host/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else "an unknown machine"

    def watch(self, groups: Iterable[dist.ProcessGroup], end: Callable[[BaseException], object]) -> None:
        """Call `end`, in a thread and from now on, with the error if NCCL gives up in one of `groups`."""
        backends = [torch_private.backend_on_gpus(group) for group in groups]

        def ask() -> None:
            while not any(str(backend.get_error()).endswith("TIMEOUT") for backend in backends):
                time.sleep(self.poll)
            end(self.absence("NCCL"))

        threading.Thread(target=ask, name="nccl-watch", daemon=True).start()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_time_out(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that an exchange between processes took too long."""
    return any(_SIGNS.search(str(cause)) for cause in _causes(error))


def operation_of(error: BaseException | None) -> str | None:
    """The function of torch.distributed in which an error was raised (`all_reduce`); None if it is not known."""
    found = None
    for cause in _causes(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            name = frame.f_code.co_name
            if frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d" and not name.startswith("_"):
                found = name
    return found
