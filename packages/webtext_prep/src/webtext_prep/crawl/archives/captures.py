"""Captures of a page in web archives, and how an archive is asked for them: politely, and with an end of patience."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Protocol

from webtext_prep.crawl.frontier.crawler import BACKOFF_SECONDS, GIVE_UP_HOST_AFTER, LONGEST_CRAWL_DELAY
from webtext_prep.crawl.frontier.robots import ATTEMPTS, MAX_ROBOTS_REDIRECTS, Robots, RobotsRules, rules_of
from webtext_prep.crawl.http.client import Client, Reply, host_and_origin
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.extraction.outcomes import NO_ANSWER, PageOutcome
from webtext_prep.opt_outs.robots_txt import MAX_BYTES

CAPTURES = 3
"""Of one URL that an archive is asked for, the nearest ones, before it is taken for having none."""
PAUSE = 60.0
"""Seconds for which an archive is left alone that answers 429 or 503 and does not say how long, twice as long each
further time: the Internet Archive blocks for an hour who goes on for a minute."""
LONGEST_PAUSE = 3600.0
"""Seconds: an archive that asks for more is left for a later run."""
_TOO_MUCH = frozenset({429, 503})


class MalformedAnswerError(ValueError):
    """An answer that is not as its protocol says."""


@contextlib.contextmanager
def taken_apart() -> Iterator[None]:
    """A block whose failures are the answer's: it raises MalformedAnswerError and nothing else.

    Every value of an archive's server goes through such a block before it is used: it costs one capture, and never the
    run.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise MalformedAnswerError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Capture:
    """A page as an archive has it, or why that could not be had.

    Attributes:
        reply: the answer of its server at that time, with `ok`; else the outcome says what went wrong.
        time: when it was captured, such as `2019-03-01T12:00:00Z`.
    """

    reply: Reply
    time: str = ""

    @classmethod
    def failed(cls, url: str, outcome: str) -> Capture:
        """None of a URL, for a reason."""
        return cls(Reply(outcome, url))


class Archive(Protocol):
    """A web archive."""

    def captures(self, url: str, date: str) -> AsyncGenerator[Capture, None]:
        """The captures of a page, the nearest to a date first, a `timestamp`, or the newest if it is empty.

        Each is asked for when the one before it was not good enough. After a failure that is retryable none should be.
        """
        ...


class Asker:
    """Sends requests to one archive: one after the other, from the start of one to that of the next with a pause.

    There is a pause before the first, too, as a run that was killed may have asked a moment ago. An archive that says
    that it is asked too much (429, 503) is left alone as long as it wants, or longer each time, and given up at last:
    everything ends as `host_down` then.

    Args:
        client: makes the requests.
        robots: what origins have said, where robots.txt is obeyed.
        pause: seconds.
        retries: of one request.
    """

    def __init__(self, client: Client, robots: Robots | None, *, pause: float, retries: int) -> None:
        self._client, self._robots, self._pause, self._retries = client, robots, pause, retries
        self._not_before = time.monotonic() + pause
        self._refusals = self._silent = 0  # in a row: answers that it is too much, requests without any answer

    async def get(self, url: str, most: int, span: tuple[int, int] | None = None) -> Reply:
        """The reply to a request, of whose body at most so many bytes are read; see `Client.get` on `span`."""
        refusal = (await self._rules(url)).refusal(url) if self._robots is not None else None
        if refusal is not None:
            return Reply(refusal, url)
        for failures in itertools.count():
            if self._is_given_up:
                return Reply(PageOutcome.HOST_DOWN, url)
            reply = await self._send(url, most, span)
            if reply.status in _TOO_MUCH and not self._is_given_up:
                continue  # what it refuses, it refuses to all: that is waited out
            if not reply.retry_now or failures >= self._retries or self._is_given_up:
                break
            self._rest(BACKOFF_SECONDS * 2**failures if reply.retry_after is None else reply.retry_after)
        self._silent = self._silent + 1 if reply.outcome in NO_ANSWER else 0
        return reply

    @property
    def _is_given_up(self) -> bool:
        return max(self._refusals, self._silent) >= GIVE_UP_HOST_AFTER

    def _rest(self, seconds: float) -> None:
        if seconds > LONGEST_PAUSE:
            self._refusals = GIVE_UP_HOST_AFTER
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    async def _send(self, url: str, most: int, span: tuple[int, int] | None = None) -> Reply:
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        self._not_before = time.monotonic() + self._pause
        reply = await self._client.get(url, any_type=True, max_bytes=most, span=span)
        if reply.status in _TOO_MUCH:
            wait = min(PAUSE * 2**self._refusals, LONGEST_PAUSE)
            self._refusals += 1
            self._rest(wait if reply.retry_after is None else reply.retry_after)
        elif reply.status is not None:
            self._refusals = 0
        return reply

    async def _rules(self, url: str) -> RobotsRules:
        """What the origin of a URL allows."""
        assert self._robots is not None
        try:
            origin = host_and_origin(url)[1]
        except ValueError:
            return RobotsRules(failure=PageOutcome.MALFORMED_URL)
        rules = self._robots.get(origin)
        if rules is None:
            rules = await rules_of(await self._robots_txt(f"{origin}/robots.txt"), self._client.user_agent)
            self._robots.learn(origin, rules)
        self._pause = max(self._pause, min(rules.crawl_delay or 0.0, LONGEST_CRAWL_DELAY))
        return rules

    async def _robots_txt(self, url: str) -> Reply:
        for _ in range(ATTEMPTS):
            reply = await self._send(url, MAX_BYTES)
            for _ in range(MAX_ROBOTS_REDIRECTS):
                target = next_url(reply.url, reply.location) if reply.outcome == PageOutcome.REDIRECT else None
                if target is None:
                    break
                reply = await self._send(target, MAX_BYTES)
            if not reply.retry_now:
                break
        is_lost = reply.outcome == PageOutcome.REDIRECT
        return Reply(PageOutcome.TOO_MANY_REDIRECTS, url) if is_lost else reply
