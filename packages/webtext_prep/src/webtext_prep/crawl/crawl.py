"""One crawl: the URLs of all lists, fetched and extracted into a database by one event loop.

Fetching costs waiting, extracting costs processor time: one event loop fetches, worker processes extract, a thread
writes the database. When a page was fetched stands in its row only, so that documents depend on pages alone.

Pages that are gone are looked for in archives when all live pages have been fetched, in each archive one after the
other, and in all archives at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from webtext_prep.crawl.archives.captures import Capture, Request
from webtext_prep.crawl.archives.warc_writing import is_plain
from webtext_prep.crawl.database import CrawlDatabase, Entry, UrlSet
from webtext_prep.crawl.database_writer import DatabaseWriter
from webtext_prep.crawl.frontier.crawler import URLS_AT_ONCE, Crawler, Finish
from webtext_prep.crawl.frontier.queues import Visit
from webtext_prep.crawl.http.client import Client, Reply
from webtext_prep.crawl.settings import ANSWERS, PASSES, FetchSettings
from webtext_prep.documents.document import Document
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.page_stage import PAGE_BYTES
from webtext_prep.extraction.pages import Page, make_row, outcome_row
from webtext_prep.extraction.pool import ExtractorPool
from webtext_prep.opt_outs.wishes import HostWishes
from webtext_prep.running.processes import run_until_done

GONE_AHEAD = 100
"""Pages that are gone and wait for an archive."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """A page that an archive is to be asked for: what the list, and the record in the database, say of it."""

    asked: Document
    known: Entry
    archive: str


class Crawl:
    """Brings the URLs of lists to their ends.

    Args:
        settings: how to fetch.
        database: takes the records.
        retry_pass: the number of this pass over the lists, 1 for the first.
        report: called with the number of URLs done in all.
        page_bytes: bytes of pages that may be in memory.
    """

    def __init__(
        self,
        settings: FetchSettings,
        database: CrawlDatabase,
        retry_pass: int,
        report: Callable[[int], None],
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._settings, self._database, self._pass = settings.within_limits(), database, retry_pass
        self._report, self._page_bytes = report, page_bytes
        self._archives = settings.make_archives(settings.max_bytes)
        self._done = 0

    def _count(self, number: int = 1) -> None:
        self._done += number
        self._report(self._done)

    # Live pages

    def fetch(self, rows: Iterable[Document], folder: Path) -> None:
        """Fetch what is left of the URLs of `rows`, and forget what the database has of any others.

        `folder` takes what extractors want to put somewhere.
        """
        with UrlSet() as begun:
            left = self._unfinished(rows, begun)
            first = next(left, None)
            if first is not None:
                run_until_done(self._fetch(chain([first], left), folder))
            self._database.remove_others(begun)

    def _unfinished(self, rows: Iterable[Document], begun: UrlSet) -> Iterator[Visit]:
        """A visit for each URL that is left to fetch; the others are counted as done."""
        is_new = self._database.is_empty
        for asked in rows:
            is_first = begun.add(asked.url)
            known = None if is_new else self._database.outcome(asked.url)
            if not is_first or not (known is None or self._is_due(known)):
                self._count()
            else:
                yield Visit(asked.url, asked.url, earlier={} if known is None else known.row)

    def _is_due(self, known: Entry) -> bool:
        # A run that was cut short may have tried it in this pass already.
        return known.retry_pass < self._pass and self._settings.is_tried_again(known.row)

    async def _fetch(self, visits: Iterator[Visit], folder: Path) -> None:
        async with client_of(self._settings) as client, self._pool(folder) as pool, self._writer() as writer:

            async def finish(visit: Visit, reply: Reply) -> None:
                row, document = await self._row(visit, reply, pool)
                row["attempts"] = visit.earlier.get("attempts", 0) + visit.attempts
                row[PASSES] = visit.earlier.get(PASSES, 0) + 1
                row["fetched_at"] = _now()
                if document is None and ANSWERS in visit.earlier:
                    row[ANSWERS] = visit.earlier[ANSWERS]
                url = visit.asked if is_plain(visit.asked) and not visit.redirects else reply.url
                await writer.add(Entry(row, document, self._pass, self._answer(reply, url)))

            await self._crawler(client, finish, writer).run(visits)

    @staticmethod
    async def _row(visit: Visit, reply: Reply, pool: ExtractorPool) -> tuple[dict[str, Any], Document | None]:
        """What became of a URL, without what its visit has cost."""
        final_url = reply.url if visit.redirects else None
        if reply.outcome != PageOutcome.OK:
            row = outcome_row(visit.asked, reply.outcome, status=reply.status, final_url=final_url)
            return row | reply.decision.row, None
        page = Page(visit.asked, reply.body, reply.charset, reply.is_html, final_url, reply.status)
        return await make_row(page, pool, reply.decision)

    def _answer(self, reply: Reply, url: str) -> Reply | None:
        """A page as it is to be saved under a URL, if it is one and is to be saved."""
        return replace(reply, url=url) if self._settings.save_pages and reply.outcome == PageOutcome.OK else None

    # Pages that are gone

    def count_gone(self, rows: Iterable[Document]) -> int:
        """For how many URLs an archive is to be asked."""
        return sum(gone is not None for gone in self._gone(rows))

    def ask_archives(self, rows: Iterable[Document], folder: Path) -> None:
        """Look in archives for the pages of `rows` that are gone."""
        run_until_done(self._ask_archives(self._gone(rows), folder))

    def _gone(self, rows: Iterable[Document]) -> Iterator[_Gone | None]:
        """What an archive is to be asked for; None for a URL that is not gone, or repeated."""
        with UrlSet() as begun:
            for asked in rows:
                known = self._database.outcome(asked.url) if begun.add(asked.url) else None
                archive = None if known is None else self._settings.next_archive(known.row)
                yield None if known is None or archive is None else _Gone(asked, known, archive)

    async def _ask_archives(self, found: Iterator[_Gone | None], folder: Path) -> None:
        waiting = {name: asyncio.Queue[_Gone | None](GONE_AHEAD) for name in self._archives}

        async def hand_out() -> None:
            for number, gone in enumerate(found):
                if number % URLS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if gone is not None:
                    await waiting[gone.archive].put(gone)
            for queue in waiting.values():  # what the first hands on, the next one has
                await queue.join()
            for queue in waiting.values():
                await queue.put(None)

        async def ask_one(name: str) -> None:
            while (gone := await waiting[name].get()) is not None:
                entry = await self._ask(gone, crawler, pool)
                await writer.add(entry)
                following = self._settings.next_archive(entry.row, name) if entry.document is None else None
                if following is None:
                    self._count()
                else:
                    await waiting[following].put(_Gone(gone.asked, entry, following))
                waiting[name].task_done()

        async def finish(visit: Visit, reply: Reply) -> None:
            raise AssertionError(f"{visit.asked} is no request to an archive")

        async with (
            client_of(self._settings) as client,
            self._pool(folder) as pool,
            self._writer(lambda number: None) as writer,
        ):
            crawler = self._crawler(client, finish, writer)
            await crawler.run(iter(()), [hand_out(), *map(ask_one, waiting)])

    async def _ask(self, gone: _Gone, crawler: Crawler, pool: ExtractorPool) -> Entry:
        """The record of a URL once an archive has been asked for it."""
        known, name, attempts = gone.known.row, gone.archive, 0
        row: dict[str, Any] = {}
        document: Document | None = None

        async def ask(request: Request) -> Reply:
            nonlocal attempts
            reply, sent = await crawler.ask(request)
            attempts += sent
            return reply

        async def accept(capture: Capture) -> str:
            nonlocal row, document
            visit = Visit(gone.asked.url, capture.reply.url)
            row, document = await self._row(visit, self._settings.judged(capture.reply, HostWishes(), known), pool)
            return str(row["outcome"])

        date = self._settings.date_for(gone.asked.metadata)
        found = await self._archives[name].find(gone.asked.url, date, ask, accept)
        answer = None
        if isinstance(found, Capture):
            assert document is not None
            at = {"archive": name, "captured_at": found.time}
            row |= {"outcome": str(PageOutcome.ARCHIVED), **at, "gone": known["outcome"], "fetched_at": _now()}
            row |= {ANSWERS: known[ANSWERS]} if ANSWERS in known else {}
            document.metadata |= at
            answer = self._answer(found.reply, gone.asked.url if is_plain(gone.asked.url) else found.reply.url)
        else:
            end = {**row, "fetched_at": _now()} if found == PageOutcome.OPTED_OUT else known
            row = {**end, ANSWERS: {**known.get(ANSWERS, {}), name: str(found)}}
        row["attempts"] = known.get("attempts", 0) + attempts
        row[PASSES] = known.get(PASSES, 0) + (gone.known.retry_pass < self._pass)
        return Entry(row, document, self._pass, answer)

    # What both need

    def _crawler(self, client: Client, finish: Finish, writer: DatabaseWriter) -> Crawler:
        return Crawler(self._settings, client, finish, self._settings.archive_hosts, self._page_bytes, writer)

    def _pool(self, folder: Path) -> ExtractorPool:
        return self._settings.pool(folder, 1)

    def _writer(self, written: Callable[[int], None] | None = None) -> DatabaseWriter:
        return DatabaseWriter(self._database, written or self._count)


def client_of(settings: FetchSettings) -> Client:
    """What makes the requests."""
    return Client(
        connections=settings.concurrency,
        timeout=settings.timeout,
        max_bytes=settings.max_bytes,
        user_agent=settings.user_agent,
        private=settings.private_addresses,
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
