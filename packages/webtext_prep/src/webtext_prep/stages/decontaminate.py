"""`webtext decontaminate`: cut passages of evaluation sets out of documents, so that a model is not tested on them.

The rules are the GPT-3 paper's, with the numbers that Megatron-LM's scripts use (`text/contamination.py`). Four
phases: the n-grams of the evaluation texts are put into a table; each shard's documents are looked through and their
n-grams counted (all cores); n-grams that the corpus has often are common phrases, and are left alone; each shard is
written without the others (all cores). A document without a hit passes unchanged, at the cost of looking up its words.
"""

from __future__ import annotations

import array
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from command_kit import setting
from webtext_prep import storage
from webtext_prep.documents.document import Document, batches, encode_json
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.shards import FREQUENT_NGRAMS, MATCHES, read_documents
from webtext_prep.documents.formats.compression import write_zstd
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Stage, Writes, shards_outcome, write_shard
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.text.contamination import NGrams, cut, read_evaluation
from webtext_prep.text.words import places_of


@functools.lru_cache(maxsize=1)
def _table(place: Location, stamp: tuple[Any, ...]) -> NGrams:
    return NGrams.load(place)


def _ngrams(place: Location) -> NGrams:
    """The table, read once in each process."""
    return _table(place, tuple(storage.stamp(place)))


