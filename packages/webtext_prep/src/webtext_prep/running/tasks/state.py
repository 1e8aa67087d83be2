"""The place in a user's large file up to which a task is done, so that a kill costs seconds and not the file.

Shards of ours are bounded: a task that works on one begins again. A file that a user brings may have 100 GB and be read
from its beginning alone. The task that reads it leaves what it has made in files of its own, and notes behind each how
far they hold:

    state = TaskState(place, task)
    done = state.read() or 0
    for number, records in enumerate(groups_of_records(file, behind=done)):
        write(records)
        done += len(records)
        state.write(done)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_kit import parse_json, write_json
from webtext_prep.running.tasks.task import Task
from webtext_prep.storage.stores.local import boot_id

SECONDS = 20.0
"""How long a task works, about, between two states."""


class TaskState:
    """What a task leaves to go on from: a small JSON-like value in a file among those between phases.

    It holds for the same key of the task, and until the machine restarts, since files between phases are not flushed to
    the disk. The value should be written behind what it describes.

    Args:
        path: the file.
        task: the task.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self._path, self._key = path, [task.key, boot_id()]

    def read(self) -> Any:
        """What was written last, or None."""
        try:
            found = parse_json(self._path.read_bytes())
        except (OSError, ValueError):
            return None
        return found["value"] if found["key"] == self._key else None

    def write(self, value: Any) -> None:
        """Replace what was written before. Raises OSError."""
        write_json(self._path, {"key": self._key, "value": value}, durable=False)
