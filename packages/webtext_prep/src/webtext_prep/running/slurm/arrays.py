"""The files of one job array, all that passes between the process that submits it and its jobs.

    array.json             its jobs' name, and the digest of each job's tasks
    call.json              the call; as long as it is there, the array is wanted
    tasks/17.json          the tasks of job 17
    progress/17.json       which of them it has begun, and how far each has come
    results/17-0.json      the result of its first task; `17-0.taken` once the engine has it
    results/17.error.json  the exception with which it ended
    logs/17.log            what it printed

Each file is written whole or not at all. Network file systems show a new file late to other machines, up to a minute;
a change of the folder from here makes them look again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import write_text
from webtext_prep.documents import storage
from webtext_prep.running import wire
from webtext_prep.running.engines.base import Call
from webtext_prep.running.task import Task

LOG_LINES = 20
"""So many last lines of a log are shown when a job fails."""
_TAKEN = ".taken"


@dataclass(frozen=True)
class JobArray:
    """The folder of one array.

    Attributes:
        folder: the folder.
        name: of its jobs in Slurm, like no other's.
        jobs: for each job the digests of its tasks.
    """

    folder: Path
    name: str
    jobs: tuple[tuple[str, ...], ...]

    # In the process that submits it

    @classmethod
    def create(
        cls, folder: Path, label: str, call: Any, tasks: Sequence[Sequence[Any]], digests: Sequence[Sequence[str]],
        scratch: Path, versions: Mapping[str, str],
    ) -> JobArray:  # fmt: skip
        """Write what its jobs need, into a new folder.

        Args:
            folder: where the folders of arrays lie.
            label: a word for people, in the name of its jobs.
            call: the call, encoded.
            tasks: for each job its tasks, encoded.
            digests: and theirs.
            scratch: the folder for files that only one node needs.
            versions: what each node must have.
        """
        token = secrets.token_hex(4)
        array = cls(
            folder / token, f"webtext-{re.sub('[^A-Za-z0-9-]+', '-', label)}-{token}", tuple(map(tuple, digests))
        )
        for name in ("tasks", "progress", "results", "logs"):
            (array.folder / name).mkdir(parents=True)
        for number, own in enumerate(tasks):
            _write(array.folder / "tasks" / f"{number}.json", own, durable=False)
        surroundings = {"scratch": str(scratch), "cwd": str(Path.cwd()), "versions": dict(versions)}
        _write(array.folder / "call.json", {"call": call, **surroundings})
        # Last, and before anything is submitted: what lies without it never was.
        _write(array.folder / "array.json", {"name": array.name, "jobs": array.jobs})
        return array

    @classmethod
    def open(cls, folder: Path) -> JobArray:
        """An earlier array. Raises OSError or ValueError if it is not whole."""
        found = json.loads((folder / "array.json").read_bytes())
        try:
            return cls(folder, found["name"], tuple(map(tuple, found["jobs"])))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds no array") from error

    def results(self, *, afresh: bool = False) -> list[tuple[int, int | None]]:
        """What lies there to be taken: (job, position among its tasks), or (job, None) for an exception.

        `afresh` has a network file system look again instead of telling what it knew.
        """
        folder = self.folder / "results"
        if afresh:
            with contextlib.suppress(OSError):
                (folder / ".look").touch()
                (folder / ".look").unlink()
        found: list[tuple[int, int | None]] = []
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if match := re.fullmatch(r"(\d+)(?:-(\d+)|\.error)\.json", path.name):
                    found.append((int(match[1]), int(match[2]) if match[2] else None))
        return sorted(found, key=lambda place: (place[1] is None, place))

    def result(self, job: int, task: int) -> Any:
        """What `JobFiles.finish` wrote, or None where it can't be read (yet)."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / "results" / f"{job}-{task}.json").read_bytes())
        return None

    def error(self, job: int) -> Exception | None:
        """The exception with which a job ended, or None where it can't be read (yet)."""
        with contextlib.suppress(OSError, ValueError):
            return wire.decode_error(json.loads((self.folder / "results" / f"{job}.error.json").read_bytes()))
        return None

    def forget_error(self, job: int) -> None:
        """Remove the exception with which a job ended: its tasks are tried again."""
        (self.folder / "results" / f"{job}.error.json").unlink(missing_ok=True)

    def take(self, job: int, task: int) -> None:
        """Note that a result has arrived: a job that Slurm starts once more does not do its task again."""
        path = self.folder / "results" / f"{job}-{task}.json"
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_suffix(_TAKEN))

    def progress(self, job: int) -> list[int | None] | None:
        """For each task of a job how far it is, None if it is not begun; None if the job is not."""
        with contextlib.suppress(OSError, ValueError):
            return list(json.loads((self.folder / "progress" / f"{job}.json").read_bytes()))
        return None

    def log(self, job: int) -> Path:
        """Where the log of a job is."""
        return self.folder / "logs" / f"{job}.log"

    def last_lines(self, job: int) -> list[str] | None:
        """The end of a job's log; None if there is no log."""
        try:
            return self.log(job).read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return None


