"""`webtext dedup`: of documents that say nearly the same, keep one, and record whose representative it is.

Documents are visited from the longest to the shortest (those of preferred sources first), equal lengths by URL: a
document is dropped if one that is already kept is at least `--similarity` similar to it. So each group keeps its
longest document, and a chain of similar documents cannot merge unrelated ones. The order of the input does not matter.
The phases, each on all cores but for
`components`:

    fingerprints  each shard's documents to MinHash signatures, and signatures to one 64-bit key a band
    bands         each band's keys of the whole corpus, sorted: which documents share a bucket
    components    which documents buckets connect, directly or through others, divided into parts of work
    candidates    the texts of these documents, sorted into the parts
    decisions     each part: shingles again, exact similarities, who goes and for whom
    receipts      what was decided, back in the order of the input
    losses        which domains and sources lose most of their documents
    shards        each shard without what goes

Memory follows from the size of a block of documents and of a part, not of the corpus, but for 24 bytes a document in
`components`, most of them mapped from files. Files between the phases are removed when they have been used; at most
they take 8 bytes per band and document, and the compressed texts and keys of the candidates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from command_kit import setting
from command_kit.settings import flag_name
from webtext_prep import storage
from webtext_prep.dedup import reports
from webtext_prep.dedup.candidates import DocumentBlocks, Fingerprints, fingerprint_blocks, runs_of
from webtext_prep.dedup.decisions import LOSERS, Against, CandidateFrame, CandidatePart, Decided, Sets, as_bytes
from webtext_prep.dedup.preference import check_sources, place_among
from webtext_prep.dedup.reports import THRESHOLDS, GroupCounter, Groups, Loss, sample_hash
from webtext_prep.documents.document import Document, decode_document
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.documents.folders.partitions import load_array, read_partition, save_array, write_partitions
from webtext_prep.documents.folders.sampling import Sample, take_sample
from webtext_prep.documents.folders.shards import (
    DROPPED,
    SUPERSEDED,
    copy_other_documents,
    read_chosen_documents,
    read_documents,
    read_packed_documents,
)
from webtext_prep.documents.formats.compression import join_zstd, write_zstd
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.documents.packed import PackedTexts
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Stage, Writes, shard_writer, shards_outcome, write_shard
from webtext_prep.running.summary import Findings
from webtext_prep.running.tasks import Context, Files, Tally, Task, digest
from webtext_prep.storage.locations import Location
from webtext_prep.text.fingerprints import Shingling, bands_for

BLOCKS = "blocks.npy"
PARTS = "components/parts.npy"
"""How all shards are divided into blocks, and which part decides about each document, in the scratch folder."""
SORTED_DOCUMENTS = 1 << 23
"""Keys of a band that a task sorts, about, at most."""


class Prints(NamedTuple):
    """What phase `fingerprints` leaves, file by file for all shards.

    Attributes:
        identity: what all later tasks depend on: the digest of the fingerprints, and the number of new documents.
        documents: how many there are, new and old.
        keys: band keys.
        lengths: of the texts.
        url_hashes: those that choose a sample, in a preview of one.
        sample: how many documents a preview counts; 0 for all.
    """

    identity: dict[str, Any]
    documents: int
    keys: tuple[Location, ...]
    lengths: tuple[Location, ...]
    url_hashes: tuple[Location, ...]
    sample: int


@dataclass(frozen=True)
class Dedup(Stage):
    """Drop documents that nearly repeat another, by MinHash verified by exact Jaccard similarity of their shingles.

    Reads and writes document shards. The receipt of a dropped document has duplicate_of, similarity, the domains of
    both, a passage of matching text, and the share of its 3-grams of words that the one that stays lacks. Of each group
    the longest document stays, or with --prefer that of the first such source. Drops: duplicate.

    With --against, documents are also compared with the documents of finished runs, which stay as they are; old
    documents that lose to new ones are listed in superseded.jsonl.zst. --dry-run shows what each similarity would
    drop."""

    name: ClassVar[str] = "dedup"
    order: ClassVar[int] = 60
    version: ClassVar[int] = 5
    libraries = ("datasketch", "tldextract")
    writes: ClassVar[Writes] = Writes(tables=(SUPERSEDED,))
    preload: ClassVar[tuple[str, ...]] = (
        "webtext_prep.text.fingerprint_kernels",
        "webtext_prep.dedup.kernels",
        "webtext_prep.documents.line_kernels",
    )
    summary: ClassVar[str] = "documents -> documents without near-duplicates, and a receipt for each dropped one"

    similarity: float = setting(0.8, "drop a document this similar to one that is kept, from 0 to 1")
    shingle: str = setting("word:5", "what similarity counts: word:N or char:N for n-grams", metavar="KIND:N")

    prefer: tuple[str, ...] = setting(
        (),
        "whose copy stays, however long, the first one first: input=PATH, domain=NAME, or KEY=VALUE of the metadata",
        metavar="SOURCE",
    )
    contained: float = setting(
        0.0,
        "drop a document only if the one that stays has at least this share of its 3-grams of words",
        ge=0,
        le=1,
    )

    against: tuple[str, ...] = setting(
        (), "finished runs with whose documents the new ones are compared as well", metavar="DIR"
    )
    against_loses: str = setting(
        "new", "which goes, of a new document and one of --against that are alike", choices=lambda: LOSERS
    )
    hold_out: float = setting(
        0.0,
        "of the pages that `tokenize --hold-out` with this share keeps out of training, drop the copies, never them",
        ge=0,
        lt=1,
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
        "a dry run that estimates it: N documents, chosen by a hash of their URLs, are decided as in the whole corpus; "
        "0 for all",
        identity=False,
        ge=0,
    )

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InputError(f"--similarity must be above 0 and at most 1, but is {self.similarity}.")
        Shingling.parse(self.shingle)
        check_sources(self.prefer)
        if self.against_loses not in LOSERS:
            raise InputError(f"--against-loses {self.against_loses} is not known: give {', '.join(LOSERS)}.")
        for name in ("alarm_share", "stop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{flag_name(name)} must be from 0 to 1, but is {getattr(self, name)}.")

    def identity(self) -> dict[str, Any]:
        """The documents to compare with, by what identifies their files."""
        return {"against_files": self._old_digest} if self.against else {}

    @functools.cached_property
    def old_shards(self) -> list[Location]:
        """The shards of finished runs to compare with."""
        if not self.against:
            return []
        return find_inputs(self.against, accepts=self.reads.accepts, kinds=self.reads.kinds).files

    @functools.cached_property
    def _old_digest(self) -> str:
        return digest(storage.stamps(self.old_shards))

    def _check_old_shards(self, job: Job) -> None:
        """Raise InputError for a shard to compare with that is a new one, too."""
        places = {str(path) for path in job.inputs}
        for path in self.old_shards:
            if str(path) in places:
                raise InputError(f"{path} is both in --input and in --against: give other folders.")
            if path.parent == job.output:
                raise InputError(f"--against names the output itself, {job.output}: give other folders.")

    def needs(self, sample: Sample, workers: int) -> Needs:
        """As the table says, and files between phases for `--against`, too.

        A preview has more candidates, at the lowest similarity, and no output. Its files between phases stay, so that
        it resumes.
        """
        of_all = super().needs(sample + take_sample(self.old_shards, storage.sizes(self.old_shards)), workers)
        found = dataclasses.replace(super().needs(sample, workers), scratch=of_all.scratch, memory=of_all.memory)
        return dataclasses.replace(found, output=0, scratch=2 * found.scratch) if self.is_preview else found

    def run(self, job: Job) -> Outcome:
        """Find who may be alike, decide, drop."""
        parts = _once(job, "parts", lambda: self.components(job, self.prints(job)), "bands")
        found = _once(job, "candidates", lambda: self.candidates(job, parts), "fingerprints", "components")
        decided = _once(job, "decisions", lambda: self.decisions(job, found), "candidates", "decisions")
        return self.write(job, decided)

    # Who may be alike

    def prints(self, job: Job, sample: int = 0) -> Prints:
        """Phase `fingerprints`: the band keys and the lengths of all documents; for a preview, what samples them."""
        self._check_old_shards(job)
        shards = [*job.inputs, *self.old_shards]
        has_folders, groups = len({path.parent for path in job.inputs}) > 1, _a_shard(job, shards, "groups")
        hashes = _a_shard(job, job.inputs, "sample", ".npy") if sample else []
        tasks = [
            Task(
                f"part-{shard:05}",
                Files(shard=path),
                Files(
                    **Fingerprints.files(job.scratch / "fingerprints", shard),
                    groups=groups[shard],
                    url_hashes=hashes[shard : shard + 1],
                ),
                {"source": str(path.parent) if has_folders else ""},
            )
            for shard, path in enumerate(shards)
        ]
        expected = None if self.against else job.documents
        results = job.map("fingerprints", self.fingerprint_shard, tasks, total=expected)
        counts, compared = ([result[key] for result in results] for key in ("blocks", "may_be_copied"))
        blocks = DocumentBlocks.of(counts, compared)
        blocks.save(job.scratch / BLOCKS)
        keys, lengths = (tuple(path for task in tasks for path in task.writes[kind]) for kind in ("prints", "lengths"))
        stamps = storage.stamps([path for pair in zip(keys, lengths, strict=True) for path in pair])
        identity = {"fingerprints": digest(stamps), "new": sum(map(sum, counts[: len(job.inputs)]))}
        return Prints(identity, blocks.documents, keys, lengths, tuple(hashes), sample)

    def fingerprint_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the band keys and the lengths of the documents of one shard. Returns the documents of each block, and
        whether the shard's lines may be copied as they are."""
        counter, counts, urls, copied = GroupCounter(task.options["source"]), list[int](), list[bytes](), list[bool]()

        def texts() -> Iterator[PackedTexts]:
            for batch in read_packed_documents(task.reads.shard):
                counter.add(batch.documents)
                copied.append(batch.may_be_copied)
                if task.writes["url_hashes"]:
                    urls.extend(as_bytes(document.id) for document in batch.documents)
                yield batch.texts

        blocks = fingerprint_blocks(texts(), Shingling.parse(self.shingle), self.similarity, context.report)
        with contextlib.ExitStack() as stack:
            of_keys, of_lengths, groups = (
                stack.enter_context(storage.create(place, durable=False))
                for place in (task.writes.prints, task.writes.lengths, task.writes.groups)
            )
            for count, keys, lengths in blocks:
                counts.append(count)
                of_keys.write(keys)
                of_lengths.write(lengths)
            groups.write(counter.groups().pack())
        for place in task.writes["url_hashes"]:
            save_array(place, np.fromiter(map(sample_hash, urls), np.uint64, len(urls)))
        return {"blocks": counts, "may_be_copied": all(copied)}

    def components(self, job: Job, prints: Prints) -> dict[str, Any]:
        """Phases `bands` and `components`: the buckets of each band, and the parts of the work that they connect."""
        blocks, (bands, _) = job.scratch / BLOCKS, bands_for(self.similarity)
        ranges = 1 << max(0, (prints.documents - 1) // SORTED_DOCUMENTS).bit_length()
        # Of a small corpus a task sorts several bands: as many as have keys that are worth it.
        at_once = max(1, (1 << 17) // max(1, prints.documents))
        sorting = [
            Task(
                f"bands-{own[0]:03}-{number:03}",
                Files(blocks=blocks),
                Files(
                    **{
                        kind: [job.scratch / "bands" / f"{band:03}-{number:03}.{kind}.npy" for band in own]
                        for kind in ("members", "ends")
                    }
                ),
                {**prints.identity, "bands": [own[0], own[-1] + 1], "range": number, "ranges": ranges},
                unkeyed=Files(prints=prints.keys),
            )
            for own in (range(bands)[first : first + at_once] for first in range(0, bands, at_once))
            for number in range(ranges)
        ]
        job.map("bands", self.sort_bands, sorting, unit="keys", total=prints.documents * bands)
        buckets = {kind: [path for task in sorting for path in task.writes[kind]] for kind in ("members", "ends")}
        reads = Files(blocks=blocks, **buckets, url_hashes=prints.url_hashes)
        options = {**prints.identity, "sample": prints.sample}
        writes, lengths = Files(parts=job.scratch / PARTS), Files(lengths=prints.lengths)
        joining = Task("all", reads, writes, options, unkeyed=lengths)
        (joined,) = job.map("components", self.find_components, [joining], unit="bands", total=len(buckets["ends"]))
        return {**prints.identity, "documents": prints.documents, **joined}

    def sort_bands(self, task: Task, context: Context) -> None:
        """Task: the buckets with several members of some bands, or of one range of their keys."""
        number, ranges, (first, last) = (task.options[name] for name in ("range", "ranges", "bands"))
        fingerprints = self._fingerprints(task, keys_of=dict(enumerate(task.unkeyed["prints"])))
        for done, band in enumerate(range(first, last), 1):
            members, ends = fingerprints.shared_buckets(band, number, ranges)
            save_array(task.writes["members"][band - first], members)
            save_array(task.writes["ends"][band - first], ends)
            context.report(done * fingerprints.blocks.documents // ranges)

    def find_components(self, task: Task, context: Context) -> dict[str, int]:
        """Task: the part of the work that decides about each document. Returns the number of parts.

        A component without a new document, or in a preview without a document of the sample, is not decided.
        """
        fingerprints = self._fingerprints(task, lengths_of=dict(enumerate(task.unkeyed["lengths"])))
        new, hashes = task.options["new"], list(map(load_array, task.reads["url_hashes"]))
        last = reports.choose(np.concatenate(hashes), task.options["sample"]) if hashes else reports.EVERYTHING
        wanted = np.zeros(fingerprints.blocks.documents, np.bool_)
        wanted[:new] = np.concatenate(hashes) <= np.uint64(last) if hashes else True

        def shared() -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
            pairs = zip(task.reads["members"], task.reads["ends"], strict=True)
            for done, (members, ends) in enumerate(pairs, 1):
                yield load_array(members), load_array(ends)
                context.report(done)

        parts, count = fingerprints.parts(shared(), context.scratch, wanted)
        save_array(task.writes.parts, parts)
        characters = int(fingerprints.all_lengths(context.scratch)[wanted].sum())
        return {"parts": count, "wanted": int(wanted.sum()), "characters": characters, "last": last}

    def _fingerprints(self, task: Task, **files: Mapping[int, Location]) -> Fingerprints:
        """What `fingerprint_shard` wrote; the blocks of a task say how all shards are divided."""
        return Fingerprints(DocumentBlocks.load(task.reads.blocks), bands_for(self.similarity)[0], **files)

    # Who goes, and for whom

    def candidates(self, job: Job, parts: dict[str, Any]) -> dict[str, Any]:
        """Phase `candidates`: the texts of all candidates, sorted into the parts."""
        shards = [*job.inputs, *self.old_shards]
        tasks = [
            Task(
                f"part-{shard:05}",
                Files(blocks=job.scratch / BLOCKS, parts=job.scratch / PARTS, shard=path),
                Files(candidates=candidates),
                {**parts, "shard": shard},
                unkeyed=Files(prints=Fingerprints.files(job.scratch / "fingerprints", shard).prints),
            )
            for shard, (path, candidates) in enumerate(zip(shards, self._candidates(job), strict=True))
        ]
        results = job.map("candidates", self.collect_candidates, tasks, total=parts["documents"])
        count = sum(result["candidates"] for result in results)
        return {**parts, "candidates": count, "digest": digest([result["digest"] for result in results])}

    def collect_candidates(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the documents of one shard that may be alike others, a bucket for each block and part."""
        parts, count, shard = load_array(task.reads.parts), task.options["parts"], task.options["shard"]
        fingerprints = self._fingerprints(task, keys_of={shard: task.unkeyed.prints})
        blocks = fingerprints.blocks
        own, first, candidates = blocks.in_shard(shard), blocks.first_of(shard), 0
        is_candidate = parts[first : blocks.first_of(shard + 1)] >= 0
        documents = read_chosen_documents(task.reads.shard, is_candidate.tobytes().__getitem__)
        place = place_among(self.prefer, task.reads.shard)
        with write_partitions(task.writes.candidates, len(own) * count) as writer:
            for block in own:
                within = blocks.numbers(block)
                held = dict(islice(documents, int((parts[within] >= 0).sum())))
                keys = fingerprints.keys(block, 0, fingerprints.bands)
                for part, rows in runs_of(parts[within]):
                    numbers = rows + within.start
                    chosen = [held[number] for number in (numbers - first).tolist()]
                    frame = CandidateFrame.of(numbers, keys[:, rows], chosen, place).pack()
                    writer.add_bytes((block - own[0]) * count + part, frame)
                    candidates += len(rows)
                context.report(within.stop - first)
        return {"candidates": candidates, "digest": writer.digest}

    def decisions(self, job: Job, found: dict[str, Any]) -> dict[str, Any]:
        """Phases `decisions` and `receipts`: which candidates go and for whom, part by part, then shard by shard."""
        deciding = [
            dataclasses.replace(task, writes=Files(decided=job.scratch / "decisions" / f"{task.name}.parts"))
            for task in self.tasks_of_parts(job, found)
        ]
        results = job.map("decisions", self.decide, deciding, unit="candidates", total=found["candidates"])
        of_all = {**found, "decided": digest([result["digest"] for result in results])}
        blocks, decided = Files(blocks=job.scratch / BLOCKS), Files(decided=[task.writes.decided for task in deciding])
        sorting = [
            Task(f"part-{shard:05}", blocks, files, {**of_all, "shard": shard}, unkeyed=decided)
            for shard, files in enumerate(self._receipts(job))
        ]
        counts = job.map("receipts", self.sort_receipts, sorting, unit="duplicates")
        facts = {key: sum(result[key] for result in results) for key in ("groups", "copies_of_held_out")}
        facts["lacking"] = reports.told_lacking(result["lacking"] for result in results)
        return {**facts, "superseded": sum(counts[len(job.inputs) :]), "new": found["new"]}

    def tasks_of_parts(self, job: Job, found: dict[str, Any]) -> list[Task]:
        """A task for each part of the work, which reads its candidates."""
        candidates = Files(candidates=self._candidates(job))
        blocks = Files(blocks=job.scratch / BLOCKS)
        return [
            Task(f"part-{part:05}", blocks, Files(), {**found, "part": part}, unkeyed=candidates)
            for part in range(found["parts"])
        ]

    def decide(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: which of the documents of one part go, and which one represents each; a bucket for each block."""
        # Making the sets again counts as half of the work.
        part, against, blocks = self._part(task, context, lambda read: context.report(read // 2))
        count, shingling, lacking = len(part.numbers), Shingling.parse(self.shingle), list[float]()

        def trigrams(wanted: npt.NDArray[np.bool_]) -> Sets:
            return part.trigrams((content for _, content in _frames(task, blocks)), wanted, context.scratch)

        of_all = trigrams(np.ones(count, np.bool_)) if self.contained else None
        found = part.duplicates_at(
            self.similarity, against, of_all, lambda decided: context.report(count // 2 + (decided + 1) // 2)
        )
        grams = of_all or trigrams(part.compared(found, shingling))
        with write_partitions(task.writes.decided, len(blocks)) as writer:
            for block, content in _frames(task, blocks):
                gone = list(part.receipts(content, found, grams, shingling))
                if gone:
                    numbers = np.array([duplicate.number for duplicate in gone], np.int64)
                    relation = "duplicate_of" if numbers[0] < against.first else "superseded_by"
                    rows = [duplicate.row(relation, self.prefer) for duplicate in gone]
                    lacking += [duplicate.lacking for duplicate in gone if duplicate.number < against.first]
                    writer.add_bytes(block, Decided(numbers.tobytes(), rows).pack())
        return {
            "digest": writer.digest,
            "lacking": reports.count_lacking(lacking),
            "groups": len(np.unique(found[0][found[0] >= 0])),
            "copies_of_held_out": part.copies_of_held_out(found[0], against),
        }

    def _part(
        self, task: Task, context: Context, report: Callable[[int], None]
    ) -> tuple[CandidatePart, Against, DocumentBlocks]:
        """The candidates of a task's part, which of them are old, and the blocks of all shards."""
        blocks = DocumentBlocks.load(task.reads.blocks)
        frames = (content for _, content in _frames(task, blocks))
        part = CandidatePart.read(frames, Shingling.parse(self.shingle), context.scratch, report)
        return part, Against(task.options["new"], self.against_loses, self.hold_out, self.contained), blocks

    def sort_receipts(self, task: Task, context: Context) -> int:
        """Task: which documents of one shard go, and what decided about each, in the order of the input."""
        blocks = DocumentBlocks.load(task.reads.blocks)
        dropped = []
        with write_zstd(task.writes.rows, durable=False) as table:
            for block in blocks.in_shard(task.options["shard"]):
                found: list[tuple[int, bytes]] = []
                for of_part in task.unkeyed["decided"]:
                    frame = read_partition(of_part, block)
                    if frame:
                        decided = Decided.unpack(frame)
                        found += zip(np.frombuffer(decided.numbers, np.int64).tolist(), decided.rows, strict=True)
                for number, row in sorted(found):
                    dropped.append(number)
                    table.write(row)
        save_array(task.writes.numbers, np.array(dropped, np.int64) - blocks.first_of(task.options["shard"]))
        context.report(len(dropped))
        return len(dropped)

    # What is left

    def write(self, job: Job, decided: dict[str, Any]) -> Outcome:
        """Phases `losses` and `shards`: each shard without what goes."""
        receipts = self._receipts(job)
        losses = self._losses(job, receipts)
        tasks = [
            Task(
                f"part-{shard:05}",
                Files(shard=path, **receipts[shard]),
                job.shard_files(shard),
                {"shard": shard},
                unkeyed=Files(blocks=job.scratch / BLOCKS),
            )
            for shard, path in enumerate(job.inputs)
        ]
        outcome = shards_outcome(tasks, job.map("shards", self.drop_shard, tasks, total=decided["new"]))
        outcome.facts["groups"] = decided["groups"]
        outcome.facts["lacking_in_what_stays"] = decided["lacking"]
        if self.hold_out:
            outcome.facts["copies_of_held_out"] = decided["copies_of_held_out"]
        if self.old_shards and self.against_loses != "new":
            tables = [its.rows for its in receipts[len(job.inputs) :]]
            outcome.outputs.append(join_zstd(tables, job.output / SUPERSEDED))
            outcome.facts["superseded"] = decided["superseded"]
        for loss in losses:
            outcome.tally.problem(f"{loss}: look at its rows in {DROPPED}.")
        outcome.facts["losses"] = [loss.as_dict() for loss in losses]
        return outcome

    def drop_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard without its duplicates."""
        gone, rows = load_array(task.reads.numbers).tolist(), read_lines(task.reads.rows)
        blocks, shard = DocumentBlocks.load(task.unkeyed.blocks), task.options["shard"]
        if all(blocks.may_be_copied[at] for at in blocks.in_shard(shard)):
            count = blocks.first_of(shard + 1) - blocks.first_of(shard)
            tally = Tally(count)
            with shard_writer(task, tally) as writer:
                for row in map(decode_document, rows):
                    tally.drop(Document(row.url), "duplicate", **row.metadata)
                copy_other_documents(task.reads.shard, writer, count, gone, context.report)
            return tally.as_dict()
        dropped = set(gone)

        def keep(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for document in documents:
                if tally.read - 1 in dropped:
                    tally.drop(document, "duplicate", **decode_document(next(rows)).metadata)
                else:
                    yield document

        return write_shard(task, context, read_documents(task.reads.shard), keep)

    def _losses(self, job: Job, receipts: Sequence[Files]) -> list[Loss]:
        """Who loses more than `alarm_share`. Raises WebtextError if anyone loses more than `stop_share`."""
        groups = _a_shard(job, job.inputs, "groups")
        files = Files(groups=groups, dropped=[its.numbers for its in receipts[: len(groups)]])
        task = Task("all", files, options={"share": min(self.alarm_share, self.stop_share)})
        (found,) = job.map("losses", self.find_losses, [task], unit="shards", total=len(job.inputs))
        losses = [Loss(*entry) for entry in found]
        if losses and losses[0].share > self.stop_share:
            raise WebtextError(
                f"dedup: the {losses[0]}, which is more than --stop-share {self.stop_share:g} allows; nothing was "
                "written. See with --dry-run what goes, change --similarity, or give a higher --stop-share."
            )
        return [loss for loss in losses if loss.share > self.alarm_share]

    def find_losses(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: the domains and sources that lose most; each as its name, its documents and how many of them go."""

        def loader(groups: Location, dropped: Location) -> Callable[[], tuple[Groups, npt.NDArray[np.int64]]]:
            return lambda: (Groups.unpack(storage.read_bytes(groups)), load_array(dropped))

        shards = [loader(*pair) for pair in zip(task.reads["groups"], task.reads["dropped"], strict=True)]
        losses = reports.largest_losses(shards, task.options["share"])
        context.report(len(shards))
        return [[loss.group, loss.documents, loss.dropped] for loss in losses[: reports.MOST_LISTED]]

    # The dry run

    @property
    def is_preview(self) -> bool:
        """Whether only to say what each similarity would drop."""
        return self.dry_run or self.sample > 0

    def preview(self, job: Job) -> Findings:
        """Find who may be alike at the lowest similarity, and decide at each."""
        wide = dataclasses.replace(self, similarity=THRESHOLDS[0])
        found = wide.candidates(job, wide.components(job, wide.prints(job, self.sample)))
        tasks = wide.tasks_of_parts(job, found)
        results = job.map("previews", self.examine_part, tasks, unit="candidates", total=found["candidates"])
        table = reports.combine(results, found["new"], found["characters"], found["wanted"])
        values = {"documents": found["new"], "sampled": found["wanted"], "similarities": table}
        return Findings(reports.render(table, found["new"], found["wanted"]), values)

    def examine_part(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what would become of the documents of one part at each similarity."""
        part, against, blocks = self._part(task, context, lambda read: None)
        frames, again = ((content for _, content in _frames(task, blocks)) for _ in range(2))  # once more
        count, shingling = len(part.numbers), Shingling.parse(self.shingle)
        trigrams = part.trigrams(frames, np.ones(count, np.bool_), context.scratch)
        return reports.examine(
            part, again, trigrams, against, task.options["last"], shingling,
            lambda done: context.report(done * count // len(THRESHOLDS)),
        )  # fmt: skip

    # Files between phases

    def _candidates(self, job: Job) -> list[Location]:
        return _a_shard(job, [*job.inputs, *self.old_shards], "candidates", ".parts")

    def _receipts(self, job: Job) -> list[Files]:
        """For each shard, the numbers of the documents that go, and a row for each: its URL and what decided."""
        kinds = (_a_shard(job, [*job.inputs, *self.old_shards], "receipts", end) for end in (".npy", ".rows.zst"))
        return [Files(numbers=numbers, rows=rows) for numbers, rows in zip(*kinds, strict=True)]


def _once(job: Job, name: str, make: Callable[[], dict[str, Any]], *used: str) -> dict[str, Any]:
    """What some phases find; then the folders between phases that nothing needs any more go.

    All of them are one task, which is done as long as the blocks are there: a job that resumes makes no phase again
    whose files are gone.
    """
    task = Task(name, Files(inputs=job.inputs), Files(blocks=job.scratch / BLOCKS))
    (found,) = job.map("once", lambda task, context: make(), [task], is_led=True)
    for folder in used:
        storage.remove_folder(job.scratch / folder)
    return dict(found)


def _frames(task: Task, blocks: DocumentBlocks) -> Iterator[tuple[int, bytes]]:
    """The candidates of one part, packed, by the numbers of their blocks."""
    parts = task.options["parts"]
    for block, shard in enumerate(blocks.shards.tolist()):
        own = blocks.in_shard(shard)
        content = read_partition(task.unkeyed["candidates"][shard], (block - own[0]) * parts + task.options["part"])
        if content:
            yield block, content


def _a_shard(job: Job, shards: Sequence[Location], folder: str, suffix: str = "") -> list[Location]:
    """A file between phases for each shard."""
    return [job.scratch / folder / f"part-{number:05}{suffix}" for number in range(len(shards))]
