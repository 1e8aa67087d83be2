"""Completion markers: what says that a task, or a whole output, is done, and from what it was made.

A marker holds a key, the digest of everything that the output depends on (settings, the stage's version, the stamps of
the input files), and the sizes of the files that were made. It holds as long as both are what they were: that is all
there is to resuming, whether the last run ended well, was interrupted, or was killed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import parse_json, write_json
from command_kit.atomic import remove_leftovers
from webtext_prep import storage
from webtext_prep.running.tasks import Task
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores.local import boot_id


def digest(value: Any) -> str:
    """32 hexadecimal digits that identify a JSON-like value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Done:
    """A finished task: its result, and how many units of work it was."""

    result: Any
    units: int


class Markers:
    """The markers of one phase, a small file for each finished task.

    Args:
        folder: where they lie; it is made if need be.
        scratch: the folder of files between phases, where these are not flushed to the disk: a task that made some of
            them is done only until the machine starts again, since a cut of power may have taken what they hold. None
            where they are flushed, as files from tasks on other machines are.
    """

    def __init__(self, folder: Path, scratch: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        self._folder, self._scratch = folder, scratch

    @staticmethod
    def keyed(tasks: Sequence[Task], made_of: Sequence[Any]) -> list[Task]:
        """The tasks, each with its key: the digest of `made_of`, and of what itself says that its output depends on."""
        paths = list(dict.fromkeys(path for task in tasks for path in task.reads.all()))
        stamps = dict(zip(paths, storage.stamps(paths), strict=True))

        def key_of(task: Task) -> str:
            read = [stamps[path] for path in task.reads.all()]
            return digest([*made_of, read, [output.name for output in task.writes.all()], task.options])

        return [dataclasses.replace(task, key=key_of(task)) for task in tasks]

    def read(self, task: Task) -> Done | None:
        """The finished task of `task`'s marker, or None where there is none, or it no longer holds.

        Raises OSError where an output can't be asked about: only one that is not there is to be made again.
        """
        try:
            marker = parse_json((self._folder / f"{task.name}.json").read_bytes())
            if marker.get("boot", "") not in ("", self._boot(task)):
                return None
            if marker.get("key") != task.key or marker.get("sizes") != [
                storage.size(output) for output in task.writes.all()
            ]:
                return None
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return Done(marker["result"], marker.get("units", 0))

    def read_all(self, tasks: Sequence[Task]) -> list[Done | None]:
        """The answers of `read` for all tasks; outputs in object storage are asked about side by side."""
        return storage.each(self.read, tasks, (path for task in tasks for path in task.writes.all()))

    def write(self, task: Task, done: Done) -> None:
        """Mark `task` as done."""
        sizes = [storage.size(output) for output in task.writes.all()]
        marker = {"key": task.key, "sizes": sizes, "result": done.result, "units": done.units}
        if boot := self._boot(task):
            marker["boot"] = boot
        write_json(self._folder / f"{task.name}.json", marker)

    def _boot(self, task: Task) -> str:
        if self._scratch is None:
            return ""
        is_scratch = any(isinstance(path, Path) and path.is_relative_to(self._scratch) for path in task.writes.all())
        return boot_id() if is_scratch else ""


class OutputMarker:
    """Says of a whole output that it is finished.

    Args:
        path: the marker's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def holds(self, key: str, folder: Location) -> bool:
        """Whether the output was finished under `key`, and its files below `folder` are still what they were.

        Raises OSError where they can't be asked about.
        """
        try:
            marker = parse_json(self._path.read_bytes())
            places = [folder / name for name in marker["outputs"]]
            return marker["key"] == key and list(marker["outputs"].values()) == storage.sizes(places)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
            return False

    def write(self, key: str, outputs: Sequence[Location], folder: Location) -> None:
        """Mark the output as finished. Raises OSError if one of its files is missing."""
        names = [str(path).removeprefix(f"{folder}/") for path in outputs]
        write_json(self._path, {"key": key, "outputs": dict(zip(names, storage.sizes(outputs), strict=True))})

    def remove(self) -> None:
        """Mark the output as not finished."""
        self._path.unlink(missing_ok=True)
