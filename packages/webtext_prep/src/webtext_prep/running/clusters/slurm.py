"""One run of tasks as job arrays: which tasks are submitted, their results, and which have to be tried again.

A result in a file is what counts; Slurm is asked, more and more seldom, which jobs still run and how the others ended.
A job that died, of its node, its memory or its time limit, costs the tasks that it had begun one of their attempts; one
that was preempted costs none. The tasks without a result go into a new array, each failed one as a job of its own.

Arrays that an earlier process has left are found by their folders: results that came meanwhile are taken, jobs that
still run are waited for, and only the rest is submitted. An array belongs to this run as far as its call and tasks
are the same, to the letter; jobs that only do other tasks are cancelled.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import codec
from webtext_prep.running.clusters import slurm_commands as commands
from webtext_prep.running.clusters import slurm_job
from webtext_prep.running.clusters.slurm_commands import JobState, SlurmError
from webtext_prep.running.clusters.slurm_job import JobArray, arrays_in, stamps
from webtext_prep.running.engines.base import MAX_ATTEMPTS, Attempts, Call, OnProgress, libraries_of, stage_of
from webtext_prep.running.processes import versions_here
from webtext_prep.running.tasks import Task

FOLDER = "slurm"
"""In the job's scratch folder: the folders of arrays."""
LOOK_SECONDS = (0.2, 10.0)
"""Between two looks for results, soon after the last one and long after it."""
ASK_SECONDS = (2.0, 60.0)
"""Between two questions to Slurm, soon after something was submitted and long after it."""
LATE_SECONDS = 10.0
"""So long after the end of a job its results may come into sight."""
WAIT_SECONDS = 60.0
"""After waiting so long for a first job it is said why."""
STOP_SECONDS = 15.0
"""So long jobs that were cancelled may take to end before they are left to Slurm."""
_NOT_ITS_FAULT = frozenset(["BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL", "PREEMPTED", "RECONFIG_FAIL", "REVOKED"])
"""States that say nothing of the job itself."""
_ENDS = {
    "OUT_OF_MEMORY": "was killed, because memory ran out",
    "TIMEOUT": "came to its time limit (ask for more, as with --slurm-options '--time=8:00:00', or give fewer "
    "--slurm-tasks-per-job)",
    "NODE_FAIL": "lost its node",
    "PREEMPTED": "was preempted",
    "FORGOTTEN": "ended without a result, and Slurm does not know why",
}


@dataclass
class SlurmJob:
    """One job that may still give results.

    Attributes:
        array: the array that it belongs to.
        number: its number there.
        positions: of its tasks among this run's; None for one that this run does not wait for.
        state: what Slurm said last.
        ended: when it was first said to have ended.
    """

    array: JobArray
    number: int
    positions: Sequence[int | None]
    state: JobState
    ended: float | None = None

    def __str__(self) -> str:
        return f"Slurm job {self.state.array}_{self.number}"

    @property
    def progress(self) -> dict[int | None, int | None]:
        """The units of its tasks that are done, None of one that has not begun; empty if the job has not."""
        return dict(zip(self.positions, self.array.read(f"progress/{self.number}") or (), strict=False))

    @property
    def how_it_ended(self) -> str:
        """The end of a sentence about it."""
        reason = f", {self.state.reason}" if self.state.reason not in ("", "None") else ""
        return _ENDS.get(self.state.state, f"ended early ({self.state.state}{reason})")

    def with_log(self, sentence: str) -> WebtextError:
        """An error that has the end of the job's log as a note; `{said}` in the sentence is its last line.

        A job whose log is not there is an InputError of its own: its node does not see the folder.
        """
        log = self.array.log(self.number)
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        except OSError:
            return InputError(
                f"{self} left no log in {log.parent}: the state folder must lie on a file system that this machine and "
                "all nodes of the cluster see under the same path, give such a one with --state DIR."
            )
        said = next((line for line in reversed(lines) if line.strip()), "it says nothing").strip().rstrip(".")
        error = WebtextError(sentence.replace("{said}", said))
        error.add_note("\n".join([f"the end of {log}:", *lines]))
        return error


