"""A list's part of a database as the files of its shard: documents, outcomes and saved pages."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from webtext_prep import storage
from webtext_prep.crawl.archives.warc_writing import PageFile
from webtext_prep.crawl.database import CrawlDatabase, UrlSet
from webtext_prep.crawl.settings import PASSES, FetchSettings
from webtext_prep.documents.document import Document, with_metadata_of
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.documents.folders.stage_record import GONE
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.extraction.pages import PAGE_METADATA
from webtext_prep.opt_outs.decisions import KEYS, count
from webtext_prep.running.tasks import Files, Tally


def write_shard(
    rows: Iterable[Document],
    database: CrawlDatabase,
    files: Files,
    folder: Path,
    settings: FetchSettings,
) -> dict[str, Any]:
    """Write documents, outcomes, the list of the pages that are gone, and where `files` name them the pages.

    All are in the order of the list's `rows`, and metadata of the list stays with its URL. A file that would say the
    same as before is left alone; drafts lie in `folder`. Returns the tally,
    with `page_bytes`, and with `retryable`: how many retryable URLs were tried in how many passes.

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
