"""What the crawler and robots.txt need to know of the network: a `Fetcher` that turns a URL into a `Reply`.

`requests.Client` is the real one; tests bring others. A fetcher makes one request and follows nothing: a redirect is a
reply like any other, so that each hop passes the same checks and waits its turn at its own host.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

from yarl import URL

from webtext_prep.crawl.http.memory import Reservation
from webtext_prep.urls.urls import canonical_host, without_credentials

_PLAIN = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?=[/?#]|\Z)")
"""The beginning of a URL that says all of its host and origin, as most do."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one request.

    Attributes:
        outcome: `ok`, `redirect`, or the reason for which there is no page (`http_404`, `timeout`, ...).
        url: the URL that answered.
        status: the HTTP status, or None where there was no answer.
        location: where a redirect points to.
        body: the page, decompressed, or nothing.
        charset: as the header says, or None.
        is_html: whether the page is HTML, or else plain text.
        retry_after: how many seconds the server asks to wait.
        retry_now: whether trying again in a moment may help.
        reason: the words behind the status of a page.
        headers: the headers of a page.
    """

    outcome: str
    url: str
    status: int | None = None
    location: str = ""
    body: bytes = b""
    charset: str | None = None
    is_html: bool = True
    retry_after: float | None = None
    retry_now: bool = False
    reason: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Fetcher(Protocol):
    """Makes single requests."""

    @property
    def user_agent(self) -> str:
        """How it introduces itself, `product/version`."""
        ...

    async def get(
        self,
        url: str,
        *,
        any_type: bool = False,
        max_bytes: int | None = None,
        reservation: Reservation | None = None,
        seconds: float | None = None,
    ) -> Reply:
        """Ask for `url` once. Never raises for what a URL, a server or a network can do: the reply's outcome says it.

        Args:
            url: an absolute http or https URL.
            any_type: take a body of any type (robots.txt), cut at the cap instead of refused.
            max_bytes: another cap than the fetcher's own.
            reservation: grows with the body, and waits where memory is short.
            seconds: a shorter limit on its time than the fetcher's own.
        """
        ...


def host_and_origin(url: str) -> tuple[str, str]:
    """The host of a URL ("" if it has none) as `canonical_host` has it, and its origin.

    Raises ValueError where it has no origin.

    >>> host_and_origin("HTTP://Example.com:80/a?b#c")
    ('example.com', 'http://example.com')
    """
    plain = _PLAIN.match(url)
    return _parsed(url) if plain is None else _parsed_once(plain[0])


def _parsed(url: str) -> tuple[str, str]:
    bare = without_credentials(url)
    # Percent-escapes are decoded as they are before the request is sent.
    return canonical_host(unquote(urlsplit(bare).hostname or "")), str(URL(bare).origin())


_parsed_once = functools.lru_cache(maxsize=1 << 14)(_parsed)


def host_name(url: str) -> str:
    """The host that the client connects to for a URL, and under which it waits for its turn; "" if it has none."""
    try:
        return host_and_origin(url)[0]
    except ValueError:
        return ""  # fails at once, whatever it waits for


def next_url(url: str, location: str) -> str | None:
    """Where a redirect from `url` leads, without credentials and fragment, or None if that is not a web address."""
    try:
        target = URL(without_credentials(url)).join(URL(location))
        if target.scheme not in ("http", "https") or not target.raw_host:
            return None
        return without_credentials(str(target.with_fragment(None)))
    except ValueError:
        return None
