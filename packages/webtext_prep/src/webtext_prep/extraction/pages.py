"""One page to its outcome row and its document, from any source: a download, a web archive, a file.

Some pages came with status 200 and say that there is none: soft 404s, and pages of parked domains. The rules by which
they are told are few, and each asks for two signs: what the page calls itself, and that there is hardly any text. An
article about error 404, or about a domain that is for sale, has text, and stays.

What reads an archive blocks: reading goes on in a thread next to the event loop, one batch ahead (`in_order`). How many
pages are held, and how many bytes of them, is bounded; one slow page holds up the results of later ones, and no work
until the bound is reached.
"""

from __future__ import annotations

import asyncio
import collections
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from webtext_prep.documents.document import Document
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


# Pages that say that there is none

FEW_CHARACTERS = 600
"""Of main text: some hundred words. A text with more is a page, whatever its title says."""
HEADING_CHARACTERS = 80
"""Of the first line of a text, if that is to be a heading."""
TITLE_CHARACTERS = 300
"""Of a title that are looked at."""

_BETWEEN = re.compile(r"\s*[|\u2013\u2014\u00b7\u00bb\u00ab:/]\s*|\s+-+\s+|[.!]\s+")
_EDGES = " \t.!?,;:'\"()[]\u2026\u201c\u201d\u3002\uff01"
_NOT_FOUND = re.compile(
    r"""
    (?:http\s*)?(?:error|status|code|fehler|erreur|errore|erro|\u043e\u0448\u0438\u0431\u043a\u0430)?[ #:-]*404
        (?:[ :,-]*(?:error|http\s+error|(?:page\s+|file\s+)?not\s+found|page))?
    | (?:error\s+)?(?:page|file|document|url|article|resource|content|site)
        \s+(?:was\s+|is\s+|could\s+)?not\s+(?:be\s+)?found
    | not\s+found
    | (?:the|this|that)\s+(?:requested\s+)?(?:page|url|article|file|document)
        (?:\s+(?:you\s+requested|you(?:'re|\s+are|\s+were)\s+looking\s+for))?
        \s+(?:could\s+not\s+be\s+found|couldn't\s+be\s+found|was\s+not\s+found|cannot\s+be\s+found|can't\s+be\s+found
            |does\s+not\s+exist|doesn't\s+exist|no\s+longer\s+exists|is\s+no\s+longer\s+available|has\s+been\s+removed)
    | (?:sorry|oops|uh-oh)[, ]+(?:but\s+)?(?:we\s+)?(?:can't|cannot|couldn't|could\s+not)
        \s+find\s+(?:that|this|the)\s+page
    | page\s+(?:no\s+longer\s+(?:exists|available)|does\s+not\s+exist|doesn't\s+exist|unavailable)
    | seite\s+(?:wurde\s+)?nicht\s+gefunden | page\s+(?:introuvable|non\s+trouv\u00e9e)
    | p\u00e1gina\s+n(?:o|\u00e3o)\s+encontrada | pagina\s+(?:non\s+trovata|niet\s+gevonden)
    | \u0441\u0442\u0440\u0430\u043d\u0438\u0446\u0430\s+\u043d\u0435\s+\u043d\u0430\u0439\u0434\u0435\u043d\u0430
    | \u9875\u9762\u4e0d\u5b58\u5728 | \u30da\u30fc\u30b8\u304c\u898b\u3064\u304b\u308a\u307e\u305b\u3093
    """,
    re.VERBOSE,
).fullmatch
"""What a part of a title says, or a heading."""
_FOR_SALE = re.compile(
    r"""
    (?:the\s+|this\s+)?(?:domain(?:\s+name)?|website)\s+(?:[\w.-]+\s+)?(?:is|may\s+be)\s+for\s+sale
    | [\w-]+(?:\.[\w-]+)+\s+(?:is|may\s+be)\s+for\s+sale
    | [\w-]+(?:\.[\w-]+)+\s+-?\s*(?:domain\s+)?(?:for\s+sale|parked|premium\s+domain)
    | (?:premium\s+)?domain(?:\s+name)?\s+(?:for\s+sale|parked)
    | (?:this|the)\s+(?:web\s*page|website|domain(?:\s+name)?)\s+is\s+parked.*
    | parked\s+(?:domain|page)(?:\s+name)?
    | buy\s+this\s+domain(?:\s+name)?
    """,
    re.VERBOSE,
).fullmatch
HEAD_BYTES = 1 << 17
"""Of HTML in which such a service is looked for: a page of a parked domain has some ten kilobytes."""
_PARKING = (
    b"sedoparking.com", b"parkingcrew.net", b"bodis.com/", b"parklogic.com", b"skenzo.com", b"/parking-lander/",
    b"data-adblockkey=", b"hugedomains.com/domain_profile", b"afternic.com/forsale", b"dan.com/buy-domain",
    b"parking.namesilo.com", b"domainparking.ru", b"parked-content.godaddy.com",
)  # fmt: skip
"""Of services that show advertisements, or an offer, in place of a site."""
_SELLERS = frozenset({
    "afternic.com", "bodis.com", "brandbucket.com", "dan.com", "domainmarket.com", "hugedomains.com", "parkingcrew.net",
    "parklogic.com", "sedo.com", "sedoparking.com", "skenzo.com", "undeveloped.com",
})  # fmt: skip
"""Where parked domains redirect to."""


def _parts(title: str) -> list[str]:
    """The whole of a title, and what stands between its separators: one is often the name of the site."""
    plain = " ".join(title.lower().replace("\u2019", "'").replace("(", "").replace(")", "").split())
    return [part.strip(_EDGES) for part in (plain, *_BETWEEN.split(plain))]


def gone_outcome(url: str, final_url: str | None, title: str, text: str, html: bytes) -> str | None:
    """`soft_404` or `parked` if a page says that there is none, else None.

    Args:
        url: by which it was asked for.
        final_url: where redirects led, or None.
        title: of the page.
        text: its main text, as extracted.
        html: the page.
    """
    if final_url is not None and (seller := domain_of(final_url)) in _SELLERS and seller != domain_of(url):
        return PageOutcome.PARKED
    if len(text) > FEW_CHARACTERS:
        return None
    heading = text.partition("\n")[0]
    said = _parts(title[:TITLE_CHARACTERS]) + (_parts(heading) if len(heading) <= HEADING_CHARACTERS else [])
    if any(map(_NOT_FOUND, said)):
        return PageOutcome.SOFT_404
    head = html[:HEAD_BYTES].lower()
    if any(map(_FOR_SALE, said)) or any(service in head for service in _PARKING):
        return PageOutcome.PARKED
    return None


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
