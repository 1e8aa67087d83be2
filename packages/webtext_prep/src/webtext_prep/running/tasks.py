"""A task, the unit of a stage's work, which is run, marked as done, and retried as a whole; its marker; its tally.

A task is a pure function from files to files and a small JSON result. What its output depends on is its identity; hints
are what it does not depend on, and may differ from run to run. It reads and writes the files that it names and no
others, so that it may run on a machine that sees nothing of the one that named them (`running/staging.py`): there its
files lie elsewhere, and it finds them by their names. No path stands anywhere else in it:

    Task("part-00003", reads=Files(shard=path), writes=Files(kept=place, dropped=receipts))
    read_documents(task.reads.shard)

A completion marker says that a task, or a whole output, is done, and from what it was made. It holds a key, the digest
of everything that the output depends on (settings, the stage's version, the stamps of the input files), and the sizes
of the files that were made. It holds as long as both are what they were: that is all there is to resuming, whether the
last run ended well, was interrupted, or was killed.

A tally counts what happens to documents: in + added = out + the sum of the reasons, always.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from command_kit import hide_credentials, parse_json, write_json
from command_kit.atomic import make_folder, remove_file, remove_leftovers
from command_kit.progress import counted
from webtext_prep import storage
from webtext_prep.documents.document import Document, encode_json
from webtext_prep.documents.folders.shards import DocumentWriter
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.stores.local import boot_id

Item = TypeVar("Item")


class Files(dict[str, tuple[Location, ...]]):
    """Files by name: `files.shard` is the one of that name, `files["tables"]` are all of that name, in order.

    Args:
        named: the file or the files of each name; None for a name that is left out.
    """

    def __init__(self, **named: Location | Iterable[Location] | None) -> None:
        given = ((name, files) for name, files in named.items() if files is not None)
        super().__init__({name: (files,) if isinstance(files, Path | Url) else tuple(files) for name, files in given})

    def __getattr__(self, name: str) -> Location:
        if len(self.get(name, ())) != 1:
            raise AttributeError(f"one file is asked for by the name {name}, and there are {self}")
        return self[name][0]

    def all(self) -> list[Location]:
        """The files of all names, in order."""
        return list(itertools.chain.from_iterable(self.values()))

    def moved(self, move: Callable[[Location], Location]) -> Files:
        """The files that `move` gives for these, under the same names."""
        return Files(**{name: tuple(map(move, files)) for name, files in self.items()})


@dataclass(frozen=True)
class Task:
    """One unit of work: `stage.<method>(task, context)` in some process, on some machine.

    Attributes:
        name: unique within its phase.
        reads: the files it reads; when one changes, the task is run again.
        writes: the files it writes, each atomically.
        options: all else that its output depends on, as JSON-like values.
        hints: what its output does not depend on (the number of a pass, a limit on pace), as JSON-like values.
        unkeyed: more files that it reads, which are not part of its identity: what they hold follows from its options
            (a digest of it), or only saves work.
        folder: a folder for files whose number shows only when it is done. Tasks of later phases read them by name.
        key: the digest of all that its output depends on, which the job fills in before the task is run.
    """

    name: str
    reads: Files = field(default_factory=Files)
    writes: Files = field(default_factory=Files)
    options: dict[str, Any] = field(default_factory=dict)
    hints: dict[str, Any] = field(default_factory=dict)
    unkeyed: Files = field(default_factory=Files)
    folder: Location | None = None
    key: str = ""


@dataclass(frozen=True)
class Context:
    """The surroundings of a task: where it runs, and whom it reports to.

    Attributes:
        scratch: a folder of this node for files that no other task needs. It is kept until the stage is done, so that
            a task that is run again on the same node finds what it left; on another node it finds none.
        slots: how many tasks run on this node at once, to share out its cores and connections.
        report: called with the units of work (documents, URLs) that this task has done in all.
    """

    scratch: Path
    slots: int
    report: Callable[[int], None]

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass `items` on, and report how many there were so far, now and then and at the end."""
        return counted(items, self.report)


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
        make_folder(folder)
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
        remove_file(self._path)


MAX_PROBLEMS = 10
"""Problems with their places that are shown at the end of a stage; all of them are counted."""


