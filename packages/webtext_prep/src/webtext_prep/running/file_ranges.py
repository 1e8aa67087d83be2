"""Tasks that read a user's large file from its beginning, so that a kill costs seconds and not the file.

Shards of ours are bounded: a task that works on one begins again. A file that a user brings may have 100 GB and be read
from its beginning alone. The task that reads it leaves what it has made in files of its own, and notes after each how
far they hold (`TaskState`):

    state = TaskState(place, task)
    done = state.read() or 0
    for number, records in enumerate(groups_of_records(file, behind=done)):
        write(records)
        done += len(records)
        state.write(done)

`cut_into_runs` does so with runs of whole records, which all cores then read. What was killed goes on after the last
run: a plain file is entered there, a compressed one decompressed once more up to there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from command_kit import read_json, write_json
from webtext_prep import storage
from webtext_prep.documents.formats.compression import bare_name, write_zstd
from webtext_prep.documents.formats.lines import read_utf8_from
from webtext_prep.documents.records.base import FileBlock, OtherKindError
from webtext_prep.running.tasks import Context, Files, Task
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores.local import boot_id

SECONDS = 20.0
"""Seconds that a task works, about, between two states."""


class TaskState:
    """The state that a task leaves to go on from: a small JSON-like value in a file between phases.

    It holds for the same key of the task, and until the machine restarts, since files between phases are not flushed to
    the disk. The value should be written after what it describes.

    Args:
        path: the file.
        task: the task.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self._path, self._key = path, [task.key, boot_id()]

    def read(self) -> Any:
        """The value that was written last, or None."""
        found = read_json(self._path)
        return found["value"] if found and found["key"] == self._key else None

    def write(self, value: Any) -> None:
        """Replace what was written before. Raises OSError."""
        write_json(self._path, {"key": self._key, "value": value}, durable=False)


def cut_into_runs(
    task: Task, context: Context, blocks: Callable[[Iterable[bytes], Any], Iterator[FileBlock]]
) -> list[list[Any]]:
    """Write the runs of the file that a task reads next to its state.

    Args:
        task: the task.
        context: gets the bytes done.
        blocks: gives the blocks of the file's content from some place on, with the head of the block before.

    Returns of each run how many records it has, and the head with which it is to be read; none if the file has to be
    read as a whole.
    """
    state = TaskState(storage.local_path(task.writes.state), task)
    runs, done, head = state.read() or ([], 0, None)
    while True:
        try:
            for block in blocks(read_utf8_from(task.reads.file, done), head):
                with write_zstd(run_file(task, len(runs)), durable=False) as file:
                    file.write(block.data)
                runs, done, head = [*runs, [block.records, head]], done + block.size, block.head
                state.write([runs, done, head])
                context.report(done)
        except OtherKindError as error:
            runs, done, head = [], 0, error.head
            state.write([runs, done, head])
            if head is None:
                return []
        else:
            return list(runs)


def run_file(task: Task, number: int) -> Location:
    """A run of the file that a task reads; of the same kind, by its suffix."""
    _, dot, suffix = bare_name(task.reads.file).rpartition(".")
    return task.writes.state.with_name(f"run-{number:05}{dot}{suffix.lower() if dot else ''}.zst")


def cutting_task(folder: Location, path: Location, run_bytes: int) -> Task:
    """The task that cuts a file into runs of about a size in bytes in a folder, by `cut_into_runs`."""
    state = Files(state=folder / "state.json")
    return Task(folder.name, Files(file=path), state, {"run_bytes": run_bytes}, folder=folder)


def cut_runs(task: Task, runs: Sequence[Sequence[Any]]) -> list[tuple[Location, int, Any]]:
    """The file of each run that a task has cut, the number of its first record from 1 on, and its head."""
    firsts = itertools.accumulate((records for records, _ in runs), initial=1)
    return [
        (run_file(task, number), first, head)
        for number, ((_, head), first) in enumerate(zip(runs, firsts, strict=False))
    ]
