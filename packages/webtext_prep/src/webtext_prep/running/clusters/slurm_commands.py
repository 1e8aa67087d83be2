"""Slurm's own commands, for these uses: submit a job array, look at jobs, cancel them.

Jobs are found by their names, of which each array has one of its own: so an array is found also if this process was
killed before it had heard its number. squeue tells of jobs that have ended for some minutes (MinJobAge) and needs no
accounting; sacct is asked about jobs that it has forgotten, where there is accounting.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from webtext_prep.errors import WebtextError

SECONDS = 120
"""After so long without an answer a command is given up."""
MOST_JOBS = 1000
"""Jobs of an array where Slurm does not tell its MaxArraySize; arguments of one scancel."""
_ENDED = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "FORGOTTEN", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
])  # fmt: skip
_LATER = re.compile(r"limit|temporarily|timed out|not answered|unable to contact", re.IGNORECASE)


class JobState(NamedTuple):
    """What Slurm says of one job of an array.

    Attributes:
        array: the number of the array.
        state: its state, such as RUNNING; FORGOTTEN is ours, for a job of which Slurm knows nothing now.
        reason: why it waits, or why it failed, as Slurm calls it.
    """

    array: str
    state: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """True if it will not run any more."""
        return self.state in _ENDED


class SlurmError(WebtextError):
    """A command of Slurm's failed."""

    @property
    def may_succeed_later(self) -> bool:
        """True if the command may succeed when it is given again."""
        return bool(_LATER.search(str(self)))


def most_jobs() -> int:
    """The number of jobs that one array may have."""
    with contextlib.suppress(SlurmError):
        if found := re.search(r"^MaxArraySize\s*=\s*(\d+)", _run("scontrol", "show", "config"), re.MULTILINE):
            return max(1, int(found[1]))
    return MOST_JOBS


def submit(name: str, count: int, script: str, logs: Path, options: Sequence[str], *, at_once: int = 0) -> str:
    """Submit an array of jobs, numbered from 0, and return its number. Raises SlurmError.

    Args:
        name: of its jobs, which no other array has.
        count: how many jobs.
        script: what each of them runs, a script for /bin/sh.
        logs: the folder of their logs, `0.log` and so on.
        options: of the user, for sbatch.
        at_once: how many run at once at most; 0 for as many as there is room for.
    """
    jobs = f"--array=0-{count - 1}{f'%{at_once}' if at_once else ''}"
    log = f"--output={str(logs).replace('%', '%%')}/%a.log"
    own = ["--parsable", f"--job-name={name}", jobs, log, "--open-mode=append", f"--chdir={Path.cwd()}"]
    return _run("sbatch", "--nodes=1", "--ntasks=1", *options, *own, text=script).strip().partition(";")[0]


def script_for(module: str, *arguments: str) -> str:
    """A script that runs a module in the interpreter that runs now, and finds what this process finds."""
    own = (sys.prefix, sys.base_prefix)
    added = [path for path in sys.path if path and not path.startswith(own)]
    python = ["env", f"PYTHONPATH={os.pathsep.join(added)}"] if added else []
    return f"#!/bin/sh\nexec {shlex.join([*python, sys.executable, '-u', '-m', module, *arguments])}\n"


def states(names: Iterable[str]) -> dict[tuple[str, int], JobState]:
    """The states of all jobs with such names that Slurm knows, by (name, number in its array). Raises SlurmError."""
    found = {}
    format_ = "--format=%j|%K|%F|%T|%r"
    said = _run("squeue", "--noheader", "--array", "--states=all", format_, "--me", f"--name={','.join(names)}")
    for line in said.splitlines():
        name, number, array, state, reason = line.strip().split("|", 4)
        if number.isdigit():
            found[name, int(number)] = JobState(array, state, reason)
    return found


def earlier_states(array: str) -> dict[int, str]:
    """The states of all jobs of an array that accounting knows, by number; none where there is no accounting."""
    found = {}
    with contextlib.suppress(SlurmError):
        format_ = "--format=JobID,State"
        said = _run("sacct", "--noheader", "--parsable2", "--allocations", "--array", format_, f"--jobs={array}")
        for line in said.splitlines():
            if match := re.match(r"\d+_(\d+)\|(\w+)", line):  # 12_3|CANCELLED by 1000
                found[int(match[1])] = match[2]
    return found


def cancel(jobs: Sequence[str]) -> None:
    """Cancel arrays (`12`) and jobs (`12_3`); jobs that have ended already do no harm. Raises SlurmError."""
    for begin in range(0, len(jobs), MOST_JOBS):
        _run("scancel", "--quiet", *jobs[begin : begin + MOST_JOBS])


def _run(*command: str, text: str = "") -> str:
    """What a command says; it does not hear the Ctrl-C of a terminal. Raises SlurmError."""
    # Inside a job, what Slurm says of that job would be taken for settings of the new ones.
    ours = {name: value for name, value in os.environ.items() if name[:6] != "SLURM_" or name == "SLURM_CONF"}
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", env=ours, timeout=SECONDS,
            start_new_session=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise SlurmError(f"there is no {command[0]} here.") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} has not answered for {SECONDS} s.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        what = said.removeprefix(f"{command[0]}: ").removeprefix("error: ").rstrip(".")
        raise SlurmError(f"{command[0]} failed: {what}.")
    return done.stdout
