"""A stage: a frozen dataclass of settings, and how it turns documents into documents.

A stage that only asks of each document whether to keep it is a `FilterStage` and writes `judge`; one that changes
documents, each shard by itself, is a `DocumentStage` and writes `process`; one that must see all documents, or splits
them differently, is a `Stage` with a `run` of its own, made of phases of tasks. Each stage is one file in `stages/`,
found there by the command line: adding or removing one touches nothing else.

A stage says in one value what it reads, and in another what it writes.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from command_kit import setting
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import Accepts, find_inputs
from webtext_prep.documents.folders.raw_files import choose_splits, counts_of, splits_of
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import (
    DEFAULT_FORMAT,
    DROPPED,
    DocumentWriter,
    is_document_shard,
    read_documents,
    shards_in,
    write_documents,
)
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.estimates import Needs, costs_of, needs_of
from webtext_prep.running.summary import Findings
from webtext_prep.running.tasks import Context, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import HELD_OUT

Job = Any
"""`webtext_prep.running.job.Job`, which knows this module."""
Chosen = tuple[list[Location], list[str]]
"""Files to read, and sentences for the summary about the others."""


def _all_of(files: list[Location], folders: Sequence[Location]) -> Chosen:
    return files, []


def _training_split(files: list[Location], folders: Sequence[Location]) -> Chosen:
    """Of a dataset in one of the folders the training split."""
    chosen = choose_splits(files, [], (), folders)
    known = set(chosen)
    others = counts_of(splits_of([file for file in files if file not in known], []))
    note = f"not read, since the split train is: {others}; name its files to read another."
    return chosen, [note] if others else []


@dataclass(frozen=True)
class Reads:
    """Input of a stage.

    Attributes:
        kinds: the words of messages for its files.
        accepts: whether it reads files of that name.
        unit: the things that it counts.
        is_one_document: whether a file is one document, with any number of lines.
        has_standard_input: whether `-` stands for standard input.
        named: the files that one value of `--input` stands for: itself, unless a stage's files come in pairs.
        choose: which of the found files it reads; it is given the folders among the input, too.
        before, after: files that its own settings name, read before `--input` and after it.
    """

    kinds: str
    accepts: Accepts
    unit: str = "documents"
    is_one_document: Accepts = lambda place: False
    has_standard_input: bool = False
    named: Callable[[str], list[str]] = lambda given: [given]
    choose: Callable[[list[Location], Sequence[Location]], Chosen] = _all_of
    before: Sequence[str] = ()
    after: Sequence[str] = ()

    def find(self, given: Iterable[str], output: Location | None = None) -> Chosen:
        """The files that values of `--input` stand for, and sentences for the summary about files that are not read.

        What lies in the output is not read. Raises InputError as `find_inputs` does.
        """
        names = [name for one in given for name in self.named(one)]
        found = find_inputs(names, accepts=self.accepts, kinds=self.kinds, output=output)
        files, notes = self.choose(found.files, found.folders)
        return files, [*found.notes(), *notes]


DOCUMENT_SHARDS = Reads(
    "document shards (part-*.jsonl.zst, .jsonl.gz, .jsonl or .parquet)", is_document_shard, choose=_training_split
)

Made = Literal["documents", "pages", "tokens", "tokenizer", "filter", "extras"]


@dataclass(frozen=True)
class Writes:
    """Output of a stage: by default a folder of document shards.

    Attributes:
        made: the kind. `tokens` are named by a prefix, not by a folder; `pages` become documents beside those that
            there are; `extras` no other stage reads.
        format: of its shards if nothing else is said.
        tables: names of other files: tables, a tokenizer.
        folders: of shards, by name; "" is the output itself.
        others: more files of the stage that an output holds now.
        beside: the place next to such values of `--input` to which it always writes; empty if `--output` says it.
    """

    made: Made = "documents"
    format: str = DEFAULT_FORMAT
    tables: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("", DROPPED)
    others: Callable[[Location], Iterable[Location]] = lambda output: ()
    beside: Callable[[Sequence[str]], str] = lambda given: ""

    @property
    def is_prefix(self) -> bool:
        """Whether `--output` is not a folder, but what the names of its files begin with."""
        return self.made == "tokens"

    def files_in(self, output: Location) -> list[Location]:
        """Every file of the stage that an output holds now."""
        shards = (path for name in self.folders for path in shards_in(output / name if name else output))
        tables = filter(storage.is_file, (output / name for name in self.tables))
        return [*shards, *tables, *self.others(output)]


@dataclass
class Outcome:
    """The result of a stage's `run`.

    Attributes:
        tally: what became of all documents.
        outputs: the files it made.
        shards: name of each document shard to the number of documents in it.
        facts: what else is worth recording (tokens, bytes), the same for the same input and settings.
        advice: what to do where nothing was kept, as the end of a sentence; None where that is as it should be.
    """

    tally: Tally
    outputs: list[Location]
    shards: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    advice: str | None = "check the input and the settings"

    def add_reading(self, read: Tally) -> None:
        """Account for an earlier phase too: what that one kept this one has read."""
        self.tally.add(read)
        self.tally.read -= read.kept
        self.tally.kept -= read.kept

    def check(self, stage: str, unit: str, inputs: Sequence[Location]) -> None:
        """Raise WebtextError where documents are lost, or none was kept, and InputError where there were none."""
        tally = self.tally
        if not tally.is_balanced:
            came = f"{tally.read} in" + (f", {tally.added} added" if tally.added else "")
            raise WebtextError(
                f"internal error: {came}, {tally.kept} out, {tally.dropped.total()} dropped do not add up."
            )
        if tally.read == 0 and self.advice is not None:
            names = ", ".join(str(path) for path in inputs[:3])
            raise InputError(f"{stage}: no {unit} in the input ({names}): check what made it.")
        if tally.kept == 0 and self.advice is not None:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in tally.dropped.most_common())
            problems = " " + " ".join(tally.problems[:1]) if tally.problems else ""
            raise WebtextError(
                f"{stage}: none of the {tally.read:,} {unit} was kept ({reasons}): {self.advice}.{problems}"
            )


@dataclass(frozen=True)
class Stage(abc.ABC):
    """Settings of one stage, and how it runs. Subclasses are frozen dataclasses whose fields are made by `setting`."""

    name: ClassVar[str]
    """The command."""
    order: ClassVar[int]
    """Its place in the pipeline; `--help` lists stages in this order."""
    summary: ClassVar[str]
    """One line for `--help`."""
    version: ClassVar[int] = 1
    """Raised whenever the same input and settings would give other output, so that old shards are made again."""
    oldest: ClassVar[int] = 0
    """The oldest version whose output a run goes on with; that of one before asks for --restart."""
    is_one_process: ClassVar[bool] = False
    """Whether what it leaves for its next run lies on this machine, where one process leads its work, on no cluster."""
    is_on_this_machine: ClassVar[bool] = False
    """Whether its tasks run on this machine, whatever the engine: they write to one file together."""
    writes: ClassVar[Writes] = Writes()
    """Its output."""

    @property
    def reads(self) -> Reads:
        """Its input."""
        return DOCUMENT_SHARDS

    @property
    def libraries(self) -> tuple[str, ...]:
        """Distributions whose versions the output depends on, with these settings: an extractor, a tokenizer.

        With another version of one an output is not gone on with. Not what reads and writes files.
        """
        return ()

    def setting_files(self) -> Sequence[Location]:
        """Files that settings name (lists of rules, a vocabulary): when one changes, the work is done again."""
        return []

    def identity(self) -> dict[str, Any]:
        """All that the output depends on besides settings and files, such as the digest of a user's function."""
        return {}

    @property
    def process_bytes(self) -> int:
        """Memory of a process that runs its tasks, at most."""
        return costs_of(self.name, self).memory

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Needs of a run over input like `sample`, with that many tasks at once."""
        return needs_of(costs_of(self.name, self), sample, workers)

    @abc.abstractmethod
    def run(self, job: Job) -> Outcome:
        """Do the work with `job.map`, and account for every document."""

    def companions(self, given: Sequence[str], output: str) -> list[tuple[Stage, Sequence[str], str]]:
        """Runs that follow one with such an `--input` and `--output`: a stage, and its own input and output."""
        return []

    def wants_another_run(self, job: Job) -> bool:
        """Whether a finished output is worked on once more: a download, of which more may succeed now."""
        return False

    def without_retries(self) -> Self:
        """The same stage, but one that never works on a finished output once more."""
        return self

    @property
    def is_preview(self) -> bool:
        """Whether its settings ask what it would do (a dry run): then `preview` is called instead of `run`."""
        return False

    def preview(self, job: Job) -> Findings:
        """Say what `run` would do, and write nothing but in `job.scratch`."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # Tasks travel with their stage: what it has cached (lists of rules) is loaded again on the other side.
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


