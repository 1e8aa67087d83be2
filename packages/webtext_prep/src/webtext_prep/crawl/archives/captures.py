"""Captures of a URL in web archives: how one is looked for, request by request, whoever sends them.

A search is a generator, so that a crawler can send its requests in their turn: it yields a `Request` and is sent the
`Reply`; it yields a `Capture` and goes on only where that turned out to be no page; and it ends with what the archive
says of the URL: `not_archived`, why its captures are no pages, or why it could not be asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from webtext_prep.crawl.archives.answers import MalformedAnswerError
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable

if TYPE_CHECKING:
    from webtext_prep.crawl.http.client import Reply

CAPTURES = 3
"""Of one URL that an archive is asked for, the nearest ones, before it is taken for having none."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask an archive for next.

    Attributes:
        url: the address.
        most: bytes of the answer that are read.
        span: the first byte of a part of the file, and the bytes of it, or None for all.
    """

    url: str
    most: int
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """A page as an archive has it.

    Attributes:
        time: when it was captured, such as `2019-03-01T12:00:00Z`.
        reply: the answer of its server at that time.
    """

    time: str
    reply: Reply


Search = Generator[Request | Capture, "Reply", str]
"""Is sent, for a capture that is no page, a reply with the outcome that says why."""


def tried(attempts: Iterable[Generator[Request | Capture, Reply, Capture | str]], answer: str) -> Search:
    """Try captures one after the other. Ends with why the last of them was no page, `answer` if there is none.

    Args:
        attempts: each asks for a capture, and ends with it, or with why there is none; a retryable outcome is the last.
        answer: the outcome without them.
    """
    for attempt in attempts:
        try:
            found = yield from attempt
        except MalformedAnswerError:
            found = PageOutcome.MALFORMED_RESPONSE
        if isinstance(found, Capture):
            answer = (yield found).outcome
        elif is_retryable(found):
            return found
        else:
            answer = found
    return answer


def ending(search: Callable[..., Search]) -> Callable[..., Search]:
    """A search that ends as `malformed_response` where an answer makes no sense."""

    @functools.wraps(search)
    def made(*args: Any) -> Search:
        try:
            return (yield from search(*args))
        except MalformedAnswerError:
            return PageOutcome.MALFORMED_RESPONSE

    return made


class Archive(Protocol):
    """A web archive."""

    name: ClassVar[str]
    usual_requests: ClassVar[int]
    """For a page, about."""
    most_requests: ClassVar[int]
    """For a page, without further attempts."""

    addresses: tuple[str, ...]
    """Where it is asked; the first of them is where a search begins."""

    def search(self, url: str, date: str) -> Search:
        """Look for the captures of `url` that are the nearest to a date, a `timestamp`; the newest if it is empty."""
        ...
