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
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from command_kit import setting
from webtext_prep import storage
from webtext_prep.dedup.blocks import runs_of
from webtext_prep.dedup.passages import (
    REPEAT,
    WINDOW,
    Anchored,
    Firsts,
    Records,
    add_by_range,
    batches_of,
    grams_of,
    is_in,
    longest_runs,
    range_of,
    read_range,
    repeated,
)
from webtext_prep.documents.batches import batches
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.documents.folders.partitions import load_array, read_partition, save_array, write_partitions
from webtext_prep.documents.folders.sampling import Sample, characters_in
from webtext_prep.documents.folders.shards import REPEATS, read_chosen_documents, read_documents
from webtext_prep.documents.formats.compression import join_zstd, write_zstd
from webtext_prep.running.markers import digest
from webtext_prep.running.preflight import Needs
from webtext_prep.running.run import Run
from webtext_prep.running.stage import Outcome, Stage, shards_outcome, write_shard
from webtext_prep.running.tasks import Context, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.text.contamination import LINE_END, cut, joined
from webtext_prep.text.fingerprints import Shingling, shingle_spans
from webtext_prep.urls.held_out import is_held_out

PLAIN_CHARACTERS = 3 << 20
"""Texts of this many characters in all are done before machine code would be loaded."""
RANGE_CHARACTERS = 384 << 20
"""Characters of text whose anchors a task compares, about."""
RANGE_WINDOWS = 1 << 21
"""Windows that a task compares, about, and values of a batch."""
MOST_RANGES = 1 << 16
BLOCK = 8192
"""Documents whose repeats are read at once."""
SHOWN = 200
"""Characters of a passage in its row."""
REPEATED = 0.1
"""The share of windows that may be repeated, for which disk is reserved."""
WORD_BYTES = 6
"""Of text, with what follows a word."""


