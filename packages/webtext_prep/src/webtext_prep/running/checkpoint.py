"""Checkpoints inside a task: what it has made so far, so that a kill costs seconds and not the task.

A task adds records of bytes as it makes them, and asks now and then whether a checkpoint `is_due`: 20 seconds after the
last one, or when 32 MiB wait in memory. Then it saves them as a segment, with whatever it needs to go on. When it is
run again, `state` is what it saved last, and `records` gives everything from the first one on. A task that ends before
anything is due writes nothing:

    checkpoint = Checkpoint(task, context)
    done = checkpoint.state or 0
    for done, line in enumerate(itertools.islice(lines, done, None), done + 1):
        checkpoint.add(work_on(line))
        if checkpoint.is_due():
            checkpoint.save(done, units=done)
    write(checkpoint.records())
    checkpoint.remove()

Segments lie in the task's scratch, below the digest of all that its output depends on: a changed input or setting finds
none. Each is one file, written atomically, with a checksum, and names the one before it. What is damaged, or comes from
another attempt at the same task, ends the chain there, and the work is done again from that point. They are not flushed
to the disk: a power cut may take the last ones, and the checksums tell.

A task that leaves what it makes in files of its own needs no records: `TaskState` keeps the small value that says how
far those files hold.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from command_kit import atomic_file, parse_json, write_json
from command_kit.atomic import remove_leftovers
from webtext_prep.documents.stores.local import boot_id
from webtext_prep.errors import RetryableError
from webtext_prep.running.task import Context, Task

SECONDS = 20.0
"""After so many seconds a checkpoint is due,"""
HELD_BYTES = 32 << 20
"""or when records of so many bytes are held in memory."""
FOLDER = "checkpoints"
_LEVEL = 1
"""zstandard's fastest ordinary level: segments are read once at most, and then removed."""
_CHECKSUM_BYTES = 4
_PART_NUMBERS = 3


@dataclass(frozen=True)
class _Segment:
    """What the beginning of a segment's file says.

    Attributes:
        name: of this segment, like no other.
        after: the name of the one before it.
        key: of the task.
        units: of work that the task had done by then.
        state: what the task saved.
        parts: for each part the number of its records, its bytes compressed, and those of the records.
    """

    name: str
    after: str
    key: str
    units: int
    state: Any
    parts: list[list[int]]


