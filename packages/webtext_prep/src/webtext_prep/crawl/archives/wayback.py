"""The Wayback Machine: its index (the CDX server API), and captures as they were (`id_` in the address of a replay).

A capture is recognised by `Memento-Datetime`, which every replay has (RFC 7089) and no page of the archive's own.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlencode

from command_kit import parse_json
from webtext_prep.crawl.archives.captures import CAPTURES, Asker, Capture, MalformedAnswerError, taken_apart
from webtext_prep.crawl.archives.cdx import READABLE, nearest, surt
from webtext_prep.crawl.http import bodies, media_types
from webtext_prep.crawl.http.client import Reply
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.extraction.outcomes import PageOutcome

LISTED = 10
"""Captures that the index is asked for: some of them may be of one page with and without `www.`."""
ROWS_BYTES = 1 << 20
HOPS = 3
"""Requests for one capture: the archive may lead from its time to that of another one."""
_ORIGINAL = b"x-archive-orig-"


class Wayback:
    """The Wayback Machine, or another archive with its protocol.

    Args:
        asker: sends its requests.
        address: of it.
        max_bytes: most bytes of a page, decompressed.
    """

    def __init__(self, asker: Asker, address: str, max_bytes: int) -> None:
        self._get, self._address, self._max_bytes = asker.get, address.rstrip("/"), max_bytes
        self._replay = re.compile(rf"{re.escape(self._address)}/web/(\d{{14}})(?:[a-z]{{2}}_)?/(.+)", re.DOTALL)

    async def captures(self, url: str, date: str) -> AsyncGenerator[Capture, None]:
        """See `Archive`."""
        key = surt(url)
        if not key:
            return
        wanted = {"sort": "closest", "closest": date, "limit": LISTED} if date else {"limit": -LISTED}
        filters = [("filter", "statuscode:200"), ("filter", "mimetype:(text/|application/xhtml|unk|warc/).*")]
        # Without it, an address that ends in `*` asks for all that begin so.
        exact = [("url", url), ("matchType", "exact")]
        query = urlencode([*exact, ("output", "json"), ("fl", "timestamp,original"), *wanted.items(), *filters])
        reply = await self._get(f"{self._address}/cdx/search/cdx?{query}", ROWS_BYTES)
        if reply.outcome != PageOutcome.OK:
            yield Capture.failed(url, PageOutcome.NOT_ARCHIVED if reply.status == 404 else reply.outcome)
            return
        try:
            rows = [row for row in index_rows(reply.body, LISTED) if surt(row[1]) == key]
        except MalformedAnswerError:
            yield Capture.failed(url, PageOutcome.MALFORMED_RESPONSE)
            return
        for time, original in nearest(rows, date)[:CAPTURES]:
            yield await self._capture(time, original, key)

    async def _capture(self, time: str, original: str, key: str) -> Capture:
        """A capture of the page with a key."""
        for _ in range(HOPS):
            reply = await self._get(f"{self._address}/web/{time}id_/{original}", self._max_bytes + 1)
            if reply.outcome != PageOutcome.REDIRECT:
                return self._page(reply, original)
            # To another time; a redirect of the page itself leads to another page.
            led = self._replay.fullmatch(next_url(reply.url, reply.location) or "")
            if led is None or surt(led[2]) != key:
                return Capture.failed(original, PageOutcome.BAD_REDIRECT)
            time, original = led.groups()
        return Capture.failed(original, PageOutcome.TOO_MANY_REDIRECTS)

    def _page(self, reply: Reply, original: str) -> Capture:
        if reply.outcome != PageOutcome.OK:
            return Capture(reply)
        headers = {name.lower(): value for name, value in reply.headers}
        said = headers.get(b"content-type", b"")
        kind, charset = media_types.content_type_of(said.decode("latin-1"))
        try:
            time = memento_time(headers)
            # Some were sent compressed, and no header says so any more.
            encoding = "gzip" if reply.body.startswith(bodies.GZIP) else ""
            body = bodies.decoded(reply.body, "", encoding, limit=self._max_bytes, may_be_cut=False)
        except MalformedAnswerError:
            return Capture.failed(original, PageOutcome.MALFORMED_RESPONSE)
        except bodies.BodyError as error:
            return Capture.failed(original, error.outcome)
        is_html = media_types.is_html_page(kind, body) if media_types.may_be_page(kind) else None
        if time is None or is_html is None or len(body) > self._max_bytes:
            outcome = PageOutcome.TOO_LARGE if is_html is not None else PageOutcome.NOT_HTML
            return Capture.failed(original, PageOutcome.NOT_ARCHIVED if time is None else outcome)
        own = ((name.removeprefix(_ORIGINAL), value) for name, value in headers.items() if name.startswith(_ORIGINAL))
        sent = ((b"content-type", said), *(pair for pair in own if pair[0] != b"content-type"))
        page = Reply(PageOutcome.OK, original, 200, body=body, charset=charset, is_html=is_html, reason="OK",
                     headers=sent)  # fmt: skip
        return Capture(page, time)


@taken_apart()
def index_rows(body: bytes, most: int) -> list[tuple[str, str]]:
    """The time and address of each capture in an answer of the index, `most` of them; none if it is empty."""
    rows = parse_json(body) if body.strip() else []
    if not isinstance(rows, list):
        raise TypeError("no list")
    found = []
    for time, original in rows[: most + 1]:  # the first names the columns
        if not isinstance(time, str) or not isinstance(original, str):
            raise TypeError("no text")
        if time != "timestamp":
            found.append((time, original))
    return found[:most]


@taken_apart()
def memento_time(headers: Mapping[bytes, bytes]) -> str | None:
    """When a capture was made, such as `2019-03-01T12:00:00Z`; None for an answer that is no capture (RFC 7089)."""
    said = headers.get(b"memento-datetime")
    if said is None:
        return None
    time = email.utils.parsedate_to_datetime(said.decode("latin-1"))
    return (time if time.tzinfo is None else time.astimezone(datetime.UTC)).strftime(READABLE)
