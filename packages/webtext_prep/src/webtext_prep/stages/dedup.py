"""`webtext dedup`: of documents that say nearly the same, keep one, and record whose representative it is.

Three phases: each shard's shingles are hashed (all cores); bands of the MinHash signatures propose pairs, whose exact
Jaccard similarity decides (one process, the shingle hashes memory-mapped); each shard drops what was decided (all
cores). Documents are visited from the longest to the shortest, equal lengths by URL: a document is dropped if
one that is already kept is at least `--similarity` similar to it. So each group keeps its longest document, and a
chain of similar documents cannot merge unrelated ones. The order of the input does not matter.
Deciding takes 8 bytes per band and document (some 200 MB per million documents) in the one process that does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import setting
from webtext_prep.documents import storage
from webtext_prep.documents.compression import write_zstd
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.shards import read_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError
from webtext_prep.near_duplicates import fingerprints
from webtext_prep.running.stage import REPORT_EVERY, Outcome, Run, Stage, shards_outcome, write_shard
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

TABLE = "duplicates.jsonl.zst"
"""The table of what each dropped document duplicates, in the output folder."""


def _save(place: Location, array: npt.NDArray[Any]) -> None:
    with storage.create(place, durable=False) as file:
        np.save(file, array, allow_pickle=False)


def _load(place: Location) -> npt.NDArray[Any]:
    return np.load(storage.local_path(place), mmap_mode="r", allow_pickle=False)


class _Shard:
    """The hashed shingles of one shard, memory-mapped: `sets(i)` are those of its document i."""

    PARTS = ("signatures", "hashes", "ends", "lengths")

    def __init__(self, paths: dict[str, Location]) -> None:
        self.signatures = _load(paths["signatures"])
        # Small, and read as a whole: a mapping would hold a file open for each of thousands of shards.
        self.ends = np.load(storage.local_path(paths["ends"]), allow_pickle=False)
        self.lengths = np.load(storage.local_path(paths["lengths"]), allow_pickle=False)
        self._hashes = _load(paths["hashes"])

    def __len__(self) -> int:
        return len(self.lengths)

    def set_of(self, document: int) -> npt.NDArray[np.uint64]:
        """Sorted shingle hashes of one document."""
        return self._hashes[self.ends[document - 1] if document else 0 : self.ends[document]]


@dataclass(frozen=True)
class _Corpus:
    """All shards as one: document numbers run through them in order."""

    shards: list[_Shard]
    firsts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, shards: list[_Shard]) -> _Corpus:
        return cls(shards, np.cumsum([0, *(len(shard) for shard in shards)]))

    def set_of(self, document: int) -> npt.NDArray[np.uint64]:
        shard = int(np.searchsorted(self.firsts, document, side="right")) - 1
        return self.shards[shard].set_of(document - int(self.firsts[shard]))


def shared_bands(corpus: _Corpus, bands: int, rows: int) -> list[npt.NDArray[np.int64]]:
    """For each band, the bucket of each document in it, shape (documents,); -1 for a document alone in its bucket."""
    found = []
    for band in range(bands):
        slices = [shard.signatures[:, band * rows : (band + 1) * rows] for shard in corpus.shards]
        keys = np.ascontiguousarray(np.concatenate(slices)).view(np.dtype((np.void, rows * 4))).ravel()
        _, buckets, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        found.append(np.where(sizes[buckets] > 1, buckets, -1))
    return found


@dataclass(frozen=True)
class Dedup(Stage):
    """Drop documents that nearly repeat another, by MinHash verified by exact Jaccard similarity of their shingles.

    Reads and writes document shards, and writes duplicates.jsonl.zst: url, duplicate_of and similarity of each dropped
    document. Of each group the longest document stays. Drops: duplicate."""

    name: ClassVar[str] = "dedup"
    order: ClassVar[int] = 60
    summary: ClassVar[str] = "documents -> documents without near-duplicates, and the table of those"

    similarity: float = setting(0.8, "drop a document this similar to one that is kept, from 0 to 1")
    shingle: str = setting("word:5", "what similarity counts: word:N or char:N for n-grams", metavar="KIND:N")

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InputError(f"--similarity must be above 0 and at most 1, but is {self.similarity}.")
        fingerprints.parse_shingle(self.shingle)

    def outputs_in(self, output: Location) -> list[Location]:
        """Shards, and the table of duplicates."""
        table = output / TABLE
        return [*super().outputs_in(output), *([table] if storage.is_file(table) else [])]

    def fingerprint_shard(self, task: Task, context: Context) -> int:
        """Task: the shingle hashes and signatures of one shard. Returns the number of documents."""
        kind, size = fingerprints.parse_shingle(self.shingle)
        signatures, sets, lengths = [], [], []
        for count, document in enumerate(read_documents(task.inputs[0]), 1):
            found = fingerprints.shingles(document.text, kind, size)
            signatures.append(fingerprints.signature(found))
            sets.append(fingerprints.shingle_hashes(found))
            lengths.append(len(document.text))
            if count % REPORT_EVERY == 0:
                context.report(count)
        context.report(len(lengths))
        paths = dict(zip(_Shard.PARTS, task.outputs, strict=True))
        empty = np.zeros((0, fingerprints.PERMUTATIONS), np.uint32)
        _save(paths["signatures"], np.stack(signatures) if signatures else empty)
        _save(paths["hashes"], np.concatenate(sets) if sets else np.zeros(0, np.uint64))
        _save(paths["ends"], np.cumsum([len(entry) for entry in sets], dtype=np.int64))
        _save(paths["lengths"], np.array(lengths, dtype=np.int64))
        return len(lengths)

    def decide(self, task: Task, context: Context) -> int:
        """Task: which documents of the whole corpus go, and which one represents each. Returns how many.

        Writes one array of shape (dropped, 2), document and representative, and one of their similarities.
        """
        shards = task.options["shards"]
        prints, inputs = task.inputs[:-shards], task.inputs[-shards:]
        step = len(_Shard.PARTS)
        corpus = _Corpus.of(
            [_Shard(dict(zip(_Shard.PARTS, prints[at : at + step], strict=True))) for at in range(0, len(prints), step)]
        )
        pairs, similarities = self._duplicates(corpus, inputs, context)
        _save(task.outputs[0], np.array(pairs, dtype=np.int64).reshape(-1, 2))
        _save(task.outputs[1], np.array(similarities, dtype=np.float64))
        return len(pairs)

    def _duplicates(
        self, corpus: _Corpus, inputs: Sequence[Location], context: Context
    ) -> tuple[list[tuple[int, int]], list[float]]:
        """Pairs of a document to drop and its representative, with their similarities."""
        buckets = shared_bands(corpus, *fingerprints.bands_for(self.similarity))
        suspects = np.flatnonzero(np.any([column >= 0 for column in buckets], axis=0))
        lengths = np.concatenate([shard.lengths for shard in corpus.shards])
        urls = _urls(suspects, corpus.firsts, inputs)
        ranked = sorted(suspects.tolist(), key=lambda document: (-lengths[document], urls[document], document))
        kept_in: list[dict[int, list[int]]] = [{} for _ in buckets]  # bucket to the ranks of its kept documents
        pairs, similarities = [], []
        for rank, document in enumerate(ranked):
            own = [
                kept.setdefault(int(column[document]), [])
                for kept, column in zip(kept_in, buckets, strict=True)
                if column[document] >= 0
            ]
            candidates = [ranked[other] for other in sorted(set().union(*own))]
            representative, similarity = self._closest(document, candidates, corpus)
            if representative is None:
                for kept in own:
                    kept.append(rank)
            else:
                pairs.append((document, representative))
                similarities.append(similarity)
            context.report(rank + 1)
        return pairs, similarities

    def _closest(self, document: int, candidates: Sequence[int], corpus: _Corpus) -> tuple[int | None, float]:
        """The most similar of `candidates`, the first of equals, if similar enough."""
        best, most = None, 0.0
        own = corpus.set_of(document)
        for other in candidates:
            theirs = corpus.set_of(other)
            smaller, larger = sorted((len(own), len(theirs)))
            if smaller < max(self.similarity, most) * larger:
                continue  # the smaller set over the larger bounds the similarity from above
            similarity = fingerprints.jaccard(own, theirs)
            if similarity >= self.similarity and similarity > most:
                best, most = other, similarity
        return best, most

    def drop_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard without its duplicates."""
        dropped = set(task.options["dropped"])

        def keep(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for number, document in enumerate(documents):
                if number in dropped:
                    tally.drop(document, "duplicate")
                else:
                    yield document

        return write_shard(task, context, read_documents(task.inputs[0]), keep)

    def run(self, job: Run) -> Outcome:
        """Fingerprint, decide, drop."""
        folder, total = job.scratch / "fingerprints", job.expected_documents()
        tasks = [
            Task(
                f"part-{number:05}",
                (path,),
                tuple(folder / f"part-{number:05}.{part}.npy" for part in _Shard.PARTS),
            )
            for number, path in enumerate(job.inputs)
        ]
        counts = job.map("fingerprints", self.fingerprint_shard, tasks, total=total)
        decision = Task(
            "all",
            (*(path for task in tasks for path in task.outputs), *job.inputs),
            (job.scratch / "pairs.npy", job.scratch / "similarities.npy"),
            {"shards": len(tasks)},
        )
        job.map("pairs", self.decide, [decision], unit="suspects")
        pairs, similarities = _load(decision.outputs[0]), _load(decision.outputs[1])
        firsts = np.cumsum([0, *counts])
        dropping = [
            Task(
                f"part-{number:05}",
                (path,),
                job.shard_outputs(number),
                {"dropped": sorted((pairs[_within(pairs, firsts, number), 0] - firsts[number]).tolist())},
            )
            for number, path in enumerate(job.inputs)
        ]
        results = job.map("shards", self.drop_shard, dropping, total=sum(counts))
        outcome = shards_outcome(dropping, results)
        table = job.output / TABLE
        _write_table(table, pairs, similarities, firsts, job.inputs)
        outcome.outputs.append(table)
        outcome.facts["groups"] = len(np.unique(pairs[:, 1]))
        return outcome


def _within(pairs: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64], shard: int) -> npt.NDArray[np.bool_]:
    return (pairs[:, 0] >= firsts[shard]) & (pairs[:, 0] < firsts[shard + 1])


def _urls(wanted: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64], shards: Sequence[Location]) -> dict[int, str]:
    """The URLs of the documents `wanted`, in rising order, of the whole corpus."""
    found = {}
    bounds = np.searchsorted(wanted, firsts)
    for shard, path in enumerate(shards):
        chosen = set(wanted[bounds[shard] : bounds[shard + 1]].tolist())
        if chosen:
            for number, document in enumerate(read_documents(path), int(firsts[shard])):
                if number in chosen:
                    found[number] = document.url
    return found


def _write_table(
    path: Location,
    pairs: npt.NDArray[np.int64],
    similarities: npt.NDArray[np.float64],
    firsts: npt.NDArray[np.int64],
    shards: list[Location],
) -> None:
    """One row a dropped document, in the order of the input."""
    urls = _urls(np.unique(pairs), firsts, shards)
    with write_zstd(path) as stream:
        for row in np.argsort(pairs[:, 0], kind="stable"):
            document, representative = pairs[row].tolist()
            metadata = {"duplicate_of": urls[representative], "similarity": round(float(similarities[row]), 6)}
            stream.write(encode_document(Document(urls[document], "", metadata)) + b"\n")
