"""`webtext merge`: any mix of text, JSON, table and Parquet files to documents, one per page, each URL once.

The pieces of a page that was cut are documents of their own, and so are texts that are called by their files, where
files of the same name in other folders were merged before: see `SeenPages`.

Two phases: files are read and their documents are split by URL, into one file a task
(`documents/folders/partitions.py`); then each shard drops the URLs that it has already seen. A large file is many
tasks: ranges of the bytes of JSON lines, row groups of Parquet; compressed JSON lines are first cut into runs. Memory
is the same for any number of shards.

A file that `webtext` itself wrote, a folder of text files with sidecar metadata, and somebody else's JSON lines all
come out alike. What can't be read is counted and named with file and line, and the rest is read; but where that is a
tenth of all records, the keys or the files are wrong, and nothing is written.

A task that meets a damaged file begins again, and then takes of each file only what is whole: compressed streams of
JSON lines, row groups of Parquet, or else files. That costs whole files nothing. What a stage wrote is not read around
its damage: it can be made again.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar

import xxhash

from command_kit import hide_credentials, setting
from command_kit.progress import REPORT_EVERY
from webtext_prep import storage
from webtext_prep.documents.document import Document, decode_document, encode_document, piece_id
from webtext_prep.documents.folders import raw_files
from webtext_prep.documents.folders.partitions import read_partitions, write_partitions
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.stage_record import files_by_record
from webtext_prep.documents.formats.compression import MAX_LINE_BYTES
from webtext_prep.documents.records.base import Damaged, FilePart, Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.records.plain_text import looks_like_html
from webtext_prep.errors import DamagedFileError, InputError
from webtext_prep.running.estimates import Needs, costs_of
from webtext_prep.running.file_ranges import cut_into_runs, cut_runs, cutting_task
from webtext_prep.running.job import Job
from webtext_prep.running.stage import HoldsOut, Outcome, Reads, receipts_writer, shard_writer, shards_outcome
from webtext_prep.running.tasks import Context, Files, Problems, Tally, Task, checked_total
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import bucket_of, held_out_reason, shards_for, url_key

BYTES_PER_SHARD = 64 << 20
"""With `--shards 0`: bytes of input files for each shard."""
BYTES_PER_PART = 64 << 20
"""Bytes of the parts in which a larger file is read, if it has parts,"""
BYTES_PER_STREAM = 256 << 20
"""and one without any, as it is compressed or a table, is first cut into runs."""

DAMAGED_BYTES = "damaged_bytes"
"""The note that counts the bytes of files that are damaged."""


@dataclass(frozen=True)
class Merge(HoldsOut):
    """Collect documents from files of many kinds, compressed or not, and drop repeated URLs.

    A text file (.txt, .md) is one document; its URL (and metadata) is in a .json file of the same name next to it, in
    its front matter, or is the file's name, decoded. A .json file holds an object or a list of them; a .jsonl file one
    per line; .csv and .tsv files have a header, .parquet and .arrow files columns. Folders of Hugging Face datasets are
    read as they are, also as saved by save_to_disk. A text without a URL is called by its file, such as
    file:folder/name.jsonl:3, as seen from the folder that all the files lie in; a number 5 under --url-key id is id:5.
    With --hold-out some pages go to OUTPUT_held_out instead, before any filter.
    Drops: unreadable (with file and line), damaged (with file and byte), empty, duplicate_url, held_out (with
    --only-held-out: not_held_out)."""

    name: ClassVar[str] = "merge"
    order: ClassVar[int] = 40
    version: ClassVar[int] = 10
    summary: ClassVar[str] = "text, JSON, CSV and Parquet files -> documents, each URL once"

    text_key: tuple[str, ...] = setting(
        ("text", "content", "body", "raw_content"),
        "the keys (or columns) that may hold the text, the first one found is used; a.b is b inside a",
        metavar="KEY",
    )
    url_key: tuple[str, ...] = setting(
        ("url", "meta.url", "metadata.url", "warc_headers.warc-target-uri"),
        "the keys (or columns) that may hold the URL",
        metavar="KEY",
    )
    split: tuple[str, ...] = setting(
        (), "read these splits of datasets (train, test, ...), instead of train alone", metavar="NAME"
    )
    shards: int = setting(0, "output shards; 0 means one for each 64 MiB of input", ge=0, le=4096)
    allow_unreadable: bool = setting(
        False, "write the rest even if more than 10% of the records are unreadable", identity=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, keys in (("--text-key", self.text_key), ("--url-key", self.url_key)):
            if not keys or not all(keys):
                raise InputError(f"{name} must name at least one key, and none that is empty.")

    def needs(self, sample: Sample, workers: int) -> Needs:
        """As the table says; and a large shard takes memory for each of its pages."""
        found, row = super().needs(sample, workers), costs_of(self.name, self)
        pages = sample.documents // (self.shards or shards_for(sample.size, BYTES_PER_SHARD))
        return replace(found, memory=max(found.memory, workers * (row.least + row.page * pages)))

    @property
    def reads(self) -> Reads:
        """Files that one of the readers in `documents/records/` reads."""
        kinds, is_one = raw_files.kinds_of_raw_files(), raw_files.is_one_text
        return Reads(kinds, raw_files.is_raw_file, is_one_document=is_one, choose=self._choose)

    def _choose(self, files: list[Location], folders: Sequence[Location]) -> tuple[list[Location], list[str]]:
        """The data of dataset folders, without what describes it: the splits that were asked for, else to train on."""
        files, described = raw_files.without_descriptions(files)
        chosen = raw_files.choose_splits(files, described, self.split, folders)
        notes = []
        if described:
            names = sorted({path.name for path in described})
            notes.append(f"not read, since they describe a dataset: {', '.join(names)}.")
        splits, all_splits = raw_files.splits_of(chosen, described), raw_files.splits_of(files, described)
        if len(all_splits) > 1 or self.split:
            others = {name: found for name, found in all_splits.items() if name not in splits}
            left_out = f"; not read: {raw_files.counts_of(others)}" if others else ""
            hint = "" if self.split else "; --split NAME chooses"
            notes.append(f"splits read, with their files: {raw_files.counts_of(splits)}{left_out}{hint}.")
        return chosen, notes

    def _reader(self, place: Location) -> RecordReader:
        reader = raw_files.reader_of(place)
        if reader is None:
            raise InputError(f"{place} has the wrong suffix: here {self.reads.kinds} are read.")
        return reader

    def read(
        self, file: SourceFile, tally: Tally, problems: Problems, shown: object, *, around_damage: bool = False
    ) -> Iterator[Document]:
        """The documents of one file, which messages call `shown`; what can't be read is counted and named.

        Raises DamagedFileError for a damaged file, after documents that may be wrong, unless it is `around_damage`.
        """
        reader, keys = self._reader(file.location), Keys(self.text_key, self.url_key)
        for record in reader.read_around_damage(file, keys) if around_damage else reader.read(file, keys):
            tally.read += 1
            document = _within_limits(record)
            if isinstance(document, Unreadable):
                place = f"{shown}, {record.place}" if record.place else str(shown)
                reason, sentence, outcome = document.reason, str(document), "unreadable"
                if isinstance(document, Damaged):
                    reason, outcome = f"{shown}", "damaged"
                    sentence = f"{sentence}; fetch it again, and run the command again"
                    place = record.place if reason in problems.found else place
                    tally.notes[DAMAGED_BYTES] += document.size
                tally.drop(Document(record.url), outcome, problem=hide_credentials(str(document)))
                problems.add(reason, sentence, [place])
                continue
            if record.text_key not in ("", self.text_key[0]):
                tally.notes[f"text from {record.text_key}"] += 1
            if record.url_key not in ("", self.url_key[0]):
                tally.notes[f"URL from {record.url_key}"] += 1
            if reader.one_text_a_file and looks_like_html(document.text):
                tally.notes["look like HTML"] += 1
                advice = "taken as it is; for the text of pages name them .html, for `webtext extract`"
                problems.add("HTML", f"looks like HTML, and is {advice}", [str(shown)])
            if document.url == record.url and document.url.startswith("file:"):
                if "named by file" not in tally.notes:
                    self._name_unused_urls(document, problems, str(shown))
                tally.notes["named by file"] += 1
            for column, value in file.partition.items():
                document.metadata.setdefault(column, value)
            if not document.text.strip():
                tally.drop(document, "empty")
            elif reason := held_out_reason(document.url, self.hold_out, is_only=self.only_held_out):
                tally.drop(document, reason)
            else:
                yield document

    def _name_unused_urls(self, document: Document, problems: Problems, shown: str) -> None:
        """Advise of keys that hold a URL in a document that got none, as `u` does in HPLT's records."""
        for key, value in document.metadata.items():
            if isinstance(value, str) and value.startswith(("http://", "https://")):
                advice = f"its documents are named by the file, though {key!r} holds a URL: --url-key {key} takes it"
                problems.add(f"unused {key}", advice, [shown])

    def cut(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: a large file that can only be read from its beginning to runs; see `cut_into_runs`."""
        place, size = task.reads.file, task.options["run_bytes"]
        reader = self._reader(place)
        try:
            return cut_into_runs(task, context, lambda chunks, head: reader.blocks(place, chunks, size, head))
        except DamagedFileError:
            return []  # it is read as a whole, around the damage

    def count(self, task: Task, context: Context) -> int:
        """Task: how many records a part of a file has, by which the records after it are numbered."""
        return self._reader(task.reads.file).count(task.reads.file, FilePart(*task.options["part"]))

    def distribute(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: some files, or a part of one, to a bucket for each shard: lines of documents, each after its key.

        Returns the tally of what was read, and what was unreadable.
        """
        try:
            return self._distribute(task, context, around_damage=False)
        except DamagedFileError:
            return self._distribute(task, context, around_damage=True)

    def _distribute(self, task: Task, context: Context, *, around_damage: bool) -> dict[str, Any]:
        tally, problems, count = Tally(), Problems(), 0
        shards = task.options["shards"]
        part = FilePart(*task.options["part"]) if "part" in task.options else None
        sidecars = iter(task.reads["sidecars"])
        with receipts_writer(task, tally), write_partitions(task.writes.pieces, shards) as writer:
            for place, named in zip(task.reads["files"], task.options["files"], strict=True):
                name, has_sidecar, is_ours, partition = named
                file = SourceFile(place, name, next(sidecars) if has_sidecar else None, part, partition)
                shown = task.hints.get("shown", place)
                around = around_damage and not is_ours
                for document in self.read(file, tally, problems, shown, around_damage=around):
                    key = url_key(document.url)
                    try:
                        line = encode_document(document)
                    except RecursionError:
                        reason = "metadata nested too deep to write"
                        tally.drop(Document(document.url), "unreadable", problem=reason)
                        problems.add(reason, reason, [str(shown)])
                        continue
                    writer.add(bucket_of(key, shards), page_keys(document, key) + line)
                    count += 1
                    if count % REPORT_EVERY == 0:
                        context.report(count)
        context.report(count)
        tally.kept = count
        return {**tally.as_dict(), "unreadable": problems.found}

    def merge_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the bucket of one shard, in order of the files, to the shard: the first document of each URL.

        The receipt of another one names the row of the shard in which that is.
        """
        tally = Tally()
        with shard_writer(task, tally) as writer:
            seen = SeenPages()
            for lines in read_partitions(task.reads["pieces"], task.options["bucket"]):
                end = 0
                while end < len(lines):
                    begin = lines.index(b"{", end)
                    keys, end = lines[end:begin], lines.index(b"\n", begin) + 1
                    tally.read += 1
                    first = seen.add(keys)
                    if first is None:
                        writer.write_lines(lines[begin:end], 1)
                    else:
                        tally.drop(decode_document(lines[begin:end]), "duplicate_url", kept_row=first + 1)
                context.report(tally.read)
        return tally.as_dict()

    def run(self, job: Job) -> Outcome:
        """Read and split the files, then merge shard by shard."""
        tasks, shards = self._reading_tasks(job)
        results = job.map("read", self.distribute, tasks, total=job.documents)
        read = checked_total(results, "records", is_allowed=self.allow_unreadable)
        if damaged := read.notes[DAMAGED_BYTES]:
            problems = Problems.total(results)
            problems.check(damaged, sum(storage.sizes(job.inputs)), "bytes", is_allowed=self.allow_unreadable)
        pieces = Files(pieces=[task.writes.pieces for task in tasks])
        merging = [
            Task(f"part-{shard:05}", pieces, job.shard_files(shard), {"bucket": shard}) for shard in range(shards)
        ]
        outcome = shards_outcome(merging, job.map("shards", self.merge_shard, merging, total=read.kept))
        outcome.add_reading(read)
        outcome.outputs += [path for task in tasks for path in task.writes.get("dropped", ())]
        if self.only_held_out:
            outcome.advice = None  # a small share of few pages may be none
        return outcome

    def _reading_tasks(self, job: Job) -> tuple[list[Task], int]:
        """The tasks that read all files, and the number of shards."""
        sidecars = raw_files.sidecars_of(job.inputs)
        beside = set(sidecars.values())
        files = [path for path in job.inputs if path not in beside]
        names = dict(zip(files, raw_files.file_names(files), strict=True))
        columns = dict(zip(files, raw_files.columns_of(files), strict=True))
        own = set(files).difference(files_by_record(files)[1])
        sizes = storage.sizes(files)
        shards = self.shards or shards_for(sum(sizes), BYTES_PER_SHARD)
        parts = self._parts(job, dict(zip(files, sizes, strict=True)))
        tasks: list[Task] = []

        def add(reads: Files, named: list[list[Any]], part: FilePart | None, **hints: Any) -> None:
            number = len(tasks)
            pieces = job.scratch / f"files-{number:05}.parts"
            # What is held out is few pages: of the others it has no receipts.
            writes = Files(pieces=pieces, dropped=None if self.only_held_out else job.receipts_path(shards + number))
            options = {"files": named, "shards": shards, **({"part": astuple(part)} if part else {})}
            tasks.append(Task(f"files-{number:05}", reads, writes, options, hints))

        for group in raw_files.file_groups(files, sizes, alone=parts):
            if group[0] in parts:
                for path, part in parts[group[0]]:
                    is_ours = path in own or path != group[0]
                    named = [[names[group[0]], False, is_ours, columns[group[0]]]]
                    add(Files(files=path, sidecars=()), named, part, shown=str(group[0]))
            else:
                theirs = [sidecars[path] for path in group if path in sidecars]
                named = [[names[path], path in sidecars, path in own, columns[path]] for path in group]
                add(Files(files=group, sidecars=theirs), named, None)
        return tasks, shards

    def _parts(self, job: Job, sizes: dict[Location, int]) -> dict[Location, list[tuple[Location, FilePart]]]:
        """The parts of large files, each with the file that it is read from: the same, or a run cut out of it."""
        size = max(BYTES_PER_PART, sum(sizes.values()) // raw_files.MOST_TASKS)
        found: dict[Location, list[FilePart]] = {}
        streams: dict[Location, Task] = {}
        for number, (path, its_size) in enumerate(sizes.items()):
            reader = raw_files.reader_of(path)
            if reader is None or its_size <= size:
                continue
            its_parts: list[FilePart] = []
            with contextlib.suppress(DamagedFileError):  # it is read as a whole
                its_parts = reader.parts(path, size)
            if len(its_parts) > 1:
                found[path] = its_parts
            elif reader.has_blocks and its_size > BYTES_PER_STREAM:
                streams[path] = cutting_task(job.scratch / f"stream-{number:05}", path, size)
        counting = [
            Task(f"file-{number:05}-{at:05}", Files(file=path), options={"part": [part.begin, part.end]})
            for number, (path, its_parts) in enumerate(found.items())
            for at, part in enumerate(its_parts)
        ]
        counts = iter(job.map("count", self.count, counting, unit="parts"))
        parts = {}
        for path, its_parts in found.items():
            firsts = itertools.accumulate(itertools.islice(counts, len(its_parts)), initial=1)
            numbered = (replace(part, first=first) for part, first in zip(its_parts, firsts, strict=False))
            parts[path] = [(path, part) for part in numbered]
        cut = job.map("cut", self.cut, list(streams.values()), unit="bytes")
        for (path, task), runs in zip(streams.items(), cut, strict=True):
            if len(runs) > 1:
                parts[path] = [(place, FilePart(0, 0, first, head)) for place, first, head in cut_runs(task, runs)]
        return parts


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


_DIGITS = 32
"""Of a hash in `page_keys`."""


def page_keys(document: Document, page: str) -> bytes:
    """What stands before a document's line: the hash of its page, and after it, for a piece, the hash of its identity.

    Args:
        document: the document.
        page: the `url_key` of its URL. A name that came from a file says little, as other folders may have a file of
            that name: there the text counts, too.
    """
    hashed, own = [page], piece_id(page, document.piece)
    if document.url.startswith("file:") and not document.url.startswith("file:/"):
        hashed = [f"{own}#{document.text}"]
    elif document.piece:
        hashed = [page, own]
    return b"".join(xxhash.xxh3_128_hexdigest(key.encode("utf-8", "surrogatepass")).encode() for key in hashed)


class SeenPages:
    """Which documents came before, by their `page_keys`: each page once, whole or each of its pieces."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._count = 0

    def add(self, keys: bytes) -> int | None:
        """Add a document, unless it, or the page that it is a piece of, came before: then the number of that one, which
        is how many were added before it."""
        page, piece = binascii.unhexlify(keys[:_DIGITS]), binascii.unhexlify(keys[_DIGITS:])
        in_pieces = page + b"#"
        for key in (page, piece or in_pieces):
            if (first := self._numbers.get(key)) is not None:
                return first
        for key in (piece, in_pieces) if piece else (page,):
            self._numbers.setdefault(key, self._count)
        self._count += 1
        return None
