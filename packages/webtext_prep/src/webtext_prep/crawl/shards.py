"""A list's part of a database as the files of its shard: documents, outcomes and saved pages."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from webtext_prep import storage
from webtext_prep.crawl.database import CrawlDatabase, UrlSet
from webtext_prep.crawl.saved_pages import PageFile
from webtext_prep.crawl.settings import PASSES, FetchSettings
from webtext_prep.documents.document import Document, with_metadata_of
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.pages import PAGE_METADATA
from webtext_prep.opt_outs.decisions import count
from webtext_prep.running.tasks import Files, Tally


def write_shard(
    rows: Iterable[Document],
    database: CrawlDatabase,
    files: Files,
    folder: Path,
    settings: FetchSettings,
) -> dict[str, Any]:
    """Write documents, outcomes, and where `files` name them the pages.

    All are in the order of the list's `rows`, and metadata of the list stays with its URL. A file that would say the
    same as before is left alone, so that later stages need not run again; drafts lie in `folder`. Returns the tally,
    with `page_bytes`; with `retryable`: how many retryable URLs were tried in how many passes; with `gone`: for how
    many pages that are gone which archives were asked; and with `archived`: how many pages came from each.

    Raises WebtextError where a record is damaged.
    """
    tally = Tally()
    counts = {name: collections.Counter[str]() for name in ("retryable", "gone", "archived")}
    page_bytes = 0
    drafts = Files(**{name: folder / name / file.name for name, (file,) in files.items()})
    with contextlib.ExitStack() as stack:
        documents = stack.enter_context(write_documents(drafts.kept))
        outcomes = stack.enter_context(write_documents(drafts.outcomes))
        pages = None
        if "pages" in drafts:
            pages = PageFile(stack.enter_context(storage.create(drafts.pages)), settings.user_agent)
        written = stack.enter_context(UrlSet())
        for asked in tally.counted(rows):
            row, line, page = _record_of(database, asked.url, is_first=written.add(asked.url))
            if pages is not None and page is not None:
                pages.add(asked, row, page)
            count(row, tally.notes)
            outcomes.write(Document(asked.url, metadata={key: row[key] for key in row if key != "url"}))
            if line is not None:
                page_bytes += row.get("bytes", 0)
                documents.write_lines(with_metadata_of(asked, line, PAGE_METADATA) + b"\n", 1)
                if "archive" in row:
                    counts["archived"][row["archive"]] += 1
                continue
            tally.drop(asked, row["outcome"])
            if settings.may_end_otherwise(row):
                counts["retryable"][str(row.get(PASSES, 0))] += 1
            if (asked_of := settings.archives_asked(row)) is not None:
                counts["gone"][asked_of] += 1
        if pages is not None:
            pages.begin()
        tally.kept = documents.written
    for draft, file in zip(drafts.all(), files.all(), strict=True):
        storage.publish(storage.local_path(draft), file)
    found = {name: dict(sorted(counted.items())) for name, counted in counts.items()}
    return {**tally.as_dict(), **found, "page_bytes": page_bytes}


def _record_of(
    database: CrawlDatabase, url: str, *, is_first: bool
) -> tuple[dict[str, Any], bytes | None, bytes | None]:
    """The row of a URL, the line of its document, and its page."""
    if not is_first:
        return {"url": url, "outcome": str(PageOutcome.DUPLICATE)}, None, None
    found = database.lines(url)
    if found is None:
        raise WebtextError(f"{database.path} is damaged: run the command again, which fetches what is lost once more.")
    return found
