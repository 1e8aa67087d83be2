"""A stage: a frozen dataclass of settings, and how it turns documents into documents.

A stage that only asks of each document whether to keep it is a `FilterStage` and writes `judge`; one that changes
documents, each shard by itself, is a `DocumentStage` and writes `process`; one that must see all documents, or splits
them differently, is a `Stage` with a `run` of its own, made of phases of tasks. Each stage is one file in `stages/`,
found there by the command line: adding or removing one touches nothing else.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.documents.folders.raw_files import choose_splits, counts_of, splits_of
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import (
    DEFAULT_FORMAT,
    is_document_shard,
    read_documents,
    shards_in,
    write_documents,
)
from webtext_prep.documents.formats.base import DocumentWriter
from webtext_prep.running.preflight import Needs
from webtext_prep.running.run import DROPPED, Run
from webtext_prep.running.summary import Findings
from webtext_prep.running.tasks import CollectingTally, Context, Files, Tally, Task, with_reason
from webtext_prep.storage.locations import Location

Transform = Callable[[Iterable[Document], Tally], Iterable[Document]]
"""Yields the kept ones of some documents, and has the tally drop the others."""


@contextlib.contextmanager
def shard_writer(task: Task, tally: Tally) -> Iterator[DocumentWriter]:
    """Open `task.writes.kept` for documents, which the tally counts, and if there is one `task.writes.dropped`."""
    with contextlib.ExitStack() as stack:
        if "dropped" in task.writes:
            tally.dropped_writer = stack.enter_context(write_documents(task.writes.dropped))
        writer = stack.enter_context(write_documents(task.writes.kept))
        yield writer
        tally.kept = writer.written


def write_shard(task: Task, context: Context, documents: Iterable[Document], transform: Transform) -> dict[str, Any]:
    """Write to `task.writes.kept` what `transform(documents, tally)` yields, and to `dropped` what the tally drops.

    Returns the tally as plain values, the result of a task.
    """
    tally = Tally()
    with shard_writer(task, tally) as writer:
        for document in transform(tally.counted(context.counted(documents)), tally):
            writer.write(document)
    return tally.as_dict()


PROCESS_BYTES = 100 << 20
"""Memory of a process with what most stages import: Python, codecs, and a document at a time."""


@dataclass
class Outcome:
    """The result of a stage's `run`.

    Attributes:
        tally: what became of all documents.
        outputs: the files it made.
        shards: name of each document shard to the number of documents in it.
        facts: what else is worth recording (tokens, bytes), the same for the same input and settings.
    """

    tally: Tally
    outputs: list[Location]
    shards: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def add_reading(self, read: Tally) -> None:
        """Account for an earlier phase too: what that one kept this one has read."""
        self.tally.add(read)
        self.tally.read -= read.kept
        self.tally.kept -= read.kept


Made = Literal["documents", "tokens", "tokenizer", "filter", "extras"]


class Reads:
    """Input of a stage: document shards, unless it says otherwise."""

    input_kinds: ClassVar[str] = "document shards (part-*.jsonl.zst, .jsonl.gz, .jsonl or .parquet)"
    """The words of messages for such files."""
    reads_standard_input: ClassVar[bool] = False

    @staticmethod
    def accepts(path: Location) -> bool:
        """Whether it reads files of that name."""
        return is_document_shard(path)

    @staticmethod
    def is_one_document(path: Location) -> bool:
        """Whether a file that it reads is one document, with any number of lines."""
        return False

    def own_inputs(self) -> tuple[Sequence[str], Sequence[str]]:
        """Input that its own settings name: files read before `--input`, and files read after it."""
        return (), ()

    @staticmethod
    def files_named(given: str) -> list[str]:
        """The files that one value of `--input` stands for: itself, unless a stage's files come in pairs."""
        return [given]

    def select(self, files: list[Location], folders: Sequence[Location] = ()) -> tuple[list[Location], list[str]]:
        """The found files that it reads, and sentences for the summary about the others.

        `folders` are the folders given as input. Of a dataset in one of them a stage that reads documents takes
        the training split.
        """
        if type(self).accepts is not Reads.accepts:
            return files, []
        chosen = choose_splits(files, [], (), folders)
        known = set(chosen)
        others = counts_of(splits_of([file for file in files if file not in known], []))
        note = f"not read, since the split train is: {others}; name its files to read another."
        return chosen, [note] if others else []

    def find(self, given: Iterable[str], output: Location | None = None) -> tuple[list[Location], list[str]]:
        """The files that values of `--input` stand for, and sentences for the summary about files that are not read.

        What lies in the output is not read. Raises InputError as `find_inputs` does.
        """
        names = [name for one in given for name in self.files_named(one)]
        found = find_inputs(names, accepts=self.accepts, kinds=self.input_kinds, output=output)
        files, notes = self.select(found.files, found.folders)
        return files, [*found.notes(), *notes]


