"""`webtext urls`: from dumps of Reddit submissions to a list of the pages that they link to, each once.

Two phases. The first reads the dumps, drops submissions by what their rows say, and splits the others by page into the
buckets of partition files (`documents/folders/partitions.py`); the second puts the submissions of each page together,
bucket by bucket. Memory is bounded by a bucket, and by the 2 GiB that a dump compressed with `zstd --long=31` needs.

A dump can only be decompressed from its beginning, so it is one task, and an uncompressed one a task for each GiB. A
task closes its partition file every 20 seconds and goes on from there when it is run again: what was done is only
decompressed once more, which is several times as fast. The rows of a bucket are the same wherever these files end.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from command_kit import setting
from webtext_prep import storage
from webtext_prep.documents.folders.partitions import read_partitions, write_partitions
from webtext_prep.documents.formats.lines import has_ranges
from webtext_prep.errors import InputError
from webtext_prep.reddit.pages import (
    LinkedPage,
    Submitted,
    best_of,
    decode_links,
    encode_pages,
    page_of,
    without_repeats,
)
from webtext_prep.reddit.rows import KINDS, is_dump, read_blocks
from webtext_prep.reddit.selection import Rules, Splitter, is_list_of_names, subreddit_names, time_of
from webtext_prep.running.file_ranges import SECONDS, TaskState
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Reads, Stage, shard_writer, shards_outcome
from webtext_prep.running.tasks import Context, Files, Tally, Task, checked_total
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import shards_for

BYTES_PER_SHARD = 256 << 20
"""With `--shards 0`: bytes of dumps for each shard."""
BYTES_PER_BUCKET = 64 << 20
"""Bytes of dumps for each bucket in which the pages of a shard are put together."""
BYTES_PER_RANGE = 1 << 30
"""Bytes of the ranges in which a dump that is not compressed is read."""

PAGES_AT_ONCE = 1000
"""Rows of a shard that are written together."""


@dataclass(frozen=True)
class Urls(Stage):
    """Choose submissions from Reddit dumps, and list each page that they link to once, with score, subreddits, title.

    Reads Pushshift's dumps of submissions, old (2005-2017) and v2, and Arctic Shift's: RS_2015-01.zst, .xz, .bz2, .gz
    or plain, and dumps of single subreddits. Comments (RC_*) are left out. URLs of one page may differ in fragment,
    tracking parameters, order of parameters, default port, or mobile host; the submission with the highest score
    gives the URL in the list. Links into Reddit itself stay, for `webtext blacklist` to drop.
    Nearly all is dropped, and only counted: unreadable (with file and line), self_post, over_18, advertisement,
    removed, other_subreddit, other_time, no_url, low_score, repeated_submission, duplicate_url."""

    name: ClassVar[str] = "urls"
    order: ClassVar[int] = 10
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "Reddit submission dumps -> URLs with score, subreddits and title"
    reads = Reads(KINDS, is_dump, "submissions", has_standard_input=True)
    libraries = ("tldextract",)

    min_score: int = setting(3, "drop submissions with a lower score")
    sum_scores: bool = setting(
        False, "compare --min-score with the sum over all submissions of a page, instead of with each by itself"
    )
    include_over_18: bool = setting(False, "also take submissions that are marked as for adults")
    exclude_removed: bool = setting(False, "drop submissions that moderators, their authors or Reddit removed")
    subreddits: tuple[str, ...] = setting(
        (), "take only these: names, or .txt files with one on a line", metavar="NAME"
    )
    exclude_subreddits: tuple[str, ...] = setting((), "take all but these, likewise", metavar="NAME")
    after: str = setting("", "submitted at that date (UTC) or later: 2015, 2015-01, 2015-01-31", metavar="DATE")
    before: str = setting("", "submitted before that date", metavar="DATE")
    shards: int = setting(0, "output shards; 0 means one for each 256 MiB of dumps", ge=0, le=4096)
    allow_unreadable: bool = setting(
        False, "write the rest even if more than 10% of the rows are unreadable", identity=False
    )

    def __post_init__(self) -> None:
        if self.rules.after is not None and self.rules.before is not None and self.rules.after >= self.rules.before:
            raise InputError(f"--after {self.after} is not before --before {self.before}: nothing lies between them.")

    @functools.cached_property
    def rules(self) -> Rules:
        """What a submission must be to count. Raises InputError for a list that can't be read, or a wrong date."""
        return Rules(
            min_score=None if self.sum_scores else self.min_score,
            over_18=self.include_over_18,
            removed=not self.exclude_removed,
            only=subreddit_names(self.subreddits),
            never=subreddit_names(self.exclude_subreddits),
            after=time_of(self.after, "--after"),
            before=time_of(self.before, "--before"),
        )

    def setting_files(self) -> list[Path]:
        """Lists of subreddits."""
        return [Path(name) for name in (*self.subreddits, *self.exclude_subreddits) if is_list_of_names(name)]

    def read(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: a dump, or a range of it, to partition files next to the state of the task.

        Returns the number of these files, the tally, and what was unreadable.
        """
        span = task.options.get("range")
        state = TaskState(storage.local_path(task.writes.state), task)
        found: dict[str, Any] = state.read() or {"runs": 0, "bytes": 0, "splitter": None, "is_whole": False}
        splitter = Splitter(self.rules, task.options["buckets"], task.reads.dump, state=found["splitter"])
        blocks = read_blocks(task.reads.dump, (span[0], span[1]) if span else None, found["bytes"])
        while not found["is_whole"]:
            start, done = time.monotonic(), found["bytes"]
            with write_partitions(_run_file(task.writes.state, found["runs"]), task.options["buckets"]) as writer:
                is_at_end = True
                for block, place in blocks:
                    splitter.split(block, writer)
                    done += len(block)
                    context.report(place)
                    if time.monotonic() - start >= SECONDS:
                        is_at_end = False
                        break
            found = {"runs": found["runs"] + 1, "bytes": done, "splitter": splitter.state(), "is_whole": is_at_end}
            state.write(found)
        return {"runs": found["runs"], **splitter.state()}

    def join(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the buckets of one shard to the shard, the submissions of a page together."""
        tally = Tally()
        with shard_writer(task, tally) as writer:
            for bucket in range(*task.options["buckets"]):
                pages: list[LinkedPage] = []
                for links in _grouped(read_partitions(task.reads["pieces"], bucket)):
                    page = self._page(links, tally)
                    if page is not None:
                        pages.append(page)
                    if len(pages) == PAGES_AT_ONCE:
                        writer.write_lines(encode_pages(pages), len(pages))
                        context.report(tally.read)
                        pages = []
                writer.write_lines(encode_pages(pages), len(pages))
        context.report(tally.read)
        return tally.as_dict()

    def _page(self, links: Sequence[Submitted], tally: Tally) -> LinkedPage | None:
        """The row of a page that was submitted so, or None; what does not stand for it is dropped."""
        tally.read += len(links)
        best = links[0]
        if len(links) > 1:
            links, repeated = without_repeats(links)
            best = best_of(links)
            if repeated:
                tally.dropped["repeated_submission"] += len(repeated)
        if self.sum_scores:
            score = best.score if len(links) == 1 else sum(link.score for link in links)
            if score < self.min_score:
                tally.dropped["low_score"] += len(links)
                return None
        if len(links) > 1:
            tally.dropped["duplicate_url"] += len(links) - 1
        return page_of(best, links)

    def run(self, job: Job) -> Outcome:
        """Read and split the dumps, then put pages together, shard by shard."""
        sizes = storage.sizes(job.inputs)
        shards, buckets = self._layout(sum(sizes))
        tasks = self._reading_tasks(job, sizes, buckets)
        read = job.map("read", self.read, tasks, unit="bytes", total=sum(sizes))
        results = [{**result["tally"], "unreadable": result["unreadable"]} for result in read]
        chosen = checked_total(results, "rows", is_allowed=self.allow_unreadable)
        runs = zip(tasks, read, strict=True)
        pieces = Files(
            pieces=[_run_file(task.writes.state, run) for task, result in runs for run in range(result["runs"])]
        )
        joining = [
            Task(f"part-{at:05}", pieces, job.shard_files(at, dropped=None), {"buckets": [at, buckets, shards]})
            for at in range(shards)
        ]
        outcome = shards_outcome(
            joining, job.map("shards", self.join, joining, unit=self.reads.unit, total=chosen.kept)
        )
        outcome.advice = "check that these are dumps of submissions, and the settings that drop most"
        outcome.add_reading(chosen)
        return outcome

    def _layout(self, size: int) -> tuple[int, int]:
        """How many shards and buckets dumps of `size` bytes make: bucket n belongs to shard n modulo the shards."""
        shards = self.shards or shards_for(size, BYTES_PER_SHARD)
        return shards, shards * math.ceil(shards_for(size, BYTES_PER_BUCKET) / shards)

    def _reading_tasks(self, job: Job, sizes: Sequence[int], buckets: int) -> list[Task]:
        """A task for each dump, or for each range of a large one that is not compressed."""
        tasks: list[Task] = []
        for path, size in zip(job.inputs, sizes, strict=True):
            parts: list[dict[str, Any]] = [{}]
            if size > BYTES_PER_RANGE and has_ranges(path):
                parts = [{"range": [at, at + BYTES_PER_RANGE]} for at in range(0, size, BYTES_PER_RANGE)]
            for options in parts:
                name = f"dump-{len(tasks):05}"
                writes = Files(state=job.scratch / name / "state.json")
                options = {"buckets": buckets, **options}
                tasks.append(Task(name, Files(dump=path), writes, options, folder=job.scratch / name))
        return tasks


def _grouped(blocks: Iterable[bytes]) -> Iterator[Sequence[Submitted]]:
    """The submissions in a bucket, grouped by page, pages in the order in which they first come."""
    first: dict[str, Submitted] = {}
    others: dict[str, list[Submitted]] = {}
    for block in blocks:
        for link in decode_links(block):
            known = first.setdefault(link.key, link)
            if known is not link:
                others.setdefault(link.key, [known]).append(link)
    for key, link in first.items():
        yield others.get(key, (link,))


def _run_file(state: Location, number: int) -> Location:
    """The partition file of a run, next to the state of its task."""
    return state.with_name(f"run-{number:05}.parts")
