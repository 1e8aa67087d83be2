"""Doing a thing on all processes so that none is left waiting when one of them fails.

An exception on one process, while the others are on their way into a collective operation, hangs the whole job. What
may fail on its own (a disk, a damaged file) is therefore done inside `agreed`, after which all processes go on, or all
of them raise. In a single process without a group these are plain calls.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from command_kit import CommandError
from gpt2_train.errors import Gpt2Error, Gpt2UsageError

Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def barrier() -> None:
    """Wait until all processes are here."""
    agreed(lambda: None)


def agreed(work: Callable[[], Result]) -> list[Result]:
    """Do `work` on each process; return the results by rank, or raise on all processes the first failure of any."""
    rank, size = rank_and_size()
    result: Result | None = None
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    everyone: list = [(result, failure)]
    if size > 1:
        everyone = [None] * size
        dist.all_gather_object(everyone, (result, None if failure is None else _sendable(failure)))
        everyone[rank] = (result, failure)
    for _, met in everyone:
        if met is not None:
            raise met
    return [result for result, _ in everyone]


def check_is_shared(folder: Path) -> None:
    """Raise Gpt2UsageError on all processes if one of them does not see a folder that the first one has made."""
    rank = rank_and_size()[0]

    def look() -> None:
        if not folder.is_dir():
            raise Gpt2UsageError(
                f"process {rank} on {socket.gethostname()} does not see {folder}, which process 0 does: --output must "
                "be on storage that all machines of the run share."
            )

    agreed(look)


def _sendable(error: Exception) -> Exception:
    """An error that survives the journey to other processes."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return type(error)(str(error)) if isinstance(error, CommandError) else Gpt2Error(f"{type(error).__name__}: {error}")
