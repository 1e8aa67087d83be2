"""`webtext dedup`: of documents that say nearly the same, keep one, and record whose representative it is.

Documents are visited from the longest to the shortest, equal lengths by URL: a document is dropped if one that is
already kept is at least `--similarity` similar to it. So each group keeps its longest document, and a chain of similar
documents cannot merge unrelated ones. The order of the input does not matter. The phases, each on all cores but for
`components`:

    fingerprints  each shard's documents to MinHash signatures, and those to one 64-bit key a band
    bands         each band's keys of the whole corpus, sorted: which documents share a bucket
    components    which documents buckets connect, directly or through others; those are divided into parts of work
    suspects      the texts of those documents, sorted into the parts
    pairs         each part: shingles again, exact similarities, who goes and for whom
    receipts      what was decided, back in the order of the input
    shards        each shard without what goes

Memory follows from the size of a block of documents and of a part, not of the corpus, but for 16 bytes a document in
`components`, mapped from a file. Files between the phases are removed when they have been used; at most they take 8
bytes per band and document, and the compressed texts of the suspects.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import setting
from webtext_prep.documents import storage
from webtext_prep.documents.compression import write_zstd
from webtext_prep.documents.document import Document
from webtext_prep.documents.shards import read_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError
from webtext_prep.near_duplicates.blocks import Blocks, FrameWriter, load_array, read_frame, runs_of, save_array
from webtext_prep.near_duplicates.fingerprints import Shingling, bands_for
from webtext_prep.running.markers import digest
from webtext_prep.running.once import once
from webtext_prep.running.stage import Outcome, Run, Stage, shards_outcome, write_shard
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

if TYPE_CHECKING:
    from webtext_prep.near_duplicates.candidates import Fingerprints

TABLE = "duplicates.jsonl.zst"
"""The table of what each dropped document duplicates, in the output folder."""
MATCH_CHARACTERS = 200
"""The longest passage of matching text in a row of the table."""
BLOCKS = "blocks.npy"
"""How all shards are divided, in the scratch folder."""

SORTED_DOCUMENTS = 1 << 23
"""A task sorts about so many keys of a band at most, in 300 MB."""


@dataclass(frozen=True)
class Dedup(Stage):
    """Drop documents that nearly repeat another, by MinHash verified by exact Jaccard similarity of their shingles.

    Reads and writes document shards, and writes duplicates.jsonl.zst: url, duplicate_of, similarity, the domains of
    both and a passage of matching text for each dropped document. Of each group the longest document stays. Drops:
    duplicate."""

    name: ClassVar[str] = "dedup"
    order: ClassVar[int] = 60
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "documents -> documents without near-duplicates, and the table of those"

    similarity: float = setting(0.8, "drop a document this similar to one that is kept, from 0 to 1")
    shingle: str = setting("word:5", "what similarity counts: word:N or char:N for n-grams", metavar="KIND:N")

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InputError(f"--similarity must be above 0 and at most 1, but is {self.similarity}.")
        Shingling.parse(self.shingle)

    def outputs_in(self, output: Location) -> list[Location]:
        """Shards, and the table of duplicates."""
        table = output / TABLE
        return [*super().outputs_in(output), *([table] if storage.is_file(table) else [])]

    # Tasks

    def _fingerprints(self, task: Task) -> Fingerprints:
        """What `fingerprint_shard` wrote for all shards; the first input of a task says how they are divided."""
        from webtext_prep.near_duplicates.candidates import Fingerprints

        folder = Path(task.hints["scratch"]) / "fingerprints"
        return Fingerprints(folder, Blocks.load(task.inputs[0]), bands_for(self.similarity)[0])

    def fingerprint_shard(self, task: Task, context: Context) -> list[int]:
        """Task: the band keys and the lengths of the documents of one shard. Returns the documents of each block."""
        from webtext_prep.near_duplicates.candidates import write_fingerprints

        with (
            storage.create(task.outputs[0], durable=False) as keys,
            storage.create(task.outputs[1], durable=False) as lengths,
        ):
            documents = read_documents(task.inputs[0])
            shingling = Shingling.parse(self.shingle)
            return write_fingerprints(documents, shingling, self.similarity, keys, lengths, context.report)

    def sort_band(self, task: Task, context: Context) -> None:
        """Task: the buckets with several members of a band, or of one range of its keys."""
        band, number, ranges = (task.options[name] for name in ("band", "range", "ranges"))
        members, ends = self._fingerprints(task).shared_buckets(band, number, ranges, context.report)
        save_array(task.outputs[0], members)
        save_array(task.outputs[1], ends)

    def find_components(self, task: Task, context: Context) -> int:
        """Task: the part of the work that decides about each document. Returns the number of parts."""

        def shared() -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
            for done, (members, ends) in enumerate(zip(task.inputs[1::2], task.inputs[2::2], strict=True), 1):
                yield load_array(members), load_array(ends)
                context.report(done)

        parts, count = self._fingerprints(task).parts(shared(), context.scratch)
        save_array(task.outputs[0], parts)
        return count

    def collect_suspects(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the documents of one shard that may be alike others, as a frame for each block and part."""
        from webtext_prep.near_duplicates.suspects import Suspects

        fingerprints, parts = self._fingerprints(task), load_array(task.inputs[1])
        blocks, count = fingerprints.blocks, task.options["parts"]
        own = blocks.in_shard(task.options["shard"])
        documents, suspects = read_documents(task.inputs[2]), 0
        with storage.create(task.outputs[0], durable=False) as file, FrameWriter(file, len(own) * count) as writer:
            for block in own:
                within = blocks.numbers(block)
                held = list(islice(documents, within.stop - within.start))
                keys = fingerprints.keys(block, 0, fingerprints.bands)
                for part, rows in runs_of(parts[within]):
                    found = Suspects.of(rows + within.start, keys[:, rows], [held[row] for row in rows])
                    writer.write((block - own[0]) * count + part, found.pack())
                    suspects += len(rows)
                context.report(within.stop - blocks.first_of(task.options["shard"]))
        return {"suspects": suspects, "digest": writer.digest}

    def decide(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: which of the documents of one part go, and which one represents each; a frame for each block."""
        from webtext_prep.near_duplicates.deciding import Part
        from webtext_prep.near_duplicates.suspects import Decided

        blocks, shingling = Blocks.load(task.inputs[0]), Shingling.parse(self.shingle)

        def frames() -> Iterator[tuple[int, bytes]]:
            folder, parts = Path(task.hints["scratch"]) / "suspects", task.options["parts"]
            for block, shard in enumerate(blocks.shards.tolist()):
                own = blocks.in_shard(shard)
                frame = (block - own[0]) * parts + task.options["part"]
                content = read_frame(folder / f"part-{shard:05}.frames", frame, len(own) * parts)
                if content:
                    yield block, content

        # Making the sets again counts as half of the work.
        part = Part.read(
            (content for _, content in frames()), shingling, context.scratch, lambda read: context.report(read // 2)
        )
        count = len(part.numbers)
        found = part.duplicates_at(self.similarity, lambda decided: context.report(count // 2 + (decided + 1) // 2))
        with storage.create(task.outputs[0], durable=False) as file, FrameWriter(file, len(blocks)) as writer:
            for block, content in frames():
                gone = list(part.receipts(content, *found, shingling, MATCH_CHARACTERS))
                if gone:
                    numbers = np.array([duplicate.number for duplicate in gone], np.int64)
                    writer.write(block, Decided(numbers.tobytes(), [duplicate.row() for duplicate in gone]).pack())
        return {"digest": writer.digest, "groups": len(np.unique(found[0][found[0] >= 0]))}

    def sort_receipts(self, task: Task, context: Context) -> int:
        """Task: which documents of one shard go, and their rows of the table, in the order of the input."""
        from webtext_prep.near_duplicates.suspects import Decided

        blocks = Blocks.load(task.inputs[0])
        dropped = []
        with write_zstd(task.outputs[1], durable=False) as table:
            for block in blocks.in_shard(task.options["shard"]):
                found: list[tuple[int, bytes]] = []
                for part in range(task.options["parts"]):
                    path = Path(task.hints["scratch"]) / "pairs" / f"part-{part:05}.frames"
                    frame = read_frame(path, block, len(blocks))
                    if frame:
                        decided = Decided.unpack(frame)
                        found += zip(np.frombuffer(decided.numbers, np.int64).tolist(), decided.rows, strict=True)
                for number, row in sorted(found):
                    dropped.append(number)
                    table.write(row)
        save_array(task.outputs[0], np.array(dropped, np.int64) - blocks.first_of(task.options["shard"]))
        context.report(len(dropped))
        return len(dropped)

    def drop_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard without its duplicates."""
        dropped = set(load_array(task.inputs[1]).tolist())

        def keep(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for number, document in enumerate(documents):
                if number in dropped:
                    tally.drop(document, "duplicate")
                else:
                    yield document

        return write_shard(task, context, read_documents(task.inputs[0]), keep)

    # Phases

    def run(self, job: Run) -> Outcome:
        """Find who may be alike, decide, drop."""
        found = once(job, "suspects", self.version, lambda: self._find_suspects(job))
        _remove_scratch(job, "fingerprints", "bands", "components")
        decided = once(job, "decided", self.version, lambda: self._decide_parts(job, found))
        _remove_scratch(job, "suspects", "pairs")
        receipts = _receipts(job)
        tasks = [
            Task(f"part-{shard:05}", (path, receipts[shard][0]), job.shard_outputs(shard))
            for shard, path in enumerate(job.inputs)
        ]
        outcome = shards_outcome(tasks, job.map("shards", self.drop_shard, tasks, total=found["documents"]))
        with storage.create(job.output / TABLE) as table:
            for _, rows in receipts:
                with rows.open("rb") as part:
                    shutil.copyfileobj(part, table, 1 << 20)
        outcome.outputs.append(job.output / TABLE)
        outcome.facts["groups"] = decided["groups"]
        return outcome

    def _find_suspects(self, job: Run) -> dict[str, Any]:
        """Phases `fingerprints` to `suspects`."""
        from webtext_prep.near_duplicates.candidates import Fingerprints

        shards, scratch = list(enumerate(job.inputs)), {"scratch": str(job.scratch)}
        printing = [
            Task(f"part-{shard:05}", (path,), Fingerprints.files(job.scratch / "fingerprints", shard))
            for shard, path in shards
        ]
        counts = job.map("fingerprints", self.fingerprint_shard, printing, total=job.expected_documents())
        blocks, blocks_path = Blocks.of(counts), job.scratch / BLOCKS
        blocks.save(blocks_path)
        # Whatever follows depends on all fingerprints.
        made = {"fingerprints": digest([storage.stamp(path) for task in printing for path in task.outputs])}
        bands, _ = bands_for(self.similarity)
        ranges = 1 << max(0, (blocks.documents - 1) // SORTED_DOCUMENTS).bit_length()
        sorting = [
            Task(
                f"band-{band:03}-{number:03}",
                (blocks_path,),
                tuple(job.scratch / "bands" / f"{band:03}-{number:03}.{kind}.npy" for kind in ("members", "ends")),
                {**made, "band": band, "range": number, "ranges": ranges},
                scratch,
            )
            for band in range(bands)
            for number in range(ranges)
        ]
        job.map("bands", self.sort_band, sorting, unit="keys", total=blocks.documents * bands)
        parts_path = job.scratch / "components" / "parts.npy"
        buckets = [path for task in sorting for path in task.outputs]
        joining = Task("all", (blocks_path, *buckets), (parts_path,), made, scratch)
        (parts,) = job.map("components", self.find_components, [joining], unit="bands", total=len(sorting))
        collecting = [
            Task(
                f"part-{shard:05}",
                (blocks_path, parts_path, path),
                (job.scratch / "suspects" / f"part-{shard:05}.frames",),
                {**made, "shard": shard, "parts": parts},
                scratch,
            )
            for shard, path in shards
        ]
        results = job.map("suspects", self.collect_suspects, collecting, total=blocks.documents)
        return {
            "documents": blocks.documents,
            "suspects": sum(result["suspects"] for result in results),
            "parts": parts,
            "digest": digest([result["digest"] for result in results]),
        }

    def _decide_parts(self, job: Run, found: dict[str, Any]) -> dict[str, Any]:
        """Phases `pairs` and `receipts`."""
        blocks_path, scratch = job.scratch / BLOCKS, {"scratch": str(job.scratch)}
        deciding = [
            Task(
                f"part-{part:05}",
                (blocks_path,),
                (job.scratch / "pairs" / f"part-{part:05}.frames",),
                {**found, "part": part},
                scratch,
            )
            for part in range(found["parts"])
        ]
        results = job.map("pairs", self.decide, deciding, unit="suspects", total=found["suspects"])
        decided = digest([result["digest"] for result in results])
        sorting = [
            Task(f"part-{shard:05}", (blocks_path,), files, {**found, "decided": decided, "shard": shard}, scratch)
            for shard, files in enumerate(_receipts(job))
        ]
        job.map("receipts", self.sort_receipts, sorting, unit="duplicates")
        return {"groups": sum(result["groups"] for result in results)}


def _receipts(job: Run) -> list[tuple[Path, Path]]:
    """For each shard, the numbers of the documents that go, and their rows of the table."""
    folder = job.scratch / "receipts"
    return [(folder / f"part-{shard:05}.npy", folder / f"part-{shard:05}.rows") for shard in range(len(job.inputs))]


def _remove_scratch(job: Run, *folders: str) -> None:
    for folder in folders:
        shutil.rmtree(job.scratch / folder, ignore_errors=True)
