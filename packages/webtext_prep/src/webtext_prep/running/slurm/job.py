"""One job of an array on its node: its tasks, as many at once as the job has cores.

    python -m webtext_prep.running.slurm.job FOLDER

It leaves each result in a file, and tries a task again as the engine of local processes does. A job that Slurm starts
once more, after its node failed or it was preempted, goes on with the tasks that have no result. One whose array is
not wanted any more, since its folder was removed, ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from pathlib import Path

from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.slurm.arrays import JobArray, stamps
from webtext_prep.running.tasks import codec
from webtext_prep.running.tasks.open_files import allow_open_files
from webtext_prep.running.versions import refuse_others, versions_here

REPORT_SECONDS = 5.0
"""Between two reports of how far the tasks are, unless one has just begun."""


def run(folder: Path, job: int, cores: int) -> int:
    """Do the tasks of one job that are not done yet; returns the exit code."""
    try:
        array = JobArray.open(folder)
    except (OSError, ValueError):
        print(f"webtext: {folder} is not there, or its jobs are not wanted any more.", file=sys.stderr)
        return 1
    try:
        _work(array, job, cores)
    except (Exception, SystemExit) as error:
        array.write(f"errors/{job}", codec.encode_error(error), durable=True)
        return 1
    return 0


def _work(array: JobArray, job: int, cores: int) -> None:
    refuse_others(versions_here(array.versions.keys() - {"Python"}), array.versions, platform.node())
    os.chdir(array.cwd)
    scratch = Path(array.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    allow_open_files()
    encoded, done = array.read(f"tasks/{job}"), set(array.names("results"))
    units: list[int | None] = [None] * len(encoded)
    array.write(f"progress/{job}", units)
    todo = [at for at in range(len(encoded)) if (job, at) not in done]
    tasks = [codec.decode(encoded[at]) for at in todo]
    due = 0.0

    def report(position: int, count: int) -> None:
        nonlocal due
        has_begun, units[todo[position]] = units[todo[position]] is not None, count
        if not has_begun or time.monotonic() >= due:
            due = time.monotonic() + REPORT_SECONDS
            with contextlib.suppress(OSError):  # the next one may go well
                if not array.is_wanted:
                    print(
                        f"webtext: {array.folder} was removed: nobody wants its results.", file=sys.stderr, flush=True
                    )
                    os._exit(1)
                array.write(f"progress/{job}", units)

    engine = LocalEngine(max(1, min(cores, len(tasks))))
    for position, result in engine.run(codec.decode(array.call), tasks, scratch=scratch, on_progress=report):
        at = todo[position]
        values = {"result": codec.encode(result), "units": units[at] or 0, "outputs": stamps(tasks[position])}
        array.write(f"results/{job}-{at}", values, durable=True)


if __name__ == "__main__":
    job, cores = (int(os.environ.get(f"SLURM_{name}", "1")) for name in ("ARRAY_TASK_ID", "CPUS_ON_NODE"))
    sys.exit(run(Path(sys.argv[1]), job, cores))
