"""From the documents of a task to its shard: in one go, or with checkpoints on the way."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from webtext_prep.documents.compression import write_zstd
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.base import DocumentWriter, Format
from webtext_prep.documents.shards import format_to_write, write_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.running.checkpoint import Checkpoint
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

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


class _Holder(DocumentWriter):
    """Packs documents and adds them to a checkpoint, for the shards of one format."""

    def __init__(self, form: Format, checkpoint: Checkpoint, part: int) -> None:
        super().__init__()
        self._pack, self._add, self._part = form.pack, checkpoint.add, part

    def write(self, document: Document) -> None:
        self._add(self._pack(document), self._part)
        self.written += 1


def write_shard_in_steps(
    task: Task,
    context: Context,
    documents: Iterable[Document],
    transform: Transform,
    checkpoint: Checkpoint,
    *,
    table: Location | None = None,
) -> dict[str, Any]:
    """As `write_shard`, for a `transform` that treats each document by itself: a task that was killed goes on.

    `transform` is called with the documents up to the next checkpoint, one call after another. What it yields and drops
    is held by `checkpoint`, which needs a part for each output, and written at the end: the same bytes, whenever the
    task was interrupted. Documents that an earlier attempt has passed are read, but not given to `transform` again.
    With a `table` the checkpoint needs one part more, and its records, which `transform` adds, are written there.
    """
    tally = Tally() if checkpoint.state is None else Tally.from_dict(checkpoint.state)
    kept, *dropped = [_Holder(format_to_write(path), checkpoint, part) for part, path in enumerate(task.outputs)]
    kept.written = tally.kept
    tally.dropped_writer = next(iter(dropped), None)
    context.report(tally.read)
    remaining = itertools.islice(documents, tally.read, None)
    is_at_end = False

    def until_due() -> Iterator[Document]:
        nonlocal is_at_end
        for document in remaining:
            tally.read += 1
            yield document
            if tally.read % REPORT_EVERY == 0:
                context.report(tally.read)
            if checkpoint.is_due():
                return
        is_at_end = True

    while not is_at_end:
        before = tally.read
        for document in transform(until_due(), tally):
            kept.write(document)
        tally.kept = kept.written
        if tally.read == before:
            break
        if not is_at_end:
            checkpoint.save(tally.as_dict(), units=tally.read)
    context.report(tally.read)
    if table is not None:
        with write_zstd(table, durable=False) as stream:
            for record in checkpoint.records(len(task.outputs)):
                stream.write(record)
    # The dropped ones first: the shard whose name counts appears last.
    for part in reversed(range(len(task.outputs))):
        with write_documents(task.outputs[part]) as writer:
            for packed in checkpoint.records(part):
                writer.write_packed(packed)
    checkpoint.remove()
    return tally.as_dict()
