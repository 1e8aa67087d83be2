"""What a stage is: a frozen dataclass of settings whose one method turns documents into documents.

A stage that looks at one document at a time is a `DocumentStage` and writes only `process`. A stage that must see all
documents, or splits them anew, is a `Stage` with a `run` of its own, made of phases of tasks (see `runner`). Each
stage is one file in `stages/`, found there by the command line: adding or removing one touches nothing else.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from webtext_prep.documents.document import SHARD_SUFFIX, Document, read_documents, write_documents
from webtext_prep.documents.inputs import RECORD, STATE, is_document_shard
from webtext_prep.running.engines import Report
from webtext_prep.running.tally import Tally

if TYPE_CHECKING:
    from webtext_prep.running.job import Job

REPORT_EVERY = 64
"""Documents between two reports of progress."""


@dataclass(frozen=True)
class Task:
    """One unit of work: `stage.<method>(task, report)` in some process.

    Attributes:
        name: unique within its phase.
        inputs: the files it reads; when one changes, the task is run again.
        outputs: the files it writes, each atomically.
        options: whatever else it needs to know, as JSON-like values.
    """

    name: str
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a stage's `run` gives back.

    Attributes:
        tally: what became of all documents.
        outputs: the files it made.
        shards: name of each document shard to the number of documents in it.
        extra: further facts for the summary (tokens, bytes), the same for the same input and settings.
    """

    tally: Tally
    outputs: list[Path]
    shards: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage(abc.ABC):
    """Settings of one stage, and how it runs. Subclasses are frozen dataclasses whose fields are made by `setting`."""

    name: ClassVar[str]
    """The command."""
    order: ClassVar[int]
    """Where it stands in the way of a document; `--help` lists stages in this order."""
    summary: ClassVar[str]
    """One line for `--help`."""
    version: ClassVar[int] = 1
    """Raised whenever the same input and settings would give other output, so that old shards are made again."""
    unit: ClassVar[str] = "documents"
    """What it counts."""
    input_kinds: ClassVar[str] = "document shards (part-*.jsonl.zst)"
    """What such files are called."""
    reads_standard_input: ClassVar[bool] = False
    output_is_prefix: ClassVar[bool] = False

    @staticmethod
    def accepts(path: Path) -> bool:
        """Whether it reads files of that name."""
        return is_document_shard(path)

    @abc.abstractmethod
    def run(self, job: Job) -> Outcome:
        """Do the work with `job.map`, and account for every document."""

    def advice(self, tally: Tally) -> str:
        """What to do when nothing was kept, as the end of a sentence."""
        return "check the input and the settings"

    def setting_files(self) -> list[Path]:
        """Files that settings name (lists of rules, a vocabulary): when one changes, the work is done anew."""
        return []

    def wants_another_run(self, job: Job) -> bool:
        """Whether a finished output should be gone over again (a download that may pass now)."""
        return False

    def state_folder(self, output: Path) -> Path:
        """Where the marks of an output lie."""
        return output / STATE

    def record_path(self, output: Path) -> Path:
        """Where the record of an output lies."""
        return output / RECORD

    def outputs_in(self, output: Path) -> list[Path]:
        """Every file of this stage that an output holds now."""
        return [*output.glob(f"part-*{SHARD_SUFFIX}"), *(output / "dropped").glob(f"part-*{SHARD_SUFFIX}")]


def write_shard(
    task: Task, report: Report, documents: Iterable[Document], transform: Callable[[Iterable[Document], Tally], Any]
) -> dict[str, Any]:
    """Write to the task's first output what `transform(documents, tally)` yields; a second output takes the dropped.

    Returns the tally as plain values, the result of a task.
    """
    tally = Tally()

    def reported() -> Iterator[Document]:
        count = 0
        for count, document in enumerate(tally.counted(documents), 1):
            yield document
            if count % REPORT_EVERY == 0:
                report(REPORT_EVERY)
        report(count % REPORT_EVERY)

    with contextlib.ExitStack() as stack:
        if len(task.outputs) > 1:
            tally.sink = stack.enter_context(write_documents(task.outputs[1]))
        writer = stack.enter_context(write_documents(task.outputs[0]))
        for document in transform(reported(), tally):
            writer.write(document)
        tally.kept = writer.written
    return tally.as_dict()


def shard_outputs(job: Job, number: int) -> tuple[Path, ...]:
    """The outputs of the task that makes shard `number`: the shard, and with `--keep-dropped` its dropped documents."""
    dropped = job.dropped_path(number)
    return (job.shard_path(number), *([dropped] if dropped else []))


def shards_outcome(tasks: Iterable[Task], results: Iterable[dict[str, Any]]) -> Outcome:
    """The outcome of tasks that each made one shard by `write_shard`."""
    tally = Tally()
    outputs: list[Path] = []
    shards: dict[str, int] = {}
    for task, result in zip(tasks, results, strict=True):
        tally.add(Tally.from_dict(result))
        outputs += task.outputs
        shards[task.outputs[0].name] = result["out"]
    return Outcome(tally, outputs, shards)


@dataclass(frozen=True)
class DocumentStage(Stage):
    """A stage that maps the documents of each shard by themselves: shard 5 of the output comes from shard 5 alone."""

    @abc.abstractmethod
    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield what is kept of `documents`, and `tally.drop` each that is not, with its reason."""

    def process_shard(self, task: Task, report: Report) -> dict[str, Any]:
        """Task: one shard to one shard."""
        return write_shard(task, report, read_documents(task.inputs[0]), self.process)

    def run(self, job: Job) -> Outcome:
        """All shards, each by itself."""
        tasks = [
            Task(f"part-{number:05}", (path,), shard_outputs(job, number)) for number, path in enumerate(job.inputs)
        ]
        results = job.map("shards", "process_shard", tasks, unit=self.unit, total=job.expected_documents())
        return shards_outcome(tasks, results)
