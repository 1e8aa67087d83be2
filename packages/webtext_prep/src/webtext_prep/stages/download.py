"""`webtext download`: fetch each URL, extract its text, and account for every one.

A shard of URLs becomes a shard of documents in the same order and `outcomes/part-00000.jsonl.zst`, one row per URL.
Finished URLs go into a journal at once, so that a kill loses seconds; they are found there, and in the outputs of
earlier runs, by URL, so that a list may be reordered, grown, or split in another way. A second run asks again only for
retryable URLs, and archives for pages that are gone. How a shard is fetched is in `crawl/frontier/fetch_loop.py`; here
is what one run does after another.

Where several tasks fetch at once, each asks hosts of its own only, so that limits for a host hold for all tasks
together; what leads elsewhere, such as a redirect, is handed on in rounds (`crawl/frontier/rounds.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import available_cores
from webtext_prep import storage
from webtext_prep.crawl.settings import Fetching, FetchSettings
from webtext_prep.crawl.state import (
    EARLIER,
    JOURNALS,
    PAGES_SUFFIX,
    ROUNDS,
    SUFFIX,
    History,
    pages_of,
    retryable_below,
    unasked,
)
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import is_url_list
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.stage_record import PAGES
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.extraction.page_stage import PAGE_BYTES, PARSER_BYTES
from webtext_prep.running.preflight import USUAL_RATIO, Needs
from webtext_prep.running.run import Run
from webtext_prep.running.stage import PROCESS_BYTES, Outcome, shards_outcome
from webtext_prep.running.tasks import Context, Tally, Task
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.urls import Hosts

if TYPE_CHECKING:
    from webtext_prep.crawl.state.database_writer import Work

FEWEST_COUNTED, MOST_COUNTED = 100, 200_000
"""URLs of all lists together for which it is said how long they may take: fewer need no word, more would take a while
to count, and the worst of millions of servers is not what happens."""
PAGES_A_URL = 0.6
"""Share of URLs whose page gives a document: a third of old lists, nearly all of fresh ones."""
BYTES_A_PAGE = 5_000
"""Of text, in the mean over pages of the web."""
BYTES_A_ROW = 60
"""Of each URL in the outcomes, compressed."""
BYTES_A_PLACE = 25
"""More, if the row says where the page was saved."""
BYTES_A_SAVED_PAGE = 28_000
"""Of HTML, compressed: a page of the web has some 110 kB."""


def _rows_of(task: Task) -> Iterator[Document]:
    """The rows of a task's list."""
    return itertools.islice(read_urls(task.inputs[0]), task.options.get("limit"))


