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
    losses        which domains and sources lose most of their documents
    shards        each shard without what goes

Memory follows from the size of a block of documents and of a part, not of the corpus, but for 24 bytes a document in
`components`, most of them mapped from files. Files between the phases are removed when they have been used; at most
they take 8 bytes per band and document, and the compressed texts and keys of the suspects.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import setting
from command_kit.settings import flag_name
from webtext_prep.documents import storage
from webtext_prep.documents.arrays import load_array, save_array
from webtext_prep.documents.compression import write_zstd
from webtext_prep.documents.document import Document
from webtext_prep.documents.inputs import find_inputs
from webtext_prep.documents.sampling import Sample, take_sample
from webtext_prep.documents.shards import read_chosen_documents, read_documents
from webtext_prep.documents.side_tables import DUPLICATES, SUPERSEDED
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.near_duplicates.against import LOSERS, Against
from webtext_prep.near_duplicates.blocks import (
    PART_CHARACTERS,
    Blocks,
    Frame,
    FrameWriter,
    read_frame,
    runs_of,
)
from webtext_prep.near_duplicates.fingerprints import Shingling, bands_for
from webtext_prep.running.checkpoint import Checkpoint
from webtext_prep.running.findings import Findings
from webtext_prep.running.markers import digest
from webtext_prep.running.once import once
from webtext_prep.running.shard_writing import LARGE_BYTES, write_shard, write_shard_in_steps
from webtext_prep.running.space import Needs
from webtext_prep.running.stage import Outcome, Run, Stage, shards_outcome
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

if TYPE_CHECKING:
    from webtext_prep.near_duplicates.candidates import Fingerprints
    from webtext_prep.near_duplicates.losses import Groups, Loss

TABLE = DUPLICATES
"""The table of what each dropped document duplicates, in the output folder."""
MATCH_CHARACTERS = 200
"""The longest passage of matching text in a row of the table."""
BLOCKS = "blocks.npy"
PARTS = "components/parts.npy"
"""How all shards are divided into blocks, and which part decides about each document, in the scratch folder."""

SORTED_DOCUMENTS = 1 << 23
"""A task sorts about so many keys of a band at most,"""
SORTING_BYTES = 48
"""with so much memory for each."""
COMPONENT_BYTES = 24
"""Memory of a document in `components`, most of it mapped from files."""
COMPILER_BYTES = 250 << 20
"""Memory of a process that has loaded compiled functions."""
SUSPECTS = 0.5
"""The share of documents that may be alike others, for which disk is reserved."""


