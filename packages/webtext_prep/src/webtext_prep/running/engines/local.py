"""Tasks in local processes, which end with the command that started them, even if that is killed.

Each worker has a pipe of its own: one that dies, by a bug in a library or because memory ran out, costs the task that
it was running, and no other. A task that has brought down two workers is tried alone, with all of the memory to itself.
"""

from __future__ import annotations

import ctypes
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import RawArray
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from command_kit import Progress
from command_kit.processes import STOP_SECONDS, WorkerProcess, keep_freed_memory
from webtext_prep import storage
from webtext_prep.errors import RetryableError
from webtext_prep.running.engines.base import Attempts, Call, Engine, OnProgress, stage_of, travelling
from webtext_prep.running.tasks import Context, Task

Result = TypeVar("Result")
ALONE_AFTER = 2
"""Deaths of a worker after which the task is run with no other next to it."""
PROGRESS_SECONDS = 0.2


# In a worker


def _work(tasks: Connection, results: Connection, call: Call, totals: Any, scratch: Path, slots: int) -> None:
    """A worker's life: a task at a time from the pipe, its result or its exception back, until the pipe ends."""
    while True:
        position, task = tasks.recv()

        def report(units: int, position: int = position) -> None:
            totals[position] = units

        answer = _answer(call, task, Context(scratch, slots, report))
        try:
            results.send(answer)
        except ConnectionError:
            raise
        except Exception as error:  # the result can't travel
            results.send((False, travelling(error)))


def _answer(call: Call, task: Task, context: Context) -> tuple[bool, Any]:
    """Whether a task went well; its result, or the exception that it ended with."""
    try:
        return True, call(task, context)
    except (Exception, SystemExit) as error:
        return False, travelling(error)


# In the parent


class _TaskWorker(WorkerProcess):
    """A worker process, and the task that it is at."""

    position: int | None = None
    is_proven = False  # has answered once

    def start(self, position: int, task: Task) -> bool:
        """Hand over a task; False if the worker is dead."""
        try:
            self.tasks.send((position, task))
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.position = position
        return True

    def how_it_ended(self) -> str:
        self.process.join(STOP_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            cause = ", most often because memory ran out" if -code == signal.SIGKILL else ""
            return f"was killed by {name}{cause}"
        return f"ended with exit code {code}"


class LocalEngine(Engine):
    """Tasks in local processes; with one worker, or one task, in this process."""

    name: ClassVar[str] = "local"
    is_here = True

    def run(
        self, call: Call, tasks: Sequence[Task], *, scratch: Path, on_progress: OnProgress
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.run`."""
        if self.workers == 1 or len(tasks) <= 1:
            yield from self._run_here(call, tasks, scratch, on_progress)
        else:
            yield from _Pool(call, tasks, min(self.workers, len(tasks)), scratch, on_progress).run()

    @staticmethod
    def _run_here(
        call: Call, tasks: Sequence[Task], scratch: Path, on_progress: OnProgress
    ) -> Iterator[tuple[int, Any]]:
        attempts = Attempts(tasks)
        keep_freed_memory()
        for position, task in enumerate(tasks):

            def report(units: int, position: int = position) -> None:
                on_progress(position, units)

            while True:
                report(0)
                try:
                    result = call(task, Context(scratch, 1, report))
                except RetryableError as error:
                    attempts.fail(position, str(error), error)
                else:
                    yield position, result
                    break


def run_tasks(
    call: Callable[[Task, Context], Result],
    tasks: Sequence[Task],
    *,
    workers: int,
    label: str,
    unit: str,
    total: int | None,
) -> Generator[tuple[int, Result], None, None]:
    """Run the tasks of a command that is no stage, with their progress; yields (position, result) as they finish.

    Args:
        call: as for `Engine.run`; it has no scratch folder.
        tasks: what to do.
        workers: tasks at once; with one, they are run in this process.
        label: what the progress begins with.
        unit: what `context.report` counts.
        total: how many units there are in all, where known.
    """
    units = [0] * len(tasks)
    with Progress(label, unit, total) as progress:

        def show(position: int, count: int) -> None:
            units[position] = count
            progress.update(sum(units))

        yield from LocalEngine(workers).run(call, tasks, scratch=Path(), on_progress=show)


class _Pool:
    """One run of many tasks in several processes, which are forked with the modules that the stage of the tasks names:
    a stage may have `preload`, modules that its tasks use and that take long to import."""

    def __init__(self, call: Call, tasks: Sequence[Task], workers: int, scratch: Path, on_progress: OnProgress) -> None:
        of_stores = {name for task in tasks for name in storage.modules_of((*task.reads.all(), *task.writes.all()))}
        stage = stage_of(call)
        self._preload = [type(stage).__module__, *getattr(stage, "preload", ()), *sorted(of_stores)]
        self._tasks, self._count, self._on_progress = tasks, workers, on_progress
        self._totals = RawArray(ctypes.c_uint64, len(tasks))
        self._arguments = (call, self._totals, scratch, workers)
        self._workers: list[_TaskWorker] = []
        self._todo = deque(range(len(tasks)))
        self._attempts = Attempts(tasks)

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) as tasks finish."""
        is_done = False
        try:
            while self._todo or self._busy():
                self._hand_out()
                busy = self._busy()
                wait_for_any([worker.results for worker in busy], timeout=PROGRESS_SECONDS)
                for worker in busy:
                    position = worker.position
                    assert position is not None
                    self._on_progress(position, self._totals[position])
                    if worker.results.poll():
                        yield from self._take(worker, position)
            is_done = True
        finally:
            self._stop(at_once=not is_done)

    def _busy(self) -> list[_TaskWorker]:
        return [worker for worker in self._workers if worker.position is not None]

    def _hand_out(self) -> None:
        """Give each free worker a task, and start workers while there are fewer than wanted."""
        while self._todo:
            busy = self._busy()
            if busy and (self._is_alone(self._todo[0]) or self._is_alone(busy[0].position)):
                return
            worker = next((worker for worker in self._workers if worker.position is None), None)
            if worker is None:
                if len(self._workers) >= self._count:
                    return
                worker = _TaskWorker(_work, *self._arguments, preload=self._preload)
                self._workers.append(worker)
            position = self._todo.popleft()
            if not worker.start(position, self._tasks[position]):
                self._workers.remove(worker)
                if worker.is_proven:
                    self._todo.appendleft(position)
                else:  # workers that die before they take a task would be started forever
                    self._fail(position, f"its worker process {worker.how_it_ended()}")

    def _is_alone(self, position: int | None) -> bool:
        return position is not None and self._attempts.failed(position) >= ALONE_AFTER

    def _take(self, worker: _TaskWorker, position: int) -> Iterator[tuple[int, Any]]:
        """What a worker has to say of its task; or, if it is dead, the task once more."""
        try:
            is_good, value = worker.results.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            self._fail(position, f"its worker process {worker.how_it_ended()}")
            return
        worker.position, worker.is_proven = None, True
        if is_good:
            self._on_progress(position, self._totals[position])
            yield position, value
        else:
            self._attempts.refuse_or_fail(position, value)
            self._again(position)

    def _fail(self, position: int, reason: str) -> None:
        self._attempts.fail(position, reason)
        self._again(position)

    def _again(self, position: int) -> None:
        self._totals[position] = 0
        self._on_progress(position, 0)
        self._todo.append(position)

    def _stop(self, *, at_once: bool) -> None:
        for worker in self._workers:
            worker.tasks.close()
            if at_once:
                worker.process.terminate()
        for worker in self._workers:
            worker.close()