# What tasks that write shards share


Transform = Callable[[Iterable[Document], Tally], Iterable[Document]]
"""Yields the kept ones of some documents, and has the tally drop the others."""


@contextlib.contextmanager
def shard_writer(task: Task, tally: Tally) -> Iterator[DocumentWriter]:
    """Open `task.writes.kept` for documents, which the tally counts, and `task.writes["dropped"]` for its receipts."""
    with receipts_writer(task, tally), write_documents(task.writes.kept) as writer:
        yield writer
        tally.kept = writer.written


@contextlib.contextmanager
def receipts_writer(task: Task, tally: Tally) -> Iterator[None]:
    """Have the tally write its receipts to `task.writes["dropped"]`, if the task has that file."""
    with contextlib.ExitStack() as stack:
        for place in task.writes.get("dropped", ()):
            tally.receipts = stack.enter_context(write_documents(place))
        yield


def write_shard(task: Task, context: Context, documents: Iterable[Document], transform: Transform) -> dict[str, Any]:
    """Write to `task.writes.kept` what `transform(documents, tally)` yields, and to `dropped` what the tally drops.

    Returns the tally as plain values, the result of a task.
    """
    tally = Tally()
    with shard_writer(task, tally) as writer:
        for document in transform(tally.counted(context.counted(documents)), tally):
            writer.write(document)
    return tally.as_dict()


