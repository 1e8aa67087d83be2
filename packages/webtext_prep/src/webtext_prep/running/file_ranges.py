"""Cutting a large file that can only be read from its beginning into runs of whole records, each a file.

One core does that, and all cores read the runs. What was killed goes on behind the last run: a plain file is entered
there, a compressed one decompressed once more up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webtext_prep import storage
from webtext_prep.documents.formats.compression import bare_name, write_zstd
from webtext_prep.documents.formats.lines import read_utf8_from
from webtext_prep.documents.records.base import Block, OtherKindError
from webtext_prep.running.tasks.state import TaskState
from webtext_prep.running.tasks.task import Context, Task
from webtext_prep.storage.stores.base import Location


def cut_into_runs(
    task: Task, context: Context, blocks: Callable[[Iterable[bytes], Any], Iterator[Block]]
) -> list[list[Any]]:
    """Write the runs of the task's input beside its output, the state of the task.

    Args:
        task: the task.
        context: is told how many bytes are done.
        blocks: gives the blocks of the file's content from some place on, with the head of the block before.

    Returns of each run how many records it has, and the head with which it is to be read; none if the file has to be
    read as a whole.
    """
    state = TaskState(storage.local_path(task.outputs[0]), task)
    runs, done, head = state.read() or ([], 0, None)
    while True:
        try:
            for block in blocks(read_utf8_from(task.inputs[0], done), head):
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
    """A run of the task's input; of the same kind, by its suffix."""
    _, dot, suffix = bare_name(task.inputs[0]).rpartition(".")
    return task.outputs[0].with_name(f"run-{number:05}{dot}{suffix.lower() if dot else ''}.zst")