class Checkpoint:
    """The checkpoints of one task.

    Args:
        task: the task, with its key.
        context: its surroundings, whose scratch folder holds the segments.
        parts: how many kinds of records there are, each in an order of its own.
        seconds: after how many a checkpoint is due.
        held_bytes: with how many bytes of records in memory one is due.
        clock: tells the time in seconds, and never goes back.
    """

    def __init__(
        self,
        task: Task,
        context: Context,
        *,
        parts: int = 1,
        seconds: float = SECONDS,
        held_bytes: int = HELD_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._key = _folder_of(task, context.scratch), task.key
        self._seconds, self._most, self._clock = seconds, held_bytes, clock
        self._held: list[list[bytes]] = [[] for _ in range(parts)]
        self._size = 0
        self._saved_parts: list[_Segment] = []
        self.state: Any = None
        """What was saved last, or None at the beginning."""
        self._resume()
        self._saved = clock()

    def _resume(self) -> None:
        """Find the segments that belong together, from the first one on."""
        if not self._folder.is_dir():
            return
        remove_leftovers(self._folder)
        for number in itertools.count():
            found = self._read(number)
            if found is None or len(found[0].parts) != len(self._held):
                return
            segment, _ = found
            if segment.key != self._key or segment.after != self._last_name():
                return
            self._saved_parts.append(segment)
            self.state = segment.state

    def _last_name(self) -> str:
        return self._saved_parts[-1].name if self._saved_parts else ""

    @property
    def folder(self) -> Path:
        """Where the segments lie, and whatever else the task leaves there until they are removed."""
        return self._folder

    def add(self, record: bytes, part: int = 0) -> None:
        """Hold one more record."""
        self._held[part].append(record)
        self._size += len(record)

    def is_due(self) -> bool:
        """Whether it is time to save."""
        return self._size >= self._most or self._clock() - self._saved >= self._seconds

    def save(self, state: Any, *, units: int = 0) -> None:
        """Save what was added since the last time, with a JSON-like `state` from which to go on. Raises OSError.

        Args:
            state: is given back by `state` when the task is run again.
            units: how many units of work the task has done, to show how far it is when it is run again.
        """
        compressor = zstandard.ZstdCompressor(level=_LEVEL)
        parts = [compressor.compress(_lengths(records) + b"".join(records)) for records in self._held]
        counts = [
            [len(records), len(part), sum(map(len, records))] for records, part in zip(self._held, parts, strict=True)
        ]
        head = _Segment(secrets.token_hex(8), self._last_name(), self._key, units, state, counts)
        data = b"".join([json.dumps(vars(head)).encode() + b"\n", *parts])
        with atomic_file(self._path(len(self._saved_parts)), durable=False) as file:
            file.write(zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big"))
            file.write(data)
        self._saved_parts.append(head)
        self._held = [[] for _ in self._held]
        self._size, self._saved = 0, self._clock()

    def records(self, part: int = 0, *, start: int = 0) -> Iterator[bytes]:
        """The records of one part in the order in which they were added, saved or held, from number `start` on.

        Raises RetryableError if another attempt at the same task has replaced what this one saved.
        """
        for number, known in enumerate(self._saved_parts):
            count, size, _ = known.parts[part]
            if start >= count:
                start -= count
                continue
            found = self._read(number)
            if found is None or found[0].name != known.name:
                raise RetryableError(f"another attempt at the task has replaced {self._path(number)}")
            begin = sum(entry[1] for entry in known.parts[:part])
            packed = found[1][begin : begin + size]
            yield from itertools.islice(_split(zstandard.ZstdDecompressor().decompress(packed), count), start, None)
            start = 0
        yield from self._held[part][start:]

    def size(self, part: int = 0) -> int:
        """Bytes of all records of one part."""
        return sum(segment.parts[part][2] for segment in self._saved_parts) + sum(map(len, self._held[part]))

    def remove(self) -> None:
        """Remove what was saved, when the task is done; the last segment first, so that a kill leaves whole ones."""
        for path in [*sorted(self._folder.glob("*.segment"), reverse=True), *self._folder.glob("*")]:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06}.segment"

    def _read(self, number: int) -> tuple[_Segment, bytes] | None:
        """A segment and its compressed parts, or None if there is none, or it is damaged."""
        return _read(self._path(number))


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


def units_done(task: Task, scratch: Path) -> int:
    """How many units of work the last checkpoint of a task says were done."""
    paths = sorted(_folder_of(task, scratch).glob("*.segment"))
    found = _read(paths[-1]) if paths else None
    return found[0].units if found is not None else 0


def _folder_of(task: Task, scratch: Path) -> Path:
    return scratch / FOLDER / (task.key or task.name)


def _read(path: Path) -> tuple[_Segment, bytes] | None:
    try:
        data = path.read_bytes()
        checksum, data = int.from_bytes(data[:_CHECKSUM_BYTES], "big"), data[_CHECKSUM_BYTES:]
        if zlib.crc32(data) != checksum:
            return None
        head, _, parts = data.partition(b"\n")
        segment = _Segment(**parse_json(head))
        return (segment, parts) if all(len(part) == _PART_NUMBERS for part in segment.parts) else None
    except (OSError, ValueError, TypeError):
        return None


def _lengths(records: list[bytes]) -> bytes:
    return array.array("Q", map(len, records)).tobytes()


def _split(data: bytes, count: int) -> Iterator[bytes]:
    lengths = array.array("Q", data[: 8 * count])
    at = 8 * count
    for length in lengths:
        yield data[at : at + length]
        at += length
