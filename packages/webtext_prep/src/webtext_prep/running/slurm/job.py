"""What one job of an array does on its node: its tasks, as many at once as the job has cores.

    python -m webtext_prep.running.slurm.job FOLDER

It leaves each result in a file, and tries a task again as the engine of local processes does. A job that Slurm starts
once more, after its node failed or it was preempted, goes on with the tasks that have no result. One whose array is
not wanted any more, since its folder was removed or emptied, ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.open_files import allow_open_files
from webtext_prep.running.slurm.arrays import JobFiles
from webtext_prep.running.task import Task
from webtext_prep.running.versions import refuse_others, versions_here

REPORT_SECONDS = 5.0
"""Between two reports of how far the tasks are,"""
BEGIN_SECONDS = 0.5
"""or, if one has begun, so many."""
LOOK_SECONDS = 10.0
"""Between two looks whether the array is still wanted."""


class _Reports:
    """Says now and then how far each task is."""

    def __init__(self, files: JobFiles, todo: dict[int, Task]) -> None:
        self._files, self._places = files, list(todo)
        self.units: list[int | None] = [None] * (max(todo, default=-1) + 1)
        self._next = 0.0
        files.report(self.units)

    def __call__(self, at: int, units: int) -> None:
        position = self._places[at]
        is_begun = self.units[position] is not None
        self.units[position] = units
        now = time.monotonic()
        if now >= self._next - (0 if is_begun else REPORT_SECONDS - BEGIN_SECONDS):
            self._next = now + REPORT_SECONDS
            with contextlib.suppress(OSError):  # the next one may go well
                self._files.report(self.units)


@contextlib.contextmanager
def _ending_when_unwanted(files: JobFiles) -> Iterator[None]:
    """End this process when nobody wants its results any more."""
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(LOOK_SECONDS):
            if not files.is_wanted:
                print("webtext: nobody wants the results of this job any more.", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=watch, name="array-watch", daemon=True).start()
    try:
        yield
    finally:
        is_done.set()


def run(folder: Path, job: int, cores: int) -> int:
    """Do the tasks of one job that are not done yet; returns the exit code."""
    files = JobFiles(folder, job)
    if not files.is_wanted:
        print(f"webtext: {folder} is not there, or its jobs are not wanted any more.", file=sys.stderr)
        return 1
    try:
        with _ending_when_unwanted(files):
            _work(files, cores)
    except (Exception, SystemExit) as error:
        files.fail(error)
        return 1
    return 0


def _work(files: JobFiles, cores: int) -> None:
    refuse_others(versions_here(files.versions.keys() - {"Python"}), files.versions, platform.node())
    os.chdir(files.cwd)
    files.scratch.mkdir(parents=True, exist_ok=True)
    allow_open_files()
    todo = files.tasks()
    reports = _Reports(files, todo)
    places, tasks = list(todo), list(todo.values())
    engine = LocalEngine(max(1, min(cores, len(tasks))))
    for at, result in engine.run(files.call(), tasks, scratch=files.scratch, on_progress=reports):
        files.finish(places[at], tasks[at], result, reports.units[places[at]] or 0)


if __name__ == "__main__":
    sys.exit(
        run(
            Path(sys.argv[1]),
            int(os.environ["SLURM_ARRAY_TASK_ID"]),
            int(os.environ.get("SLURM_CPUS_ON_NODE", "1")),
        )
    )