def shards_outcome(tasks: Sequence[Task], results: Sequence[dict[str, Any]], *, but: str = "") -> Outcome:
    """The outcome of tasks that each made one shard by `write_shard`; files of the name `but` are no part of it."""
    outputs = [path for task in tasks for name, files in task.writes.items() if name != but for path in files]
    shards = {task.writes.kept.name: result["out"] for task, result in zip(tasks, results, strict=True)}
    return Outcome(Tally.total(results), outputs, shards)


@dataclass(frozen=True)
class DocumentStage(Stage):
    """A stage that maps the documents of each shard by themselves: shard 5 of the output comes from shard 5 alone."""

    @abc.abstractmethod
    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the kept ones of `documents`, and `tally.drop` each of the others, with its reason and what decided."""

    def process_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard to one shard."""
        return write_shard(task, context, read_documents(task.reads.shard), self.process)

    def run(self, job: Job) -> Outcome:
        """All shards, each by itself."""
        tasks = job.shard_tasks(job.shard_files)
        results = job.map("shards", self.process_shard, tasks, total=job.documents)
        return shards_outcome(tasks, results)


@dataclass(frozen=True)
class FilterStage(DocumentStage):
    """A stage that only decides of each document whether it stays."""

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


_HELD_OUT_GROUP = "held-out pages"


@dataclass(frozen=True)
class HoldsOut(Stage):
    """A stage that keeps a share of the pages out of its output, and writes them to `OUTPUT_held_out`.

    They are written by a run of its own over the same input. So it has a record, a state and a lineage like any output,
    and every command that looks at one finds its way."""

    hold_out: float = setting(
        0.0,
        "keep this share of the pages out of training, chosen by a hash of the URL alone: they go to OUTPUT_held_out",
        ge=0,
        lt=1,
        group=_HELD_OUT_GROUP,
    )
    only_held_out: bool = setting(
        False, "write only the pages that --hold-out SHARE chooses, to the output that is named", group=_HELD_OUT_GROUP
    )

    def __post_init__(self) -> None:
        if self.only_held_out and not self.hold_out:
            raise InputError("--only-held-out needs --hold-out SHARE: say which share of the pages that is.")

    def companions(self, given: Sequence[str], output: str) -> list[tuple[Stage, Sequence[str], str]]:
        """The run that writes held-out pages."""
        if not self.hold_out or self.only_held_out:
            return []
        return [(dataclasses.replace(self, only_held_out=True), given, f"{output.rstrip('/')}_{HELD_OUT}")]