class Writes:
    """Output of a stage: a folder of document shards, unless it says otherwise."""

    makes: ClassVar[Made] = "documents"
    """The kind of its output. `tokens` are named by a prefix, not by a folder; `extras` no other stage reads."""
    default_format: ClassVar[str] = DEFAULT_FORMAT
    """The format of its shards if nothing else is said."""
    side_files: ClassVar[tuple[str, ...]] = ()
    """Names of other files in its output: tables, a tokenizer."""

    @staticmethod
    def output_beside(given: Sequence[str]) -> str:
        """The place to which it always writes, for such values of `--input`; empty if `--output` says it."""
        return ""

    def companions(self, given: Sequence[str], output: str) -> list[tuple[Stage, Sequence[str], str]]:
        """Runs that follow one with such an `--input` and `--output`, as they belong to it: a stage and its own."""
        return []

    @property
    def may_be_empty(self) -> bool:
        """Whether it may write no document at all."""
        return False

    def outputs_in(self, output: Location) -> list[Location]:
        """Every file of this stage that an output holds now."""
        shards = [*shards_in(output), *shards_in(output / DROPPED)]
        return [*shards, *filter(storage.is_file, (output / name for name in self.side_files))]


class Takes:
    """Needs of a stage: disk and memory."""

    process_bytes: ClassVar[int] = PROCESS_BYTES
    """Memory of a process that runs its tasks."""
    is_one_process: ClassVar[bool] = False
    """Whether one process of this machine leads its work, so that no engine can take it elsewhere."""
    grows_with_corpus: ClassVar[tuple[str, ...]] = ()
    """Reasons to drop that a larger corpus has a larger share of: what repeats other documents."""

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Needs of a run over input like `sample`, with that many tasks at once; about as much output as input."""
        return Needs(sample.written, memory=workers * self.process_bytes, documents=sample.documents)


@dataclass(frozen=True)
class Verdict:
    """The answer of a stage about one document of its input when it is asked again.

    Attributes:
        dropped: the document as `--keep-dropped` would write it; None if it is kept, or if other documents decide.
        values: the measures by which the stage decides, and their limits, for people to read.
    """

    dropped: Document | None = None
    values: dict[str, Any] = field(default_factory=dict)


class Replays:
    """Answers of a stage about its input afterwards, for looking at dropped documents without `--keep-dropped`."""

    def judge_again(self, document: Document, *, with_values: bool = False) -> Verdict:
        """The decision about one document; values that take time to find only where they are asked for."""
        return Verdict(None if document.text.strip() else with_reason(document, "empty"))

    def judged_again(self, files: Sequence[Location], most: int | None = None) -> Iterator[Document | None]:
        """Each document of the input as it would be dropped, in order; repeated ones, too.

        Args:
            files: the input.
            most: documents of each file that are looked at.
        """
        for file in files:
            yield from (self.judge_again(found).dropped for found in itertools.islice(read_documents(file), most))

    def is_judged_again(self, reason: str) -> bool:
        """Whether `judged_again` finds all that is dropped for that reason."""
        return reason == "empty"


@dataclass(frozen=True)
class Stage(Reads, Writes, Takes, Replays, abc.ABC):
    """Settings of one stage, and how it runs. Subclasses are frozen dataclasses whose fields are made by `setting`."""

    name: ClassVar[str]
    """The command."""
    order: ClassVar[int]
    """Its place in the pipeline; `--help` lists stages in this order."""
    summary: ClassVar[str]
    """One line for `--help`."""
    version: ClassVar[int] = 1
    """Raised whenever the same input and settings would give other output, so that old shards are made again."""
    unit: ClassVar[str] = "documents"
    """The things that it counts."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Distributions whose versions the output depends on, with these settings: an extractor, a tokenizer.

        With another version of one an output is not gone on with. Not what reads and writes files.
        """
        return ()

    @abc.abstractmethod
    def run(self, job: Run) -> Outcome:
        """Do the work with `job.map`, and account for every document."""

    def advice(self, tally: Tally) -> str:
        """Advice when nothing was kept, as the end of a sentence."""
        return "check the input and the settings"

    def setting_files(self) -> list[Path]:
        """Files that settings name (lists of rules, a vocabulary): when one changes, the work is done again."""
        return []

    def identity(self) -> dict[str, Any]:
        """All that the output depends on besides settings and files, such as the digest of a user's function."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks travel with their stage: what it has cached (lists of rules) is loaded again on the other side.
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


