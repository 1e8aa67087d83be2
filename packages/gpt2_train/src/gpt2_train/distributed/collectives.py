"""Working on all processes so that none is left waiting when one of them fails.

An exception on one process, while the others are on their way into a collective operation, hangs the whole job. What
may fail on its own (a disk, a damaged file) is therefore done by one of these functions, after which all processes
continue, or all of them raise. In a single process without a group they are plain calls.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from command_kit import CommandError
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError

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
    a thread beside the training loop needs one of its own, or its messages would mix with the loop's.
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


def check_is_shared(folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Raise Gpt2UsageError on all processes if one of them does not see a folder that the first one has made.

    `group` as in `on_all_ranks`.
    """
    rank = rank_and_size()[0]

    def look() -> None:
        if not folder.is_dir():
            raise Gpt2UsageError(
                f"process {rank} on {socket.gethostname()} does not see {folder}, which process 0 does: --output must "
                "be on storage that all machines of the run share."
            )

    on_all_ranks(look, group)


def group_for_a_thread(minutes: float | None = None) -> dist.ProcessGroup | None:
    """A group of all processes, over gloo, for one thread beside the training loop; None in a single process.

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
