"""One shard of a download: the URLs of one list, fetched into a journal, then written out in the order of the list."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from webtext_prep import storage
from webtext_prep.crawl.frontier.fetch_loop import Fetching, Visiting, is_left
from webtext_prep.crawl.frontier.queues import Visit
from webtext_prep.crawl.state.databases import Work
from webtext_prep.crawl.state.page_cache import PageFile
from webtext_prep.crawl.state.url_set import UrlSet
from webtext_prep.documents.document import Document, with_metadata_of
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.extraction.pages import PAGE_METADATA
from webtext_prep.running.tasks import Tally
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.hosts import Hosts


class Shard:
    """The URLs of one list.

    Args:
        rows: gives the rows of the list, from the first, each time it is called.
        work: the journal of what is known of them, and the pages, if they are saved.
        fetching: how to fetch.
        report: is told how many URLs are done in all.
    """

    def __init__(
        self,
        rows: Callable[[], Iterator[Document]],
        work: Work,
        fetching: Fetching,
        report: Callable[[int], None],
    ) -> None:
        self._rows, self._work, self._fetching, self._report = rows, work, fetching, report

    def fetch(self, folder: Path, hosts: Hosts | None = None) -> None:
        """Fetch every URL that is left, into the journal.

        Args:
            folder: takes what extractors want to put somewhere.
            hosts: those to which requests may be sent; visits that come to another one are left. All if None.
        """
        visits = (Visit(row.url, row.url) for row in self._rows())
        Visiting(self._work, self._fetching, self._report, hosts).fetch(visits, folder)

    def write(self, outputs: Sequence[Location], folder: Path) -> dict[str, Any]:
        """Write documents, outcomes, the pages if they are saved, and dropped URLs if there is one output more.

        All are in the order of the list, and metadata of the list stays with its URL. A file that would say the same as
        before is left alone, so that later stages need not run again. Returns the tally, with `page_bytes`, and with
        `retryable`: how many retryable URLs were tried in how many passes.
        """
        tally = Tally(problems=list(self._work.journal.notes))
        retryable: collections.Counter[str] = collections.Counter()
        page_bytes = 0
        drafts = [folder / str(number) / output.name for number, output in enumerate(outputs)]
        with contextlib.ExitStack() as stack:
            shards, pages = list(drafts), None
            if self._work.spool is not None:
                stream = stack.enter_context(storage.create(shards.pop(2)))
                pages = stack.enter_context(PageFile(stream, self._work.spool.path, self._fetching.user_agent))
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
        found = self._work.journal.line(url)
        if found is None or is_left(found[0]):
            raise AssertionError(f"{url} was never finished")
        return found