class SlurmRun:
    """One run of tasks; for the arguments see `Engine.run`.

    Args:
        options: of sbatch.
        tasks_per_job: how many tasks a job has.
        at_once: how many jobs run at once, 0 for as many as Slurm lets.
    """

    def __init__(
        self, call: Call, tasks: Sequence[Task], scratch: Path, on_progress: OnProgress,
        options: Sequence[str], tasks_per_job: int, at_once: int,
    ) -> None:  # fmt: skip
        self._tasks, self._scratch, self._on_progress = tasks, scratch, on_progress
        self._options, self._tasks_per_job, self._at_once = options, tasks_per_job, at_once
        self._folder = scratch / FOLDER
        self._versions = versions_here(libraries_of(call))
        self._label = getattr(stage_of(call), "name", "") or getattr(call, "__name__", "tasks")
        self._call, self._encoded = codec.encode(call), [codec.encode(task) for task in tasks]
        self._left = set(range(len(tasks)))
        self._attempts = Attempts(tasks, "ask for more, as with --slurm-options '--mem=16G'")
        self._queue: deque[list[list[int]]] = deque()  # arrays to submit: for each job the positions of tasks
        self._jobs: dict[tuple[str, int], SlurmJob] = {}
        self._has_begun = False  # whether any job ever has
        self._has_failed = False  # by an exception of a task, which needs no logs
        self._start = self._news = self._submitted = time.monotonic()
        self._submit_due = self._ask_due = 0.0
        self._refusals, self._said = 0, ""

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) as tasks finish."""
        try:
            yield from self._take_over()
            self._line_up(self._left - self._at_work())
            while self._left:
                self._submit()
                yield from self._take_results()
                if self._left and self._jobs and time.monotonic() >= self._ask_due:
                    self._ask_slurm()
                    yield from self._try_dead_again()
                if self._left:
                    time.sleep(_pause(self._news, LOOK_SECONDS))
        finally:
            if self._left:
                try:
                    cancel_all(self._folder)
                except SlurmError as error:
                    names = ", ".join(array.name for array in arrays_in(self._folder))
                    _say(f"{error} Cancel the rest of the jobs by hand: they are called {names}.")
            if not self._left or self._has_failed:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _at_work(self) -> set[int]:
        """The positions of tasks that jobs are to give results of."""
        return {position for job in self._jobs.values() for position in job.positions if position is not None}

    # What an earlier process has left

    def _take_over(self) -> Iterator[tuple[int, Any]]:
        """Wait for the jobs of earlier arrays that are still at work, and yield what they have done."""
        arrays = arrays_in(self._folder)
        # Without an answer, work that is being done would be done twice.
        while (states := self._states([array.name for array in arrays]) if arrays else {}) is None:
            time.sleep(ASK_SECONDS[0])
        wanted = {_text(task): position for position, task in enumerate(self._encoded)}
        unwanted = []
        for array in arrays:
            done, failed = set(array.names("results", afresh=True)), set(array.names("errors"))
            for (number,) in array.names("tasks"):
                positions: list[int | None] = []
                for at, task in enumerate(array.read(f"tasks/{number}") or ()):
                    position = wanted.get(_text(task)) if array.call == self._call else None
                    if position in self._left and (number, at) in done:
                        found = array.read(f"results/{number}-{at}")
                        # What the task made may have been removed or replaced since then.
                        if found is not None and found["outputs"] == stamps(self._tasks[position]):
                            yield from self._take(position, found)
                        position = None
                    positions.append(position if position in self._left else None)
                state = states.get((array.name, number))
                if state is None or state.has_ended or (number,) in failed:
                    continue
                if any(position is not None for position in positions):
                    self._jobs[array.name, number] = SlurmJob(array, number, positions, state)
                else:
                    unwanted.append(f"{state.array}_{number}")
        commands.cancel(unwanted)
        if self._jobs:
            numbers = ", ".join(sorted({job.state.array for job in self._jobs.values()}))
            _say(f"Slurm job {numbers} of an earlier run is still at work on {_several(self._at_work(), 'task')}.")

    def _states(self, names: Collection[str]) -> dict[tuple[str, int], JobState] | None:
        """What Slurm says of the jobs of such names; None if it does not answer now."""
        try:
            return commands.states(names)
        except SlurmError as error:
            self._say_once(f"{error} Asking again until it answers.")
            return None

    # Submitting

    def _line_up(self, positions: Collection[int]) -> None:
        """Line up tasks to be submitted; one that has failed gets a job of its own."""
        alone = [[position] for position in sorted(positions) if self._attempts.failed(position)]
        others = [position for position in sorted(positions) if not self._attempts.failed(position)]
        size = self._tasks_per_job
        jobs = [*alone, *(others[at : at + size] for at in range(0, len(others), size))]
        most = commands.most_jobs() if jobs else 1
        self._queue += [jobs[at : at + most] for at in range(0, len(jobs), most)]

    def _submit(self) -> None:
        """Submit the waiting tasks; with a limit on jobs at once one array at a time."""
        while self._queue and time.monotonic() >= self._submit_due and not (self._jobs and self._at_once):
            jobs = self._queue[0]
            tasks = [[self._encoded[position] for position in positions] for positions in jobs]
            array = JobArray.create(self._folder, self._label, self._call, tasks, self._scratch, self._versions)
            script, logs = commands.script_for(slurm_job.__name__, str(array.folder)), array.log(0).parent
            try:
                number = commands.submit(array.name, len(jobs), script, logs, self._options, at_once=self._at_once)
            except SlurmError as error:
                shutil.rmtree(array.folder, ignore_errors=True)
                self._refused(error)
                return
            self._queue.popleft()
            self._refusals, self._submitted = 0, time.monotonic()
            for at, positions in enumerate(jobs):
                self._jobs[array.name, at] = SlurmJob(array, at, positions, JobState(number, "PENDING"))
            count = _several([task for job in tasks for task in job], "task")
            _say(f"Slurm job {number}: {count} of {self._label} in {_several(jobs, 'job')}, logs in {logs}")

    def _refused(self, error: SlurmError) -> None:
        """Try again later what may succeed then. Raises InputError for what will not."""
        if not error.may_succeed_later:
            raise InputError(f"{str(error).rstrip('.')}: correct --slurm-options.") from error
        self._refusals += not self._jobs
        if self._refusals >= MAX_ATTEMPTS:
            raise error
        self._say_once(f"{error} It is asked again later.")
        self._submit_due = time.monotonic() + ASK_SECONDS[1]

    # Waiting

    def _take_results(self, *, afresh: bool = False) -> Iterator[tuple[int, Any]]:
        """Take the results that are there. Raises the exception of a task."""
        for array in {name: job.array for (name, _), job in self._jobs.items()}.values():
            for number, at in array.names("results", afresh=afresh):
                job = self._jobs.get((array.name, number))
                position = None if job is None else job.positions[at]
                if position not in self._left or (found := array.read(f"results/{number}-{at}")) is None:
                    continue
                self._news = time.monotonic()
                yield from self._take(position, found)
                if job is not None and self._left.isdisjoint(job.positions):
                    del self._jobs[array.name, number]
            for (number,) in array.names("errors"):
                if (array.name, number) in self._jobs and (found := array.read(f"errors/{number}")) is not None:
                    self._has_failed = True
                    raise codec.decode_error(found)

    def _take(self, position: int, found: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        self._has_begun = True
        self._on_progress(position, found["units"])
        yield position, codec.decode(found["result"])
        self._left.remove(position)

    def _ask_slurm(self) -> None:
        """Learn which jobs run, how far they are, and which have ended."""
        self._ask_due = time.monotonic() + _pause(self._submitted, ASK_SECONDS)
        if (states := self._states({name for name, _ in self._jobs})) is None:
            return
        # What squeue has forgotten is asked of accounting, array by array.
        forgotten = {job.state.array for key, job in self._jobs.items() if key not in states and job.ended is None}
        earlier = {array: commands.earlier_states(array) for array in forgotten}
        for key, job in self._jobs.items():
            if key in states:
                job.state = states[key]
            elif job.ended is None:
                known = JobState(job.state.array, earlier[job.state.array].get(job.number, ""))
                job.state = known if known.has_ended else known._replace(state="FORGOTTEN")
            job.ended = (job.ended or time.monotonic()) if job.state.has_ended else None
            if job.state.state != "PENDING":
                for position, units in job.progress.items():
                    self._has_begun = True
                    if units is not None and position in self._left:
                        self._on_progress(position, units)
        waiting = Counter(job.state.reason for job in self._jobs.values() if job.state.state == "PENDING")
        if time.monotonic() - self._start > WAIT_SECONDS and waiting.total() == len(self._jobs):
            self._say_once(f"the Slurm jobs wait, most of them for this reason: {waiting.most_common(1)[0][0]}.")

    # What has died

    def _try_dead_again(self) -> Iterator[tuple[int, Any]]:
        """Have the tasks tried again whose jobs have ended without their results."""
        limit = time.monotonic() - LATE_SECONDS
        if any(job.ended is not None and job.ended <= limit for job in self._jobs.values()):
            yield from self._take_results(afresh=True)
            for job in [job for job in self._jobs.values() if job.ended is not None and job.ended <= limit]:
                del self._jobs[job.array.name, job.number]
                self._line_up(self._count_death(job))

    def _count_death(self, job: SlurmJob) -> set[int]:
        """Count the death of a job; returns the positions of the tasks that it has not done.

        Raises WebtextError where trying again would not help, or has not.
        """
        positions = {position for position in job.positions if position in self._left}
        if job.state.state == "CANCELLED":
            raise WebtextError(f"{job} was cancelled: run the same command again, it resumes.")
        if not (self._has_begun or job.state.state in _NOT_ITS_FAULT):
            raise job.with_log(
                f"{job} ended ({job.state.state}) before its first task: {{said}}: see {job.array.log(job.number)}, "
                "and run the same command again."
            )
        progress = job.progress
        begun = [position for position in positions if progress.get(position) is not None]
        for position in begun or sorted(positions)[:1]:  # they are begun in their order
            self._on_progress(position, 0)
            if job.state.state != "PREEMPTED":
                try:
                    self._attempts.fail(position, f"its {job} {job.how_it_ended}")
                except WebtextError as error:
                    raise job.with_log(str(error)) from None
        _say(f"{job} {job.how_it_ended}: {_several(positions, 'task')} of it tried again.")
        return positions

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            _say(sentence)
        self._said = sentence


def cancel_all(folder: Path) -> None:
    """Cancel all jobs of the arrays in a folder, and give them a moment to end. Raises SlurmError."""
    names = [array.name for array in arrays_in(folder)]

    def at_work() -> list[str]:
        states = commands.states(names).values() if names else ()
        return sorted({state.array for state in states if not state.has_ended})

    if numbers := at_work():
        commands.cancel(numbers)
        _say(f"Slurm job {', '.join(numbers)} was cancelled.")
        deadline = time.monotonic() + STOP_SECONDS
        while at_work() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS[0])


def _pause(since: float, limits: tuple[float, float]) -> float:
    """Seconds between two looks: a twentieth of the time since there were news, within limits."""
    return min(max(limits[0], (time.monotonic() - since) / 20), limits[1])


def _text(task: Any) -> str:
    return json.dumps(task, sort_keys=True)


def _several(things: Collection[Any], word: str) -> str:
    """`1 task`, `1,000 tasks`."""
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"


def _say(sentence: str) -> None:
    """Print a line, also where the line of progress is redrawn."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}webtext: {sentence}", file=sys.stderr, flush=True)
