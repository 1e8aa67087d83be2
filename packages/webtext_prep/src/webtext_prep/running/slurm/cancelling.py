"""Cancelling the jobs of the arrays in a folder, whoever has submitted them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection
from pathlib import Path

from webtext_prep.running.slurm import commands
from webtext_prep.running.slurm.arrays import JobArray
from webtext_prep.running.slurm.commands import SlurmError

STOP_SECONDS = 15.0
"""How long jobs that were cancelled may take to end before they are left to Slurm."""
LOOK_SECONDS = 0.2


def cancel_all(folder: Path) -> None:
    """Cancel all jobs of the arrays in a folder, and give them a moment to end."""
    names = [array.name for array in arrays_in(folder)]
    try:
        numbers = _at_work(names)
        if numbers:
            commands.cancel(dict.fromkeys(numbers))
            say(f"Slurm job {', '.join(sorted(numbers))} was cancelled.")
        deadline = time.monotonic() + STOP_SECONDS
        while numbers and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            numbers = _at_work(names)
    except SlurmError as error:
        say(f"{error} Cancel by hand what is left of the jobs called {', '.join(names)}.")


def arrays_in(folder: Path) -> list[JobArray]:
    """The arrays in a folder; what is no whole one is removed."""
    found = []
    for own in sorted(folder.iterdir()) if folder.is_dir() else []:
        try:
            found.append(JobArray.open(own))
        except (OSError, ValueError):  # a kill came before it was submitted
            shutil.rmtree(own, ignore_errors=True)
    return found


def _at_work(names: Collection[str]) -> set[str]:
    """The numbers of those arrays of such names that have jobs which have not ended."""
    return {state.array for state in commands.states(names).values() if not state.has_ended} if names else set()


def say(sentence: str) -> None:
    """Print a line, also where the line of progress is redrawn."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}webtext: {sentence}", file=sys.stderr, flush=True)
