"""The order in which a list of URLs is asked for: many hosts at once, each host gently.

The unit is one request. Every host has a queue; a request takes a place among `concurrency` only while it is really
under way, so that a slow host, a long pause between requests, or a wait before another attempt holds up nobody else.
A redirect becomes a request in the queue of the host that it leads to, with that host's rules, and so does a
robots.txt: URLs stand aside until the rules of their origin are known. Memory holds at most `WINDOW` URLs and
`page_bytes` of pages, however long the list and whatever servers send.

Where several tasks fetch at once, each has hosts of its own, and sends no request to any other: a visit that leads
there is left (`Leave`) for the task whose host it is.

A page that is gone goes on at an archive, one request after the other, which is asked for one thing at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from webtext_prep.crawl.frontier.queues import Archives, Host, Queues, Visit
from webtext_prep.crawl.frontier.robots import ATTEMPTS, MAX_BYTES, MAX_ROBOTS_REDIRECTS, Robots, Rules, rules_of
from webtext_prep.crawl.http.client import ByteBudget, Client, Reply, Reservation, host_and_origin, host_name, next_url
from webtext_prep.crawl.settings import Fetching
from webtext_prep.extraction.outcomes import NO_ANSWER, PageOutcome
from webtext_prep.urls.urls import Hosts

MAX_REDIRECTS = 5
WINDOW = 100_000
"""URLs waiting in memory; with fewer, the URLs of one slow host that stand together would keep the others out."""
URLS_AT_ONCE = 500
"""URLs taken from the list before requests have their turn again: looking each up may cost a tenth of a millisecond."""
BACKOFF_SECONDS = 1.0
"""Before the second attempt; twice as long before each further one."""
LONGEST_WAIT = 60.0
"""Seconds: a server that asks for more with Retry-After is left for a later run."""
ARCHIVE_PAUSE = 60.0
"""Seconds for which an archive is left alone that answers 429 or 503 and does not say how long, twice as long each
further time: the Internet Archive blocks for an hour who goes on for a minute."""
LONGEST_ARCHIVE_PAUSE = 3600.0
"""Seconds: an archive that asks for more is left for a later run."""
LONGEST_CRAWL_DELAY = 30.0
"""Seconds: a longer Crawl-delay in robots.txt is taken for this."""
GIVE_UP_HOST_AFTER = 10
"""URLs in a row without any answer after which a host's other URLs end as `host_down`, for a later run; and answers in
a row by which an archive says that it is asked too much."""

_TOO_MUCH = frozenset({429, 503})


Finish = Callable[[Visit, Reply], Awaitable[bool | None]]
"""Is given a visit with its end; returns True if it goes on all the same, at the URL that it has now."""
Leave = Callable[[Visit, bool], Awaitable[None]]
"""Is given a visit that another task has to go on with, and whether that has to be one for all hosts: the robots.txt of
its origin lies at a host which is not its own."""


class Crawler:
    """Visits URLs.

    Args:
        fetching: how pages are fetched.
        fetcher: makes the requests.
        finish: awaited once for each URL with what became of it; while it works, the URL keeps its place.
        leave: awaited for each visit that comes to a host of another task.
        archives: where visits to pages that are gone may go on.
        hosts: to which this crawler may send requests; to all if None.
    """

    def __init__(
        self, fetching: Fetching, fetcher: Client, finish: Finish, leave: Leave, archives: Archives, hosts: Hosts | None
    ) -> None:
        self._settings, self._connections = fetching.settings, fetching.connections
        self._fetcher, self._finish, self._leave = fetcher, finish, leave
        self._archives, self._hosts, settings = archives, hosts, fetching.settings
        self._robots = Robots() if settings.robots else None
        self._memory = ByteBudget(fetching.page_bytes, unhindered=fetching.unhindered)
        # Until its rules are known a host is asked one thing at a time: they may say so.
        self._queues = Queues(1 if settings.robots else settings.per_host, settings.delay, archives)
        self._aside: dict[str, list[Visit]] = {}  # origin -> the visits that wait for its rules
        self._running: set[asyncio.Task[None]] = set()
        self._ended: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()

    async def run(self, visits: Iterator[Visit]) -> None:
        """Bring all `visits` to their ends; returns when each one is finished or left.

        A crawler that owns some hosts only returns when these have rested after their last requests: so another one may
        ask them next. Raises what `finish` and `leave` raise.
        """
        is_exhausted = False
        try:
            while True:
                self._wake.clear()
                self._collect_ended()
                if not is_exhausted:
                    is_exhausted = await self._take(visits)
                self._queues.fire_timers()
                while self._queues.ready and len(self._running) < self._connections:
                    self._start(self._queues.ready.popleft())
                if is_exhausted and not self._queues.queued and not self._running:
                    break
                if not is_exhausted and self._queues.queued < WINDOW:
                    await asyncio.sleep(0)
                elif not self._queues.ready or len(self._running) >= self._connections:
                    await self._sleep()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        if self._hosts is not None:
            await asyncio.sleep(self._queues.rest())

    def _collect_ended(self) -> None:
        while self._ended:
            task = self._ended.pop()
            self._running.discard(task)
            task.result()

    async def _take(self, visits: Iterator[Visit]) -> bool:
        """Queue the next URLs; True if there are no more."""
        for _ in range(min(URLS_AT_ONCE, WINDOW - self._queues.queued)):
            visit = next(visits, None)
            if visit is None:
                return True
            await self._send_on(visit)
        return False

    async def _sleep(self) -> None:
        """Until a request ends, a host has a free place, or a timer is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._queues.pause()):
                await self._wake.wait()

    # Hosts and their queues

    def _is_ours(self, url: str) -> bool:
        return self._hosts is None or not (name := host_name(url)) or self._hosts.owns(name)

    def _start(self, host: Host) -> None:
        host.is_offered = False
        if host.not_before > time.monotonic():  # it has asked for a pause since it stood in line
            self._queues.offer(host)
            return
        visit = host.queue.popleft()
        rules = None if visit.robots_of else self._rules_for(visit)
        if rules is not None and visit.retrieval is not None and visit.retrieval.search is None:
            self._archives.go_on(visit)  # in its turn, since what others have read there is known by now
            rules = self._rules_for(visit)
        if rules is None and not visit.robots_of:
            self._queues.offer(host)
            return
        self._queues.queued -= 1
        host.running += 1
        host.not_before = time.monotonic() + host.delay
        task = asyncio.create_task(
            self._visit(host, visit, rules) if rules is not None else self._ask_for_rules(host, visit)
        )
        task.add_done_callback(self._note_end)
        self._running.add(task)
        self._queues.offer(host)

    def _rules_for(self, visit: Visit) -> Rules | None:
        """The rules for a URL; None if it stands aside now until they are known, or none are asked for."""
        if self._robots is None:
            return Rules()
        try:
            origin = host_and_origin(visit.url)[1]
        except ValueError:
            return Rules(failure=PageOutcome.MALFORMED_URL)
        rules = self._robots.get(origin)
        if rules is None:
            if origin not in self._aside:
                self._aside[origin] = []
                file = f"{origin}/robots.txt"
                self._queues.add(Visit(file, file, robots_of=origin))
            self._aside[origin].append(visit)
        return rules

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._ended.append(task)
        self._wake.set()

    # One request

    async def _visit(self, host: Host, visit: Visit, rules: Rules) -> None:
        with self._memory.reservation() as reservation:
            attempts, pause_ends = visit.attempts, host.not_before
            try:
                reply = await self._ask(host, visit, rules, reservation)
            finally:
                host.running -= 1
                if visit.attempts == attempts and host.not_before == pause_ends:
                    host.not_before = 0.0  # nothing was sent, there is nothing to rest from
                self._queues.offer(host)
                self._wake.set()
            if rules.is_elsewhere:
                await self._leave(visit, True)
                return
            if host.archive:
                self._heed(host, reply)
            if reply.outcome == PageOutcome.REDIRECT and visit.retrieval is None:
                refusal = self._redirect(visit, reply)
                if refusal is None:
                    await self._send_on(visit)
                    return
                reply = refusal
            elif reply.retry_now and visit.retries < self._settings.retries and self._retry(host, visit, reply):
                return
            retrieval = visit.retrieval
            if retrieval is not None and retrieval.request is not None:
                self._archives.go_on(visit, reply)
            is_asking = retrieval is not None and retrieval.request is not None
            if is_asking or await self._finish(visit, reply):
                await self._send_on(visit)

    async def _send_on(self, visit: Visit) -> None:
        """Have a visit wait at the host that it has come to, or leave it to the task whose host that is."""
        if self._is_ours(visit.url):
            self._queues.add(visit)
        else:
            await self._leave(visit, False)

    async def _ask(self, host: Host, visit: Visit, rules: Rules, reservation: Reservation) -> Reply:
        if host.silent >= GIVE_UP_HOST_AFTER:
            return Reply(PageOutcome.HOST_DOWN, visit.url)
        refusal = rules.refusal(visit.url)
        if refusal is not None or rules.is_elsewhere:
            return Reply(refusal or PageOutcome.REDIRECT, visit.url)
        if self._robots is not None:
            self._follow_rules(host, rules)
        options: dict[str, Any] = {"seconds": self._settings.url_seconds - visit.seconds}
        if visit.retrieval is None:
            options["reservation"] = reservation
        elif (request := visit.retrieval.request) is not None:
            options |= {"any_type": True, "max_bytes": request.most, "span": request.span}
        else:
            return Reply(visit.retrieval.answer, visit.url)
        visit.attempts += 1
        start = time.monotonic()
        reply = await self._fetcher.get(visit.url, **options)
        visit.seconds += time.monotonic() - start - reservation.waited
        if reply.outcome not in NO_ANSWER and not (host.archive and reply.status in _TOO_MUCH):
            host.silent = 0
        elif not visit.failures:
            host.silent += 1
        return reply

    async def _ask_for_rules(self, host: Host, visit: Visit) -> None:
        """One request for a robots.txt, or where a redirect of it leads; the next one waits for its turn as any."""
        assert self._robots is not None
        start, left = time.monotonic(), max(0.0, self._settings.timeout - visit.seconds)
        try:
            reply = await self._fetcher.get(visit.url, any_type=True, max_bytes=MAX_BYTES, seconds=left)
        finally:
            host.running -= 1
            self._queues.offer(host)
            self._wake.set()
        visit.seconds += time.monotonic() - start
        if host.archive:
            self._heed(host, reply)
        rules = None
        if reply.outcome == PageOutcome.REDIRECT:
            target = next_url(reply.url, reply.location)
            if target is not None and visit.redirects < MAX_ROBOTS_REDIRECTS:
                visit.url, visit.redirects = target, visit.redirects + 1
                if self._is_ours(target):
                    self._queues.add(visit)
                    return
                rules = Rules(is_elsewhere=True)
            reply = Reply(PageOutcome.TOO_MANY_REDIRECTS, visit.url)
        elif reply.retry_now and visit.failures + 1 < ATTEMPTS:
            again = Visit(visit.asked, visit.asked, failures=visit.failures + 1, robots_of=visit.robots_of)
            self._queues.add_later(
                time.monotonic() + self._backoff(visit.failures), self._queues.host(again.url), again
            )
            return
        if rules is None:
            rules = await rules_of(reply, self._fetcher.user_agent)
        self._robots.learn(visit.robots_of, rules)
        self._queues.give_back(self._queues.host(visit.asked), self._aside.pop(visit.robots_of))
        self._wake.set()

    def _follow_rules(self, host: Host, rules: Rules) -> None:
        crawl_delay = rules.crawl_delay or 0.0
        if crawl_delay > host.delay:
            host.delay = min(crawl_delay, LONGEST_CRAWL_DELAY)
            host.not_before = max(host.not_before, time.monotonic() + host.delay)
        # Our own pause is enough for it.
        elif crawl_delay <= self._settings.delay and host.limit < self._settings.per_host and not host.archive:
            host.limit = self._settings.per_host
            self._wake.set()  # others need not wait for the end of this request
        self._queues.offer(host)

    def _redirect(self, visit: Visit, reply: Reply) -> Reply | None:
        """Point the visit to where it goes on, or say why it does not."""
        target = next_url(reply.url, reply.location)
        if target is None:
            return Reply(PageOutcome.BAD_REDIRECT, reply.url, reply.status)
        if visit.redirects >= MAX_REDIRECTS:
            return Reply(PageOutcome.TOO_MANY_REDIRECTS, reply.url, reply.status)
        if visit.seconds >= self._settings.url_seconds:
            return Reply(PageOutcome.TIMEOUT, reply.url)
        visit.url, visit.redirects, visit.failures = target, visit.redirects + 1, 0
        return None

    def _retry(self, host: Host, visit: Visit, reply: Reply) -> bool:
        """Have the visit made once more, later; False if its time is up or the server asks for too long a wait."""
        if visit.seconds >= self._settings.url_seconds:
            return False
        wait = self._backoff(visit.failures)
        if reply.retry_after is not None:
            if reply.retry_after > (LONGEST_ARCHIVE_PAUSE if host.archive else LONGEST_WAIT):
                return False
            wait = reply.retry_after
            host.not_before = max(host.not_before, time.monotonic() + wait)  # it means all of us
        visit.failures += 1
        visit.retries += 1
        self._queues.add_later(time.monotonic() + wait, host, visit)
        return True

    @staticmethod
    def _heed(host: Host, reply: Reply) -> None:
        """Leave an archive alone that says it is asked too much: as long as it wants, or longer each time."""
        if reply.status not in _TOO_MUCH:
            host.refusals = 0 if reply.status is not None else host.refusals
            return
        wait = min(ARCHIVE_PAUSE * 2**host.refusals, LONGEST_ARCHIVE_PAUSE)
        host.refusals += 1
        if reply.retry_after is not None:
            wait = reply.retry_after
        if wait > LONGEST_ARCHIVE_PAUSE or host.refusals >= GIVE_UP_HOST_AFTER:
            host.silent = GIVE_UP_HOST_AFTER
        else:
            host.not_before = max(host.not_before, time.monotonic() + wait)

    @staticmethod
    def _backoff(failures: int) -> float:
        # Spread out, so that what failed together does not come back together.
        return BACKOFF_SECONDS * 2**failures * random.uniform(0.75, 1.25)
