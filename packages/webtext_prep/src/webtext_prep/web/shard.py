"""One shard of a download: the URLs of one list, fetched into a journal, then written out in the order of the list.

Fetching costs waiting, extracting costs processor time: one event loop fetches, worker processes extract, a thread
writes the journal. When a page was fetched stands in its outcome row only, so that documents depend on pages alone.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtext_prep.documents import storage
from webtext_prep.documents.document import Document, with_metadata_of
from webtext_prep.documents.outcomes import PageOutcome, is_retryable
from webtext_prep.documents.shards import write_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.extraction.pages import PAGE_METADATA, Page, make_row, outcome_row
from webtext_prep.extraction.pool import ExtractorPool
from webtext_prep.running.event_loop import run_until_done
from webtext_prep.running.tally import Tally
from webtext_prep.web.addresses import PrivateAddresses
from webtext_prep.web.crawling import Crawler, Visit
from webtext_prep.web.fetcher import Reply
from webtext_prep.web.journal import Entry, Journal
from webtext_prep.web.journal_writer import JournalWriter
from webtext_prep.web.requests import Client
from webtext_prep.web.saved_pages import PageFile, PageSpool
from webtext_prep.web.url_set import UrlSet
from webtext_prep.web.warc_writing import Answer, is_plain


@dataclass(frozen=True)
class Fetching:
    """How pages are fetched and extracted; the settings of `webtext download`, as far as one shard needs them.

    Attributes:
        connections: requests at once.
        parsers: pages extracted at once.
        page_bytes: bytes of pages that may be in memory, but for `unhindered` pages more.
        private: which addresses outside the public internet may be connected to.
        rounds: in how many passes over the list a retryable URL is tried; 0 tries none again.
        retry_pass: the number of this pass, 1 for the first.

    The others are settings of the same name.
    """

    extractor: str
    connections: int
    parsers: int
    page_bytes: int
    per_host: int
    delay: float
    timeout: float
    retries: int
    robots: bool
    user_agent: str
    private: PrivateAddresses
    max_bytes: int
    extract_timeout: float
    extract_memory: int
    rounds: int
    retry_pass: int

    @property
    def url_seconds(self) -> float:
        """What all requests of one URL may take, redirects included: as much as all attempts at one of them."""
        return (self.retries + 1) * self.timeout

    @property
    def unhindered(self) -> int:
        """How many pages never wait for memory: as many as fill half of it at their largest."""
        return max(1, self.page_bytes // 2 // self.max_bytes)


class Shard:
    """The URLs of one list.

    Args:
        rows: gives the rows of the list, from the first, each time it is called.
        journal: what is known of them, and where it is kept.
        fetching: how to fetch.
        report: is told how many URLs are done in all.
        spool: takes the pages, if they are saved.
    """

    def __init__(
        self,
        rows: Callable[[], Iterator[Document]],
        journal: Journal,
        fetching: Fetching,
        report: Callable[[int], None],
        spool: PageSpool | None = None,
    ) -> None:
        self._rows, self._journal, self._fetching, self._report = rows, journal, fetching, report
        self._spool = spool
        self._done = 0
        self._earlier: dict[str, dict[str, Any]] = {}  # the rows of URLs that are on their way once more

    def fetch(self, folder: Path) -> None:
        """Fetch every URL that is left, into the journal; `folder` takes what extractors want to put somewhere."""
        urls = self._unfinished()
        first = next(urls, None)
        if first is not None:
            run_until_done(self._fetch(itertools.chain([first], urls), folder))

    def _count(self, number: int = 1) -> None:
        self._done += number
        self._report(self._done)

    def _unfinished(self) -> Iterator[str]:
        """The URLs that are left to fetch, each once; the others are counted as done."""
        is_new = self._journal.is_empty
        with UrlSet() as begun:
            for row in self._rows():
                if not begun.add(row.url):
                    self._count()
                    continue
                known = None if is_new else self._journal.outcome(row.url)
                if not self._is_due(known):
                    self._count()
                    continue
                if known is not None:
                    self._earlier[row.url] = known.row
                yield row.url

    def _is_due(self, known: Entry | None) -> bool:
        """Whether a URL of which this is known is to be fetched in this pass."""
        if known is None or not (self._spool is None or self._spool.holds(known.row)):
            return True
        if known.retry_pass >= self._fetching.retry_pass:
            return False  # a run that was cut short has tried it in this pass already
        return is_retryable(known.row["outcome"]) and known.row.get("rounds", 0) < self._fetching.rounds

    async def _fetch(self, urls: Iterator[str], folder: Path) -> None:
        settings = self._fetching
        client = Client(
            connections=settings.connections,
            timeout=settings.timeout,
            max_bytes=settings.max_bytes,
            user_agent=settings.user_agent,
            private=settings.private,
        )
        pool = ExtractorPool(
            settings.extractor,
            workers=settings.parsers,
            seconds=settings.extract_timeout,
            memory=settings.extract_memory,
            folder=str(folder),
        )
        save = iter if self._spool is None else self._spool.saved
        async with JournalWriter(self._journal, self._count, save) as writer, client, pool:

            async def finish(visit: Visit, reply: Reply) -> None:
                await writer.add(await self._entry(visit, reply, pool))

            crawler = Crawler(
                client,
                finish,
                concurrency=settings.connections,
                per_host=settings.per_host,
                delay=settings.delay,
                retries=settings.retries,
                obey_robots=settings.robots,
                page_bytes=settings.page_bytes,
                unhindered=settings.unhindered,
                seconds=settings.url_seconds,
                robots_seconds=settings.timeout,
            )
            await crawler.run(urls)

    async def _entry(self, visit: Visit, reply: Reply, pool: ExtractorPool) -> Entry:
        """The record of a URL, with its document if there is text."""
        final_url = reply.url if visit.redirects else None
        document = None
        if reply.outcome == PageOutcome.OK:
            page = Page(visit.asked, reply.body, reply.charset, reply.is_html, final_url, reply.status)
            row, document = await make_row(page, pool)
        else:
            row = outcome_row(visit.asked, reply.outcome, status=reply.status, final_url=final_url)
        earlier = self._earlier.pop(visit.asked, {})
        row["attempts"] = earlier.get("attempts", 0) + visit.attempts
        row["rounds"] = earlier.get("rounds", 0) + 1
        row["fetched_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        answer = None
        if self._spool is not None and reply.outcome == PageOutcome.OK:
            url = reply.url if visit.redirects or not is_plain(visit.asked) else visit.asked
            status = reply.status or 200
            answer = Answer(visit.asked, url, row["fetched_at"], status, reply.reason, reply.headers, reply.body)
        return Entry(row, document, self._fetching.retry_pass, answer)

    def write(self, outputs: Sequence[Location], folder: Path) -> dict[str, Any]:
        """Write documents, outcomes, the pages if they are saved, and dropped URLs if there is one output more.

        All are in the order of the list, and metadata of the list stays with its URL. A file that would say the same as
        before is left alone, so that later stages need not run again. Returns the tally, with `page_bytes`, and with
        `retryable`: how many retryable URLs were tried in how many passes.
        """
        tally = Tally(problems=list(self._journal.notes))
        retryable: collections.Counter[str] = collections.Counter()
        page_bytes = 0
        drafts = [folder / str(number) / output.name for number, output in enumerate(outputs)]
        with contextlib.ExitStack() as stack:
            shards, pages = list(drafts), None
            if self._spool is not None:
                stream = stack.enter_context(storage.create(shards.pop(2)))
                pages = stack.enter_context(PageFile(stream, self._spool.path, self._fetching.user_agent))
            documents, outcomes, *dropped = [stack.enter_context(write_documents(path)) for path in shards]
            tally.dropped_writer = dropped[0] if dropped else None
            written = stack.enter_context(UrlSet())
            for asked in tally.counted(self._rows()):
                row, line = self._line_of(asked.url, is_first=written.add(asked.url))
                if pages is not None:
                    pages.add(asked, row)
                outcomes.write(Document(asked.url, metadata={key: row[key] for key in row if key != "url"}))
                if line is not None:
                    page_bytes += row.get("bytes", 0)
                    documents.write_lines(with_metadata_of(asked, line, PAGE_METADATA) + b"\n", 1)
                    continue
                tally.drop(asked, row["outcome"])
                if is_retryable(row["outcome"]):
                    retryable[str(row.get("rounds", 0))] += 1
            tally.kept = documents.written
        for draft, output in zip(drafts, outputs, strict=True):
            storage.publish(draft, output)
        return {
            **tally.as_dict(),
            "retryable": dict(sorted(retryable.items())),
            "retry_pass": self._fetching.retry_pass,
            "page_bytes": page_bytes,
        }

    def _line_of(self, url: str, *, is_first: bool) -> tuple[dict[str, Any], bytes | None]:
        """The row of a URL, and the line of its document."""
        if not is_first:
            return {"url": url, "outcome": str(PageOutcome.DUPLICATE)}, None
        found = self._journal.line(url)
        if found is None:
            raise AssertionError(f"{url} was never finished")
        return found
