"""`webtext dedup`: of documents that say nearly the same, keep one, and record whose representative it is.

Documents are visited from the longest to the shortest, equal lengths by URL: a document is dropped if one that is
already kept is at least `--similarity` similar to it. So each group keeps its longest document, and a chain of similar
documents cannot merge unrelated ones. The order of the input does not matter. The phases, each on all cores but for
`components`:

    fingerprints  each shard's documents to MinHash signatures, and signatures to one 64-bit key a band
    bands         each band's keys of the whole corpus, sorted: which documents share a bucket
    components    which documents buckets connect, directly or through others, divided into parts of work
    candidates    the texts of these documents, sorted into the parts
    decisions     each part: shingles again, exact similarities, who goes and for whom
    receipts      what was decided, back in the order of the input
    losses        which domains and sources lose most of their documents
    shards        each shard without what goes, with a receipt for that

Memory follows from the size of a block of documents and of a part, not of the corpus, but for 24 bytes a document in
`components`, most of them mapped from files. Files between the phases are removed when they have been used; at most
they take 8 bytes per band and document, and the compressed texts and keys of the candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import setting
from command_kit.settings import flag_name
from webtext_prep import storage
from webtext_prep.dedup.phases import BLOCKS, NearDuplicates, groups_of
from webtext_prep.documents.document import Document, decode_document
from webtext_prep.documents.folders.partitions import load_array
from webtext_prep.documents.folders.sampling import Sample, take_sample
from webtext_prep.documents.folders.shards import DROPPED, SUPERSEDED, read_documents
from webtext_prep.documents.formats.compression import join_zstd
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Writes, shards_outcome, write_shard
from webtext_prep.running.summary import Findings
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location

if TYPE_CHECKING:
    from webtext_prep.dedup.drop_rates import Groups, Loss


@dataclass(frozen=True)
class Dedup(NearDuplicates):
    """Drop documents that nearly repeat another, by MinHash verified by exact Jaccard similarity of their shingles.

    Reads and writes document shards. The receipt of a dropped document has duplicate_of, similarity, the domains of
    both and a passage of matching text. Of each group the longest document stays. Drops: duplicate.

    With --against, documents are also compared with the documents of finished runs, which stay as they are; old
    documents that lose to new ones are listed in superseded.jsonl.zst. --dry-run shows what each similarity would
    drop."""

    name: ClassVar[str] = "dedup"
    order: ClassVar[int] = 60
    version: ClassVar[int] = 4
    libraries = ("datasketch", "tldextract")
    writes: ClassVar[Writes] = Writes(tables=(SUPERSEDED,))
    preload: ClassVar[tuple[str, ...]] = ("webtext_prep.text.fingerprint_kernels", "webtext_prep.dedup.decisions")
    summary: ClassVar[str] = "documents -> documents without near-duplicates, and a receipt for each dropped one"

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
        super().__post_init__()
        for name in ("alarm_share", "stop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{flag_name(name)} must be from 0 to 1, but is {getattr(self, name)}.")

    def needs(self, sample: Sample, workers: int) -> Needs:
        """As the table says, and files between phases for `--against`, too.

        A preview has more candidates, at the lowest similarity, and no output. Its files between phases stay, so that
        it resumes.
        """
        of_all = super().needs(sample + take_sample(self.old_shards, storage.sizes(self.old_shards)), workers)
        found = dataclasses.replace(super().needs(sample, workers), scratch=of_all.scratch, memory=of_all.memory)
        return dataclasses.replace(found, output=0, scratch=2 * found.scratch) if self.is_preview else found

    # Tasks

    def drop_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard without its duplicates."""
        dropped, rows = set(load_array(task.reads.numbers).tolist()), read_lines(task.reads.rows)

        def keep(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for document in documents:
                if tally.read - 1 in dropped:
                    tally.drop(document, "duplicate", **decode_document(next(rows)).metadata)
                else:
                    yield document

        return write_shard(task, context, read_documents(task.reads.shard), keep)

    def find_losses(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: the domains and sources that lose most; each as its name, its documents and how many of them go."""
        from webtext_prep.dedup.drop_rates import MOST_LISTED, Groups, largest_losses

        def loader(groups: Location, dropped: Location) -> Callable[[], tuple[Groups, npt.NDArray[np.int64]]]:
            return lambda: (Groups.unpack(storage.read_bytes(groups)), load_array(dropped))

        shards = [loader(*pair) for pair in zip(task.reads["groups"], task.reads["dropped"], strict=True)]
        losses = largest_losses(shards, task.options["share"])
        context.report(len(shards))
        return [[loss.group, loss.documents, loss.dropped] for loss in losses[:MOST_LISTED]]

    # Phases

    def run(self, job: Job) -> Outcome:
        """Find who may be alike, decide, drop."""
        parts = _once(job, "parts", lambda: self.components(job, self.prints(job)), "bands")
        found = _once(job, "candidates", lambda: self.candidates(job, parts), "fingerprints", "components")
        decided = _once(job, "decisions", lambda: self.decisions(job, found), "candidates", "decisions")
        return self.write(job, decided)

    def write(self, job: Job, decided: dict[str, Any]) -> Outcome:
        """Phases `losses` and `shards`: each shard without what goes, and the table of what does."""
        receipts, losses = self.receipts_of(job), self._losses(job)
        tasks = [
            Task(f"part-{shard:05}", Files(shard=path, **receipts[shard]), job.shard_files(shard))
            for shard, path in enumerate(job.inputs)
        ]
        outcome = shards_outcome(tasks, job.map("shards", self.drop_shard, tasks, total=decided["new"]))
        outcome.facts["groups"] = decided["groups"]
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

    @property
    def is_preview(self) -> bool:
        """Whether only to say what each similarity would drop."""
        return self.dry_run or self.sample > 0

    def preview(self, job: Job) -> Findings:
        """Find who may be alike at the lowest similarity, and decide at each."""
        from webtext_prep.dedup.preview import THRESHOLDS, combine, render

        wide = dataclasses.replace(self, similarity=THRESHOLDS[0])
        found = wide.candidates(job, wide.components(job, wide.prints(job, self.sample)))
        tasks = wide.tasks_of_parts(job, found)
        results = job.map("previews", self.examine_part, tasks, unit="candidates", total=found["candidates"])
        table = combine(results, found["new"], found["characters"], found["wanted"])
        values = {"documents": found["new"], "sampled": found["wanted"], "similarities": table}
        return Findings(render(table, found["new"], found["wanted"]), values)

    def _losses(self, job: Job) -> list[Loss]:
        """Who loses more than `alarm_share`. Raises WebtextError if anyone loses more than `stop_share`."""
        from webtext_prep.dedup.drop_rates import Loss

        groups = groups_of(job)
        files = Files(groups=groups, dropped=[its.numbers for its in self.receipts_of(job)[: len(groups)]])
        task = Task("all", files, options={"share": min(self.alarm_share, self.stop_share)})
        (found,) = job.map("losses", self.find_losses, [task], unit="shards", total=len(job.inputs))
        losses = [Loss(*entry) for entry in found]
        if losses and losses[0].share > self.stop_share:
            raise WebtextError(
                f"dedup: the {losses[0]}, which is more than --stop-share {self.stop_share:g} allows; nothing was "
                "written. See with --dry-run what goes, change --similarity, or give a higher --stop-share."
            )
        return [loss for loss in losses if loss.share > self.alarm_share]


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
