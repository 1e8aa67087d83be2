"""How a URL can end: the one list of outcomes, and which of them are worth another try.

An outcome is a plain string in rows and tallies; fetching and extracting name it through `PageOutcome`, so that a
typing error fails at once. HTTP statuses have outcomes of their own, `http_404`, made by `http_outcome`.
"""

from __future__ import annotations

from enum import StrEnum

OUTCOMES = "outcomes"
"""The folder of an output with one row for each URL, a shard for each shard of documents."""


class PageOutcome(StrEnum):
    """What became of a URL, but for HTTP statuses. `REDIRECT` is an answer on the way, an end only of a page in a web
    archive that leads on by itself; `ARCHIVED` is a page that a web archive had. `NO_SUCH_HOST` is the answer of a name
    server, `DNS` that none has answered."""

    OK = "ok"
    ARCHIVED = "archived"
    REDIRECT = "redirect"
    # The URL itself, or a list that names it twice
    MALFORMED_URL = "malformed_url"
    DUPLICATE = "duplicate"
    # The way to the server
    BLOCKED_ADDRESS = "blocked_address"
    DNS = "dns"
    NO_SUCH_HOST = "no_such_host"
    CONNECTION = "connection"
    TLS = "tls"
    TIMEOUT = "timeout"
    HOST_DOWN = "host_down"
    # What its robots.txt says
    ROBOTS = "robots"
    ROBOTS_UNREACHABLE = "robots_unreachable"
    # What its owner says of training
    OPTED_OUT = "opted_out"
    # What stands in front of its server says
    PAYMENT_REQUIRED = "payment_required"
    REFUSED_BY_EDGE = "refused_by_edge"
    CHALLENGE = "challenge"
    # The answer
    MALFORMED_RESPONSE = "malformed_response"
    BAD_REDIRECT = "bad_redirect"
    TOO_MANY_REDIRECTS = "too_many_redirects"
    TOO_LARGE = "too_large"
    NOT_HTML = "not_html"
    # A page that says that there is none
    SOFT_404 = "soft_404"
    PARKED = "parked"
    # What an archive or a file holds of it
    NOT_A_PAGE = "not_a_page"
    REVISIT = "revisit"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"
    DAMAGED = "damaged"
    NOT_ARCHIVED = "not_archived"
    # The text in it
    EMPTY = "empty"
    OTHER_KIND = "other_kind"
    TOO_DEEP = "too_deep"
    EXTRACT_TIMEOUT = "extract_timeout"
    EXTRACT_MEMORY = "extract_memory"
    EXTRACT_CRASH = "extract_crash"
    EXTRACT_ERROR = "extract_error"


NO_ANSWER = frozenset({
    PageOutcome.TIMEOUT, PageOutcome.CONNECTION, PageOutcome.DNS, PageOutcome.NO_SUCH_HOST, PageOutcome.TLS,
})  # fmt: skip
"""What becomes of a request without any answer."""
EDGE = frozenset({PageOutcome.PAYMENT_REQUIRED, PageOutcome.REFUSED_BY_EDGE, PageOutcome.CHALLENGE})
"""What becomes of a request that a site's shield answers in its place."""
_RETRYABLE = NO_ANSWER | {PageOutcome.HOST_DOWN, PageOutcome.ROBOTS_UNREACHABLE}
_RETRYABLE_STATUSES = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})
_GONE = frozenset({"http_404", "http_410", PageOutcome.SOFT_404, PageOutcome.PARKED})
_NOBODY_THERE = NO_ANSWER - {PageOutcome.DNS} | {PageOutcome.HOST_DOWN}


def http_outcome(status: int) -> str:
    """The outcome of an answer that is not a page: 404 -> `http_404`."""
    return f"http_{status}"


def is_retryable(outcome: str) -> bool:
    """Whether a URL that ended so may be there at another time: the network or the server had trouble.

    >>> is_retryable("timeout"), is_retryable("http_503"), is_retryable("http_404")
    (True, True, False)
    """
    if outcome.startswith("http_"):
        return int(outcome.removeprefix("http_")) in _RETRYABLE_STATUSES
    return outcome in _RETRYABLE


def has_document(outcome: str) -> bool:
    """Whether a URL that ended so has a document."""
    return outcome in (PageOutcome.OK, PageOutcome.ARCHIVED)


def is_gone(outcome: str, *, is_last: bool = False) -> bool:
    """Whether a URL that ended so has no page any more.

    Trouble of the network, or of this machine's name server, looks like that of a site: so only what a site says itself
    counts at once, and what no name server has answered never.

    Args:
        outcome: of the URL.
        is_last: whether it was tried for the last time; then a server that never answered is gone, too.

    >>> is_gone("http_404"), is_gone("http_403"), is_gone("timeout"), is_gone("timeout", is_last=True)
    (True, False, False, True)
    """
    return outcome in _GONE or (is_last and outcome in _NOBODY_THERE)
