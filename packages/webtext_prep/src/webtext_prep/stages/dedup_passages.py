"""`webtext dedup-passages`: cut passages that stand earlier in the corpus, word for word, out of documents.

A window of `--words` words is repeated if the same words begin anywhere earlier: in an earlier document, in the order
of the input, or further up in the same one. All text that repeated windows cover is cut out. The phases, on all cores:

    anchors   each shard's windows to anchors, some 8 for 100 words, divided by ranges of their hashes
    repeated  each range: which of them the corpus has more than once
    windows   each shard's windows that have such an anchor, divided by ranges of that
    firsts    each range: which windows begin earlier, and where first
    shards    each shard without what they cover, and a row for each passage

With `--hold-out` pages that are held out come before all others. Decisions follow from the input alone: an
earlier place counts, even if text is cut there. `dedup/passages.py` says why no window is missed. Memory follows from
the size of a range and of a shard, not of the corpus.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import setting
from webtext_prep import storage
from webtext_prep.dedup.candidates import runs_of
from webtext_prep.dedup.passages import (
    REPEAT,
    WINDOW,
    Anchored,
    Firsts,
    Hashes,
    Records,
    add_by_range,
    batches_of,
    grams_of,
    is_in,
    longest_runs,
    range_of,
    read_range,
    repeated,
    windows_of,
)
from webtext_prep.documents.batches import CHARACTERS, MOST, batches, in_batches
from webtext_prep.documents.document import Document, encode_json
from webtext_prep.documents.folders.partitions import load_array, read_partition, save_array, write_partitions
from webtext_prep.documents.folders.sampling import characters_in
from webtext_prep.documents.folders.shards import REPEATS, read_chosen_documents, read_documents
from webtext_prep.documents.formats.compression import join_zstd, write_zstd
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Stage, Writes, shards_outcome, write_shard
from webtext_prep.running.tasks import Context, Files, Tally, Task, digest
from webtext_prep.storage.locations import Location
from webtext_prep.text.contamination import LINE_END, cut, joined
from webtext_prep.text.words import edges_of
from webtext_prep.urls.urls import is_held_out

RANGE_CHARACTERS = 384 << 20
"""Characters of text whose anchors a task compares, about."""
RANGE_WINDOWS = 1 << 21
"""Windows that a task compares, about, and values of a batch."""
MOST_RANGES = 1 << 16
BLOCK = 8192
"""Documents whose repeats are read at once."""
SHOWN = 200
"""Characters of a passage in its row."""
OPEN = 16
"""Shards whose identities are open at a time."""


@dataclass(frozen=True)
class DedupPassages(Stage):
    """Cut passages that stand earlier in the corpus, word for word, out of documents.

    A passage is --words words in a row or more, case and punctuation aside, which begin earlier in the order of the
    input, be it in the same document. It is removed with the rest of its first and its last sentence, or line; each
    piece that is left becomes a document, with its number in the metadata `piece`. Reads and writes document shards,
    and writes passages.jsonl.zst: what was cut out of which document, and where it stands first. Drops: repeated (no
    piece is left)."""

    name: ClassVar[str] = "dedup-passages"
    version: ClassVar[int] = 4
    order: ClassVar[int] = 65
    summary: ClassVar[str] = "documents -> documents without passages that stand in an earlier one"
    writes: ClassVar[Writes] = Writes(tables=(REPEATS,))
    preload: ClassVar[tuple[str, ...]] = ("webtext_prep.text.fingerprint_kernels",)

    words: int = setting(50, "cut passages of this many words or more that stand earlier in the corpus", ge=10, le=1000)
    shortest_piece: int = setting(200, "drop pieces of this many characters or fewer", ge=0)
    hold_out: float = setting(
        0.0,
        "pages that `tokenize --hold-out` with this share keeps out of training count as earlier than all others",
        ge=0,
        lt=1,
    )

    # Tasks

    def find_anchors(self, task: Task, context: Context) -> list[int]:
        """Task: the anchors of one shard, by range; how many each document has, and the range of each. Returns how many
        documents and anchors there are."""
        counts, within = list[int](), [np.zeros(0, np.uint16)]
        with write_partitions(task.writes.anchors, task.options["ranges"]) as writer:
            for documents in batches(context.counted(read_documents(task.reads.shard))):
                grams = grams_of([document.text for document in documents], self.words)
                found = [Anchored(own, self.words).anchors for own in grams]
                counts += map(len, found)
                hashes = np.concatenate(found)
                within.append(range_of(hashes, task.options["ranges"]))
                add_by_range(writer, hashes, within[-1])
        save_array(task.writes.counts, np.array(counts, np.uint32))
        save_array(task.writes.ranges, np.concatenate(within))
        return [len(counts), sum(counts)]

    def find_repeated(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: of the anchors of one range whether each is repeated, a bucket for each shard."""
        number, kind, count, anchors = task.options["range"], np.uint64, 0, task.unkeyed["anchors"]
        batches = batches_of(anchors, number, kind, RANGE_WINDOWS)
        twice = repeated(np.concatenate([hashes for _, hashes in batch]) for batch in batches)
        with write_partitions(task.writes.repeated, len(anchors)) as writer:
            for shard, place in enumerate(anchors):
                is_repeated = is_in(read_range(place, number, kind), twice)
                writer.add_bytes(shard, np.packbits(is_repeated).tobytes())
                count += int(is_repeated.sum())
                context.report(count)
        return {"digest": writer.digest, "repeated": count}

    def find_windows(self, task: Task, context: Context) -> int:
        """Task: the windows of one shard whose anchors are repeated, by range, in one file of pages that are held out,
        and one of others; and the identities of the documents that have any, with where that of each document ends.
        Returns how many windows there are."""
        shard, ranges = task.options["shard"], task.options["ranges"]
        counts, within, repeated = (
            load_array(task.reads.counts),
            load_array(task.reads.ranges),
            task.unkeyed["repeated"],
        )
        sizes = np.bincount(within, minlength=len(repeated))
        bits = [
            np.unpackbits(np.frombuffer(read_partition(place, shard), np.uint8), count=size)
            for place, size in zip(repeated, sizes.tolist(), strict=True)
        ]
        is_repeated = np.empty(len(within), np.bool_)
        is_repeated[np.argsort(within, kind="stable")] = np.concatenate(bits)
        ends = np.append(0, np.cumsum(counts, dtype=np.int64))
        is_chosen = np.diff(np.append(0, np.cumsum(is_repeated))[ends]) > 0
        names, total = np.zeros(len(counts) + 1, np.int64), 0
        with (
            write_partitions(task.writes.windows, ranges) as others,
            write_partitions(task.writes.held_out, ranges) as held_out,
            storage.create(task.writes.names, durable=False) as identities,
        ):
            chosen = read_chosen_documents(task.reads.shard, is_chosen.tobytes().__getitem__)
            for batch in in_batches(chosen, MOST, CHARACTERS, lambda entry: len(entry[1].text)):
                texts = [document.text for _, document in batch]
                grams, hashes = grams_of(texts, self.words), windows_of(texts, self.words)
                of_writer = {held_out: list[tuple[Records, Hashes]](), others: list[tuple[Records, Hashes]]()}
                for (number, document), of_grams, of_windows in zip(batch, grams, hashes, strict=True):
                    own = is_repeated[ends[number] : ends[number + 1]]
                    found = Anchored(of_grams, self.words).windows(document.text, of_windows, own, number)
                    of_writer[held_out if is_held_out(document.url, self.hold_out) else others].append(found)
                    identity = document.id.encode("utf-8", "surrogatepass")
                    identities.write(identity)
                    names[number + 1] = len(identity)
                for writer, all_found in of_writer.items():
                    if all_found:
                        windows, anchors = map(np.concatenate, zip(*all_found, strict=True))
                        add_by_range(writer, windows, range_of(anchors, ranges))
                        total += len(windows)
                context.report(batch[-1][0] + 1)
        with storage.create(task.writes.ends, durable=False) as file:
            file.write(np.cumsum(names).tobytes())
        return total

    def find_firsts(self, task: Task, context: Context) -> str:
        """Task: the windows of one range that begin earlier, a bucket for each block of documents of held-out pages,
        and then of others. Returns a digest."""
        number, blocks = task.options["range"], task.options["blocks"]
        firsts, done = Firsts(), 0
        with write_partitions(task.writes.firsts, 2 * blocks[-1]) as writer:
            for batch in batches_of(task.unkeyed["windows"], number, WINDOW, RANGE_WINDOWS):
                files = np.repeat([at for at, _ in batch], [len(found) for _, found in batch])
                is_other, shards = np.divmod(files.astype(np.uint32), np.uint32(task.options["shards"]))
                windows = np.concatenate([found for _, found in batch])
                chosen, repeats = firsts.add(windows, shards)
                of_block = np.array(blocks)[shards[chosen]] + repeats["document"] // BLOCK
                of_block += is_other[chosen].astype(np.int64) * blocks[-1]
                for block, rows in runs_of(of_block):
                    writer.add_bytes(block, longest_runs(repeats[rows]).tobytes())
                done += len(windows)
                context.report(done)
        return writer.digest

    def cut_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard without what repeated windows cover; `rows` takes a row for each passage."""
        blocks, firsts = task.options["blocks"], task.unkeyed["firsts"]
        first = blocks[task.options["shard"]]
        identity = _identities(task.unkeyed["ends"], task.unkeyed["names"])

        def pieces(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            held: dict[int, Records] = {}
            for document in documents:
                number = tally.read - 1
                if number % BLOCK == 0:
                    held = _repeats(firsts, first + number // BLOCK, blocks[-1])
                if number not in held:
                    yield document
                    continue
                found = list(self._passages(document, held[number], identity))
                rows.write(b"".join(encode_json(row) + b"\n" for row in found))
                if self.hold_out and not is_held_out(document.url, self.hold_out):
                    of_held_out = (is_held_out(row["duplicate_of"], self.hold_out) for row in found)
                    tally.notes["copies_of_held_out"] += sum(of_held_out)
                yield from self._pieces(document, [(row["start"], row["end"]) for row in found], tally)

        with write_zstd(task.writes.rows, durable=False) as rows:
            return write_shard(task, context, read_documents(task.reads.shard), pieces)

    def _passages(
        self, document: Document, repeats: Records, identity: Callable[[int, int], str]
    ) -> Iterator[dict[str, Any]]:
        """A row for each passage of a document, given the runs of its repeated windows."""
        starts, ends = edges_of(document.text)
        for _, word, count, shard, first, place in repeats.tolist():
            start, end = int(starts[word]), int(ends[word + count + self.words - 2])
            yield {
                "url": document.id,
                "start": start,
                "end": end,
                "match": document.text[start : min(end, start + SHOWN)],
                "duplicate_of": identity(shard, first),
                "duplicate_of_start": place,
            }

    def _pieces(self, document: Document, passages: list[tuple[int, int]], tally: Tally) -> Iterator[Document]:
        """The pieces of a document without its passages."""
        hits = joined(document.text, passages, LINE_END)
        pieces = [piece for piece in cut(document.text, hits, 0, self.shortest_piece, LINE_END).pieces if piece]
        tally.notes["passages"] += len(passages)
        if not pieces:
            tally.drop(document, "repeated", passages=len(passages))
            return
        tally.notes["cut"] += 1
        tally.added += len(pieces) - 1
        yield from document.cut(pieces)

    # Phases

    def run(self, job: Job) -> Outcome:
        """Find the anchors that are repeated and the windows that begin earlier, and cut."""
        size, total = characters_in(job.inputs), job.documents

        def files(kind: str, count: int = len(job.inputs)) -> list[Location]:
            return [job.scratch / kind / f"part-{number:05}" for number in range(count)]

        def of_shards(
            *kinds: str, also: Sequence[str] = (), unkeyed: Files | None = None, **options: Any
        ) -> list[Task]:
            places = {kind: files(kind) for kind in (*also, *kinds)}
            return [
                Task(
                    f"part-{shard:05}",
                    Files(shard=path, **{kind: places[kind][shard] for kind in also}),
                    Files(**{kind: places[kind][shard] for kind in kinds}),
                    {**options, "shard": shard},
                    unkeyed=unkeyed or Files(),
                )
                for shard, path in enumerate(job.inputs)
            ]

        def of_ranges(kind: str, count: int, unkeyed: Files, **options: Any) -> list[Task]:
            return [
                Task(place.name, Files(), Files(**{kind: place}), {**options, "range": number}, unkeyed=unkeyed)
                for number, place in enumerate(files(kind, count))
            ]

        ranges = min(1 + size // RANGE_CHARACTERS, MOST_RANGES)
        finding = of_shards("anchors", "counts", "ranges", ranges=ranges)
        found = job.map("anchors", self.find_anchors, finding, total=total)
        documents, count = (sum(column) for column in zip(*found, strict=True))

        anchors = Files(anchors=files("anchors"))
        comparing = of_ranges("repeated", ranges, anchors, made=digest(storage.stamps(anchors.all())))
        compared = job.map("repeated", self.find_repeated, comparing, unit="anchors", total=count)

        made = digest([result["digest"] for result in compared])
        # An anchor is that of half of the windows that hold it, about.
        expected = sum(result["repeated"] for result in compared) * (self.words // 4)
        options = {"ranges": min(1 + expected // RANGE_WINDOWS, MOST_RANGES), "shards": len(job.inputs)}
        repeated = Files(repeated=files("repeated", ranges))
        marking = of_shards(
            "windows", "held_out", "ends", "names", also=("counts", "ranges"), unkeyed=repeated, made=made, **options
        )
        count = sum(job.map("windows", self.find_windows, marking, total=documents))

        windows = Files(windows=files("held_out") + files("windows"))
        made = digest(storage.stamps(windows.all()))
        options["blocks"] = [0, *itertools.accumulate(-(-of_shard // BLOCK) for of_shard, _ in found)]
        tracing = of_ranges("firsts", options["ranges"], windows, made=made, **options)
        made = digest(job.map("firsts", self.find_firsts, tracing, unit="windows", total=count))

        firsts = Files(firsts=files("firsts", options["ranges"]), ends=files("ends"), names=files("names"))
        cutting = [
            dataclasses.replace(task, writes=Files(**job.shard_files(shard), **task.writes))
            for shard, task in enumerate(of_shards("rows", unkeyed=firsts, made=made, **options))
        ]
        results = job.map("shards", self.cut_shard, cutting, total=documents)
        outcome = shards_outcome(cutting, results, but="rows")
        outcome.outputs.append(join_zstd([task.writes.rows for task in cutting], job.output / REPEATS))
        return outcome


def _identities(ends: Sequence[Location], names: Sequence[Location]) -> Callable[[int, int], str]:
    """What gives the `Document.id` of a document by the number of its shard and its own, from the files of
    `find_windows`: for each shard where the identity of each of its documents ends, and all of them."""

    @functools.lru_cache(maxsize=OPEN)
    def opened(shard: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        places = map(storage.local_path, (ends[shard], names[shard]))
        limits, joined_names = np.memmap(next(places), np.int64, "r"), np.memmap(next(places), np.uint8, "r")
        return np.asarray(limits), np.asarray(joined_names)  # slices of a memmap take several times as long

    def identity(shard: int, document: int) -> str:
        limits, joined_names = opened(shard)
        own = joined_names[int(limits[document]) : int(limits[document + 1])]
        return own.tobytes().decode("utf-8", "surrogatepass")

    return identity


def _repeats(places: Sequence[Location], block: int, blocks: int) -> dict[int, Records]:
    """The runs of repeated windows of one block of documents, in order, by the number of the document."""
    parts = (read_partition(place, at) for place in places for at in (block, blocks + block))
    found = np.frombuffer(b"".join(parts), REPEAT)
    found = longest_runs(found[np.lexsort((found["word"], found["document"]))])
    return {number: found[rows] for number, rows in runs_of(found["document"])}
