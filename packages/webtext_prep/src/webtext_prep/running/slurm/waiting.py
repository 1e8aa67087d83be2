"""One run of tasks as job arrays: what is submitted, what has come of it, and what has to be tried again.

A result in a file is what counts; Slurm is asked, more and more seldom, which jobs still run and how the others ended.
A job that died, of its node, its memory or its time limit, costs the tasks that it had begun one of their attempts; one
that was preempted costs none. The tasks without a result go into a new array.

Arrays that an earlier process has left are found by their folders: results that came meanwhile are taken, jobs that
still run are waited for, and only what is left is submitted. An array belongs to this run as far as its call and tasks
are the same, to the letter; jobs that only do other tasks are cancelled.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import wire
from webtext_prep.running.engines.base import MAX_ATTEMPTS, Call, OnProgress, libraries_of, stage_of
from webtext_prep.running.slurm import commands
from webtext_prep.running.slurm.arrays import JobArray, digest_of, stamps
from webtext_prep.running.slurm.cancelling import arrays_in, cancel_all, say
from webtext_prep.running.slurm.commands import JobState, SlurmError
from webtext_prep.running.slurm.jobs import NODE_TROUBLES, Job
from webtext_prep.running.slurm.pace import Pace
from webtext_prep.running.task import Task
from webtext_prep.running.versions import versions_here

FOLDER = "slurm"
"""In the job's scratch folder: the folders of arrays."""
ALONE_AFTER = 2
"""So many deaths of its job after which a task gets a job of its own."""
LOOK_SECONDS = (0.2, 10.0)
"""Between two looks for results, soon after the last one and long after it."""
ASK_SECONDS = (2.0, 60.0)
"""Between two questions to Slurm, at first and later."""
LATE_SECONDS = 10.0
"""So long after the end of a job its results may come into sight."""
WAIT_SECONDS = 60.0
"""After waiting so long for a first job it is said why."""


@dataclass(frozen=True)
class Submitting:
    """How tasks become jobs.

    Attributes:
        options: of sbatch.
        tasks_per_job: how many tasks a job has.
        at_once: how many jobs run at once, 0 for as many as Slurm lets.
    """

    options: Sequence[str]
    tasks_per_job: int
    at_once: int