@dataclass(frozen=True)
class Dedup(Stage):
    """Drop documents that nearly repeat another, by MinHash verified by exact Jaccard similarity of their shingles.

    Reads and writes document shards, and writes duplicates.jsonl.zst: url, duplicate_of, similarity, the domains of
    both and a passage of matching text for each dropped document. Of each group the longest document stays. Drops:
    duplicate.

    With --against, documents are also compared with those of finished runs, which stay as they are; old documents that
    lose to new ones are listed in superseded.jsonl.zst. --dry-run shows what each similarity would drop."""

    name: ClassVar[str] = "dedup"
    order: ClassVar[int] = 60
    version: ClassVar[int] = 2
    preload: ClassVar[tuple[str, ...]] = (
        "datasketch",
        "webtext_prep.near_duplicates.candidates",
        "webtext_prep.near_duplicates.deciding",
    )
    summary: ClassVar[str] = "documents -> documents without near-duplicates, and the table of those"

    similarity: float = setting(0.8, "drop a document this similar to one that is kept, from 0 to 1")
    shingle: str = setting("word:5", "what similarity counts: word:N or char:N for n-grams", metavar="KIND:N")

    against: tuple[str, ...] = setting(
        (), "finished runs with whose documents the new ones are compared as well", metavar="DIR"
    )
    against_loses: str = setting(
        "new", "of a new document and one of --against that are alike: new, old or shorter", metavar="WHICH"
    )
    alarm_share: float = setting(0.5, "list domains and sources that lose more than this share of 20 or more documents")
    stop_share: float = setting(
        1.0, "stop before writing anything if a domain or source loses more than this share", identity=False
    )
    dry_run: bool = setting(
        False,
        "write nothing, but print what each similarity from 0.5 to 0.95 would drop, with examples",
        identity=False,
    )
    sample: int = setting(
        0,
        "a dry run that estimates it: so many documents, chosen by a hash of their URLs, are decided as in the whole "
        "corpus; 0 for all",
        identity=False,
        ge=0,
    )

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InputError(f"--similarity must be above 0 and at most 1, but is {self.similarity}.")
        Shingling.parse(self.shingle)
        if self.against_loses not in LOSERS:
            raise InputError(f"--against-loses {self.against_loses} is not known: give {', '.join(LOSERS)}.")
        for name in ("alarm_share", "stop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{flag_name(name)} must be from 0 to 1, but is {getattr(self, name)}.")

    def outputs_in(self, output: Location) -> list[Location]:
        """Shards, and the tables of duplicates and of superseded documents."""
        tables = [output / name for name in (TABLE, SUPERSEDED)]
        return [*super().outputs_in(output), *filter(storage.is_file, tables)]

    def identity(self) -> dict[str, Any]:
        """The documents to compare with, by what identifies their files."""
        return {"against_files": self._old_digest} if self.against else {}

    @functools.cached_property
    def _old_shards(self) -> list[Location]:
        """The shards of finished runs to compare with."""
        if not self.against:
            return []
        return find_inputs(self.against, accepts=self.accepts, kinds=self.input_kinds).files

    @functools.cached_property
    def _old_digest(self) -> str:
        return digest([storage.stamp(path) for path in self._old_shards])

    def _shards(self, job: Run) -> list[Location]:
        """All shards, those to compare with behind the new ones. Raises InputError for one that is both."""
        places = {str(path) for path in job.inputs}
        for path in self._old_shards:
            if str(path) in places:
                raise InputError(f"{path} is both in --input and in --against: give other folders.")
            if path.parent == job.output:
                raise InputError(f"--against names the output itself, {job.output}: give other folders.")
        return [*job.inputs, *self._old_shards]

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Keys of all documents, and the texts of half of them: more than half have rarely been suspects."""
        scratch, memory, documents = self._needs(sample, workers)
        return Needs(sample.written, scratch["printed"] + max(scratch["bands"], scratch["suspects"]), memory, documents)

    def preview_needs(self, sample: Sample, workers: int) -> Needs:
        """The same at the lowest similarity. Files between phases stay to the end, so that a preview resumes."""
        from webtext_prep.near_duplicates.preview import THRESHOLDS

        scratch, memory, documents = dataclasses.replace(self, similarity=THRESHOLDS[0])._needs(sample, workers)
        return Needs(0, sum(scratch.values()), memory, documents)

    def _needs(self, sample: Sample, workers: int) -> tuple[dict[str, int], int, int]:
        """Bytes of each kind of file between phases, bytes of memory, and documents."""
        bands, _ = bands_for(self.similarity)
        old = take_sample(self._old_shards, [storage.size(path) for path in self._old_shards])
        documents, packed = sample.documents + old.documents, sample.packed + old.packed
        suspects = int(SUSPECTS * documents)
        printed = documents * (8 * bands + 8)
        sorted_bands = suspects * bands * 6  # members of 4 bytes, and the ends of their buckets
        collected = int(1.2 * SUSPECTS * packed) + suspects * 8 * bands  # packed faster, and in small frames
        text = min(sample.text + old.text, PART_CHARACTERS[0])
        deciding = text + 2 * text * (2 if Shingling.parse(self.shingle).kind == "word" else 7)
        sorting = min(documents, SORTED_DOCUMENTS) * SORTING_BYTES
        memory = max(workers * (COMPILER_BYTES + max(deciding, sorting)), documents * COMPONENT_BYTES)
        return {"printed": printed, "bands": sorted_bands, "suspects": collected}, memory, documents

    # Tasks

    def _fingerprints(self, task: Task) -> Fingerprints:
        """What `fingerprint_shard` wrote for all shards; the first input of a task says how they are divided."""
        from webtext_prep.near_duplicates.candidates import Fingerprints

        folder = Path(task.hints["scratch"]) / "fingerprints"
        return Fingerprints(folder, Blocks.load(task.inputs[0]), bands_for(self.similarity)[0])

    def fingerprint_shard(self, task: Task, context: Context) -> list[int]:
        """Task: the band keys and the lengths of the documents of one shard. Returns the documents of each block."""
        from webtext_prep.near_duplicates.candidates import fingerprint_blocks
        from webtext_prep.near_duplicates.losses import GroupCounter
        from webtext_prep.near_duplicates.preview import sample_hash

        counter, checkpoint = GroupCounter(task.options["source"]), Checkpoint(task, context, parts=2)
        documents = counter.counted(read_documents(task.inputs[0]))
        urls: list[bytes] = []
        if len(task.outputs) > 3:
            documents = _with_urls(documents, urls)
        counts: list[int] = checkpoint.state or []
        done = sum(1 for _ in islice(documents, sum(counts)))  # their groups and URLs are quickly found again
        blocks = fingerprint_blocks(
            documents, Shingling.parse(self.shingle), self.similarity, lambda more: context.report(done + more)
        )
        for count, keys, lengths in blocks:
            counts.append(count)
            checkpoint.add(keys, 0)
            checkpoint.add(lengths, 1)
            if checkpoint.is_due():
                checkpoint.save(counts, units=sum(counts))
        for part in range(2):
            with storage.create(task.outputs[part], durable=False) as file:
                file.writelines(checkpoint.records(part))
        with storage.create(task.outputs[2], durable=False) as groups:
            groups.write(counter.groups().pack())
        for place in task.outputs[3:]:
            save_array(place, np.fromiter(map(sample_hash, urls), np.uint64, len(urls)))
        checkpoint.remove()
        return counts

    def sort_band(self, task: Task, context: Context) -> None:
        """Task: the buckets with several members of a band, or of one range of its keys."""
        band, number, ranges = (task.options[name] for name in ("band", "range", "ranges"))
        members, ends = self._fingerprints(task).shared_buckets(band, number, ranges, context.report)
        save_array(task.outputs[0], members)
        save_array(task.outputs[1], ends)

    def find_components(self, task: Task, context: Context) -> dict[str, int]:
        """Task: the part of the work that decides about each document. Returns the number of parts.

        A component without a new document, or in a preview of a sample without one of those, is not decided.
        """
        from webtext_prep.near_duplicates.preview import EVERYTHING, choose

        fingerprints, new = self._fingerprints(task), task.options["new"]
        files = 1 + 2 * task.options["buckets"]
        hashes = [load_array(path) for path in task.inputs[files:]]
        last = choose(np.concatenate(hashes), task.options["sample"]) if hashes else EVERYTHING
        wanted = np.zeros(fingerprints.blocks.documents, np.bool_)
        wanted[:new] = np.concatenate(hashes) <= np.uint64(last) if hashes else True

        def shared() -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
            pairs = zip(task.inputs[1:files:2], task.inputs[2:files:2], strict=True)
            for done, (members, ends) in enumerate(pairs, 1):
                yield load_array(members), load_array(ends)
                context.report(done)

        parts, count = fingerprints.parts(shared(), context.scratch, wanted)
        save_array(task.outputs[0], parts)
        characters = int(fingerprints.all_lengths(context.scratch)[wanted].sum())
        return {"parts": count, "wanted": int(wanted.sum()), "characters": characters, "last": last}

    def collect_suspects(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the documents of one shard that may be alike others, as a frame for each block and part."""
        from webtext_prep.near_duplicates.suspects import Suspects

        fingerprints, parts = self._fingerprints(task), load_array(task.inputs[1])
        blocks, count = fingerprints.blocks, task.options["parts"]
        shard = task.options["shard"]
        own, first = blocks.in_shard(shard), blocks.first_of(shard)
        checkpoint = Checkpoint(task, context)
        done, suspects = checkpoint.state or (0, 0)
        passed = int(blocks.firsts[own[0] + done]) - first if len(own) else 0
        is_suspect = parts[first : blocks.first_of(shard + 1)] >= 0
        is_suspect[:passed] = False
        documents = read_chosen_documents(task.inputs[2], is_suspect.tobytes().__getitem__)
        for block in own[done:]:
            done += 1
            within = blocks.numbers(block)
            held = dict(islice(documents, int((parts[within] >= 0).sum())))
            keys = fingerprints.keys(block, 0, fingerprints.bands)
            for part, rows in runs_of(parts[within]):
                numbers = rows + within.start
                chosen = [held[number] for number in (numbers - first).tolist()]
                frame = Frame.of((block - own[0]) * count + part, Suspects.of(numbers, keys[:, rows], chosen).pack())
                checkpoint.add(frame.pack())
                suspects += len(rows)
            context.report(within.stop - first)
            if checkpoint.is_due():
                checkpoint.save([done, suspects], units=within.stop - first)
        with storage.create(task.outputs[0], durable=False) as file, FrameWriter(file, len(own) * count) as writer:
            for record in checkpoint.records():
                writer.write_frame(Frame.unpack(record))
        checkpoint.remove()
        return {"suspects": suspects, "digest": writer.digest}

    def decide(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: which of the documents of one part go, and which one represents each; a frame for each block."""
        from webtext_prep.near_duplicates.deciding import Part
        from webtext_prep.near_duplicates.suspects import Decided

        blocks, shingling = Blocks.load(task.inputs[0]), Shingling.parse(self.shingle)
        # Making the sets again counts as half of the work.
        frames = (content for _, content in _frames(task, blocks))
        part = Part.read(frames, shingling, context.scratch, lambda read: context.report(read // 2))
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
        from webtext_prep.near_duplicates.deciding import Part
        from webtext_prep.near_duplicates.preview import THRESHOLDS, examine

        blocks, shingling = Blocks.load(task.inputs[0]), Shingling.parse(self.shingle)

        def frames() -> Iterator[bytes]:
            return (content for _, content in _frames(task, blocks))

        part = Part.read(frames(), shingling, context.scratch, lambda read: None)
        count, against = len(part.numbers), Against(task.options["new"], self.against_loses)
        return examine(
            part, frames, against, task.options["last"], shingling,
            lambda done: context.report(done * count // len(THRESHOLDS)),
        )  # fmt: skip

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
        dropped, shard = set(load_array(task.inputs[1]).tolist()), task.inputs[0]

        def keep(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for document in documents:
                if tally.read - 1 in dropped:
                    tally.drop(document, "duplicate")
                else:
                    yield document

        if storage.size(shard) < LARGE_BYTES:
            return write_shard(task, context, read_documents(shard), keep)
        checkpoint = Checkpoint(task, context, parts=len(task.outputs))
        return write_shard_in_steps(task, context, functools.partial(read_documents, shard), keep, checkpoint)

    def find_losses(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: the domains and sources that lose most; each as its name, its documents and those that go."""
        from webtext_prep.near_duplicates.losses import MOST_LISTED, Groups, largest_losses

        def loader(groups: Location, dropped: Location) -> Callable[[], tuple[Groups, npt.NDArray[np.int64]]]:
            return lambda: (Groups.unpack(storage.read_bytes(groups)), load_array(dropped))

        shards = [loader(*pair) for pair in zip(task.inputs[::2], task.inputs[1::2], strict=True)]
        losses = largest_losses(shards, task.options["share"])
        context.report(len(shards))
        return [[loss.group, loss.documents, loss.dropped] for loss in losses[:MOST_LISTED]]

    # Phases

    def run(self, job: Run) -> Outcome:
        """Find who may be alike, decide, drop."""
        version = [self.version, self.identity()]
        divided = once(job, "parts", version, lambda: self._divide(job))
        _remove_scratch(job, "bands")
        found = once(job, "suspects", version, lambda: self._collect(job, divided))
        _remove_scratch(job, "fingerprints", "components")
        decided = once(job, "decided", version, lambda: self._decide_parts(job, found))
        _remove_scratch(job, "suspects", "pairs")
        receipts = self._receipts(job)
        losses = self._losses(job)
        tasks = [
            Task(f"part-{shard:05}", (path, receipts[shard][0]), job.shard_outputs(shard))
            for shard, path in enumerate(job.inputs)
        ]
        outcome = shards_outcome(tasks, job.map("shards", self.drop_shard, tasks, total=found["new"]))
        outcome.outputs.append(_write_table(job.output / TABLE, receipts[: len(job.inputs)]))
        outcome.facts["groups"] = decided["groups"]
        if self._old_shards and self.against_loses != "new":
            outcome.outputs.append(_write_table(job.output / SUPERSEDED, receipts[len(job.inputs) :]))
            outcome.facts["superseded"] = decided["superseded"]
        for loss in losses:
            outcome.tally.problem(f"{loss}: look at its rows in {TABLE}.")
        outcome.facts["losses"] = [loss.as_dict() for loss in losses]
        return outcome

    @property
    def is_preview(self) -> bool:
        """Whether only to say what each similarity would drop."""
        return self.dry_run or self.sample > 0

    def preview(self, job: Run) -> Findings:
        """Find who may be alike at the lowest similarity, and decide at each."""
        from webtext_prep.near_duplicates.preview import THRESHOLDS, combine, render

        wide = dataclasses.replace(self, similarity=THRESHOLDS[0])
        found = wide._collect(job, wide._divide(job))
        tasks = [
            Task(
                f"part-{part:05}",
                (job.scratch / BLOCKS,),
                options={**found, "part": part},
                hints={"scratch": str(job.scratch)},
            )
            for part in range(found["parts"])
        ]
        results = job.map("previews", self.examine_part, tasks, unit="suspects", total=found["suspects"])
        table = combine(results, found["new"], found["characters"], found["wanted"])
        values = {"documents": found["new"], "sampled": found["wanted"], "similarities": table}
        return Findings(render(table, found["new"], found["wanted"]), values)

    def _losses(self, job: Run) -> list[Loss]:
        """Who loses more than `alarm_share`. Raises WebtextError if anyone loses more than `stop_share`."""
        from webtext_prep.near_duplicates.losses import Loss

        pairs = zip(_groups(job), self._receipts(job), strict=False)
        files = tuple(path for groups, (dropped, _) in pairs for path in (groups, dropped))
        task = Task("all", files, options={"share": min(self.alarm_share, self.stop_share)})
        (found,) = job.map("losses", self.find_losses, [task], unit="shards", total=len(job.inputs))
        losses = [Loss(*entry) for entry in found]
        if losses and losses[0].share > self.stop_share:
            raise WebtextError(
                f"dedup: the {losses[0]}, which is more than --stop-share {self.stop_share:g} allows; nothing was "
                "written. See with --dry-run what goes, change --similarity, or give a higher --stop-share."
            )
        return [loss for loss in losses if loss.share > self.alarm_share]

    def _receipts(self, job: Run) -> list[tuple[Path, Path]]:
        """For each shard, the numbers of the documents that go, and their rows of the table."""
        folder, count = job.scratch / "receipts", len(job.inputs) + len(self._old_shards)
        return [(folder / f"part-{shard:05}.npy", folder / f"part-{shard:05}.rows") for shard in range(count)]

    def _divide(self, job: Run) -> dict[str, Any]:
        """Phases `fingerprints` to `components`."""
        from webtext_prep.near_duplicates.candidates import Fingerprints

        shards, scratch = self._shards(job), {"scratch": str(job.scratch)}
        has_folders, groups = len({path.parent for path in job.inputs}) > 1, _groups(job, len(shards))
        sampling = [job.scratch / "sample" / f"part-{shard:05}.npy" for shard in range(len(job.inputs))]
        sampling = sampling if self.sample else []
        printing = [
            Task(
                f"part-{shard:05}",
                (path,),
                (
                    *Fingerprints.files(job.scratch / "fingerprints", shard),
                    groups[shard],
                    *sampling[shard : shard + 1],
                ),
                {"source": str(path.parent) if has_folders else ""},
            )
            for shard, path in enumerate(shards)
        ]
        expected = None if self.against else job.expected_documents()
        counts = job.map("fingerprints", self.fingerprint_shard, printing, total=expected)
        new = sum(map(sum, counts[: len(job.inputs)]))
        blocks, blocks_path = Blocks.of(counts), job.scratch / BLOCKS
        blocks.save(blocks_path)
        # Whatever follows depends on all fingerprints.
        stamps = [storage.stamp(path) for task in printing for path in task.outputs[:2]]
        made = {"fingerprints": digest(stamps), "new": new}
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
        buckets = [path for task in sorting for path in task.outputs]
        chosen = {**made, "buckets": len(sorting), "sample": self.sample}
        joining = Task("all", (blocks_path, *buckets, *sampling), (job.scratch / PARTS,), chosen, scratch)
        (joined,) = job.map("components", self.find_components, [joining], unit="bands", total=len(sorting))
        return {**made, "documents": blocks.documents, **joined}

    def _collect(self, job: Run, divided: dict[str, Any]) -> dict[str, Any]:
        """Phase `suspects`."""
        tasks = [
            Task(
                f"part-{shard:05}",
                (job.scratch / BLOCKS, job.scratch / PARTS, path),
                (job.scratch / "suspects" / f"part-{shard:05}.frames",),
                {**divided, "shard": shard},
                {"scratch": str(job.scratch)},
            )
            for shard, path in enumerate(self._shards(job))
        ]
        results = job.map("suspects", self.collect_suspects, tasks, total=divided["documents"])
        suspects = sum(result["suspects"] for result in results)
        return {**divided, "suspects": suspects, "digest": digest([result["digest"] for result in results])}

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
            for shard, files in enumerate(self._receipts(job))
        ]
        counts = job.map("receipts", self.sort_receipts, sorting, unit="duplicates")
        superseded = sum(counts[len(job.inputs) :])
        return {"groups": sum(result["groups"] for result in results), "superseded": superseded}


