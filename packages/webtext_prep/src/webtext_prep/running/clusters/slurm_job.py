"""One job of an array on its node: its tasks, as many at once as the job has cores.

    python -m webtext_prep.running.clusters.slurm_job FOLDER

It leaves each result in a file, and tries a task again as the engine of local processes does. A job that Slurm starts
once more, after its node failed or it was preempted, goes on with the tasks that have no result. One whose array is
not wanted any more, since its folder was removed, ends by itself. Files are all that passes between the command that
submits an array and its jobs:

    array.json            the call with its surroundings, and the name of its jobs in Slurm; written last
    tasks/17.json         the tasks of job 17
    progress/17.json      how many units of each of them are done, null for one that has not begun
    results/17-0.json     the result of its first task
    errors/17.json        the exception with which it ended
    logs/17.log           what it printed

Each file is written whole or not at all. Network file systems show a new file late to other machines, up to a minute;
a change of the folder from here makes them look again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_kit import read_json, write_text
from webtext_prep import storage
from webtext_prep.running import codec
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.processes import allow_open_files, refuse_others, versions_here
from webtext_prep.running.tasks import Task

_ARRAY = "array.json"


@dataclass(frozen=True)
class JobArray:
    """The folder of one array.

    Attributes:
        folder: the folder.
        name: of its jobs in Slurm, like no other's.
        call: the function that its tasks are given to, encoded.
        scratch: the folder for files that only one node needs.
        cwd: the folder from which relative paths count.
        versions: what each node must have: `versions_here` of the command.
    """

    folder: Path
    name: str
    call: Any
    scratch: str
    cwd: str
    versions: Mapping[str, str]

    @classmethod
    def create(
        cls, parent: Path, label: str, call: Any, jobs: Sequence[Sequence[Any]], scratch: Path, versions: dict[str, str]
    ) -> JobArray:
        """Write what the jobs of a new array need: for each job its encoded tasks. The label is for people."""
        token = secrets.token_hex(4)
        name = f"webtext-{re.sub('[^A-Za-z0-9-]+', '-', label)}-{token}"
        array = cls(parent / token, name, call, str(scratch), str(Path.cwd()), versions)
        for kind in ("tasks", "progress", "results", "errors", "logs"):
            (array.folder / kind).mkdir(parents=True)
        for number, tasks in enumerate(jobs):
            array.write(f"tasks/{number}", tasks)
        # Before anything is submitted: what lies without it never was.
        write_text(array.folder / _ARRAY, json.dumps(asdict(array) | {"folder": None}))
        return array

    @classmethod
    def open(cls, folder: Path) -> JobArray:
        """An array by its folder. Raises OSError or ValueError if it is not whole."""
        found = json.loads((folder / _ARRAY).read_bytes())
        try:
            return cls(**(found | {"folder": folder}))
        except TypeError as error:
            raise ValueError(f"{folder} holds no array") from error

    @property
    def is_wanted(self) -> bool:
        """True as long as somebody waits for its results. Raises OSError where that can't be looked at."""
        return (self.folder / _ARRAY).exists()

    def write(self, name: str, value: Any, *, durable: bool = False) -> None:
        """Write the file of a name such as `results/17-0`; in ASCII: names of files may hold what UTF-8 does not."""
        write_text(self.folder / f"{name}.json", json.dumps(value), durable=durable)

    def read(self, name: str) -> Any:
        """The content of such a file, or None where it can't be read (yet)."""
        return read_json(self.folder / f"{name}.json")

    def names(self, kind: str, *, afresh: bool = False) -> list[tuple[int, ...]]:
        """The numbers in the names of all files of a kind, in order: (17, 0) for `results/17-0.json`.

        `afresh` has a network file system look again instead of telling what it knew.
        """
        folder = self.folder / kind
        with contextlib.suppress(OSError):
            if afresh:
                (folder / ".look").touch()
                (folder / ".look").unlink()
            return sorted(tuple(map(int, path.stem.split("-"))) for path in folder.glob("*.json"))
        return []

    def log(self, job: int) -> Path:
        """The file of what a job prints."""
        return self.folder / "logs" / f"{job}.log"


def arrays_in(folder: Path) -> list[JobArray]:
    """The arrays in a folder; an incomplete one is removed."""
    found = []
    for own in sorted(folder.iterdir()) if folder.is_dir() else []:
        try:
            found.append(JobArray.open(own))
        except (OSError, ValueError):  # a kill came before it was submitted
            shutil.rmtree(own, ignore_errors=True)
    return found


def stamps(task: Task) -> list[Any]:
    """The stamps of a task's outputs as they are now; None of one that is not there."""
    return [storage.stamp(output) if storage.is_file(output) else None for output in task.writes.all()]


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