@dataclass(frozen=True)
class DedupPassages(Stage):
    """Cut passages that stand earlier in the corpus, word for word, out of documents.

    A passage is --words words in a row or more, case and punctuation aside, which begin earlier in the order of the
    input, be it in the same document. It is removed with the rest of its first and its last sentence, or line; each
    piece that is left becomes a document, with its number in the metadata `piece`. Reads and writes document shards,
    and writes passages.jsonl.zst: what was cut out of which document, and where it stands first. Drops: repeated (no
    piece is left)."""

    name: ClassVar[str] = "dedup-passages"
    version: ClassVar[int] = 2
    order: ClassVar[int] = 65
    summary: ClassVar[str] = "documents -> documents without passages that stand in an earlier one"
    side_files: ClassVar[tuple[str, ...]] = (REPEATS,)
    grows_with_corpus: ClassVar[tuple[str, ...]] = ("repeated",)
    compiled: ClassVar[tuple[str, ...]] = ("webtext_prep.text.fingerprint_kernels",)
    process_bytes: ClassVar[int] = 600 << 20

    words: int = setting(50, "cut passages of this many words or more that stand earlier in the corpus", ge=10, le=1000)
    shortest_piece: int = setting(200, "drop pieces of this many characters or fewer", ge=0)
    hold_out: float = setting(
        0.0,
        "pages that `tokenize --hold-out` with this share keeps out of training count as earlier than all others",
        ge=0,
        lt=1,
    )

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Anchors of all windows, and records of a tenth of them: see REPEATED."""
        words = sample.text / WORD_BYTES
        anchors = words * 2 / (self.words - self.words // 2 + 1)
        scratch = 10 * anchors + REPEATED * (words * WINDOW.itemsize + anchors * REPEAT.itemsize)
        memory = workers * (self.process_bytes + int(0.2 * sample.largest_share * sample.text))
        return Needs(sample.written, int(scratch), memory, sample.documents)

    # Tasks

    def find_anchors(self, task: Task, context: Context) -> list[int]:
        """Task: the anchors of one shard, by range; how many each document has, and the range of each. Returns how many
        documents and anchors there are."""
        counts, within = list[int](), [np.zeros(0, np.uint16)]
        with write_partitions(task.outputs[0], task.options["ranges"]) as writer:
            for documents in batches(context.counted(read_documents(task.inputs[0]))):
                texts, compiled = [document.text for document in documents], task.hints["compiled"]
                grams = grams_of(texts, self.words, compiled=compiled)
                found = [Anchored(own, self.words).anchors for own in grams]
                counts += map(len, found)
                hashes = np.concatenate(found)
                within.append(range_of(hashes, task.options["ranges"]))
                add_by_range(writer, hashes, within[-1])
        save_array(task.outputs[1], np.array(counts, np.uint32))
        save_array(task.outputs[2], np.concatenate(within))
        return [len(counts), sum(counts)]

    def find_repeated(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: of the anchors of one range whether each is repeated, a bucket for each shard."""
        number, kind, count = task.options["range"], np.uint64, 0
        batches = batches_of(task.reads, number, kind, RANGE_WINDOWS)
        twice = repeated(np.concatenate([hashes for _, hashes in batch]) for batch in batches)
        with write_partitions(task.outputs[0], len(task.reads)) as writer:
            for shard, place in enumerate(task.reads):
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
        counts, within = map(load_array, task.inputs[1:])
        sizes = np.bincount(within, minlength=len(task.reads))
        bits = [
            np.unpackbits(np.frombuffer(read_partition(place, shard), np.uint8), count=size)
            for place, size in zip(task.reads, sizes.tolist(), strict=True)
        ]
        is_repeated = np.empty(len(within), np.bool_)
        is_repeated[np.argsort(within, kind="stable")] = np.concatenate(bits)
        ends = np.append(0, np.cumsum(counts, dtype=np.int64))
        is_chosen = np.diff(np.append(0, np.cumsum(is_repeated))[ends]) > 0
        names, total = np.zeros(len(counts) + 1, np.int64), 0
        with (
            write_partitions(task.outputs[0], ranges) as others,
            write_partitions(task.outputs[1], ranges) as held_out,
            storage.create(task.outputs[3], durable=False) as identities,
        ):
            for number, document in read_chosen_documents(task.inputs[0], is_chosen.tobytes().__getitem__):
                text, compiled = document.text, task.hints["compiled"]
                (grams,) = grams_of([text], self.words, compiled=compiled)
                own = is_repeated[ends[number] : ends[number + 1]]
                found, anchors = Anchored(grams, self.words).windows(text, own, number, compiled=compiled)
                writer = held_out if is_held_out(document.url, self.hold_out) else others
                add_by_range(writer, found, range_of(anchors, ranges))
                identity = document.id.encode("utf-8", "surrogatepass")
                identities.write(identity)
                names[number + 1] = len(identity)
                total += len(found)
                context.report(number + 1)
        with storage.create(task.outputs[2], durable=False) as file:
            file.write(np.cumsum(names).tobytes())
        return total

    def find_firsts(self, task: Task, context: Context) -> str:
        """Task: the windows of one range that begin earlier, a bucket for each block of documents of held-out pages,
        and then of others. Returns a digest."""
        number, blocks = task.options["range"], task.options["blocks"]
        firsts, done = Firsts(), 0
        with write_partitions(task.outputs[0], 2 * blocks[-1]) as writer:
            for batch in batches_of(task.reads, number, WINDOW, RANGE_WINDOWS):
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
        """Task: one shard without what repeated windows cover; the last output takes a row for each passage."""
        ranges, blocks = task.options["ranges"], task.options["blocks"]
        first, identities = blocks[task.options["shard"]], task.reads[ranges:]
        *outputs, table = task.outputs

        def pieces(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            held: dict[int, Records] = {}
            for document in documents:
                number = tally.read - 1
                if number % BLOCK == 0:
                    held = _repeats(task.reads[:ranges], first + number // BLOCK, blocks[-1])
                if number not in held:
                    yield document
                    continue
                found = list(self._passages(document, held[number], identities, compiled=task.hints["compiled"]))
                rows.write(b"".join(msgspec.json.encode(without_surrogates(row)) + b"\n" for row in found))
                if self.hold_out and not is_held_out(document.url, self.hold_out):
                    firsts = (is_held_out(row["duplicate_of"], self.hold_out) for row in found)
                    tally.notes["copies_of_held_out"] += sum(firsts)
                yield from self._pieces(document, [(row["start"], row["end"]) for row in found], tally)

        shorter = dataclasses.replace(task, outputs=tuple(outputs))
        with write_zstd(table, durable=False) as rows:
            return write_shard(shorter, context, read_documents(task.inputs[0]), pieces)

    def _passages(
        self, document: Document, repeats: Records, identities: Sequence[Location], *, compiled: bool
    ) -> Iterator[dict[str, Any]]:
        """A row for each passage of a document, given its repeated windows."""
        _, starts, ends = shingle_spans(document.text, Shingling("word", self.words), compiled=compiled)
        for _, word, count, shard, first, place in longest_runs(repeats).tolist():
            start, end = int(starts[word]), int(ends[word + count - 1])
            yield {
                "url": document.id,
                "start": start,
                "end": end,
                "match": document.text[start : min(end, start + SHOWN)],
                "duplicate_of": _identity(identities, shard, first),
                "duplicate_of_start": place,
            }

    def _pieces(self, document: Document, passages: list[tuple[int, int]], tally: Tally) -> Iterator[Document]:
        """The pieces of a document without its passages."""
        hits = joined(document.text, passages, LINE_END)
        pieces = [piece for piece in cut(document.text, hits, 0, self.shortest_piece, LINE_END).pieces if piece]
        tally.notes["passages"] += len(passages)
        if not pieces:
            tally.drop(document, "repeated")
            return
        tally.notes["cut"] += 1
        tally.added += len(pieces) - 1
        yield from document.cut(pieces)

    # Phases

    def run(self, job: Run) -> Outcome:
        """Find the anchors that are repeated and the windows that begin earlier, and cut."""
        size, total = characters_in(job.inputs), job.expected_documents()
        hints = {"compiled": size > PLAIN_CHARACTERS}

        def files(kind: str, count: int = len(job.inputs)) -> list[Location]:
            return [job.scratch / kind / f"part-{number:05}" for number in range(count)]

        def of_shards(
            *outputs: Iterable[Location],
            also: Sequence[list[Location]] = (),
            reads: Iterable[Location] = (),
            **options: Any,
        ) -> list[Task]:
            places = zip(zip(job.inputs, *also, strict=True), zip(*outputs, strict=True), strict=True)
            return [
                Task(f"part-{shard:05}", given, made, {**options, "shard": shard}, hints, tuple(reads))
                for shard, (given, made) in enumerate(places)
            ]

        def of_ranges(outputs: list[Location], reads: list[Location], **options: Any) -> list[Task]:
            return [
                Task(place.name, (), (place,), {**options, "range": number}, reads=tuple(reads))
                for number, place in enumerate(outputs)
            ]

        ranges = min(1 + size // RANGE_CHARACTERS, MOST_RANGES)
        anchors, counts, of_anchors = files("anchors"), files("counts"), files("ranges")
        finding = of_shards(anchors, counts, of_anchors, ranges=ranges)
        found = job.map("anchors", self.find_anchors, finding, total=total)
        documents, count = (sum(column) for column in zip(*found, strict=True))

        is_repeated, made = files("repeated", ranges), digest(storage.stamps(anchors))
        comparing = of_ranges(is_repeated, anchors, made=made)
        compared = job.map("repeated", self.find_repeated, comparing, unit="anchors", total=count)

        made = digest([result["digest"] for result in compared])
        # An anchor is that of half of the windows that hold it, about.
        expected = sum(result["repeated"] for result in compared) * (self.words // 4)
        options = {"ranges": min(1 + expected // RANGE_WINDOWS, MOST_RANGES), "shards": len(job.inputs)}
        windows, held_out, ends, names = (files(kind) for kind in ("windows", "held_out", "ends", "names"))
        marking = of_shards(
            windows, held_out, ends, names, also=(counts, of_anchors), reads=is_repeated, made=made, **options
        )
        count = sum(job.map("windows", self.find_windows, marking, total=documents))

        windows = held_out + windows
        firsts, made = files("firsts", options["ranges"]), digest(storage.stamps(windows))
        options["blocks"] = [0, *itertools.accumulate(-(-of_shard // BLOCK) for of_shard, _ in found)]
        tracing = of_ranges(firsts, windows, made=made, **options)
        made = digest(job.map("firsts", self.find_firsts, tracing, unit="windows", total=count))

        rows, reads = files("rows"), (*firsts, *itertools.chain(*zip(ends, names, strict=True)))
        shards = zip(*map(job.shard_outputs, range(len(job.inputs))), strict=True)
        cutting = of_shards(*shards, rows, reads=reads, made=made, **options)
        outcome = shards_outcome(cutting, job.map("shards", self.cut_shard, cutting, total=documents))
        table = join_zstd(rows, job.output / REPEATS)
        outcome.outputs = [*(path for path in outcome.outputs if path not in rows), table]
        return outcome


def _identity(places: Sequence[Location], shard: int, document: int) -> str:
    """The `Document.id` of one document, by the numbers of its shard, and of itself there.

    `places` are files of `find_windows` about all shards: where identities end, and all of them.
    """
    ends, names = (storage.local_path(place) for place in places[2 * shard : 2 * shard + 2])
    begin, end = np.fromfile(ends, np.int64, 2, offset=8 * document).tolist()
    return np.fromfile(names, np.uint8, end - begin, offset=begin).tobytes().decode("utf-8", "surrogatepass")


def _repeats(places: Sequence[Location], block: int, blocks: int) -> dict[int, Records]:
    """The repeated windows of one block of documents, in order, by the number of the document."""
    parts = (read_partition(place, at) for place in places for at in (block, blocks + block))
    found = np.frombuffer(b"".join(parts), REPEAT)
    found = found[np.lexsort((found["word"], found["document"]))]
    return {number: found[rows] for number, rows in runs_of(found["document"])}