@dataclass
class Tally:
    """Counts of what became of the documents of one task, or of all of them.

    Attributes:
        read: documents in.
        kept: documents out.
        added: documents out that were not in: where one was cut into pieces, the pieces after the first.
        dropped: reason to number of documents dropped for it.
        notes: other things worth counting ("repaired_decoding"), which add up to nothing.
        problems: the first few sentences about input that could not be used, with file and line.
        receipts: takes a row for each dropped document; None where only their number is kept.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    receipts: DocumentWriter | None = field(default=None, repr=False)
    added: int = 0

    def drop(self, document: Document, reason: str, **values: Any) -> None:
        """Count `document` as dropped for `reason`, and write its receipt: its id, the reason, the `values` that
        decided."""
        self.dropped[reason] += 1
        if self.receipts is not None:
            self.receipts.write_lines(encode_json({"url": document.id, "reason": reason, **values}) + b"\n", 1)

    def drop_encoded(self, reasons: Sequence[str], receipts: bytes) -> None:
        """Count a document as dropped for each of `reasons`, whose receipts are the lines of `receipts`."""
        self.dropped.update(reasons)
        if self.receipts is not None:
            self.receipts.write_lines(receipts, len(reasons))

    def problem(self, sentence: str) -> None:
        """Remember a sentence about input that could not be used, unless there are enough already."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(hide_credentials(sentence))

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass `documents` on, counting them as read."""
        for document in documents:
            self.read += 1
            yield document

    def add(self, other: Tally) -> None:
        """Add another task's counts."""
        self.read += other.read
        self.kept += other.kept
        self.added += other.added
        self.dropped.update(other.dropped)
        self.notes.update(other.notes)
        for sentence in other.problems:
            self.problem(sentence)

    @classmethod
    def total(cls, results: Iterable[dict[str, Any]]) -> Tally:
        """The sum of what several tasks counted, each as `as_dict` gives it."""
        total = cls()
        for result in results:
            total.add(cls.from_dict(result))
        return total

    @property
    def is_balanced(self) -> bool:
        """Whether every document in is accounted for."""
        return self.read + self.added == self.kept + self.dropped.total()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; reasons and notes in the order of their names. `added` is left out where it is 0."""
        return {
            "in": self.read,
            **({"added": self.added} if self.added else {}),
            "out": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "notes": dict(sorted(self.notes.items())),
            "problems": self.problems,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        """The inverse of `as_dict`."""
        dropped, notes, problems = Counter(values["dropped"]), Counter(values["notes"]), list(values["problems"])
        return cls(values["in"], values["out"], dropped, notes, problems, added=values.get("added", 0))


PLACES_SHOWN = 3
"""Unreadable records of each kind that are named with their places."""

UNREADABLE_SHARE = 0.1
"""More unreadable records than this share of all are an error."""


@dataclass
class Problems:
    """Unreadable records, grouped by kind: a thousand lines without the right key are one sentence.

    Attributes:
        found: reason to the sentence about the first such record, the places of the first few, and their number.
    """

    found: dict[str, tuple[str, list[str], int]] = field(default_factory=dict)

    def add(self, reason: str, sentence: str, places: list[str], count: int = 1) -> None:
        """Count `count` more records, the first of which lie at `places`."""
        first, known, total = self.found.get(reason, (sentence, [], 0))
        shown = [*known, *map(hide_credentials, places)][:PLACES_SHOWN]
        self.found[reason] = (hide_credentials(first), shown, total + count)

    @classmethod
    def total(cls, results: Iterable[dict[str, Any]]) -> Problems:
        """The sum of what several tasks found, each under the key `unreadable`."""
        total = cls()
        for result in results:
            for reason, (sentence, places, count) in result["unreadable"].items():
                total.add(reason, sentence, places, count)
        return total

    def sentences(self) -> list[str]:
        """One sentence for each kind, the most frequent one first."""
        kinds = sorted(self.found.values(), key=lambda kind: -kind[2])
        return [
            f"{'; '.join(places)}{f' and {count - len(places):,} more' if count > len(places) else ''}: {sentence}."
            for sentence, places, count in kinds
        ]

    def check(self, unreadable: int, read: int, records: str, *, is_allowed: bool) -> None:
        """Raise InputError if a tenth of all `records` (how messages call them) are unreadable, unless it is allowed.

        Where that many are, the keys or the files are wrong.
        """
        if unreadable > UNREADABLE_SHARE * read and not is_allowed:
            first = " ".join(self.sentences()[:3])
            raise InputError(
                f"{unreadable:,} of {read:,} {records} could not be read: {first} Nothing was written: correct the "
                "input, or the settings (and give --restart), or accept the loss with --allow-unreadable."
            )


def checked_total(results: Sequence[dict[str, Any]], records: str, *, is_allowed: bool) -> Tally:
    """The sum of what several tasks counted, with sentences about what was unreadable.

    Raises InputError if too much of it was, unless that is allowed; `records` is how messages call what was read.
    """
    tally, problems = Tally.total(results), Problems.total(results)
    problems.check(tally.dropped["unreadable"], tally.read, records, is_allowed=is_allowed)
    for sentence in problems.sentences():
        tally.problem(sentence)
    return tally
