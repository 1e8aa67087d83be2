"""The errors of this package; each message says what was found, where, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from command_kit import CommandError, UsageError

MOST_THREADS = 1024
"""More CPU threads than this are a slip of the hand, on which torch crashes."""


class Gpt2Error(CommandError):
    """A failure of `gpt2` that its message explains (exit code 1)."""


class Gpt2UsageError(Gpt2Error, UsageError):
    """Settings, data or a checkpoint that the user has to change before the command can work (exit code 2)."""

    exit_code = 2


@contextlib.contextmanager
def explained_shortage(advice: str) -> Iterator[None]:
    """Turn want of memory, of a GPU or of the machine, into a Gpt2Error that gives `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch's own class is for GPUs alone; its allocator on CPUs says the same in words only.
        is_shortage = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not is_shortage and "can't allocate memory" not in str(error):
            raise
        raise Gpt2Error(f"out of memory: {advice}.") from error


def check_threads(threads: int | None) -> None:
    """Raise Gpt2UsageError for a number of CPU threads that no machine has."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        limit = "at least 1" if threads < 1 else f"at most {MOST_THREADS}"
        raise Gpt2UsageError(f"--threads is {threads}: it should be {limit}.")
