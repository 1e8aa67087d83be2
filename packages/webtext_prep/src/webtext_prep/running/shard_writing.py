"""From the documents of a task to its shard: in one go, or with checkpoints on the way.

With checkpoints, what is made is kept in segments, and written as a shard at the end. A large shard is written in the
task's scratch, where that goes on behind the last finished piece (`documents/compressed_streams.py`), and is then moved
to its place. So a kill costs seconds at any point, but for Parquet, whose last writing starts over: some 100 MB of text
a second.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from webtext_prep.documents import compressed_streams, storage
from webtext_prep.documents.compressed_streams import Border, CompressedStream
from webtext_prep.documents.compression import write_zstd
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.base import DocumentWriter
from webtext_prep.documents.shards import format_to_write, write_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.running.checkpoint import Checkpoint, TaskState
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

REPORT_EVERY = 64
"""Documents between two reports of progress."""
LARGE_BYTES = 256 << 20
"""A stage that only passes documents on does without checkpoints where its input has fewer bytes: they would cost a
quarter of its time, and a kill costs seconds there anyway."""

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


class Holder(DocumentWriter):
    """Packs documents and adds them to a checkpoint, for a shard that `write_held` writes.

    Args:
        shard: whose format it is.
        checkpoint: holds the documents.
        part: of the checkpoint.
        written: how many documents it holds already.
    """

    def __init__(self, shard: Location, checkpoint: Checkpoint, part: int, written: int = 0) -> None:
        super().__init__()
        self._format, self._add, self._part = format_to_write(shard), checkpoint.add, part
        self.written = written

    def write(self, document: Document) -> None:
        """See `DocumentWriter`."""
        self._add(self._format.pack(document), self._part)
        self.written += 1

    def write_lines(self, lines: bytes | memoryview, count: int) -> None:
        """See `DocumentWriter`."""
        for line in bytes(lines).splitlines():
            self._add(self._format.pack_line(line), self._part)
        self.written += count


def write_shard_in_steps(
    task: Task,
    context: Context,
    read: Callable[[int], Iterable[Document]],
    transform: Transform,
    checkpoint: Checkpoint,
    *,
    table: Location | None = None,
) -> dict[str, Any]:
    """As `write_shard`, for a `transform` that treats each document by itself: a task that was killed goes on.

    `transform` is called with the documents up to the next checkpoint, one call after another. What it yields and drops
    is held by `checkpoint`, which needs a part for each output, and written at the end: the same bytes, whenever the
    task was interrupted. With a `table` the checkpoint needs one part more, and its records, which `transform` adds,
    are written there.

    Args:
        task: the task.
        context: its surroundings.
        read: gives the documents from one number on, counted from 0: a task goes on behind those it has passed.
        transform: what is done with them.
        checkpoint: of the task.
        table: see above.
    """
    tally = Tally() if checkpoint.state is None else Tally.from_dict(checkpoint.state)
    kept, *dropped = [Holder(path, checkpoint, part) for part, path in enumerate(task.outputs)]
    kept.written = tally.kept
    tally.dropped_writer = next(iter(dropped), None)
    context.report(tally.read)
    remaining = iter(read(tally.read))
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
    write_held(task, checkpoint, tally.as_dict(), units=tally.read)
    return tally.as_dict()


def write_held(task: Task, checkpoint: Checkpoint, state: Any, *, units: int = 0) -> None:
    """Write the task's outputs from the documents in the parts of a checkpoint, and remove it.

    Where that takes long, it saves `state` before, from which the task has to come here again without more work.
    """
    large = [checkpoint.size(part) > compressed_streams.PIECE_BYTES for part in range(len(task.outputs))]
    if any(large):
        checkpoint.save(state, units=units)
    # The dropped ones first: the shard whose name counts appears last.
    for part in reversed(range(len(task.outputs))):
        if large[part] and format_to_write(task.outputs[part]).open_stream(io.BytesIO()) is not None:
            _write_draft(task, checkpoint, part)
            continue
        with write_documents(task.outputs[part]) as writer:
            for packed in checkpoint.records(part):
                writer.write_packed(packed)
    checkpoint.remove()


def _write_draft(task: Task, checkpoint: Checkpoint, part: int) -> None:
    """Write one large output in the folder of the checkpoint, going on where an attempt before has ended, and move it.

    What is noted at each border between pieces is the record that crosses it, and how much content lies before that.
    """
    place, draft = task.outputs[part], checkpoint.folder / f"{part}.draft"
    noted = TaskState(draft.with_suffix(".json"), task)
    found = noted.read() or {"record": 0, "content": 0, "border": None, "size": None}
    if found["size"] is not None and storage.is_file(place) and storage.size(place) == found["size"]:
        return
    with draft.open("r+b" if draft.is_file() else "w+b") as file:
        try:
            border = Border(*found["border"]) if found["border"] else None
            stream = _stream(place, file, border, found["content"])
            number, before = found["record"], found["content"]
        except ValueError:
            number, before, border, stream = 0, 0, None, _stream(place, file, None, 0)
        for number, packed in enumerate(checkpoint.records(part, start=number), number):  # noqa: B020
            stream.write(packed + b"\n")
            if stream.border is not None and stream.border != border:
                file.flush()
                border = stream.border
                noted.write({"record": number, "content": before, "border": border, "size": None})
            before += len(packed) + 1
        stream.close()
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    noted.write({"record": 0, "content": 0, "border": None, "size": size})
    storage.publish(draft, place)


def _stream(place: Location, file: BinaryIO, border: Border | None, at: int) -> CompressedStream:
    """What writes the documents of `place` to `file` behind a border; raises ValueError if that is not there."""
    size = border.size if border else 0
    if file.seek(0, os.SEEK_END) < size:
        raise ValueError("the file is cut off")
    file.truncate(size)
    file.seek(0)
    stream = format_to_write(place).open_stream(file, border, at=at)
    assert stream is not None
    return stream
