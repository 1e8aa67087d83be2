"""One page to its outcome row and its document, from any source: a download, a web archive, a file.

What reads an archive blocks: reading goes on in a thread next to the event loop, one batch ahead (`in_order`). How many
pages are held, and how many bytes of them, is bounded; one slow page holds up the results of later ones, and no work
until the bound is reached.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from webtext_prep.documents.document import Document
from webtext_prep.extraction.gone_pages import gone_outcome
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.pool import ExtractorPool
from webtext_prep.urls.urls import domain_of

CAPTURE = ("archive", "captured_at")
"""The metadata of a page that a web archive had: which one, and the time of the capture."""
PAGE_METADATA = ("title", "kind", "domain", "final_url", *CAPTURE)
"""The metadata that a document has from its page; all other comes from the list that named it."""


@dataclass(frozen=True, slots=True)
class Page:
    """The bytes of a page and what its source says of them.

    Attributes:
        url: the URL by which it was asked for, which its document keeps.
        body: its bytes, decompressed.
        charset: as an HTTP header says, or None.
        is_html: whether it is HTML, or else plain text.
        final_url: where redirects led, or None if there were none.
        status: the HTTP status, or None where the source does not know it.
    """

    url: str
    body: bytes
    charset: str | None = None
    is_html: bool = True
    final_url: str | None = None
    status: int | None = None


def outcome_row(url: str, outcome: str, *, status: int | None, final_url: str | None) -> dict[str, Any]:
    """The row of a URL as it begins, whether or not there is a page."""
    known = {"url": url, "outcome": str(outcome), "status": status, "final_url": final_url}
    return {name: value for name, value in known.items() if value is not None}


async def make_row(page: Page, pool: ExtractorPool) -> tuple[dict[str, Any], Document | None]:
    """The outcome row of a page, and its document if there is text."""
    address = page.url if page.final_url is None else page.final_url
    parsed = await pool.extract(page.body, address, page.charset, is_html=page.is_html)
    outcome = parsed.outcome
    if page.is_html and outcome in (PageOutcome.OK, PageOutcome.EMPTY, PageOutcome.OTHER_KIND):
        outcome = gone_outcome(page.url, page.final_url, parsed.title, parsed.text, page.body) or outcome
    row = outcome_row(page.url, outcome, status=page.status, final_url=page.final_url)
    row["bytes"] = len(page.body)
    row |= {name: value for name, value in (("kind", parsed.kind), ("detail", parsed.detail)) if value}
    if outcome != PageOutcome.OK:
        return row, None
    # A file has no domain.
    said = {"title": parsed.title, "kind": parsed.kind, "domain": domain_of(address), "final_url": page.final_url}
    return row, Document(page.url, parsed.text, {name: value for name, value in said.items() if value})


# Many pages at once

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH = 64
"""Items that are read together at most,"""
BATCH_BYTES = 1 << 20
"""and the bytes of them from which on no more are begun."""


async def in_order(
    items: Iterator[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    size: Callable[[Item], int],
    most: int,
    most_bytes: int,
) -> AsyncGenerator[tuple[Item, Result], None]:
    """Each item with the result of `work` on it, in order. To be closed (`contextlib.aclosing`) where it is left early.

    Args:
        items: what to work on; used by another thread.
        work: what to do with one.
        size: bytes of one.
        most: how many are worked on at once, including results that wait for one before them.
        most_bytes: no further one is begun while these have that many bytes; two batches beyond that may be held.
    """
    loop = asyncio.get_running_loop()
    begun: collections.deque[tuple[Item, asyncio.Future[Result]]] = collections.deque()
    unbegun: collections.deque[Item] = collections.deque()
    held = 0

    def read() -> list[Item]:
        found, total = [], 0
        for item in items:
            found.append(item)
            total += size(item)
            if len(found) >= BATCH or total >= BATCH_BYTES:
                break
        return found

    thread = ThreadPoolExecutor(1, "reader")
    try:
        coming = loop.run_in_executor(thread, read)
        is_at_end = False
        while True:
            while unbegun and (not begun or (len(begun) < most and held < most_bytes)):
                item = unbegun.popleft()
                held += size(item)
                begun.append((item, asyncio.ensure_future(work(item))))
            if begun and (unbegun or is_at_end or begun[0][1].done()):
                item, future = begun[0]
                result = await future
                begun.popleft()
                held -= size(item)
                yield item, result
            elif is_at_end:
                return
            else:
                unbegun.extend(batch := await coming)
                is_at_end = not batch
                if not is_at_end:
                    coming = loop.run_in_executor(thread, read)
    finally:
        for _, future in begun:
            future.cancel()
        await asyncio.gather(*(future for _, future in begun), return_exceptions=True)
        thread.shutdown(cancel_futures=True)
