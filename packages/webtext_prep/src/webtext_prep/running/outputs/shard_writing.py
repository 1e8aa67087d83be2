"""From the documents of a task to its shard: read, transformed, written, and renamed when it is whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.running.tasks.tally import Tally
from webtext_prep.running.tasks.task import Context, Task

REPORT_EVERY = 64
"""Documents between two reports of progress."""

Transform = Callable[[Iterable[Document], Tally], Iterable[Document]]
"""Yields what is kept of some documents, and has the tally drop the others."""


def write_shard(task: Task, context: Context, documents: Iterable[Document], transform: Transform) -> dict[str, Any]:
    """Write to the task's first output what `transform(documents, tally)` yields; a second output takes the dropped.

    Returns the tally as plain values, the result of a task.
    """
    tally = Tally()

    def reported() -> Iterator[Document]:
        for document in tally.counted(documents):
            yield document
            if tally.read % REPORT_EVERY == 0:
                context.report(tally.read)
        context.report(tally.read)

    with contextlib.ExitStack() as stack:
        if len(task.outputs) > 1:
            tally.dropped_writer = stack.enter_context(write_documents(task.outputs[1]))
        writer = stack.enter_context(write_documents(task.outputs[0]))
        for document in transform(reported(), tally):
            writer.write(document)
        tally.kept = writer.written
    return tally.as_dict()
