"""One shard of a download: the URLs of a list, fetched and extracted into a journal by one event loop, then written.

Fetching costs waiting, extracting costs processor time: one event loop fetches, worker processes extract, a thread
writes the journal. When a page was fetched stands in its outcome row only, so that documents depend on pages alone.

A visit that has come to a host of another task is a record like any other: the outcome `redirect`,
with all that the other task needs to go on. A visit to a page that is gone goes on at an archive (`Archives`).
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from webtext_prep import storage
from webtext_prep.crawl.archives.warc_writing import is_plain
from webtext_prep.crawl.frontier.politeness import Crawler
from webtext_prep.crawl.frontier.queues import ANSWERS, Archives, Retrieval, Visit
from webtext_prep.crawl.http.client import Client, Reply
from webtext_prep.crawl.settings import Fetching
from webtext_prep.crawl.state.database import Entry, UrlSet
from webtext_prep.crawl.state.database_writer import JournalWriter, Work
from webtext_prep.crawl.state.page_cache import PageFile, PageReader
from webtext_prep.documents.document import Document, with_metadata_of
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.extraction.pages import PAGE_METADATA, Page, make_row, outcome_row
from webtext_prep.extraction.pool import ExtractorPool
from webtext_prep.running.processes import run_until_done
from webtext_prep.running.tasks import Tally
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.urls import Hosts

_LEFT = ("attempts", "retries", "redirects", "seconds", "earlier_attempts", "earlier_rounds", "date", "answers")
"""What the row of a visit that was left says of it under the same names; and `next`, its URL by then."""


def left_row(visit: Visit, *, needs_all: bool) -> dict[str, Any]:
    """The row of a visit that another task has to go on with."""
    values = {name: getattr(visit, name) for name in _LEFT}
    if visit.retrieval is not None:  # the search starts over
        values |= {"archive": visit.retrieval.archive, "known": visit.retrieval.known}
    return {"url": visit.asked, "outcome": str(PageOutcome.REDIRECT), "next": visit.url, "all": needs_all, **values}


def is_left(row: dict[str, Any]) -> bool:
    """Whether a row is that of a visit that was left."""
    return bool(row["outcome"] == PageOutcome.REDIRECT)


def visit_of(row: dict[str, Any]) -> Visit:
    """The visit that a row of `left_row` says."""
    visit = Visit(row["url"], row["next"], **{name: row[name] for name in _LEFT if name in row})
    if "archive" in row:
        visit.retrieval = Retrieval(row["archive"], row["known"])
    return visit


class Visiting:
    """Brings visits to their ends.

    Args:
        work: the journal of finished URLs, and with `--save-pages` the pages.
        fetching: how to fetch.
        report: called with the number of URLs done in all.
        hosts: where requests may be sent; everywhere if None.
    """

    def __init__(
        self, work: Work, fetching: Fetching, report: Callable[[int], None], hosts: Hosts | None = None
    ) -> None:
        self._work, self._fetching, self._report, self._hosts = work, fetching, report, hosts
        self._archives = Archives(fetching)
        self._done = 0

    def fetch(self, visits: Iterator[Visit], folder: Path) -> None:
        """Make the visits that are left to make; `folder` takes what extractors want to put somewhere."""
        left = self._unfinished(visits)
        first = next(left, None)
        if first is not None:
            run_until_done(self._fetch(itertools.chain([first], left), folder))

    def _count(self, number: int = 1) -> None:
        self._done += number
        self._report(self._done)

    def _unfinished(self, visits: Iterator[Visit]) -> Iterator[Visit]:
        """The visits that are left to make, one of each URL; the others are counted as done."""
        is_new = self._work.journal.is_empty
        with UrlSet() as begun:
            for visit in map(self._where_asked, visits):
                known = None if is_new else self._work.journal.outcome(visit.asked)
                if not begun.add(visit.asked) or not self._is_due(known):
                    self._count()
                    continue
                if known is not None and is_left(known.row):
                    yield self._where_asked(visit_of(known.row))
                    continue
                if known is not None:
                    visit.earlier_attempts += known.row.get("attempts", 0)
                    visit.earlier_rounds += known.row.get("rounds", 0)
                    visit.answers = known.row.get(ANSWERS, {})
                    if not self._is_tried_again(known.row) and (name := self._archives.next(known.row)):
                        self._archives.enter(visit, name, known.row)
                yield visit

    def _where_asked(self, visit: Visit) -> Visit:
        """A visit as it goes on; one that was left for an archive that is asked no more starts over."""
        if visit.retrieval is None or visit.retrieval.archive in self._archives.names:
            return visit
        values = {name: getattr(visit, name) for name in ("earlier_attempts", "earlier_rounds", "date")}
        return Visit(visit.asked, visit.asked, answers=visit.retrieval.known.get(ANSWERS, {}), **values)

    def _is_due(self, known: Entry | None) -> bool:
        """Whether a URL of which this is known is to be fetched in this pass."""
        if known is None or not (self._work.spool is None or self._work.spool.holds(known.row)):
            return True
        if is_left(known.row):
            return self._hosts is None  # as other settings of pace have it, it need not be left
        if known.retry_pass >= self._fetching.retry_pass:
            return False  # a run that was cut short has tried it in this pass already
        return self._is_tried_again(known.row) or self._archives.next(known.row) is not None

    def _is_tried_again(self, row: dict[str, Any]) -> bool:
        """Whether the page itself is asked for once more."""
        return is_retryable(row["outcome"]) and row.get("rounds", 0) < self._fetching.rounds

    async def _fetch(self, visits: Iterator[Visit], folder: Path) -> None:
        fetching, settings = self._fetching, self._fetching.settings
        client = Client(
            connections=fetching.connections,
            timeout=settings.timeout,
            max_bytes=settings.max_bytes,
            user_agent=settings.user_agent,
            private=settings.private_addresses,
        )
        pool = settings.pool(folder, fetching.slots)
        spool, segments = self._work.spool, self._work.segments
        save = iter if spool is None else spool.saved
        keep = None if segments is None else segments.save_if_due
        async with JournalWriter(self._work.journal, self._count, save, keep) as writer, client, pool:

            async def finish(visit: Visit, reply: Reply) -> bool:
                entry = await self._entry(visit, reply, pool)
                if entry is not None:
                    await writer.add(entry)
                return entry is None

            async def leave(visit: Visit, needs_all: bool) -> None:
                await writer.add(Entry(left_row(visit, needs_all=needs_all), None, fetching.retry_pass))

            await Crawler(fetching, client, finish, leave, self._archives, self._hosts).run(visits)

    async def _entry(self, visit: Visit, reply: Reply, pool: ExtractorPool) -> Entry | None:
        """The record of a URL, with its document if there is text; None if an archive is to be asked for it now."""
        retrieval, archive = visit.retrieval, ""
        if retrieval is None:
            row, document = await self._row(visit, reply, pool)
            if document is None and visit.answers:
                row[ANSWERS] = visit.answers
        else:
            archive, row, document = retrieval.archive, retrieval.known, None
            if retrieval.capture is not None:
                reply = retrieval.capture.reply
                found, document = await self._row(visit, reply, pool)
                if document is None:
                    self._archives.go_on(visit, replace(reply, outcome=found["outcome"], body=b""))
                    if retrieval.request is not None:
                        return None
                else:
                    capture = {"archive": archive, "captured_at": retrieval.capture.time}
                    others = {ANSWERS: row[ANSWERS]} if ANSWERS in row else {}
                    row = {**found, "outcome": str(PageOutcome.ARCHIVED), **capture, "gone": row["outcome"], **others}
                    document.metadata |= capture
            if document is None:
                row[ANSWERS] = {**row.get(ANSWERS, {}), archive: str(retrieval.answer)}
        row["attempts"] = visit.earlier_attempts + visit.attempts
        row["rounds"] = visit.earlier_rounds + 1
        if retrieval is None or document is not None:
            row["fetched_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if document is None and (name := self._archives.next(row, archive)) is not None:
            self._archives.enter(visit, name, row)
            return None
        answer = None
        is_page = reply.outcome == PageOutcome.OK and (retrieval is None or document is not None)
        if self._work.spool is not None and is_page:
            url = visit.asked if is_plain(visit.asked) and (retrieval or not visit.redirects) else reply.url
            answer = replace(reply, url=url)
        return Entry(row, document, self._fetching.retry_pass, answer)

    @staticmethod
    async def _row(visit: Visit, reply: Reply, pool: ExtractorPool) -> tuple[dict[str, Any], Document | None]:
        """What became of a page, live or captured, without what its visit has cost."""
        final_url = reply.url if visit.redirects and visit.retrieval is None else None
        if reply.outcome != PageOutcome.OK:
            return outcome_row(visit.asked, reply.outcome, status=reply.status, final_url=final_url), None
        return await make_row(
            Page(visit.asked, reply.body, reply.charset, reply.is_html, final_url, reply.status), pool
        )


def write_list(
    rows: Iterable[Document], work: Work, outputs: Sequence[Location], folder: Path, fetching: Fetching
) -> dict[str, Any]:
    """Write documents, outcomes, the pages if they are saved, and dropped URLs if there is one output more.

    All are in the order of the list's `rows`, and metadata of the list stays with its URL. A file that would say the
    same as before is left alone, so that later stages need not run again; drafts lie in `folder`. Returns the tally,
    with `page_bytes`; with `retryable`: how many retryable URLs were tried in how many passes; with `gone`: for how
    many pages that are gone which archives were asked; and with `archived`: how many pages came from each.
    """
    tally = Tally(problems=list(work.journal.notes))
    counts = {name: collections.Counter[str]() for name in ("retryable", "gone", "archived")}
    archives, page_bytes = Archives(fetching), 0
    drafts = [folder / str(number) / output.name for number, output in enumerate(outputs)]
    with contextlib.ExitStack() as stack:
        shards, pages = list(drafts), None
        if work.spool is not None:
            stream = stack.enter_context(storage.create(shards.pop(2)))
            pages = PageFile(stream, stack.enter_context(PageReader(work.spool.path)), fetching.settings.user_agent)
        documents, outcomes, *dropped = [stack.enter_context(write_documents(path)) for path in shards]
        tally.dropped_writer = dropped[0] if dropped else None
        written = stack.enter_context(UrlSet())
        for asked in tally.counted(rows):
            row, line = _line_of(work, asked.url, is_first=written.add(asked.url))
            if pages is not None:
                pages.add(asked, row)
            outcomes.write(Document(asked.url, metadata={key: row[key] for key in row if key != "url"}))
            if line is not None:
                page_bytes += row.get("bytes", 0)
                documents.write_lines(with_metadata_of(asked, line, PAGE_METADATA) + b"\n", 1)
                if "archive" in row:
                    counts["archived"][row["archive"]] += 1
                continue
            tally.drop(asked, row["outcome"])
            if archives.is_due_again(row):
                counts["retryable"][str(row.get("rounds", 0))] += 1
            if (asked_of := archives.asked_for(row)) is not None:
                counts["gone"][asked_of] += 1
        if pages is not None:
            pages.begin()
        tally.kept = documents.written
    for draft, output in zip(drafts, outputs, strict=True):
        storage.publish(draft, output)
    found = {name: dict(sorted(counted.items())) for name, counted in counts.items()}
    return {**tally.as_dict(), **found, "page_bytes": page_bytes}


def _line_of(work: Work, url: str, *, is_first: bool) -> tuple[dict[str, Any], bytes | None]:
    """The row of a URL, and the line of its document."""
    if not is_first:
        return {"url": url, "outcome": str(PageOutcome.DUPLICATE)}, None
    found = work.journal.line(url)
    if found is None or is_left(found[0]):
        raise AssertionError(f"{url} was never finished")
    return found
