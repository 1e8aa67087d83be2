"""Captures of a URL in web archives: how one is looked for, request by request, whoever sends them.

A search is a generator, so that a crawler can send its requests in their turn: it yields a `Request` and is sent the
`Reply`; it yields a `Capture` and goes on only where that turned out to be no page; and it ends with what the archive
says of the URL: `not_archived`, why its captures are no pages, or why it could not be asked.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from webtext_prep.extraction.outcomes import is_retryable

if TYPE_CHECKING:
    from webtext_prep.crawl.http.client import Reply

CAPTURES = 3
"""Of one URL that an archive is asked for, the nearest ones, before it is taken for having none."""
_ZERO = "00000101000000"
_TIME = "%Y%m%d%H%M%S"
_EPOCH = re.compile(r"[3-9]\d{8}|1[0-8]\d{8}")
"""Seconds since 1970, from 1979 to 2030: other numbers begin with a year."""
READABLE = "%Y-%m-%dT%H:%M:%SZ"

Found = TypeVar("Found")


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
        found = yield from attempt
        if isinstance(found, Capture):
            answer = (yield found).outcome
        elif is_retryable(found):
            return found
        else:
            answer = found
    return answer


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


def timestamp(date: str) -> str:
    """A date as archives write it, with 14 digits; "" if it is none.

    >>> timestamp("2019-03-01"), timestamp("2019-03-01T12:00:00Z"), timestamp("201903"), timestamp("1551441600")
    ('20190301000000', '20190301120000', '20190301000000', '20190301120000')
    """
    date = date.strip()
    if _EPOCH.fullmatch(date):
        return datetime.datetime.fromtimestamp(int(date), datetime.UTC).strftime(_TIME)
    digits = "".join(sign for sign in date.partition("+")[0] if sign.isascii() and sign.isdigit())[:14]
    if len(digits) < 4:
        return ""
    padded = digits + _ZERO[len(digits) :]
    return padded if math.isfinite(seconds_of(padded)) else ""


def seconds_of(time: str) -> float:
    """A `timestamp` in seconds since 1970; infinite if it is none."""
    with contextlib.suppress(ValueError):
        return datetime.datetime.strptime(time, _TIME).replace(tzinfo=datetime.UTC).timestamp()
    return math.inf


def readable_time(time: str) -> str:
    """A `timestamp` as `2019-03-01T12:00:00Z`."""
    return datetime.datetime.fromtimestamp(seconds_of(time), datetime.UTC).strftime(READABLE)


def nearest(found: Iterable[tuple[str, Found]], date: str) -> list[tuple[str, Found]]:
    """What has a `timestamp`, the nearest to `date` first, or the newest if that is empty; others are left out."""
    timed = [(seconds_of(time), (time, each)) for time, each in found]
    timed = [(seconds, each) for seconds, each in timed if math.isfinite(seconds)]
    wanted = seconds_of(date) if date else math.inf
    timed.sort(key=lambda entry: (abs(entry[0] - wanted) if date else -entry[0], entry[0]))
    return [each for _, each in timed]