@runtime_checkable
class Recalls(Protocol):
    """A stage whose verdicts need what a run of it has found out about all documents together."""

    def recalling(self, facts: dict[str, Any]) -> Stage:
        """The same stage, which knows the facts of its record."""
        ...


@runtime_checkable
class Continues(Protocol):
    """A stage that may work on a finished output once more: a download, of which more may succeed now.

    Attributes:
        oldest: the oldest version with whose state a run goes on; the output of one before asks for --restart.
    """

    oldest: ClassVar[int]

    def wants_another_run(self, job: Run) -> bool:
        """Whether a finished output should be worked on once more."""
        ...

    def settled(self) -> Stage:
        """The same stage, but one that never works on a finished output once more."""
        ...


@dataclass(frozen=True)
class Previews(Stage):
    """A stage with settings that ask what it would do, not to do it."""

    @property
    @abc.abstractmethod
    def is_preview(self) -> bool:
        """Whether its settings ask that: then `preview` is called instead of `run`."""

    @abc.abstractmethod
    def preview(self, job: Run) -> Findings:
        """Say what `run` would do, and write nothing but in `job.scratch`."""

    @abc.abstractmethod
    def preview_needs(self, sample: Sample, workers: int) -> Needs:
        """Needs of `preview`, as `needs` says them of `run`."""


def shards_outcome(tasks: Sequence[Task], results: Sequence[dict[str, Any]], *, but: str = "") -> Outcome:
    """The outcome of tasks that each made one shard by `write_shard`; files of the name `but` are no part of it."""
    outputs = [path for task in tasks for name, files in task.writes.items() if name != but for path in files]
    shards = {task.writes.kept.name: result["out"] for task, result in zip(tasks, results, strict=True)}
    return Outcome(Tally.total(results), outputs, shards)


@dataclass(frozen=True)
class DocumentStage(Stage):
    """A stage that maps the documents of each shard by themselves: shard 5 of the output comes from shard 5 alone."""

    is_independent: ClassVar[bool] = False
    """Whether `process` treats each document by itself, no matter what came before it in its shard: then one document
    can be judged again."""

    @abc.abstractmethod
    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the kept ones of `documents`, and `tally.drop` each of the others, with its reason."""

    def hints(self, job: Run) -> dict[str, Any]:
        """Hints for its tasks, on which their output does not depend, such as whether machine code would pay."""
        return {}

    def judge_again(self, document: Document, *, with_values: bool = False) -> Verdict:
        """See `Replays.judge_again`."""
        tally = CollectingTally()
        for _ in self.process([copy.deepcopy(document)], tally) if self.is_independent else ():
            pass
        return Verdict(next(iter(tally.documents), None))

    def is_judged_again(self, reason: str) -> bool:
        """See `Replays.is_judged_again`."""
        return self.is_independent

    def process_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard to one shard."""
        return write_shard(task, context, read_documents(task.reads.shard), self.process)

    def run(self, job: Run) -> Outcome:
        """All shards, each by itself."""
        hints = self.hints(job)
        tasks = [
            Task(f"part-{number:05}", Files(shard=path), job.shard_files(number), hints=hints)
            for number, path in enumerate(job.inputs)
        ]
        results = job.map("shards", self.process_shard, tasks, unit=self.unit, total=job.expected_documents())
        return shards_outcome(tasks, results)


@dataclass(frozen=True)
class FilterStage(DocumentStage):
    """A stage that only decides of each document whether it stays."""

    is_independent: ClassVar[bool] = True

    @abc.abstractmethod
    def judge(self, document: Document) -> str | None:
        """The reason to drop `document`, or None to keep it."""

    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the documents for which there is no reason to drop them."""
        for document in documents:
            reason = self.judge(document)
            if reason is None:
                yield document
            else:
                tally.drop(document, reason)