@dataclass(frozen=True)
class Decontaminate(Stage):
    """Cut passages of evaluation texts out of documents, by their n-grams.

    Where a document holds an n-gram of an evaluation text, that and --margin characters on both sides are removed, up
    to the ends of sentences; each piece that is left becomes a document, with its number in the metadata `piece`.
    n-grams that the corpus has --frequent times or more are common phrases and are left alone. Reads and writes
    document shards, and writes two tables: matches.jsonl.zst (what was cut out of which document, and the evaluation
    text it is from) and frequent_ngrams.jsonl.zst. Drops: contaminated (no piece is left), too_many_pieces."""

    name: ClassVar[str] = "decontaminate"
    version: ClassVar[int] = 6
    order: ClassVar[int] = 70
    summary: ClassVar[str] = "documents -> documents without passages of evaluation texts"
    writes: ClassVar[Writes] = Writes(tables=(MATCHES, FREQUENT_NGRAMS))
    preload: ClassVar[tuple[str, ...]] = (
        "webtext_prep.text.fingerprint_kernels",
        "webtext_prep.text.contamination_kernels",
    )

    evaluation: tuple[str, ...] = setting(
        (), "evaluation texts: text, JSON, table or Parquet files; of a record every text counts", metavar="FILE"
    )
    evaluation_key: tuple[str, ...] = setting((), "of a record, only the texts under these keys", metavar="KEY")
    ngram: int = setting(13, "words that must agree; 13 are 21 Chinese characters, or 39 Thai letters", ge=1, le=100)
    least_words: int = setting(8, "evaluation texts of fewer than --ngram words count whole from this many on", ge=1)
    frequent: int = setting(10, "leave alone an n-gram that the corpus has this many times or more", ge=1)
    margin: int = setting(200, "characters to remove on both sides of a match", ge=0)
    shortest_piece: int = setting(200, "drop pieces of this many characters or fewer", ge=0)
    most_pieces: int = setting(10, "drop documents that fall into more pieces", ge=1)

    def __post_init__(self) -> None:
        if not self.evaluation:
            raise InputError("webtext decontaminate needs --evaluation FILE...: say which texts to look for.")
        if self.least_words > self.ngram:
            raise InputError(f"--least-words {self.least_words} is more than --ngram {self.ngram}: give fewer.")
        for path in self.setting_files():
            if not path.is_file():
                raise InputError(f"--evaluation {path} is not a file: give files of evaluation texts.")

    def setting_files(self) -> list[Path]:
        """The files of `--evaluation`, whose content decides what is dropped."""
        return [Path(name) for name in self.evaluation]

    def read_evaluation(self, task: Task, context: Context) -> dict[str, int]:
        """Task: the evaluation files to the table of their n-grams."""
        texts = read_evaluation(self.setting_files(), self.evaluation_key)
        ngrams = NGrams.of(context.counted(texts), self.ngram, self.least_words)
        if not len(ngrams):
            raise InputError(
                f"--evaluation {', '.join(self.evaluation)} holds no text of {self.least_words} words "
                f"({ngrams.left_out[0]:,} shorter ones): check the files, and --evaluation-key."
            )
        ngrams.save(task.writes.ngrams)
        short, records = ngrams.left_out
        return {"texts": len(ngrams.places), "ngrams": len(ngrams), "short_texts": short, "short_records": records}

    def count_shard(self, task: Task, context: Context) -> int:
        """Task: which documents of a shard hold n-grams, and how often each n-gram is there."""
        ngrams = _ngrams(task.reads.ngrams)
        count, held, numbers = 0, array.array("q"), array.array("q")
        for documents in batches(read_documents(task.reads.shard)):
            texts = [document.text for document in documents]
            for number, is_suspect in enumerate(ngrams.suspects(texts), count):
                if is_suspect and (hits := ngrams.hits(texts[number - count])):
                    held.append(number)
                    numbers.extend(ngram for _, ngram in hits)
            count += len(documents)
            context.report(count)
        save_array(task.writes.held, np.array(held, np.int64))
        save_array(task.writes.counts, np.array(np.unique(np.array(numbers, np.int64), return_counts=True)))
        return count

    def count_all(self, task: Task, context: Context) -> int:
        """Task: which n-grams are rare enough to count, and the table of the others. Returns their number."""
        ngrams = _ngrams(task.reads.ngrams)
        total = np.zeros(len(ngrams), np.int64)
        for number, path in enumerate(task.reads["counts"], 1):
            found, times = load_array(path)
            total[found] += times
            context.report(number)
        save_array(task.writes.chosen, total < self.frequent)
        often = np.flatnonzero(total >= self.frequent)
        with write_zstd(task.writes.frequent) as stream:
            for number in often[np.argsort(-total[often], kind="stable")].tolist():
                row = {"ngram": ngrams.text_of(number), "count": int(total[number])}
                stream.write(_row(row, ngrams, number))
        return len(often)

    def cut_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard without the passages that hold n-grams; `matches` takes a row for each passage."""
        ngrams, chosen = _ngrams(task.reads.ngrams), load_array(task.reads.chosen)
        affected = set(load_array(task.reads.held).tolist())

        def pieces(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for document in documents:
                found = ngrams.hits(document.text, chosen) if tally.read - 1 in affected else []
                yield from self._cut(document, found, ngrams, tally, rows) if found else (document,)

        with write_zstd(task.writes.matches, durable=False) as rows:
            return write_shard(task, context, read_documents(task.reads.shard), pieces)

    def _cut(
        self, document: Document, found: list[tuple[int, int]], ngrams: NGrams, tally: Tally, rows: BinaryIO
    ) -> Iterator[Document]:
        """The pieces of a document without some n-grams in it, as `NGrams.hits` has them; a row for each passage."""
        places, sizes = places_of(document.text), ngrams.sizes
        hits = [(places[word][0], places[word + int(sizes[number]) - 1][1]) for word, number in found]
        pieces, used = cut(document.text, hits, self.margin, self.shortest_piece)
        for at in used:
            start, end = hits[at]
            ngram = found[at][1]
            row = {"url": document.id, "start": start, "match": document.text[start:end]}
            rows.write(_row({**row, "ngram": ngrams.text_of(ngram)}, ngrams, ngram))
        if not pieces:
            tally.drop(document, "contaminated", matches=len(used))
        elif len(pieces) > self.most_pieces:
            tally.drop(document, "too_many_pieces", pieces=len(pieces), most_pieces=self.most_pieces)
        else:
            tally.notes["cut"] += 1
            tally.added += len(pieces) - 1
            yield from document.cut(pieces)

    def run(self, job: Job) -> Outcome:
        """Read the evaluation texts, count their n-grams, and cut out the rare ones."""
        total, folder = job.documents, job.scratch
        table = folder / "ngrams.npz"
        reading = Task("all", Files(evaluation=self.setting_files()), Files(ngrams=table))
        (sizes,) = job.map("evaluation", self.read_evaluation, [reading], unit="texts")
        counting = job.shard_tasks(
            lambda at: Files(held=folder / f"held-{at}.npy", counts=folder / f"counts-{at}.npy"), ngrams=table
        )
        counts = job.map("count", self.count_shard, counting, total=total)
        chosen = Files(chosen=folder / "chosen.npy", frequent=job.output / FREQUENT_NGRAMS)
        weighing = Task("all", Files(ngrams=table, counts=[task.writes.counts for task in counting]), chosen)
        (frequent,) = job.map("frequencies", self.count_all, [weighing], unit="shards", total=len(counting))
        cutting = [
            Task(
                task.name,
                Files(ngrams=table, chosen=chosen.chosen, held=task.writes.held, shard=path),
                Files(**job.shard_files(number), matches=folder / f"matches-{number}.zst"),
            )
            for number, (task, path) in enumerate(zip(counting, job.inputs, strict=True))
        ]
        results = job.map("shards", self.cut_shard, cutting, total=sum(counts))
        outcome = shards_outcome(cutting, results, but="matches")
        matches = job.output / MATCHES
        found = _join([task.writes.matches for task in cutting], matches)
        outcome.outputs += [matches, chosen.frequent]
        outcome.facts |= {
            "evaluation_texts": sizes["texts"],
            "evaluation_texts_too_short": sizes["short_texts"],
            "evaluation_records_left_out": sizes["short_records"],
            "ngrams": sizes["ngrams"],
            "frequent_ngrams": frequent,
            "matches": found,
            "pieces": sum(outcome.shards.values()),
        }
        return outcome


def _row(values: dict[str, Any], ngrams: NGrams, number: int) -> bytes:
    """A line of a table: what was found, and the evaluation text in which it first stands."""
    text = int(ngrams.texts[number])
    row = {**values, "evaluation": ngrams.places[text], "evaluation_text": ngrams.beginnings[text]}
    return encode_json(row) + b"\n"


def _join(parts: Iterable[Location], place: Location) -> int:
    """Write the lines of all parts, in order, to one file, and return how many there are."""
    count = 0
    with write_zstd(place) as stream:
        for line in itertools.chain.from_iterable(map(read_lines, parts)):
            stream.write(line + b"\n")
            count += 1
    return count
