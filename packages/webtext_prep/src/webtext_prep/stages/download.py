"""`webtext download`: fetch each URL, extract its text, and account for every one.

A shard of URLs becomes a shard of documents in the same order and `outcomes/part-00000.jsonl.zst`, one row per URL. One
process fetches (`crawl/crawl.py`): limits for a host hold because it knows all requests. Finished URLs go into the
database of the output at once, so that a kill loses seconds, and stay there, found by URL, so that a list may be
reordered, grown, or split in another way. Shards are written from it. A second run asks again only for retryable URLs.
Here is what one run does after another.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from webtext_prep import storage
from webtext_prep.crawl.settings import FetchSettings
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import is_url_list
from webtext_prep.documents.folders.raw_files import columns_of
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.stage_record import GONE
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.extraction.page_stage import pages_of, saved_pages
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Reads, Writes, shards_outcome
from webtext_prep.running.tasks import Context, Files, Tally, Task


def _rows_of(task: Task) -> Iterator[tuple[int, Document]]:
    """The rows of a task's lists, each with the number of its list; as many as the task is to take."""
    lists = zip(task.reads["lists"], task.options["columns"], strict=True)
    rows = ((number, row) for number, (path, columns) in enumerate(lists) for row in read_urls(path, columns=columns))
    yield from itertools.islice(rows, task.options["most"])


def advice_on(tally: Tally) -> str:
    """What to do when no page was kept."""
    if tally.dropped["blocked_address"] == tally.read:
        return (
            "these addresses are private; if they are meant, give --allow-private-addresses=loopback (of this "
            "machine) or --allow-private-addresses=all (any), with --restart"
        )
    return "check the list, and the network of this machine"


@dataclass(frozen=True)
class Download(FetchSettings):
    """Fetch the pages of a list of URLs and keep their text.

    Reads URL shards as `webtext blacklist` writes them, or plain lists of URLs. Writes document shards in the order of
    the lists, outcomes/ with one row for each URL, and gone/, the list of the pages that are gone, which `webtext
    rescue` reads. Run the same command again to resume after an interruption; once finished, running it again tries
    retryable URLs (timeouts, servers in trouble), --retry-passes times. One process of this machine fetches; on a
    cluster give --save-pages here, and have `webtext extract` spread over it.
    Drops, by outcome: http_404 (and other statuses), timeout, dns, no_such_host, connection, tls, host_down, robots,
    robots_unreachable, opted_out, too_large, not_html, blocked_address, too_many_redirects, bad_redirect,
    malformed_url, malformed_response, duplicate, empty, soft_404, parked, payment_required, refused_by_edge, challenge,
    other_kind, too_deep, extract_timeout, extract_memory, extract_crash, extract_error."""

    name: ClassVar[str] = "download"
    order: ClassVar[int] = 30
    version: ClassVar[int] = 15
    oldest: ClassVar[int] = 8
    is_one_process: ClassVar[bool] = True
    summary: ClassVar[str] = "URL shards -> documents, fetched politely and safely"
    reads = Reads("URL lists (shards of `webtext blacklist`, .jsonl, .txt; compressed or not)", is_url_list, "URLs")
    writes: ClassVar[Writes] = dataclasses.replace(
        FetchSettings.writes, folders=(*FetchSettings.writes.folders, GONE), others=saved_pages
    )

    def needs(self, sample: Sample, workers: int) -> Needs:
        """What `--max-urls` of the lists need."""
        share = (self.max_urls or sample.documents) / max(1, sample.documents)
        return super().needs(sample.part(share), workers)

    # The whole job

    def run(self, job: Job) -> Outcome:
        """Fetch all lists, and write their shards."""
        from webtext_prep.crawl.database import NAME, CrawlDatabase, Facts

        place = job.kept / NAME
        total, most = job.documents, self.max_urls or None
        total = most if most is not None and (total is None or total > most) else total
        columns = columns_of(job.inputs)
        crawl = Task("crawl", Files(lists=job.inputs), Files(database=place), {"most": most, "columns": columns})
        unit = self.reads.unit
        (found,) = job.map("pages", self.fetch, [crawl], unit=unit, total=total, again=lambda result: True)
        tasks = []
        for number, (path, rows) in enumerate(zip(job.inputs, found["rows"], strict=True)):
            if most is not None and not any(found["rows"][number:]):
                break  # --max-urls were in the lists before
            shard = job.shard_files(number).kept
            pages = pages_of(shard) if self.save_pages else None
            tables = {name: job.output / name / shard.name for name in (OUTCOMES, GONE)}
            writes = job.shard_files(number, **tables, pages=pages, dropped=None)
            hints = {"newest": found["newest"]}
            options = {"most": None if most is None else rows, "columns": columns[number : number + 1]}
            tasks.append(Task(f"part-{number:05}", Files(lists=path), writes, options, hints, Files(database=place)))

        def is_old(result: dict[str, Any]) -> bool:
            return bool(result["newest"] != found["newest"])

        with CrawlDatabase(place, is_checked=False) as database:  # open meanwhile: its log stays for all who read it
            results = job.map("shards", self.write_shard, tasks, unit=unit, total=total, again=is_old)
            retryable = sum((collections.Counter(result["retryable"]) for result in results), collections.Counter())
            database.facts = facts = Facts(found["retry_pass"], dict(sorted(retryable.items())))
        outcome = shards_outcome(tasks, results)
        outcome.advice = advice_on(outcome.tally)
        for sentence in found["notes"]:
            outcome.tally.problem(sentence)
        outcome.facts["page_bytes"] = sum(result["page_bytes"] for result in results)
        outcome.facts["retryable"] = sum(facts.retryable.values())
        return outcome

    def wants_another_run(self, job: Job) -> bool:
        """Whether some URLs are retryable, and have been tried in too few passes."""
        from webtext_prep.crawl.database import NAME, facts_in

        facts = facts_in(job.kept / NAME)
        return self.retry_passes > 0 and facts.retryable_below(self.passes) > 0

    def without_retries(self) -> Download:
        """See `Stage.without_retries`."""
        return dataclasses.replace(self, retry_passes=0)

    # Its tasks

    def fetch(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: all lists to the database of the output."""
        # What the network needs takes a second to import, which `--help` should not.
        from webtext_prep.crawl.crawl import Crawl
        from webtext_prep.crawl.database import CrawlDatabase

        with CrawlDatabase(storage.local_path(task.writes.database)) as database:
            retry_pass, taken = database.facts.passes + 1, [0] * len(task.reads["lists"])
            crawl = Crawl(self, database, retry_pass, context.report)

            def rows() -> Iterator[Document]:
                for number, row in _rows_of(task):
                    taken[number] += 1
                    yield row

            crawl.fetch(rows(), context.scratch)
            return {"newest": database.newest, "rows": taken, "notes": database.notes, "retry_pass": retry_pass}

    def write_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what was fetched of one list to documents and outcomes."""
        from webtext_prep.crawl.crawl import write_shard
        from webtext_prep.crawl.database import CrawlDatabase

        folder = context.scratch / "new" / task.name
        with CrawlDatabase(storage.local_path(task.unkeyed.database), is_checked=False) as database:
            rows = context.counted(row for _, row in _rows_of(task))
            found = write_shard(rows, database, task.writes, folder, self)
        return {**found, "newest": task.hints["newest"]}