def _frames(task: Task, blocks: Blocks) -> Iterator[tuple[int, bytes]]:
    """The suspects of one part, packed, by the numbers of their blocks."""
    folder, parts = Path(task.hints["scratch"]) / "suspects", task.options["parts"]
    for block, shard in enumerate(blocks.shards.tolist()):
        own = blocks.in_shard(shard)
        frame = (block - own[0]) * parts + task.options["part"]
        content = read_frame(folder / f"part-{shard:05}.frames", frame, len(own) * parts)
        if content:
            yield block, content


def _with_urls(documents: Iterable[Document], urls: list[bytes]) -> Iterator[Document]:
    """Pass `documents` on, and collect the URLs of those that passed."""
    for document in documents:
        urls.append(document.url.encode("utf-8", "surrogatepass"))
        yield document


def _groups(job: Run, count: int | None = None) -> list[Path]:
    """The domains and sources of the documents of each shard, of the new ones unless a number is given."""
    return [job.scratch / "groups" / f"part-{shard:05}" for shard in range(count or len(job.inputs))]


def _write_table(place: Location, receipts: list[tuple[Path, Path]]) -> Location:
    """The rows of several shards as one file."""
    with storage.create(place) as table:
        for _, rows in receipts:
            with rows.open("rb") as part:
                shutil.copyfileobj(part, table, 1 << 20)
    return place


def _remove_scratch(job: Run, *folders: str) -> None:
    for folder in folders:
        shutil.rmtree(job.scratch / folder, ignore_errors=True)
