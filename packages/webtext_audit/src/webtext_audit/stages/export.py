"""`webtext export`: a finished corpus as a Hugging Face dataset folder, which `datasets.load_dataset` opens.

    data/train-00000-of-00003.parquet ...    README.md, the card    top_domains.csv

Three phases. Each shard is measured: documents, bytes and tokens by domain and language, and the types of its metadata.
From that follow the columns and the number of files; each is written from the documents of its range, wherever shards
end. Then the card is written. Measuring counts GPT-2 tokens, some 5 MB of text a second and core, which without a card
is left out; a killed task loses 15 seconds at most. Memory is a row group, or the table of domains.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, ClassVar

import msgspec

from command_kit import setting
from indexed_tokens import Tokenizer
from webtext_audit.export import dataset_card
from webtext_audit.export.columns import Column, Measures, arrow_schema, choose_columns, listed, row_of, times_in
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_chosen_documents, read_documents
from webtext_prep.documents.folders.stage_record import all_steps, files_by_record, trace_all
from webtext_prep.documents.formats import arrow_tables, compression, parquet
from webtext_prep.errors import InputError
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Stage, Writes
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location

FORMATS = {"parquet": "", "jsonl": "", "jsonl.gz": ".gz", "jsonl.zst": ".zst"}
"""Name of a format to the suffix of its compression."""
FOLDER = "data"
OF_STEP = ("stage", "in", "added", "out", "dropped", "notes", "settings", "facts")
"""What the card says of a step, of its record."""

Write = Callable[[Document], object]


def file_name(number: int, count: int, format_name: str) -> str:
    """The name of one file of `count`, as the hub has it: `train-00000-of-00003.parquet`."""
    return f"train-{number:05}-of-{count:05}.{format_name}"


def is_file_name(name: str) -> bool:
    """Whether `file_name` may have made it."""
    return name.startswith("train-") and "-of-" in name and name.split(".", 1)[-1] in FORMATS


@contextlib.contextmanager
def write_file(place: Location, columns: Sequence[Column], format_name: str) -> Iterator[Write]:
    """Open a file for documents; it appears complete when the block ends well, and not at all when it raises."""
    with storage.create(place) as stream:
        if format_name == "parquet":
            with _parquet(stream, columns) as write:
                yield write
        else:
            with compression.compressed(stream, FORMATS[format_name]) as lines:
                yield lambda document: lines.write(msgspec.json.encode(_row(columns, document)) + b"\n")


def _row(columns: Sequence[Column], document: Document) -> dict[str, Any]:
    return {"url": document.url, "text": document.text, **row_of(columns, document.metadata)}


@contextlib.contextmanager
def _parquet(stream: BinaryIO, columns: Sequence[Column]) -> Iterator[Write]:
    schema, with_times = arrow_schema(columns), times_in(columns)
    plain = [column.name for column in columns if not column.is_list]
    indexed = [name for name in plain if name != "title"]
    with arrow_tables.new_parquet(stream, schema, use_dictionary=indexed, write_statistics=["url", *plain]) as file:
        writer = parquet.RowWriter(file, lambda document: with_times(_row(columns, document)))
        yield writer.write
        writer.flush()


PIECE_BYTES = 16 << 20
"""Files begin and end where so much text of a shard is full (of small files: a quarter of one), or the shard ends."""

Piece = tuple[int, int, int, int]
"""Input (its number), its first document and the one after its last, and bytes of text."""


def _files_of_dataset(output: Location) -> list[Location]:
    """The files with the documents, the card, and the list."""
    files = [path for path in storage.files_in(output / FOLDER) if is_file_name(path.name)]
    return [
        *files,
        *(output / name for name in (dataset_card.README, dataset_card.DOMAINS) if storage.is_file(output / name)),
    ]


@dataclass(frozen=True)
class Export(Stage):
    """Write a finished corpus as a Hugging Face dataset: files with typed columns, a card, a list of domains.

    Reads document shards. Writes data/train-00000-of-000NN.parquet, README.md (the card: sources by domain, licences,
    every filter with its counts, deduplication, languages) and top_domains.csv. With --format jsonl, jsonl.gz or
    jsonl.zst the files are JSON lines. `webtext merge` reads the folder back to the same documents."""

    name: ClassVar[str] = "export"
    order: ClassVar[int] = 95
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "documents -> a Hugging Face dataset with a card, and a list of domains"
    writes: ClassVar[Writes] = Writes("extras", "parquet", folders=(), others=_files_of_dataset)
    libraries = ("tiktoken", "tldextract")

    card: bool = setting(True, "describe the dataset in README.md, and list its largest domains; counts GPT-2 tokens")
    top_domains: str = setting(
        "10%", "domains to list by size: a share of them such as 10%, or a number such as 1000", metavar="SHARE|N"
    )
    license: str = setting(
        dataset_card.UNKNOWN, "the licence to state, as the hub calls it (cc0-1.0, odc-by, other, ...)"
    )
    shard_bytes: int = setting(500_000_000, "bytes of text in each file, about", ge=1)

    def __post_init__(self) -> None:
        listed(self.top_domains, 0)
        if not self.license.strip():
            raise InputError(f"--license is empty: say which, or leave it out ({dataset_card.UNKNOWN}).")

    # Phases

    def measure(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what a shard holds, to a file. Returns its pieces (documents and bytes of each), and its kinds of
        metadata."""
        measures, pieces = Measures(), list[list[int]]()
        encode = Tokenizer.gpt2().encode if self.card else None
        piece_bytes = min(PIECE_BYTES, self.shard_bytes // 4)
        for document in context.counted(read_documents(task.reads.shard)):
            size = len(document.text.encode("utf-8", "replace"))
            measures.add(document, size, len(encode(document.text)) if encode else 0)
            if not pieces or pieces[-1][1] >= piece_bytes:
                pieces.append([0, 0])
            pieces[-1][0] += 1
            pieces[-1][1] += size
        with storage.create(task.writes.measures, durable=False) as file:
            file.write(msgspec.json.encode(measures))
        return {"pieces": pieces, "kinds": measures.kinds, "documents": measures.total[0]}

    def write(self, task: Task, context: Context) -> int:
        """Task: one file, from ranges of the documents of some shards. Returns how many it has."""
        columns = [Column(**column) for column in task.options["columns"]]
        count = 0
        documents = context.counted(_documents_of(task.reads["shards"], task.options["ranges"]))
        with write_file(task.writes.data, columns, task.options["format"]) as write:
            for document in documents:
                write(document)
                count += 1
        return count

    def describe(self, task: Task, context: Context) -> dict[str, int]:
        """Task: the card and the list of domains, or without a card its header alone. Returns what was counted."""
        measures = Measures()
        for place in task.reads["measures"]:
            measures.merge(Measures(**msgspec.json.decode(storage.read_bytes(place))))
        options = task.options
        columns = [Column(**column) for column in options["columns"]]
        about = {name: options[name] for name in ("path", "files", "size", "steps", "plain_files")}
        corpus = dataset_card.ExportedCorpus(
            measures=measures, columns=columns, license=self.license, top=self.top_domains, **about
        )
        texts = (
            [dataset_card.card(corpus), dataset_card.domain_list(corpus)]
            if self.card
            else [dataset_card.header(corpus)]
        )
        # The card last: it is what makes the folder a dataset.
        for place, text in reversed(list(zip(task.writes.all(), texts, strict=True))):
            with storage.create(place) as file:
                file.write(text.encode("utf-8", "replace"))
        context.report(1)
        documents, size, tokens = measures.total
        found = {"bytes": size, "domains": len(measures.domains_by_size)}
        return {"documents": documents, **found, **({"tokens": tokens} if self.card else {})}

    def run(self, job: Job) -> Outcome:
        """Measure, write, describe."""
        if job.format not in FORMATS:
            raise InputError(f"--format {job.format} is no format of datasets: choose one of {', '.join(FORMATS)}.")
        measuring = job.shard_tasks(lambda at: Files(measures=job.scratch / f"measures-{at:05}.json"))
        results = job.map("measure", self.measure, measuring, total=job.documents)
        documents = sum(result["documents"] for result in results)
        if not documents:
            return Outcome(Tally(), [])
        columns = _columns(results, documents)
        writing = self._writing_tasks(job, results, columns)
        written = job.map("write", self.write, writing, total=documents)
        files = [task.writes.data for task in writing]
        records, plain = files_by_record(job.inputs)
        sources = trace_all(path.parent for path in records)
        options = {
            "columns": columns,
            "path": f"{FOLDER}/train-*.{job.format}",
            "files": len(files),
            "size": sum(storage.sizes(files)),
            "steps": [
                {name: step.record[name] for name in OF_STEP if name in step.record} for step in all_steps(*sources)
            ],
            "plain_files": len(plain),
        }
        about = Files(
            card=job.output / dataset_card.README, domains=job.output / dataset_card.DOMAINS if self.card else None
        )
        measured = Files(measures=[task.writes.measures for task in measuring])
        facts = job.map("card", self.describe, [Task("all", measured, about, options)], unit="cards")[0]
        shards = {f"{FOLDER}/{path.name}": count for path, count in zip(files, written, strict=True)}
        del facts["documents"]
        tally = Tally(documents, sum(written))
        for sentence in (sentence for source in sources for sentence in source.changes()):
            tally.problem(sentence)
        if dataset_card.is_guessed(str(options["path"])):
            tally.problem(f"{dataset_card.GUESSED} Give --format parquet where it matters.")
        return Outcome(tally, [*files, *about.all()], shards, {**facts, "files": len(files)})

    def _writing_tasks(
        self, job: Job, results: Sequence[dict[str, Any]], columns: Sequence[dict[str, str]]
    ) -> list[Task]:
        groups = _grouped(_pieces(results), self.shard_bytes)
        tasks = []
        for number, group in enumerate(groups):
            ranges: dict[int, list[int]] = {}
            for shard, begin, end, _ in group:
                ranges.setdefault(shard, [begin, end])[1] = end
            output = job.output / FOLDER / file_name(number, len(groups), job.format)
            options = {"ranges": list(ranges.values()), "columns": columns, "format": job.format}
            tasks.append(
                Task(f"file-{number:05}", Files(shards=[job.inputs[at] for at in ranges]), Files(data=output), options)
            )
        return tasks


def _columns(results: Sequence[dict[str, Any]], documents: int) -> list[dict[str, str]]:
    whole = Measures()
    for result in results:
        whole.merge(Measures(kinds=result["kinds"]))
    return [asdict(column) for column in choose_columns(whole.kinds, documents)]


def _pieces(results: Sequence[dict[str, Any]]) -> Iterator[Piece]:
    """The pieces of all shards in order."""
    for number, result in enumerate(results):
        begin = 0
        for count, size in result["pieces"]:
            yield number, begin, begin + count, size
            begin += count


def _grouped(pieces: Iterator[Piece], size: int) -> list[list[Piece]]:
    """Pieces one after another, as many to a group as give each but the last about `size` bytes, and one at least."""
    groups: list[list[Piece]] = []
    held = 0
    for piece in pieces:
        # Whichever end is nearer.
        if not groups or held + piece[3] / 2 > size:
            groups.append([])
            held = 0
        groups[-1].append(piece)
        held += piece[3]
    return groups


def _documents_of(shards: Sequence[Location], ranges: Sequence[Sequence[int]]) -> Iterator[Document]:
    """The documents of each shard from one number up to another. Earlier ones are not decoded, later ones not read."""
    for shard, (begin, end) in zip(shards, ranges, strict=True):
        wanted = range(begin, end)
        chosen = read_chosen_documents(shard, wanted.__contains__)
        yield from (document for _, document in itertools.islice(chosen, len(wanted)))
