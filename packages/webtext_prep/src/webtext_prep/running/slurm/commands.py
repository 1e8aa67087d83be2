"""Slurm's own commands, and what is asked of them: submit a job array, look at jobs, cancel them.

Jobs are found by their names, of which each array has one of its own: so an array is found also if this process was
killed before it had heard its number. squeue tells of jobs that have ended for some minutes (MinJobAge) and needs no
accounting; sacct is asked about those that it has forgotten, where there is accounting.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from webtext_prep.errors import InputError, WebtextError

SECONDS = 120
"""After so long without an answer a command is given up."""
MOST_JOBS = 1000
"""Jobs of an array where Slurm does not tell its MaxArraySize."""
ENDED = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "FORGOTTEN", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
])  # fmt: skip
"""The states of a job that will not run any more; FORGOTTEN is ours, for one of which Slurm knows nothing now."""
_LATER = re.compile(r"limit|temporarily|timed out|unable to contact", re.IGNORECASE)


class JobState(NamedTuple):
    """What Slurm says of one job of an array.

    Attributes:
        array: the number of the array.
        state: its state, such as RUNNING.
        reason: why it waits, or why it failed, as Slurm calls it.
    """

    array: str
    state: str
    reason: str

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ENDED


class SlurmError(WebtextError):
    """A command of Slurm's failed.

    Args:
        message: what it said.
        may_succeed_later: whether it may succeed if it is given again.
    """

    def __init__(self, message: str, *, may_succeed_later: bool) -> None:
        super().__init__(message)
        self.may_succeed_later = may_succeed_later


def require() -> None:
    """Raise InputError where Slurm's commands are not installed."""
    if shutil.which("sbatch") is None:
        raise InputError(
            "--engine slurm needs Slurm's commands, and there is no sbatch here: start it on a login node of the "
            "cluster."
        )


def most_jobs() -> int:
    """How many jobs one array may have."""
    with contextlib.suppress(SlurmError):
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]), re.MULTILINE)
        if found:
            return max(1, int(found[1]))
    return MOST_JOBS


def submit(name: str, count: int, script: str, log: Path, options: Sequence[str], *, at_once: int = 0) -> str:
    """Submit an array of jobs and return its number. Raises SlurmError.

    Args:
        name: of its jobs, which no other array has.
        count: how many jobs; they are numbered from 0.
        script: what each of them runs, a script for /bin/sh.
        log: the folder of their logs, `0.log` and so on.
        options: of the user, for sbatch.
        at_once: how many run at once at most; 0 for as many as there is room for.
    """
    named = f"{str(log).replace('%', '%%')}/%a.log"
    command = ["sbatch", "--nodes=1", "--ntasks=1", *options, "--parsable", f"--job-name={name}"]
    command += [f"--array=0-{count - 1}{f'%{at_once}' if at_once else ''}", f"--output={named}", "--open-mode=append"]
    return _run([*command, f"--chdir={Path.cwd()}"], script).strip().partition(";")[0]


def script_for(module: str, *arguments: str) -> str:
    """A script that runs a module in the interpreter that runs now, and finds what this process finds."""
    own = (sys.prefix, sys.base_prefix)
    added = [path for path in sys.path if path and not path.startswith(own)]
    python = ["env", f"PYTHONPATH={os.pathsep.join(added)}"] if added else []
    return f"#!/bin/sh\nexec {shlex.join([*python, sys.executable, '-u', '-m', module, *arguments])}\n"


def states(names: Iterable[str]) -> dict[tuple[str, int], JobState]:
    """Of all jobs with such names that Slurm knows: (name, number in its array) to its state. Raises SlurmError."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%j|%K|%F|%T|%r", "--me"]
    found = {}
    for line in _run([*command, f"--name={','.join(names)}"]).splitlines():
        name, number, array, state, reason = line.strip().split("|", 4)
        if number.isdigit():
            found[name, int(number)] = JobState(array, state, reason)
    return found


def earlier_states(array: str) -> dict[int, str]:
    """Of all jobs of an array that accounting knows: its number to its state; none where there is no accounting."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--array", "--format=JobID,State"]
    found = {}
    with contextlib.suppress(SlurmError):
        for line in _run([*command, f"--jobs={array}"]).splitlines():
            job, _, state = line.partition("|")
            number = job.partition("_")[2]
            if number.isdigit() and state:
                found[int(number)] = state.split()[0]  # CANCELLED by 1000
    return found


def cancel(jobs: Mapping[str, Sequence[int] | None]) -> None:
    """Cancel jobs; those that have ended already do no harm. Raises SlurmError.

    Args:
        jobs: for the number of each array those of its jobs, or None for all of them.
    """
    named = []
    for array, numbers in jobs.items():
        named += [array] if numbers is None else [f"{array}_{number}" for number in numbers]
    for begin in range(0, len(named), MOST_JOBS):
        _run(["scancel", "--quiet", *named[begin : begin + MOST_JOBS]])


def _run(command: list[str], text: str | None = None) -> str:
    """What a command says; it does not hear the Ctrl-C of a terminal. Raises SlurmError."""
    # Inside a job, what Slurm says of that job would be taken for settings of the new ones.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            command, input=text or "", capture_output=True, text=True, errors="replace", env=environment,
            timeout=SECONDS, start_new_session=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise SlurmError(f"there is no {command[0]} here.", may_succeed_later=False) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} has not answered for {SECONDS} s.", may_succeed_later=True) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        what = (
            said[-1].removeprefix(f"{command[0]}: ").removeprefix("error: ").rstrip(".") if said else "no reason given"
        )
        raise SlurmError(f"{command[0]} failed: {what}.", may_succeed_later=bool(_LATER.search(done.stderr)))
    return done.stdout
