"""The phases of dedup that decide which documents go: `suspects`, `pairs` (or `previews`), `receipts`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from webtext_prep import storage
from webtext_prep.dedup.blocks import Blocks, FrameWriter, read_frame, runs_of
from webtext_prep.dedup.candidate_phases import BLOCKS, PARTS, CandidatePhases, fingerprints_of
from webtext_prep.dedup.reference_index import Against
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.shards import read_chosen_documents
from webtext_prep.documents.formats.compression import write_zstd
from webtext_prep.running.markers import digest
from webtext_prep.running.run import Run
from webtext_prep.running.tasks import Context, Task
from webtext_prep.storage.stores.base import Location
from webtext_prep.text.fingerprints import Shingling

MATCH_CHARACTERS = 200
"""The longest passage of matching text in a row of the table."""


class DecisionPhases(CandidatePhases):
    """A stage with these phases, too."""

    against_loses: str

    def collect_suspects(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the documents of one shard that may be alike others, as a frame for each block and part."""
        from webtext_prep.dedup.candidate_pairs import Suspects

        parts, count, shard = load_array(task.inputs[1]), task.options["parts"], task.options["shard"]
        fingerprints = self._fingerprints(task, keys_of={shard: task.reads[0]})
        blocks = fingerprints.blocks
        own, first, suspects = blocks.in_shard(shard), blocks.first_of(shard), 0
        is_suspect = parts[first : blocks.first_of(shard + 1)] >= 0
        documents = read_chosen_documents(task.inputs[2], is_suspect.tobytes().__getitem__)
        with storage.create(task.outputs[0], durable=False) as file, FrameWriter(file, len(own) * count) as writer:
            for block in own:
                within = blocks.numbers(block)
                held = dict(islice(documents, int((parts[within] >= 0).sum())))
                keys = fingerprints.keys(block, 0, fingerprints.bands)
                for part, rows in runs_of(parts[within]):
                    numbers = rows + within.start
                    chosen = [held[number] for number in (numbers - first).tolist()]
                    frame = Suspects.of(numbers, keys[:, rows], chosen).pack()
                    writer.write((block - own[0]) * count + part, frame)
                    suspects += len(rows)
                context.report(within.stop - first)
        return {"suspects": suspects, "digest": writer.digest}

    def decide(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: which of the documents of one part go, and which one represents each; a frame for each block."""
        from webtext_prep.dedup.candidate_pairs import Decided
        from webtext_prep.dedup.decisions import Part

        blocks, shingling = Blocks.load(task.inputs[0]), Shingling.parse(self.shingle)
        # Making the sets again counts as half of the work.
        frames = (content for _, content in _frames(task, blocks))
        part = Part.read(
            frames,
            shingling,
            context.scratch,
            lambda read: context.report(read // 2),
            compiled=task.hints["compiled"],
        )
        count, against = len(part.numbers), Against(task.options["new"], self.against_loses)
        found = part.duplicates_at(
            self.similarity, against, lambda decided: context.report(count // 2 + (decided + 1) // 2)
        )
        with storage.create(task.outputs[0], durable=False) as file, FrameWriter(file, len(blocks)) as writer:
            for block, content in _frames(task, blocks):
                gone = list(part.receipts(content, *found, shingling, MATCH_CHARACTERS))
                if gone:
                    numbers = np.array([duplicate.number for duplicate in gone], np.int64)
                    relation = "duplicate_of" if numbers[0] < against.first else "superseded_by"
                    rows = [duplicate.row(relation) for duplicate in gone]
                    writer.write(block, Decided(numbers.tobytes(), rows).pack())
        return {"digest": writer.digest, "groups": len(np.unique(found[0][found[0] >= 0]))}

    def examine_part(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what would become of the documents of one part at each similarity."""
        from webtext_prep.dedup.decisions import Part
        from webtext_prep.dedup.preview import THRESHOLDS, examine

        blocks, shingling = Blocks.load(task.inputs[0]), Shingling.parse(self.shingle)

        def frames() -> Iterator[bytes]:
            return (content for _, content in _frames(task, blocks))

        hint = task.hints["compiled"]
        part = Part.read(frames(), shingling, context.scratch, lambda read: None, compiled=hint)
        count, against = len(part.numbers), Against(task.options["new"], self.against_loses)
        return examine(
            part, frames, against, task.options["last"], shingling,
            lambda done: context.report(done * count // len(THRESHOLDS)),
        )  # fmt: skip

    def sort_receipts(self, task: Task, context: Context) -> int:
        """Task: which documents of one shard go, and their rows of the table, in the order of the input."""
        from webtext_prep.dedup.candidate_pairs import Decided

        blocks = Blocks.load(task.inputs[0])
        dropped = []
        with write_zstd(task.outputs[1], durable=False) as table:
            for block in blocks.in_shard(task.options["shard"]):
                found: list[tuple[int, bytes]] = []
                for of_part in task.reads:
                    frame = read_frame(of_part, block, len(blocks))
                    if frame:
                        decided = Decided.unpack(frame)
                        found += zip(np.frombuffer(decided.numbers, np.int64).tolist(), decided.rows, strict=True)
                for number, row in sorted(found):
                    dropped.append(number)
                    table.write(row)
        save_array(task.outputs[0], np.array(dropped, np.int64) - blocks.first_of(task.options["shard"]))
        context.report(len(dropped))
        return len(dropped)

    def collect(self, job: Run, divided: dict[str, Any]) -> dict[str, Any]:
        """Phase `suspects`."""
        tasks = [
            Task(
                f"part-{shard:05}",
                (job.scratch / BLOCKS, job.scratch / PARTS, path),
                (_suspects_of(job, shard),),
                {**divided, "shard": shard},
                reads=fingerprints_of(job, shard)[:1],
            )
            for shard, path in enumerate(self.all_shards(job))
        ]
        results = job.map("suspects", self.collect_suspects, tasks, total=divided["documents"])
        suspects = sum(result["suspects"] for result in results)
        return {**divided, "suspects": suspects, "digest": digest([result["digest"] for result in results])}

    def decide_parts(self, job: Run, found: dict[str, Any]) -> dict[str, Any]:
        """Phases `pairs` and `receipts`."""
        blocks_path, suspects, hints = job.scratch / BLOCKS, self.suspects(job), self.hints(job)
        deciding = [
            Task(
                f"part-{part:05}",
                (blocks_path,),
                (job.scratch / "pairs" / f"part-{part:05}.frames",),
                {**found, "part": part},
                hints,
                reads=suspects,
            )
            for part in range(found["parts"])
        ]
        results = job.map("pairs", self.decide, deciding, unit="suspects", total=found["suspects"])
        of_all = {**found, "decided": digest([result["digest"] for result in results])}
        pairs = tuple(task.outputs[0] for task in deciding)
        sorting = [
            Task(f"part-{shard:05}", (blocks_path,), files, {**of_all, "shard": shard}, reads=pairs)
            for shard, files in enumerate(self.receipts(job))
        ]
        counts = job.map("receipts", self.sort_receipts, sorting, unit="duplicates")
        superseded = sum(counts[len(job.inputs) :])
        return {"groups": sum(result["groups"] for result in results), "superseded": superseded}

    def suspects(self, job: Run) -> tuple[Location, ...]:
        """For each shard, the documents that may be alike others."""
        return tuple(_suspects_of(job, shard) for shard in range(len(self.all_shards(job))))

    def receipts(self, job: Run) -> list[tuple[Location, Location]]:
        """For each shard, the numbers of the documents that go, and their rows of the table."""
        folder, count = job.scratch / "receipts", len(self.all_shards(job))
        return [(folder / f"part-{shard:05}.npy", folder / f"part-{shard:05}.rows") for shard in range(count)]


def _suspects_of(job: Run, shard: int) -> Location:
    return job.scratch / "suspects" / f"part-{shard:05}.frames"


def _frames(task: Task, blocks: Blocks) -> Iterator[tuple[int, bytes]]:
    """The suspects of one part, packed, by the numbers of their blocks."""
    parts = task.options["parts"]
    for block, shard in enumerate(blocks.shards.tolist()):
        own = blocks.in_shard(shard)
        frame = (block - own[0]) * parts + task.options["part"]
        content = read_frame(task.reads[shard], frame, len(own) * parts)
        if content:
            yield block, content
