"""`webtext merge`: any mix of text, JSON, table and Parquet files to documents, one per page, each URL once.

Two phases: each file is read by itself and its documents are split by URL; then each shard drops the URLs that it has
already seen. A file that `webtext` itself wrote, a folder of text files with sidecar metadata, and somebody else's
JSON lines all come out alike. What can't be read is counted and named with file and line, and the rest is read; but
where that is a tenth of all records, the keys or the files are wrong, and nothing is written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from command_kit import hide_credentials, setting
from webtext_prep.documents import storage
from webtext_prep.documents.compression import MAX_LINE_BYTES, bare_name
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.raw_files import is_raw_file, kinds_of_raw_files, reader_of
from webtext_prep.documents.records.base import Keys, Record, SourceFile, Unreadable
from webtext_prep.documents.sampling import Sample
from webtext_prep.documents.shards import read_documents, write_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.urls import bucket_of, shards_for, url_key
from webtext_prep.errors import InputError
from webtext_prep.running.space import Needs
from webtext_prep.running.stage import (
    PROCESS_BYTES,
    REPORT_EVERY,
    Outcome,
    Run,
    Stage,
    shards_outcome,
    write_shard,
)
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

BYTES_PER_SHARD = 64 << 20
"""With `--shards 0`: bytes of input files for each shard."""
BYTES_PER_TASK = 16 << 20
"""Files are read together, as one task, until they have so many bytes,"""
MOST_TASKS = 256
"""or so large a share of all: each task writes a file for each shard, and there may be thousands of those."""
BYTES_PER_URL = 250
"""Memory of one entry in the set of URLs that a shard has had."""
UNREADABLE_SHARE = 0.1
"""More unreadable records than this share of all are an error."""
PLACES_SHOWN = 3
"""Of each kind of unreadable record, so many are named with their places."""


@dataclass
class Problems:
    """Unreadable records, those of one kind together: a thousand lines without the right key are one sentence.

    Attributes:
        found: reason to the sentence about the first such record, the places of the first few, and their number.
    """

    found: dict[str, tuple[str, list[str], int]] = field(default_factory=dict)

    def add(self, reason: str, sentence: str, places: list[str], count: int = 1) -> None:
        """Count `count` more records, the first of which lie at `places`."""
        first, known, total = self.found.get(reason, (sentence, [], 0))
        shown = [*known, *map(hide_credentials, places)][:PLACES_SHOWN]
        self.found[reason] = (hide_credentials(first), shown, total + count)

    def sentences(self) -> list[str]:
        """One sentence for each kind, the most frequent one first."""
        kinds = sorted(self.found.values(), key=lambda kind: -kind[2])
        return [
            f"{'; '.join(places)}{f' and {count - len(places):,} more' if count > len(places) else ''}: {sentence}."
            for sentence, places, count in kinds
        ]


@dataclass(frozen=True)
class Merge(Stage):
    """Collect documents from files of many kinds, compressed or not, and drop repeated URLs.

    A text file (.txt, .md) is one document; its URL (and metadata) is in a .json file of the same name beside it, or is
    the file's name, decoded. A .json file holds an object or a list of them; a .jsonl file one per line; .csv and .tsv
    files have a header, .parquet files columns. What has no URL is called by its file, such as
    file:folder/name.jsonl:3, as seen from the folder that all the files lie in; a number 5 under --url-key id is id:5.
    Drops: unreadable (with file and line), empty, duplicate_url."""

    name: ClassVar[str] = "merge"
    order: ClassVar[int] = 40
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "text, JSON, CSV and Parquet files -> documents, each URL once"
    input_kinds: ClassVar[str] = kinds_of_raw_files()

    text_key: tuple[str, ...] = setting(
        ("text", "content", "body", "raw_content"),
        "the keys (or columns) that may hold the text, the first one found is used; a.b is b inside a",
        metavar="KEY",
    )
    url_key: tuple[str, ...] = setting(("url",), "the keys (or columns) that may hold the URL", metavar="KEY")
    shards: int = setting(0, "output shards; 0 means one for each 64 MiB of input", ge=0, le=4096)
    allow_unreadable: bool = setting(
        False, "write the rest even if more than 10% of the records are unreadable", identity=False
    )

    def __post_init__(self) -> None:
        for name, keys in (("--text-key", self.text_key), ("--url-key", self.url_key)):
            if not keys or not all(keys):
                raise InputError(f"{name} must name at least one key, and none that is empty.")

    @staticmethod
    def accepts(path: Location) -> bool:
        """Files that one of the readers in `documents/records/` reads."""
        return is_raw_file(path)

    @staticmethod
    def is_one_document(path: Location) -> bool:
        """Text files."""
        reader = reader_of(path)
        return reader is not None and reader.one_text_a_file

    def needs(self, sample: Sample, workers: int) -> Needs:
        """All documents twice: in pieces by shard, and in shards. Memory for the URLs of the shards at work."""
        shards = self.shards or shards_for(sample.size, BYTES_PER_SHARD)
        urls = sample.documents * min(workers, shards) // shards * BYTES_PER_URL
        return Needs(sample.written, sample.packed, workers * PROCESS_BYTES + urls, sample.documents)

    def read(self, file: SourceFile, tally: Tally, problems: Problems) -> Iterator[Document]:
        """The documents of one file; what can't be read is counted and named."""
        reader = reader_of(file.location)
        if reader is None:
            raise InputError(f"{file.location} has the wrong suffix: here {self.input_kinds} are read.")
        for record in reader.read(file, Keys(self.text_key, self.url_key)):
            tally.read += 1
            document = _within_limits(record)
            if isinstance(document, Unreadable):
                tally.drop(Document(record.url), "unreadable", problem=hide_credentials(str(document)))
                place = f"{file.location}, {record.place}" if record.place else str(file.location)
                problems.add(document.reason, str(document), [place])
                continue
            if record.text_key not in ("", self.text_key[0]):
                tally.notes[f"text from {record.text_key}"] += 1
            if document.text.strip():
                yield document
            else:
                tally.drop(document, "empty")

    def split(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: some files to a piece for each shard. Returns the tally of what was read, and what was unreadable."""
        tally, problems, count = Tally(), Problems(), 0
        shards = task.options["shards"]
        named = task.options["files"]
        sidecars = iter(task.inputs[len(named) :])
        with contextlib.ExitStack() as stack:
            pieces = [stack.enter_context(write_documents(path, durable=False)) for path in task.outputs[:shards]]
            if len(task.outputs) > shards:
                tally.dropped_writer = stack.enter_context(write_documents(task.outputs[shards]))
            for place, (name, has_sidecar) in zip(task.inputs, named, strict=False):
                file = SourceFile(place, name, next(sidecars) if has_sidecar else None)
                for document in self.read(file, tally, problems):
                    try:
                        pieces[bucket_of(url_key(document.url), shards)].write(document)
                    except RecursionError:
                        reason = "metadata nested too deep to write"
                        tally.drop(Document(document.url), "unreadable", problem=reason)
                        problems.add(reason, reason, [str(place)])
                        continue
                    count += 1
                    if count % REPORT_EVERY == 0:
                        context.report(count)
        context.report(count)
        tally.kept = count
        return {**tally.as_dict(), "unreadable": problems.found}

    def merge_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the pieces of one shard, in order of the files, to the shard."""
        documents = (document for path in task.inputs for document in read_documents(path))
        return write_shard(task, context, documents, self.process)

    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the first document of each URL."""
        seen: set[str] = set()
        for document in documents:
            key = url_key(document.url)
            if key in seen:
                tally.drop(document, "duplicate_url")
                continue
            seen.add(key)
            yield document

    def run(self, job: Run) -> Outcome:
        """Read and split the files, then merge shard by shard."""
        tasks = self._reading_tasks(job)
        shards = tasks[0].options["shards"]
        results = job.map("read", self.split, tasks, total=job.expected_documents())
        read = self._checked(results)
        kept = read.kept
        merging = [
            Task(f"part-{shard:05}", tuple(task.outputs[shard] for task in tasks), job.shard_outputs(shard))
            for shard in range(shards)
        ]
        outcome = shards_outcome(merging, job.map("shards", self.merge_shard, merging, total=kept))
        # What one phase kept the other one read: together they account for every record of the files.
        read.kept = 0
        outcome.tally.add(read)
        outcome.tally.read -= kept
        if job.keep_dropped:
            outcome.outputs += [task.outputs[shards] for task in tasks]
        return outcome

    def _reading_tasks(self, job: Run) -> list[Task]:
        sidecars = sidecars_of(job.inputs)
        beside = set(sidecars.values())
        files = [path for path in job.inputs if path not in beside]
        names = dict(zip(files, _names(files), strict=True))
        sizes = [storage.size(path) for path in files]
        shards = self.shards or shards_for(sum(sizes), BYTES_PER_SHARD)
        tasks = []
        for number, group in enumerate(_groups(files, sizes)):
            folder = job.scratch / f"files-{number:05}"
            outputs: list[Location] = [folder / f"part-{shard:05}.jsonl.zst" for shard in range(shards)]
            dropped = job.dropped_path(shards + number)
            if dropped is not None:
                outputs.append(dropped)
            theirs = [sidecars[path] for path in group if path in sidecars]
            named = [[names[path], path in sidecars] for path in group]
            options = {"files": named, "shards": shards}
            tasks.append(Task(f"files-{number:05}", (*group, *theirs), tuple(outputs), options))
        return tasks

    def _checked(self, results: Sequence[dict[str, Any]]) -> Tally:
        """What was read, in all. Raises InputError if too much of it was unreadable."""
        read, problems = Tally(), Problems()
        for result in results:
            read.add(Tally.from_dict(result))
            for reason, (sentence, places, count) in result["unreadable"].items():
                problems.add(reason, sentence, places, count)
        unreadable = read.dropped["unreadable"]
        if unreadable > UNREADABLE_SHARE * read.read and not self.allow_unreadable:
            first = " ".join(problems.sentences()[:3])
            raise InputError(
                f"{unreadable:,} of {read.read:,} records could not be read: {first} Nothing was written: correct the "
                "input, or the settings (and give --restart), or accept the loss with --allow-unreadable."
            )
        for sentence in problems.sentences():
            read.problem(sentence)
        return read


def _within_limits(record: Record) -> Document | Unreadable:
    """A record's document, unless it is so long that no shard could be read that holds it."""
    document = record.document
    # A character takes at most 6 bytes in JSON.
    if (
        isinstance(document, Document)
        and 6 * len(document.text) > MAX_LINE_BYTES
        and len(encode_document(document)) >= MAX_LINE_BYTES
    ):
        return Unreadable(f"a text of more than {MAX_LINE_BYTES >> 20} MiB", "split it into several")
    return document


def sidecars_of(inputs: Sequence[Location]) -> dict[Location, Location]:
    """Text file to the JSON file beside it that holds its metadata: `page.json` or `page.txt.json` for `page.txt`."""
    beside: dict[Location, dict[str, Location]] = {}
    found: dict[Location, Location] = {}
    for path in inputs:
        reader = reader_of(path)
        if reader is None or not reader.one_text_a_file:
            continue
        folder = path.parent
        if folder not in beside:
            beside[folder] = {entry.name: entry for entry in storage.files_in(folder) if entry.suffix == ".json"}
        if beside[folder]:
            bare = bare_name(path)
            for name in (f"{bare.rsplit('.', 1)[0]}.json", f"{bare}.json"):
                if name in beside[folder]:
                    found.setdefault(path, beside[folder][name])
    return found


def _names(files: Sequence[Location]) -> list[str]:
    """Each file as seen from the folder that all of them lie in: two of one name in two folders are two."""
    folders = {
        parent: (os.path.realpath(parent) if isinstance(parent, Path) else hide_credentials(str(parent))).split("/")
        for parent in {path.parent for path in files}
    }
    shared = sum(
        1 for _ in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders.values(), strict=False))
    )
    return ["/".join([*folders[path.parent][shared:], path.name]) for path in files]


def _groups(files: Sequence[Location], sizes: Sequence[int]) -> list[list[Location]]:
    """Files in order, small ones together: each group is one task, so that a million small files are not a million."""
    whole = max(BYTES_PER_TASK, sum(sizes) // MOST_TASKS)
    groups: list[list[Location]] = []
    room = 0
    for path, size in zip(files, sizes, strict=True):
        if not groups or room < size:
            groups.append([])
            room = whole
        groups[-1].append(path)
        room -= size
    return groups
