"""What a task that is killed leaves to go on from: a small JSON value in a file among those between phases.

It holds for the same stage, settings, inputs and options, and until the machine restarts, since files between phases
are not flushed to the disk. The value should be written behind what it describes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_kit import write_json
from command_kit.settings import identity
from webtext_prep.documents import storage
from webtext_prep.documents.stores.local import boot_id
from webtext_prep.running.markers import digest
from webtext_prep.running.stage import Stage
from webtext_prep.running.task import Task


class TaskState:
    """The state of one task.

    Args:
        path: the file.
        stage: the stage with its settings.
        task: the task.
    """

    def __init__(self, path: Path, stage: Stage, task: Task) -> None:
        stamps = [storage.stamp(place) for place in (*stage.setting_files(), *task.inputs)]
        of_stage = [stage.name, stage.version, identity(stage), stage.identity()]
        self._path, self._key = path, digest([of_stage, stamps, task.options, boot_id()])

    def read(self) -> Any:
        """What was written last, or None."""
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return None
        return found["value"] if found["key"] == self._key else None

    def write(self, value: Any) -> None:
        """Replace what was written before. Raises OSError."""
        write_json(self._path, {"key": self._key, "value": value}, durable=False)
