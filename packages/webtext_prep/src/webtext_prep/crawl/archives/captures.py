"""Captures of a URL in web archives: how one is looked for, whoever sends the requests.

A search is a coroutine that is given what to await for a reply (`Ask`), so that a crawler can send its requests in
their turn, and for each capture that it finds, the nearest first, what to await for a verdict (`Accept`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
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


Ask = Callable[[Request], Awaitable["Reply"]]
"""Sends a request, as soon as politeness lets it."""
Accept = Callable[[Capture], Awaitable[str]]
"""Says what becomes of a capture: `ok` for a page."""
Search = Coroutine[Any, Any, "Capture | str"]
"""Ends with the capture that was accepted, or with what the archive says of the URL: `not_archived`, why its captures
are no pages, or why it could not be asked."""


async def first_accepted(attempts: Iterable[Search], accept: Accept, answer: str) -> Capture | str:
    """Try captures one after the other; the one that is accepted, or why the last of them was not.

    Args:
        attempts: each ends with a capture, or with why there is none; a retryable outcome is the last.
        accept: judges a capture.
        answer: the outcome without any.
    """
    for attempt in attempts:
        found = await attempt
        if isinstance(found, Capture):
            answer = await accept(found)
            if answer == PageOutcome.OK:
                return found
            if answer == PageOutcome.OPTED_OUT:  # for all captures: none of another time is taken instead
                break
        else:
            answer = found
            if is_retryable(found):
                break
    return answer


def sensible(search: Callable[..., Search]) -> Callable[..., Search]:
    """A search that ends as `malformed_response` where an answer makes no sense."""

    @functools.wraps(search)
    async def made(*args: Any) -> Capture | str:
        try:
            return await search(*args)
        except MalformedAnswerError:
            return PageOutcome.MALFORMED_RESPONSE

    return made


class Archive(Protocol):
    """A web archive."""

    name: ClassVar[str]
    usual_requests: ClassVar[int]
    """For a page, about."""

    addresses: tuple[str, ...]
    """Where it is asked; the first of them is where a search begins."""

    async def find(self, url: str, date: str, ask: Ask, accept: Accept) -> Capture | str:
        """Look for the page of `url` among the captures that are the nearest to a date, a `timestamp`, or the newest
        if it is empty. Returns the one that is accepted, or what the archive says of the URL."""
        ...
