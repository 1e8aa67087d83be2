"""The Wayback Machine: its index (the CDX server API), and captures as they were (`id_` in the address of a replay).

A capture is recognised by `Memento-Datetime`, which every replay has (RFC 7089) and no page of the archive's own.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import ClassVar
from urllib.parse import urlencode

from webtext_prep.crawl.archives.answers import index_rows, memento_time, nearest
from webtext_prep.crawl.archives.captures import CAPTURES, Capture, Request, Search, ending, tried
from webtext_prep.crawl.http.bodies import GZIP, BodyError, content_type_of, decoded, is_html_page, may_be_page
from webtext_prep.crawl.http.client import Reply, next_url
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.urls.urls import surt

LISTED = 10
"""Captures that the index is asked for: some of them may be of one page with and without `www.`."""
ROWS_BYTES = 1 << 20
HOPS = 3
"""Requests for one capture: the archive may lead from its time to that of another one."""
_ORIGINAL = b"x-archive-orig-"


class Wayback:
    """The Wayback Machine, or another archive with its protocol.

    Args:
        address: of it.
        max_bytes: most bytes of a page, decompressed.
    """

    name: ClassVar[str] = "wayback"
    usual_requests: ClassVar[int] = 2
    most_requests: ClassVar[int] = 1 + CAPTURES * HOPS

    def __init__(self, address: str, max_bytes: int) -> None:
        self._address, self._max_bytes = address.rstrip("/"), max_bytes
        self.addresses: tuple[str, ...] = (self._address,)
        self._replay = re.compile(rf"{re.escape(self._address)}/web/(\d{{14}})(?:[a-z]{{2}}_)?/(.+)", re.DOTALL)

    @ending
    def search(self, url: str, date: str) -> Search:
        """See `Archive`."""
        key = surt(url)
        if not key:
            return PageOutcome.NOT_ARCHIVED
        wanted = {"sort": "closest", "closest": date, "limit": LISTED} if date else {"limit": -LISTED}
        filters = [("filter", "statuscode:200"), ("filter", "mimetype:(text/|application/xhtml|unk|warc/).*")]
        # Without it, an address that ends in `*` asks for all that begin so.
        exact = [("url", url), ("matchType", "exact")]
        query = urlencode([*exact, ("output", "json"), ("fl", "timestamp,original"), *wanted.items(), *filters])
        reply = yield Request(f"{self._address}/cdx/search/cdx?{query}", ROWS_BYTES)
        if reply.outcome != PageOutcome.OK:
            return PageOutcome.NOT_ARCHIVED if reply.status == 404 else reply.outcome
        rows = [row for row in index_rows(reply.body, LISTED) if surt(row[1]) == key]
        attempts = (self._capture(time, original, key) for time, original in nearest(rows, date)[:CAPTURES])
        return (yield from tried(attempts, PageOutcome.NOT_ARCHIVED))

    def _capture(self, time: str, original: str, key: str) -> Generator[Request | Capture, Reply, Capture | str]:
        """A capture of the page with a key, or why there is none."""
        for _ in range(HOPS):
            reply = yield Request(f"{self._address}/web/{time}id_/{original}", self._max_bytes + 1)
            if reply.outcome != PageOutcome.REDIRECT:
                return self._page(reply, original)
            # To another time; a redirect of the page itself leads to another page.
            led = self._replay.fullmatch(next_url(reply.url, reply.location) or "")
            if led is None or surt(led[2]) != key:
                return PageOutcome.BAD_REDIRECT
            time, original = led.groups()
        return PageOutcome.TOO_MANY_REDIRECTS

    def _page(self, reply: Reply, original: str) -> Capture | str:
        if reply.outcome != PageOutcome.OK:
            return reply.outcome
        headers = {name.lower(): value for name, value in reply.headers}
        time = memento_time(headers)
        if time is None:
            return PageOutcome.NOT_ARCHIVED
        said = headers.get(b"content-type", b"")
        kind, charset = content_type_of(said.decode("latin-1"))
        if not may_be_page(kind):
            return PageOutcome.NOT_HTML
        try:
            # Some were sent compressed, and no header says so any more.
            encoding = "gzip" if reply.body.startswith(GZIP) else ""
            body = decoded(reply.body, "", encoding, limit=self._max_bytes, may_be_cut=False)
        except BodyError as error:
            return error.outcome
        is_html = is_html_page(kind, body)
        if len(body) > self._max_bytes or is_html is None:
            return PageOutcome.NOT_HTML if is_html is None else PageOutcome.TOO_LARGE
        own = ((name.removeprefix(_ORIGINAL), value) for name, value in headers.items() if name.startswith(_ORIGINAL))
        sent = ((b"content-type", said), *(pair for pair in own if pair[0] != b"content-type"))
        page = Reply(PageOutcome.OK, original, 200, body=body, charset=charset, is_html=is_html, reason="OK",
                     headers=sent)  # fmt: skip
        return Capture(time, page)