class Waiting:
    """One run of tasks; for the arguments see `Engine.run`.

    Args:
        how: how tasks become jobs.
    """

    def __init__(
        self, call: Call, tasks: Sequence[Task], scratch: Path, on_progress: OnProgress, how: Submitting
    ) -> None:
        self._tasks, self._scratch, self._on_progress, self._how = tasks, scratch, on_progress, how
        self._folder = scratch / FOLDER
        self._versions = versions_here(libraries_of(call))
        self._label = getattr(stage_of(call), "name", "") or getattr(call, "__name__", "tasks")
        self._call, self._encoded = wire.encode(call), [wire.encode(task) for task in tasks]
        self._digests = [digest_of(self._call, task) for task in self._encoded]
        self._left = set(range(len(tasks)))
        self._failures: Counter[int] = Counter()
        self._queue: deque[Sequence[Sequence[int]]] = deque()  # arrays to submit: for each job the positions of tasks
        self._jobs: dict[tuple[str, int], Job] = {}
        self._has_begun = False  # whether any job ever has
        self._has_failed = False  # by an exception of a task, which needs no logs
        self._look, self._ask = Pace(*LOOK_SECONDS), Pace(*ASK_SECONDS)
        self._submit_due, self._refusals = 0.0, 0
        self._start, self._said = time.monotonic(), ""

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) as tasks finish."""
        try:
            at_work = yield from self._take_over()
            self._line_up(self._left - at_work)
            while self._left:
                self._submit()
                if self._look.is_due():
                    yield from self._take_results()
                if self._left and self._jobs and self._ask.is_due():
                    self._ask_slurm()
                    yield from self._bury()
                if self._left:
                    due = min(self._look.due, self._ask.due) if self._jobs else self._look.due
                    time.sleep(max(0.0, due - time.monotonic()))
        finally:
            if self._left:
                cancel_all(self._folder)
            if not self._left or self._has_failed:
                shutil.rmtree(self._folder, ignore_errors=True)

    # What an earlier process has left

    def _take_over(self) -> Generator[tuple[int, Any], None, set[int]]:
        """Yield what earlier arrays have done; returns the positions of tasks that they are still at."""
        arrays = arrays_in(self._folder)
        if not arrays:
            return set()
        states = self._states_by_all_means([array.name for array in arrays])
        wanted = {digest: position for position, digest in enumerate(self._digests)}
        unwanted: dict[str, list[int]] = {}
        for array in arrays:
            yield from self._earlier_results(array, wanted)
            for number, digests in enumerate(array.jobs):
                state = states.get((array.name, number))
                positions = [wanted.get(digest) for digest in digests]
                if state is None or state.has_ended:
                    continue
                if self._left.isdisjoint(positions):
                    unwanted.setdefault(state.array, []).append(number)
                else:
                    self._jobs[array.name, number] = Job(array, number, positions, state)
        commands.cancel(unwanted)
        at_work = {position for job in self._jobs.values() for position in job.positions if position in self._left}
        if at_work:
            numbers = ", ".join(sorted({job.state.array for job in self._jobs.values()}))
            say(f"Slurm job {numbers} of an earlier run is still at work on {_several(len(at_work), 'task%s')}.")
        return at_work

    def _earlier_results(self, array: JobArray, wanted: dict[str, int]) -> Iterator[tuple[int, Any]]:
        for number, task in array.results(afresh=True):
            if task is None:
                array.forget_error(number)
                continue
            position, found = wanted.get(array.jobs[number][task]), array.result(number, task)
            # What the task made may have been removed or replaced since then.
            if position in self._left and found is not None and found["outputs"] == stamps(self._tasks[position]):
                yield from self._take(array, number, task, position, found)

    def _states_by_all_means(self, names: Collection[str]) -> dict[tuple[str, int], JobState]:
        """What Slurm knows of earlier arrays: without an answer, work that is being done would be done twice."""
        while True:
            try:
                return commands.states(names)
            except SlurmError as error:
                if not error.may_succeed_later:
                    raise
                self._say_once(f"{error} Asking again until it answers.")
                time.sleep(ASK_SECONDS[0])

    # Submitting

    def _line_up(self, positions: Collection[int]) -> None:
        """Line up tasks to be submitted."""
        alone = [[position] for position in sorted(positions) if self._failures[position] >= ALONE_AFTER]
        others = [position for position in sorted(positions) if self._failures[position] < ALONE_AFTER]
        size = self._how.tasks_per_job
        jobs = [*alone, *(others[at : at + size] for at in range(0, len(others), size))]
        most = commands.most_jobs() if jobs else 1
        self._queue += [jobs[at : at + most] for at in range(0, len(jobs), most)]

    def _submit(self) -> None:
        """Submit what is lined up; with a limit on jobs at once one array at a time."""
        while self._queue and time.monotonic() >= self._submit_due and not (self._jobs and self._how.at_once):
            jobs = self._queue[0]
            tasks, digests = ([[of[at] for at in job] for job in jobs] for of in (self._encoded, self._digests))
            array = JobArray.create(
                self._folder, self._label, self._call, tasks, digests, self._scratch, self._versions
            )
            script = commands.script_for("webtext_prep.running.slurm.job", str(array.folder))
            logs = array.log(0).parent
            try:
                number = commands.submit(
                    array.name, len(jobs), script, logs, self._how.options, at_once=self._how.at_once
                )
            except SlurmError as error:
                self._refused(array, error)
                return
            self._queue.popleft()
            self._refusals = 0
            for at, positions in enumerate(jobs):
                self._jobs[array.name, at] = Job(array, at, positions, JobState(number, "PENDING", ""))
            self._ask.news()
            count = _several(sum(map(len, jobs)), f"task%s of {self._label}")
            say(f"Slurm job {number}: {count} in {_several(len(jobs), 'job%s')}, logs in {logs}")

    def _refused(self, array: JobArray, error: SlurmError) -> None:
        """Try again later what may succeed then. Raises InputError for what will not."""
        shutil.rmtree(array.folder, ignore_errors=True)
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
        begun = time.monotonic()
        for array in {name: job.array for (name, _), job in self._jobs.items()}.values():
            for number, task in array.results(afresh=afresh):
                job = self._jobs.get((array.name, number))
                if job is None:
                    continue
                if task is None:
                    if (error := array.error(number)) is not None:
                        self._has_failed = True
                        raise error
                elif (found := array.result(number, task)) is not None:
                    self._look.news()
                    yield from self._take(array, number, task, job.positions[task], found)
                    if self._left.isdisjoint(job.positions):
                        del self._jobs[array.name, number]
        self._look.looked(begun)

    def _take(
        self, array: JobArray, number: int, task: int, position: int | None, found: dict[str, Any]
    ) -> Iterator[tuple[int, Any]]:
        self._has_begun = True
        if position is not None and position in self._left:
            self._on_progress(position, found["units"])
            yield position, wire.decode(found["result"])
            self._left.remove(position)
        array.take(number, task)

    def _ask_slurm(self) -> None:
        """Learn which jobs run, how far they are, and which have ended."""
        begun = time.monotonic()
        try:
            states = commands.states({name for name, _ in self._jobs})
            # What squeue has forgotten is asked of accounting, array by array.
            forgotten = {job.state.array for key, job in self._jobs.items() if key not in states and job.ended is None}
            earlier = {array: commands.earlier_states(array) for array in forgotten}
        except SlurmError as error:
            self._say_once(f"{error} Asking again until it answers.")
            self._ask.looked(begun)
            return
        for key, job in self._jobs.items():
            if key in states:
                job.state = states[key]
            elif job.ended is None:
                state = earlier[job.state.array].get(job.number, "FORGOTTEN")
                job.state = JobState(job.state.array, state if state in commands.ENDED else "FORGOTTEN", "")
            job.ended = (job.ended or time.monotonic()) if job.state.has_ended else None
            if job.state.state != "PENDING":
                self._show_progress(job)
        self._say_why_they_wait()
        self._ask.looked(begun)

    def _show_progress(self, job: Job) -> None:
        for position, units in zip(job.positions, job.array.progress(job.number) or (), strict=False):
            self._has_begun = True
            if units is not None and position is not None and position in self._left:
                self._on_progress(position, units)

    def _say_why_they_wait(self) -> None:
        if time.monotonic() - self._start > WAIT_SECONDS:
            waiting = Counter(job.state.reason for job in self._jobs.values() if job.state.state == "PENDING")
            if waiting.total() == len(self._jobs):
                self._say_once(f"the Slurm jobs wait, most of them for this reason: {waiting.most_common(1)[0][0]}.")

    # What has died

    def _bury(self) -> Iterator[tuple[int, Any]]:
        """Have the tasks tried again whose jobs have ended without their results."""
        limit = time.monotonic() - LATE_SECONDS
        if any(job.ended is not None and job.ended <= limit for job in self._jobs.values()):
            yield from self._take_results(afresh=True)
            for job in [job for job in self._jobs.values() if job.ended is not None and job.ended <= limit]:
                del self._jobs[job.array.name, job.number]
                self._line_up(self._count_death(job))

    def _count_death(self, job: Job) -> set[int]:
        """Count the death of a job; returns the positions of the tasks that it has not done.

        Raises WebtextError where trying again would not help, or has not.
        """
        positions = {position for position in job.positions if position in self._left}
        ended = job.how_it_ended()
        if job.state.state == "CANCELLED":
            raise WebtextError(f"{job} was cancelled: run the same command again, it resumes.")
        if not (self._has_begun or job.state.state in NODE_TROUBLES):
            raise job.never_begun()
        units = dict(zip(job.positions, job.array.progress(job.number) or (), strict=False))
        begun = {position for position in positions if units.get(position) is not None}
        for position in begun or {min(positions)}:  # they are begun in their order
            self._failures[position] += job.state.state != "PREEMPTED"
            self._on_progress(position, 0)
            if self._failures[position] >= MAX_ATTEMPTS:
                raise job.given_up(self._tasks[position], MAX_ATTEMPTS)
        say(f"{ended.removeprefix('its ')}: {_several(len(positions), 'task%s')} of it tried again.")
        return positions

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            say(sentence)
        self._said = sentence


def _several(count: int, word: str) -> str:
    """`1 task`, `1,000 tasks`; the word has `%s` for the plural's letter."""
    return f"{count:,} {word.replace('%s', '' if count == 1 else 's')}"