class JobFiles:
    """What one job of an array reads and writes, on its node.

    Args:
        folder: of the array.
        job: its number.
    """

    def __init__(self, folder: Path, job: int) -> None:
        self._folder, self._job = folder, job

    @property
    def is_wanted(self) -> bool:
        """Whether the array still is; what can't be looked at just now, is."""
        try:
            return (self._folder / "call.json").exists()
        except OSError:
            return True

    @functools.cached_property
    def _call(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "call.json").read_bytes())
        return found

    @property
    def cwd(self) -> Path:
        """The folder from which relative paths count."""
        return Path(self._call["cwd"])

    @property
    def scratch(self) -> Path:
        """The folder for files that only one node needs."""
        return Path(self._call["scratch"])

    @property
    def versions(self) -> dict[str, str]:
        """What this node must have: `versions_here` of the process that submitted the array."""
        return dict(self._call.get("versions", {}))

    def call(self) -> Call:
        """The call."""
        found: Call = wire.decode(self._call["call"])
        return found

    def tasks(self) -> dict[int, Task]:
        """The tasks that are not done, by their positions among those of the job."""
        tasks = wire.decode(json.loads((self._folder / "tasks" / f"{self._job}.json").read_bytes()))
        return {position: task for position, task in enumerate(tasks) if not self._is_done(position)}

    def _is_done(self, position: int) -> bool:
        path = self._folder / "results" / f"{self._job}-{position}.json"
        return path.exists() or path.with_suffix(_TAKEN).exists()

    def report(self, units: list[int | None]) -> None:
        """Say how far each task is."""
        _write(self._folder / "progress" / f"{self._job}.json", units, durable=False)

    def finish(self, position: int, task: Task, result: Any, units: int) -> None:
        """Write a result. Raises TypeError if it can't travel."""
        values = {"result": wire.encode(result), "units": units, "outputs": stamps(task)}
        _write(self._folder / "results" / f"{self._job}-{position}.json", values)

    def fail(self, error: BaseException) -> None:
        """Write the exception with which the job ends."""
        _write(self._folder / "results" / f"{self._job}.error.json", wire.encode_error(error))


def _write(path: Path, value: Any, *, durable: bool = True) -> None:
    """In ASCII: names of files may hold what UTF-8 does not."""
    write_text(path, json.dumps(value), durable=durable)


def stamps(task: Task) -> list[Any]:
    """The stamps of a task's outputs as they are now; None of one that is not there."""
    found: list[Any] = []
    for output in task.outputs:
        try:
            found.append(storage.stamp(output))
        except OSError:
            found.append(None)
    return found


def digest_of(call: Any, task: Any) -> str:
    """What tells an encoded call and task from any other."""
    return hashlib.sha256(json.dumps([call, task], sort_keys=True).encode()).hexdigest()[:32]
