"""`webtext rescue`: ask web archives for the pages that a download found gone.

Each archive is asked for one thing at a time, at its own pace (`crawl/archives/captures.py`), and all archives at once,
each for what those before it did not have. What becomes of a URL goes into the database of the output when it is known,
so that a kill costs one search; a page as a WARC record that depends on the capture alone. Shards are written from
there: the same bytes however often the command was interrupted. A second run asks only for what an archive that was in
trouble left open, or one that was not asked.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import setting
from command_kit.progress import spoken_duration
from webtext_prep import storage
from webtext_prep.crawl.archives.cdx import timestamp
from webtext_prep.crawl.settings import PASSES, RequestSettings
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import is_url_list
from webtext_prep.documents.folders.raw_files import columns_of
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import shard_name, write_documents
from webtext_prep.documents.folders.stage_record import GONE, read_record
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.extraction.outcomes import OUTCOMES, PageOutcome, is_retryable
from webtext_prep.extraction.page_stage import PageReader, pages_of, saved_pages
from webtext_prep.opt_outs.decisions import KEYS, NOTHING, Decision, count, decide
from webtext_prep.opt_outs.preferences import HostPreferences
from webtext_prep.opt_outs.robots_txt import agent_of
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Reads, Writes
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import host_of

if TYPE_CHECKING:
    from webtext_prep.crawl.archives.captures import Archive
    from webtext_prep.crawl.database import CrawlDatabase, DatabaseWriter
    from webtext_prep.crawl.http.client import Client, Reply
    from webtext_prep.extraction.processes.pool import ExtractorPool

ANSWERS = "archives"
"""Under it, the row of a URL says what the archives answered that did not have it."""
DATES = ("reddit_first_submitted", "created_utc", "date")
"""The metadata of a list that say when a page was submitted, the first one that is there."""
NEWEST = "newest"
AHEAD = 100
"""Pages that archives are asked for at once, or wait for one: the later archives have something to do."""
USUAL_REQUESTS = {"wayback": 2, "common-crawl": 6}
"""For a page, about, by the name of the archive."""
URL_BYTES = 65
"""A row of a list has."""
DATABASE = "rescue.sqlite"


def _gone(given: str) -> list[str]:
    """The output of a download stands for its list of pages that are gone, also where no page was left.

    Raises InputError where it has no such list.
    """
    place = storage.location(given)
    if storage.is_folder(place / GONE):
        return [str(place / GONE)]
    record = read_record(place) if storage.is_folder(place) else None
    if record is not None and record["stage"] == "download":
        raise InputError(f"{given} has no list of the pages that are gone: run its `webtext download` once more.")
    return [given]


def _of_archives(default: Any, help: str, **more: Any) -> Any:
    """A setting that a later run over the same output may change: what was asked already is not asked again."""
    return setting(default, help, group="archives", identity=False, **more)


SETTLED = (PageOutcome.ARCHIVED, PageOutcome.OPTED_OUT)
"""Outcomes after which no other archive is asked for the page."""
NOT_FOUND = (PageOutcome.DNS, PageOutcome.NO_SUCH_HOST, PageOutcome.HOST_DOWN)
"""Outcomes of a search in an archive whose host has no address; the last one after several."""


@dataclass(frozen=True)
class Rescue(RequestSettings, PageReader):
    """Ask web archives for pages that are gone, politely.

    Reads the list of pages that are gone in the output of `webtext download`, or any list of URLs. Writes pages/, WARC
    files for `webtext extract` with the captures that have text, under their original URLs and the times of their
    captures; and outcomes/, a row for each URL. Run the same command again to resume after an interruption; once
    finished, running it again asks an archive once more that was in trouble, --retry-passes times. One process of this
    machine asks.
    Drops, by outcome: not_archived, opted_out, robots, and what else an archive or its captures may end with: http_429
    (and other statuses), host_down, timeout, malformed_response, soft_404, parked, empty, not_html, too_large, ..."""

    name: ClassVar[str] = "rescue"
    order: ClassVar[int] = 32
    is_one_process: ClassVar[bool] = True
    summary: ClassVar[str] = "URLs of pages that are gone -> WARC files with what web archives have of them"
    reads = Reads("URL lists, or the output of `webtext download`", is_url_list, "URLs", named=_gone)
    writes: ClassVar[Writes] = Writes(made="pages", folders=(OUTCOMES,), others=saved_pages)

    archive: tuple[str, ...] = _of_archives(
        tuple(USUAL_REQUESTS),
        "web archives to ask, in this order",
        metavar="NAME",
        choices=lambda: tuple(USUAL_REQUESTS),
    )
    date: str = _of_archives(
        "",
        "take the capture nearest to this date, such as 2019-04, or the newest; without it that nearest to the date of "
        "submission, where the list has one (ISO 8601, or Unix time)",
        metavar="DATE",
    )
    requests: int = _of_archives(1200, "requests an hour to one archive", ge=1, le=3_600_000)
    wayback_address: str = _of_archives(
        "https://web.archive.org", "where the Wayback Machine is, or a copy of it", metavar="URL"
    )
    common_crawl_address: str = _of_archives(
        "https://data.commoncrawl.org", "where the files of Common Crawl are", metavar="URL"
    )
    common_crawl_index_address: str = _of_archives(
        "https://index.commoncrawl.org", "where Common Crawl's list of crawls is", metavar="URL"
    )

    def __post_init__(self) -> None:
        PageReader.__post_init__(self)
        RequestSettings.__post_init__(self)
        self._date_of({})
        for name in ("wayback_address", "common_crawl_address", "common_crawl_index_address"):
            if not host_of(getattr(self, name)):
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)} is no web address.")

    def needs(self, sample: Sample, workers: int) -> Needs:
        """What so many URLs need, whatever was fetched beside them; and hours of asking."""
        urls = sample.documents
        found = super().needs(Sample(urls * URL_BYTES, urls * URL_BYTES, urls * URL_BYTES, urls), workers)
        return replace(found, others=tuple(self._expected(urls)))

    def _expected(self, urls: int) -> Iterator[str]:
        """A sentence for each archive: about how many requests and hours so many URLs will take there."""
        for name in self.archive:
            requests = urls * USUAL_REQUESTS[name]
            duration = spoken_duration(requests * 3600 / self.requests)
            yield f"{name}: some {requests:,} requests for {urls:,} URLs, {duration} at {self.requests:,} an hour"

    # The whole job

    def run(self, job: Job) -> Outcome:
        """Ask for all URLs, and write the shards."""
        place = job.kept / DATABASE
        columns = columns_of(job.inputs)
        total = sum(map(self._checked, job.inputs, columns))
        ask = Task("ask", Files(lists=job.inputs), Files(database=place), {"columns": columns})
        (asked,) = job.map("archives", self.ask, [ask], unit=self.reads.unit, total=total, again=lambda result: True)
        if asked["unheard"]:
            names = ", ".join(asked["unheard"])
            raise WebtextError(
                f"no archive could be asked, as no name server knows their hosts ({names}): check the network, and run "
                "the same command again."
            )
        tasks = []
        for number, path in enumerate(job.inputs):
            shard = job.output / shard_name(number, job.format)
            writes = Files(outcomes=job.output / OUTCOMES / shard.name, pages=pages_of(shard))
            options, hints = {"columns": columns[number]}, {"newest": asked["newest"]}
            tasks.append(Task(f"part-{number:05}", Files(lists=path), writes, options, hints, Files(database=place)))

        def is_old(result: dict[str, Any]) -> bool:
            return bool(result["newest"] != asked["newest"])

        results = job.map("shards", self.write_shard, tasks, unit=self.reads.unit, total=total, again=is_old)
        outcome = Outcome(Tally.total(results), [path for task in tasks for path in task.writes.all()], advice=None)
        for sentence in asked["notes"]:
            outcome.tally.problem(sentence)
        archived = sum((collections.Counter(result["archived"]) for result in results), collections.Counter[str]())
        if archived:
            outcome.facts["archived"] = ", ".join(f"{count:,} from {name}" for name, count in sorted(archived.items()))
        outcome.facts["retryable"] = sum(n for outcome, n in outcome.tally.dropped.items() if is_retryable(outcome))
        return outcome

    def _checked(self, place: Location, columns: dict[str, str]) -> int:
        """The number of URLs in a list. Raises InputError for a date that is none: before anything was asked."""
        urls = 0
        for row in read_urls(place, columns=columns):
            urls += 1
            try:
                self._date_of(row.metadata)
            except InputError as error:
                raise InputError(f"{place}, {row.url}: {error}") from None
        return urls

    def wants_another_run(self, job: Job) -> bool:
        """Whether an archive is to be asked for some URL."""
        from webtext_prep.crawl.database import CrawlDatabase

        with CrawlDatabase(job.kept / DATABASE, is_checked=False) as database:
            return any(map(self._left, database.rows()))

    def without_retries(self) -> Rescue:
        """See `Stage.without_retries`."""
        return replace(self, archive=())

    # Its tasks

    def ask(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what archives have of all URLs to the database of the output."""
        # What the network needs takes a second to import, which `--help` should not.
        from webtext_prep.crawl.database import CrawlDatabase, UrlSet
        from webtext_prep.running.processes import run_until_done

        with CrawlDatabase(storage.local_path(task.writes.database)) as database, UrlSet() as known:
            lists = zip(task.reads["lists"], task.options["columns"], strict=True)
            listed = (row for path, columns in lists for row in read_urls(path, columns=columns))
            rows = (row for row in listed if known.add(row.url))
            unheard = run_until_done(self._ask_all(rows, database, context))
            database.remove_others(known)
            return {"newest": database.newest, "notes": database.notes, "unheard": unheard}

    def write_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: what was found of one list to its pages and outcomes."""
        from webtext_prep.crawl.archives.warc_writing import PageFile
        from webtext_prep.crawl.crawl import drafts_of, record_of
        from webtext_prep.crawl.database import CrawlDatabase, UrlSet

        tally, archived = Tally(), collections.Counter[str]()
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(CrawlDatabase(storage.local_path(task.unkeyed.database), is_checked=False))
            drafts = stack.enter_context(drafts_of(task.writes, context.scratch / "new" / task.name))
            outcomes = stack.enter_context(write_documents(drafts.outcomes))
            pages = PageFile(stack.enter_context(storage.create(drafts.pages)), self.user_agent)
            known = stack.enter_context(UrlSet())
            rows = read_urls(task.reads.lists, columns=task.options["columns"])
            for asked in tally.counted(context.counted(rows)):
                row, _, page = record_of(database, asked.url, is_first=known.add(asked.url))
                if page is None:
                    tally.drop(asked, row["outcome"])
                else:
                    tally.kept += 1
                    archived[row["archive"]] += 1
                    pages.add(Document(asked.url, metadata=_of_list(asked.metadata)), row, page)
                count(row, tally.notes)
                outcomes.write(Document(asked.url, metadata={key: row[key] for key in row if key != "url"}))
            pages.begin()
        return {**tally.as_dict(), "archived": dict(sorted(archived.items())), "newest": task.hints["newest"]}

    # Asking

    def _archives(self, client: Client, store: DatabaseWriter) -> dict[str, Archive]:
        from webtext_prep.crawl.archives.captures import Asker
        from webtext_prep.crawl.archives.common_crawl import CommonCrawl
        from webtext_prep.crawl.archives.wayback import Wayback
        from webtext_prep.crawl.frontier.robots import Robots

        robots = Robots(store) if self.robots else None

        def archive(name: str) -> Archive:
            asker = Asker(client, robots, pause=3600 / self.requests, retries=self.retries)
            if name == "wayback":
                return Wayback(asker, self.wayback_address, self.max_bytes)
            addresses = self.common_crawl_address, self.common_crawl_index_address
            return CommonCrawl(asker, *addresses, self.max_bytes)

        return {name: archive(name) for name in self.archive}

    async def _ask_all(self, urls: Iterator[Document], database: CrawlDatabase, context: Context) -> list[str]:
        """Ask the archives for each URL, in their order; each is asked for one URL at a time.

        Returns the names of all that were asked, if the host of none was found.
        """
        from webtext_prep.crawl.database import DatabaseWriter, Entry
        from webtext_prep.extraction.processes.ordered_work import in_order

        done, was_found = itertools.count(1), dict[str, bool]()
        async with (
            self.client(2, self.max_bytes) as client,
            self.pool(context.scratch, 1) as pool,
            DatabaseWriter(database, lambda number: None) as writer,
        ):
            archives = {name: (archive, asyncio.Lock()) for name, archive in self._archives(client, writer).items()}

            async def ask(url: Document) -> None:
                known = database.outcome(url.url)
                row = self._first_row(url) if known is None else known.row
                left = self._left(row)
                if known is None and not left:
                    await writer.add(Entry(row))
                passes = row.get(PASSES, 0) + 1
                for name in left:
                    archive, turn = archives[name]
                    async with turn:
                        found, page = await self._search(url, archive, pool)
                    was_found[name] = was_found.get(name, False) or found["outcome"] not in NOT_FOUND
                    row = self._next_row(row, name, found)
                    is_settled = row["outcome"] in SETTLED
                    # A pass that a kill cut short does not count, nor does one without a network.
                    is_over = is_settled or (name == left[-1] and any(was_found.values()))
                    row[PASSES] = passes if is_over else passes - 1
                    # Before the next archive is asked: a kill costs one search.
                    await writer.add(Entry(row, answer=page))
                    if is_settled:
                        break
                context.report(next(done))

            work = in_order(urls, ask, size=lambda url: 0, most=AHEAD, most_bytes=1)
            async with contextlib.aclosing(work):
                async for _ in work:
                    pass
        return [] if any(was_found.values()) else list(was_found)

    # The row of a URL

    def _first_row(self, url: Document) -> dict[str, Any]:
        """The row before any archive was asked: what its host says holds for what archives have of it, too."""
        gone = {GONE: url.metadata[GONE]} if GONE in url.metadata else {}
        decision = self._decision(url)
        outcome = PageOutcome.OPTED_OUT if self._is_refused(decision) else PageOutcome.NOT_ARCHIVED
        return {"url": url.url, "outcome": str(outcome), **decision.row, **gone, ANSWERS: {}}

    def _left(self, row: Mapping[str, Any]) -> list[str]:
        """The archives to ask, in their order, until one has the page."""
        if row["outcome"] in SETTLED:
            return []
        answers = row[ANSWERS]
        again = {name for name in answers if is_retryable(answers[name]) and row[PASSES] < self.passes}
        return [name for name in self.archive if name not in answers or name in again]

    @staticmethod
    def _next_row(row: Mapping[str, Any], name: str, found: dict[str, Any]) -> dict[str, Any]:
        """The row once an archive has given this answer: its own row of the page, or why it has none."""
        kept = {key: row[key] for key in (GONE,) if key in row}
        if found["outcome"] == PageOutcome.ARCHIVED:
            return {**found, "archive": name, **kept, ANSWERS: row[ANSWERS]}
        answers = {**row[ANSWERS], name: found["outcome"]}
        # One that was in trouble may still have it.
        outcome = next(filter(is_retryable, answers.values()), found["outcome"])
        return {**found, "outcome": outcome, **kept, ANSWERS: answers}

    async def _search(
        self, url: Document, archive: Archive, pool: ExtractorPool
    ) -> tuple[dict[str, Any], Reply | None]:
        """What an archive says of a URL, as a row, and the page if it has one with text."""
        from webtext_prep.crawl.archives.warc_writing import is_plain

        row: dict[str, Any] = {"url": url.url, "outcome": str(PageOutcome.NOT_ARCHIVED)}
        async with contextlib.aclosing(archive.captures(url.url, self._date_of(url.metadata))) as captures:
            async for capture in captures:
                reply = capture.reply
                if reply.outcome != PageOutcome.OK:
                    row = {"url": url.url, "outcome": str(reply.outcome)}
                    if is_retryable(reply.outcome):
                        break
                    continue
                row = await self._judged(url, reply, pool)
                if row["outcome"] == PageOutcome.OPTED_OUT:  # for all captures: none of another time is taken instead
                    break
                if row["outcome"] == PageOutcome.OK:
                    at = {"outcome": str(PageOutcome.ARCHIVED), "captured_at": capture.time, "fetched_at": capture.time}
                    return row | at, replace(reply, url=url.url if is_plain(url.url) else reply.url)
        return row, None

    async def _judged(self, url: Document, reply: Reply, pool: ExtractorPool) -> dict[str, Any]:
        """The row of a page as an archive has it."""
        from webtext_prep.extraction.pages import Page, make_row, outcome_row

        decision = self._decision(url, reply)
        if self._is_refused(decision):
            row = outcome_row(url.url, PageOutcome.OPTED_OUT, status=reply.status, final_url=None)
            return row | decision.row
        page = Page(url.url, reply.body, reply.charset, reply.is_html, None, reply.status)
        row, _ = await make_row(page, pool, decision)
        return row

    def _decision(self, url: Document, reply: Reply | None = None) -> Decision:
        """What the owner of a page says of it: its host today, and the page then."""
        if self.opt_outs == "ignore":
            return NOTHING
        page = reply.body if reply is not None and reply.is_html else b""
        headers = () if reply is None else reply.headers
        return decide(url.url, HostPreferences(), headers, page, agent_of(self.user_agent), url.metadata)

    def _is_refused(self, decision: Decision) -> bool:
        return decision.refusal is not None and self.opt_outs == "obey"

    def _date_of(self, metadata: Mapping[str, Any]) -> str:
        """The `timestamp` to which the capture of a page is to be the nearest; "" for the newest one.

        Raises InputError for what is neither a date of ISO 8601 nor Unix time.
        """
        known = {"--date": self.date} if self.date else {name: metadata[name] for name in DATES if metadata.get(name)}
        name, value = next(iter(known.items()), ("", NEWEST))
        is_whole = isinstance(value, float) and value.is_integer()
        try:
            return "" if value == NEWEST else timestamp(str(int(value) if is_whole else value))
        except ValueError:
            raise InputError(
                f"{name} {value} is no date: give one of ISO 8601, such as 2019-04 or 2019-04-30, or --date {NEWEST}."
            ) from None


def _of_list(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a list says of a page, without what a download has added."""
    return {key: value for key, value in metadata.items() if key not in (GONE, *KEYS)}
