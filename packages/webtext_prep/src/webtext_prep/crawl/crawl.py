"""One crawl: the URLs of all lists, fetched and extracted into a database by one event loop, and written as shards.

Fetching costs waiting, extracting costs processor time: one event loop fetches, worker processes extract, a thread
writes the database. When a page was fetched stands in its row only, so that documents depend on pages alone. A list's
part of the database then becomes the files of its shard: documents, outcomes and saved pages.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from webtext_prep import storage
from webtext_prep.crawl.archives.warc_writing import PageFile, is_plain
from webtext_prep.crawl.database import CrawlDatabase, DatabaseWriter, Entry, UrlSet
from webtext_prep.crawl.frontier.crawler import Crawler
from webtext_prep.crawl.frontier.queues import Visit
from webtext_prep.crawl.http.client import Reply
from webtext_prep.crawl.settings import PASSES, FetchSettings
from webtext_prep.documents.document import Document, with_metadata_of
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.documents.folders.stage_record import GONE
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.extraction.page_stage import PAGE_BYTES
from webtext_prep.extraction.pages import PAGE_METADATA, Page, count, make_row, outcome_row
from webtext_prep.extraction.processes.pool import ExtractorPool
from webtext_prep.opt_outs.decisions import KEYS
from webtext_prep.running.processes import run_until_done
from webtext_prep.running.tasks import Files, Tally


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
        self._done = 0

    def _count(self, number: int = 1) -> None:
        self._done += number
        self._report(self._done)

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
        settings = self._settings
        async with (
            settings.client(settings.concurrency, settings.max_bytes) as client,
            settings.pool(folder, 1) as pool,
            DatabaseWriter(self._database, self._count) as writer,
        ):

            async def finish(visit: Visit, reply: Reply) -> str:
                row, document = await self._row(visit, reply, pool)
                row["attempts"] = visit.earlier.get("attempts", 0) + visit.attempts
                row[PASSES] = visit.earlier.get(PASSES, 0) + 1
                row["fetched_at"] = _now()
                url = visit.asked if is_plain(visit.asked) and not visit.redirects else reply.url
                await writer.add(Entry(row, document, self._pass, self._answer(reply, url)))
                return str(row["outcome"])

            await Crawler(settings, client, finish, self._page_bytes, writer).run(visits)

    @staticmethod
    async def _row(visit: Visit, reply: Reply, pool: ExtractorPool) -> tuple[dict[str, Any], Document | None]:
        """What became of a URL, without what its visit has cost."""
        final_url = reply.url if visit.redirects else None
        if reply.outcome != PageOutcome.OK:
            row = outcome_row(visit.asked, reply.outcome, status=reply.status, final_url=final_url)
            return row | reply.decision.row | ({"crawler_price": reply.price} if reply.price else {}), None
        page = Page(visit.asked, reply.body, reply.charset, reply.is_html, final_url, reply.status)
        return await make_row(page, pool, reply.decision)

    def _answer(self, reply: Reply, url: str) -> Reply | None:
        """A page as it is to be saved under a URL, if it is one and is to be saved."""
        return replace(reply, url=url) if self._settings.save_pages and reply.outcome == PageOutcome.OK else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write_shard(
    rows: Iterable[Document],
    database: CrawlDatabase,
    files: Files,
    folder: Path,
    settings: FetchSettings,
) -> dict[str, Any]:
    """Write documents, outcomes, the list of the pages that are gone, and where `files` name them the pages.

    All are in the order of the list's `rows`, and metadata of the list stays with its URL. A file that would say the
    same as before is left alone; drafts lie in `folder`. Returns the tally, with `page_bytes`, and with `retryable`:
    how many retryable URLs were tried in how many passes.

    Raises WebtextError where a record is damaged.
    """
    tally = Tally()
    retryable, page_bytes = collections.Counter[str](), 0
    with contextlib.ExitStack() as stack:
        drafts = stack.enter_context(drafts_of(files, folder))
        documents = stack.enter_context(write_documents(drafts.kept))
        outcomes = stack.enter_context(write_documents(drafts.outcomes))
        gone = stack.enter_context(write_documents(drafts.gone))
        pages = None
        if "pages" in drafts:
            pages = PageFile(stack.enter_context(storage.create(drafts.pages)), settings.user_agent)
        written = stack.enter_context(UrlSet())
        for asked in tally.counted(rows):
            row, line, page = record_of(database, asked.url, is_first=written.add(asked.url))
            if pages is not None and page is not None:
                pages.add(asked, row, page)
            count(row, tally.notes)
            outcomes.write(Document(asked.url, metadata={key: row[key] for key in row if key != "url"}))
            if line is not None:
                page_bytes += row.get("bytes", 0)
                documents.write_lines(with_metadata_of(asked, line, PAGE_METADATA) + b"\n", 1)
                continue
            tally.drop(asked, row["outcome"])
            if is_retryable(row["outcome"]):
                retryable[str(row.get(PASSES, 0))] += 1
            if settings.is_gone(row):
                said = {key: row[key] for key in KEYS if key in row}
                gone.write(Document(asked.url, metadata={**asked.metadata, GONE: row["outcome"], **said}))
        if pages is not None:
            pages.begin()
        tally.kept = documents.written
    return {**tally.as_dict(), "retryable": dict(sorted(retryable.items())), "page_bytes": page_bytes}


@contextlib.contextmanager
def drafts_of(files: Files, folder: Path) -> Iterator[Files]:
    """Files in a folder of this machine that become `files` at the end of the block.

    One that says the same as before is left alone, so that later stages need not run again.
    """
    drafts = Files(**{name: folder / name / file.name for name, (file,) in files.items()})
    yield drafts
    for draft, file in zip(drafts.all(), files.all(), strict=True):
        storage.publish(storage.local_path(draft), file)


def record_of(
    database: CrawlDatabase, url: str, *, is_first: bool
) -> tuple[dict[str, Any], bytes | None, bytes | None]:
    """The row of a URL, the line of its document, and its page."""
    if not is_first:
        return {"url": url, "outcome": str(PageOutcome.DUPLICATE)}, None, None
    found = database.lines(url)
    if found is None:
        raise WebtextError(f"{database.path} is damaged: run the command again, which fetches what is lost once more.")
    return found