@dataclass(frozen=True)
class Download(FetchSettings):
    """Fetch the pages of a list of URLs and keep their text.

    Reads URL shards as `webtext blacklist` writes them, or plain lists of URLs. Writes document shards in the order of
    the lists, and outcomes/ with one row for each URL. Run the same command again to resume after an interruption; once
    finished, running it again tries retryable URLs (timeouts, servers in trouble), in --rounds runs in all.
    Drops, by outcome: http_404 (and other statuses), timeout, dns, connection, tls, host_down, robots,
    robots_unreachable, too_large, not_html, blocked_address, too_many_redirects, bad_redirect, malformed_url,
    malformed_response, duplicate, empty, soft_404, parked, other_kind, too_deep, extract_timeout, extract_memory,
    extract_crash, extract_error."""

    name: ClassVar[str] = "download"
    order: ClassVar[int] = 30
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "URL shards -> documents, fetched politely and safely"
    unit: ClassVar[str] = "URLs"
    input_kinds: ClassVar[str] = "URL lists (shards of `webtext blacklist`, .jsonl, .txt; compressed or not)"

    @staticmethod
    def accepts(path: Location) -> bool:
        """URL shards and plain lists."""
        return is_url_list(path)

    def advice(self, tally: Tally) -> str:
        """What to do when no page was kept."""
        if tally.dropped["blocked_address"] == tally.read:
            return (
                "these addresses are private; if they are meant, give --allow-private-addresses=loopback (of this "
                "machine) or --allow-private-addresses=all (any), with --restart"
            )
        return "check the list, and the network of this machine"

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Documents and outcomes of an ordinary list, journals next to them, page bodies and extractors."""
        urls = min(sample.documents, self.max_urls or sample.documents)
        row = BYTES_A_ROW + (BYTES_A_PLACE if self.save_pages else 0)
        page = BYTES_A_PAGE / USUAL_RATIO + (BYTES_A_SAVED_PAGE if self.save_pages else 0)
        output = int(urls * (PAGES_A_URL * page + row))
        # Where several tasks fetch, all is in journals before the first shard is written; but each goes when its shard
        # is there, so that no more than this comes on top of the output.
        journals = int(output * min(1.0, workers * sample.largest_share))
        memory = workers * PROCESS_BYTES + PAGE_BYTES + max(workers, available_cores()) * PARSER_BYTES
        expected = self.expected(int(urls * (1 - PAGES_A_URL)))
        return Needs(output, journals, memory, urls, tuple(expected))

    def outputs_in(self, output: Location) -> list[Location]:
        """Shards of documents, of outcomes, and of what was dropped, and pages."""
        pages = (file for file in storage.files_in(output / PAGES) if file.name.endswith(PAGES_SUFFIX))
        return [*super().outputs_in(output), *pages]

    # The whole job

    def run(self, job: Run) -> Outcome:
        """Fetch all lists, and write their shards."""
        from webtext_prep.crawl.frontier.rounds import fetch_in_rounds, lists_due
        from webtext_prep.crawl.state.snapshots import generations_in

        history = self._look_back(job)
        retry_pass = history.passes + 1
        limits = self._limits(job)
        earlier = tuple(file for found in generations_in(job.scratch / EARLIER) for file in found.files)
        tasks = []
        for number, (path, limit) in enumerate(zip(job.inputs, limits, strict=False)):
            shard, *dropped = job.shard_outputs(number)
            pages = (pages_of(shard),) if self.save_pages else ()
            outputs = (shard, job.output / OUTCOMES / shard.name, *pages, *dropped)
            options = {} if limit is None else {"limit": limit}
            hints = {"retry_pass": retry_pass, "list": number}
            tasks.append(Task(f"part-{number:05}", (path,), outputs, options, hints, reads=earlier))
        total = job.expected_documents()
        if self.max_urls and (total is None or total > self.max_urls):
            total = sum(limit or 0 for limit in limits)

        def is_due(result: dict[str, Any]) -> bool:
            tried_again = self.try_again and retryable_below(self.rounds, result["retryable"]) > 0
            return result["retry_pass"] < retry_pass and (tried_again or unasked(self.archive, result["gone"]) > 0)

        self._say_worst_case(job, limits, retry_pass)
        call = self.fetch_shard
        if due := lists_due(job, tasks, is_due, self):
            found = fetch_in_rounds(job, tasks, due, self.fetch_list, self.follow_redirects, self)
            tasks = [dataclasses.replace(task, reads=(*earlier, *found)) for task in tasks]
            call = self.write_shard
        results = job.map("shards", call, tasks, unit=self.unit, total=total, again=is_due)
        history.passes, history.retryable = retry_pass, _sums(results, "retryable")
        history.gone = _sums(results, "gone")
        history.write(job.state)
        outcome = shards_outcome(tasks, results)
        outcome.facts["page_bytes"] = sum(result["page_bytes"] for result in results)
        outcome.facts["retryable"] = retryable_below(self.rounds, history.retryable)
        if archived := _sums(results, "archived"):
            outcome.facts["archived"] = ", ".join(f"{count:,} from {name}" for name, count in archived.items())
        return outcome

    def wants_another_run(self, job: Run) -> bool:
        """Whether some URLs are retryable, and have been tried in fewer than --rounds runs, or archives be asked."""
        history = History.read(job.state)
        tried_again = self.try_again and retryable_below(self.rounds, history.retryable) > 0
        return tried_again or unasked(self.archive, history.gone) > 0

    def settled(self) -> Download:
        """See `Stage.settled`."""
        return dataclasses.replace(self, try_again=False, archive=())

    def _limits(self, job: Run) -> list[int | None]:
        """How many rows to take from each input; shorter than the list of inputs if --max-urls leaves some out."""
        if not self.max_urls:
            return [None] * len(job.inputs)
        limits: list[int | None] = []
        left = self.max_urls
        for path in job.inputs:
            if left == 0:
                break
            rows = sum(1 for _ in itertools.islice(read_urls(path), left))
            limits.append(rows)
            left -= rows
        return limits

    def _say_worst_case(self, job: Run, limits: list[int | None], retry_pass: int) -> None:
        """One line: how long a list of some hundred or thousand URLs may take, and how much memory."""
        from webtext_prep.crawl.frontier.worst_case import Lists, for_all, sentence

        if self.private_addresses == "loopback":
            return  # one's own server, whose worst nobody needs to know
        found, left = [], MOST_COUNTED
        for path, limit in zip(job.inputs, limits, strict=False):
            rows = itertools.islice(read_urls(path), left + 1 if limit is None else min(limit, left + 1))
            found.append(Lists.count(row.url for row in rows))
            left -= found[-1].urls
            if left < 0:
                return
        if MOST_COUNTED - left >= FEWEST_COUNTED:
            slots = min(job.workers, len(found))
            worst = for_all(Fetching(self, slots, retry_pass), found, slots)
            print(f"{self.name}: {sentence(found, worst)}", file=sys.stderr)

    def _look_back(self, job: Run) -> History:
        """What earlier runs left. If they had other lists, what they fetched is set aside before it is overwritten."""
        from webtext_prep.crawl.state.snapshots import generations_in, set_aside

        history = History.read(job.state)
        lists = storage.stamps(job.inputs)
        if history.version and history.version != self.version:
            for output in self.outputs_in(job.output):
                storage.remove(output)
            for folder in (EARLIER, JOURNALS, ROUNDS):
                storage.remove_folder(job.scratch / folder)
            history = History()
        earlier = job.scratch / EARLIER
        if history.lists != lists and (history.lists or self.outputs_in(job.output)):
            set_aside(job.output, job.scratch / JOURNALS, earlier)
            storage.remove_folder(job.scratch / ROUNDS)
        own = job.state / "scratch" / JOURNALS
        if not job.is_here and any(file.name.endswith(SUFFIX) for file in storage.files_in(own)):
            # An earlier run was at work on this machine: its journals are copied to where nodes find them.
            set_aside(job.output, own, earlier)
        history.version, history.lists = self.version, lists
        history.write(job.state)
        tasks = [
            Task(f"earlier-{found.folder.name}", tuple(found.sources), (found.index,), reads=tuple(found.files))
            for found in generations_in(earlier)
            if found.sources
        ]
        if tasks:
            job.map("index", self.index_earlier, tasks, unit=self.unit)
        return history

    def index_earlier(self, task: Task, context: Context) -> int:
        """Task: make what runs over other lists have fetched findable by URL."""
        from webtext_prep.crawl.state.snapshots import Generation

        generation, draft = Generation(task.inputs[0].parent), context.scratch / f"{task.name}.index"
        return generation.build_index(task.outputs[0], draft, context.report)

    # One shard

    def fetch_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one list of URLs to documents and outcomes, where no other task fetches meanwhile."""
        # What the network needs takes a second to import, which `--help` should not.
        from webtext_prep.crawl.state.database_writer import opened, remove

        with opened(task.name, context, save_pages=self.save_pages) as work:
            self._carry_over(task, work, task.outputs)
            self._fetch(task, context, work)
            result = self._written(task, context, work)
        remove(task.name, context)
        return result

    def fetch_list(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one list of URLs to its journal; visits that come to the hosts of others, to a file."""
        from webtext_prep.crawl.frontier.fetch_loop import is_left
        from webtext_prep.crawl.frontier.rounds import write_left
        from webtext_prep.crawl.state.database_writer import opened

        number, lists, parts = (task.options[name] for name in ("list", "lists", "parts"))
        with opened(task.name, context, save_pages=self.save_pages) as work:
            self._carry_over(task, work, task.reads[: task.hints["finished"]])
            archives = self.archive_hosts
            self._fetch(task, context, work, Hosts(number, lists, archives=archives))
            left = ((row, number) for row in work.journal.rows() if is_left(row))
            return {**write_left(task.outputs[0], left, parts, archives), "retry_pass": task.hints["retry_pass"]}

    def follow_redirects(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: visits that other tasks have left."""
        from webtext_prep.crawl.frontier.rounds import follow

        fetching = Fetching(self, context.slots, task.hints["retry_pass"])
        return follow(task, context, fetching, save_pages=self.save_pages)

    def write_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what was fetched of one list, by its own task and by others, to documents and outcomes."""
        from webtext_prep.crawl.frontier.rounds import FOUND_SUFFIX, found_in
        from webtext_prep.crawl.state.database_writer import opened, remove
        from webtext_prep.crawl.state.snapshots import add_all

        files = [file for file in task.reads if file.name.endswith(FOUND_SUFFIX)]
        with opened(task.name, context, save_pages=self.save_pages, is_kept=False) as work:
            if work.journal.is_empty:  # a kill came after the last line of this
                self._carry_over(task, work, task.outputs)
            found = found_in(files, task.hints["list"], task.hints["retry_pass"])
            add_all(work.journal, found if work.spool is None else work.spool.saved(found))
            result = self._written(task, context, work)
        remove(task.name, context)
        return result

    @staticmethod
    def _carry_over(task: Task, work: Work, outputs: Sequence[Location]) -> None:
        """Bring into a journal what earlier runs have fetched of a list, and left in `outputs` or elsewhere."""
        from webtext_prep.crawl.state.snapshots import carry_over, generations_of

        urls = (row.url for row in _rows_of(task))
        carry_over(urls, work.journal, generations_of(task.reads), outputs, work.spool)

    def _fetch(self, task: Task, context: Context, work: Work, hosts: Hosts | None = None) -> None:
        """Fetch every URL of a list that is left; visits that come to another one than `hosts` are left, too."""
        from webtext_prep.crawl.frontier.fetch_loop import Visiting
        from webtext_prep.crawl.frontier.queues import Visit

        fetching = Fetching(self, context.slots, task.hints["retry_pass"])
        date_for = self.date_for if self.archive else lambda metadata: ""
        visits = (Visit(row.url, row.url, date=date_for(row.metadata)) for row in _rows_of(task))
        Visiting(work, fetching, context.report, hosts).fetch(visits, context.local or context.scratch)

    def _written(self, task: Task, context: Context, work: Work) -> dict[str, Any]:
        from webtext_prep.crawl.frontier.fetch_loop import write_list

        folder = (context.local or context.scratch) / "new" / task.name
        fetching = Fetching(self, context.slots, task.hints["retry_pass"])
        found = write_list(_rows_of(task), work, task.outputs, folder, fetching)
        return {**found, "retry_pass": task.hints["retry_pass"]}


def _sums(results: Iterable[dict[str, Any]], key: str) -> dict[str, int]:
    """The counts under a key of all results, added up by their names."""
    total: collections.Counter[str] = collections.Counter()
    for result in results:
        total.update(result[key])
    return dict(sorted(total.items()))
