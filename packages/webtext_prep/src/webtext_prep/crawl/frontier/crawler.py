"""The order in which a list of URLs is asked for: many hosts at once, each host gently.

The unit is one request. Every host has a queue; a request takes a place among `concurrency` only while it is really
under way, so that a slow host, a long pause between requests, or a wait before another attempt holds up nobody else.
A redirect becomes a request in the queue of the host that it leads to, with that host's rules, and so does a
robots.txt: URLs stand aside until the rules of their origin are known. Memory holds at most `WINDOW` URLs and
`page_bytes` of pages, however long the list and whatever servers send.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING

from webtext_prep.crawl.frontier import robots
from webtext_prep.crawl.frontier.queues import Host, Queues, Visit
from webtext_prep.crawl.http.bodies import ByteBudget, Reservation
from webtext_prep.crawl.http.client import Client, Reply, host_and_origin
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.crawl.settings import FetchSettings
from webtext_prep.extraction.outcomes import EDGE, NO_ANSWER, PageOutcome
from webtext_prep.extraction.page_stage import PAGE_BYTES
from webtext_prep.opt_outs import licences, robots_txt, signals
from webtext_prep.opt_outs.decisions import Decision, decide_by_host

if TYPE_CHECKING:
    from webtext_prep.crawl.database import DatabaseWriter

MAX_REDIRECTS = 5
WINDOW = 100_000
"""URLs waiting in memory; with fewer, the URLs of one slow host that stand together would keep the others out."""
URLS_AT_ONCE = 500
"""URLs taken from the list before requests have their turn again: looking each up may cost a tenth of a millisecond."""
BACKOFF_SECONDS = 1.0
"""Before the second attempt; twice as long before each further one."""
LONGEST_WAIT = 60.0
"""Seconds: a server that asks for more with Retry-After is left for a later run."""
LONGEST_CRAWL_DELAY = 30.0
"""Seconds: a longer Crawl-delay in robots.txt is taken for this."""
GIVE_UP_HOST_AFTER = 10
"""URLs in a row without any answer after which a host's other URLs end as `host_down`, for a later run."""
FEWEST_ANSWERS, MOST_REFUSED = 10, 0.2
"""Answers of a host, and the share of them that its shield gave, above which it is not asked for its other URLs."""

Finish = Callable[[Visit, Reply], Awaitable[str]]
"""Is given a visit with its end."""


class Crawler:
    """Visits URLs.

    Args:
        settings: how pages are fetched.
        client: makes the requests.
        finish: awaited once for each URL with what became of it, and gives its outcome; while it works, the URL keeps
            its place.
        page_bytes: bytes of pages that may be in memory, but for some of the largest more.
        store: where what origins say is kept for a day, if anywhere.
    """

    def __init__(
        self,
        settings: FetchSettings,
        client: Client,
        finish: Finish,
        page_bytes: int = PAGE_BYTES,
        store: DatabaseWriter | None = None,
    ) -> None:
        self._settings, self._client, self._finish = settings, client, finish
        self._robots = robots.Robots(store)
        # As many pages never wait for memory as fill half of it at their largest.
        self._memory = ByteBudget(page_bytes, unhindered=max(1, page_bytes // 2 // settings.max_bytes))
        # Until its rules are known a host is asked one thing at a time: they may say so.
        at_once = 1 if settings.robots else settings.per_host
        self._queues = Queues(at_once, settings.delay)
        self._aside: dict[str, list[Visit]] = {}  # origin -> the visits that wait for its rules
        self._running: set[asyncio.Task[None]] = set()
        self._ended: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()

    async def run(self, visits: Iterator[Visit]) -> None:
        """Bring all `visits` to their ends. Raises what `finish` raises."""
        is_exhausted = False
        try:
            while True:
                self._wake.clear()
                self._collect_ended()
                if not is_exhausted:
                    is_exhausted = await self._take(visits)
                self._queues.fire_timers()
                while self._queues.ready and self._has_room():
                    self._start(self._queues.ready.popleft())
                if is_exhausted and not (self._queues.queued or self._running):
                    break
                if not is_exhausted and self._queues.queued < WINDOW:
                    await asyncio.sleep(0)
                elif not self._queues.ready or not self._has_room():
                    await self._sleep()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _has_room(self) -> bool:
        return len(self._running) < self._settings.concurrency

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_end)
        self._running.add(task)

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
            self._queues.add(visit)
        return False

    async def _sleep(self) -> None:
        """Until a request ends, a host has a free place, or a timer is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._queues.pause()):
                await self._wake.wait()

    # Hosts and their queues

    def _start(self, host: Host) -> None:
        host.is_offered = False
        if host.not_before > time.monotonic():  # it has asked for a pause since it stood in line
            self._queues.offer(host)
            return
        visit = host.queue.popleft()
        rules = None if visit.robots_of else self._rules_for(visit)
        if rules is None and not visit.robots_of:
            self._queues.offer(host)
            return
        self._queues.queued -= 1
        host.running += 1
        host.not_before = time.monotonic() + host.delay
        work = self._visit(host, visit, rules) if rules is not None else self._ask_for_rules(host, visit)
        self._begin(work)
        self._queues.offer(host)

    def _rules_for(self, visit: Visit) -> robots.RobotsRules | None:
        """The rules for a URL; None if it stands aside now until they are known, or none are asked for."""
        if not self._settings.robots:
            return robots.RobotsRules()
        try:
            origin = host_and_origin(visit.url)[1]
        except ValueError:
            return robots.RobotsRules(failure=PageOutcome.MALFORMED_URL)
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

    async def _visit(self, host: Host, visit: Visit, rules: robots.RobotsRules) -> None:
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
            if reply.outcome == PageOutcome.REDIRECT:
                refusal = self._redirect(visit, reply)
                if refusal is None:
                    self._queues.add(visit)
                    return
                reply = refusal
            elif reply.retry_now and self._retry(host, visit, reply):
                return
            outcome = await self._finish(visit, reply)
            # Added after the wait: `+= await` would write back what was counted before it.
            host.refusals += outcome == PageOutcome.CHALLENGE

    async def _ask(self, host: Host, visit: Visit, rules: robots.RobotsRules, reservation: Reservation) -> Reply:
        if host.silent >= GIVE_UP_HOST_AFTER:
            return Reply(PageOutcome.HOST_DOWN, visit.url)
        if host.answers >= FEWEST_ANSWERS and host.refusals > host.answers * MOST_REFUSED:
            return Reply(PageOutcome.REFUSED_BY_EDGE, visit.url)
        refusal = rules.refusal(visit.url)
        if visit.is_for_rules:
            visit.rules = rules
            return Reply(rules.failure or PageOutcome.OK, visit.url)
        if refusal is not None:
            return Reply(refusal, visit.url)
        if visit.preference is None:
            visit.preference = decide_by_host(visit.url, rules.preferences)
        if visit.preference is not None and self._settings.opt_outs == "obey":
            return Reply(PageOutcome.OPTED_OUT, visit.url, decision=Decision(visit.preference))
        if self._settings.robots:
            self._follow_rules(host, rules)
        left = self._settings.url_seconds - visit.seconds
        visit.attempts += 1
        start = time.monotonic()
        reply = await self._client.get(visit.url, reservation=reservation, seconds=left, cookies=visit.cookies)
        visit.seconds += time.monotonic() - start - reservation.waited - reply.waited
        reply = self._settings.judged(reply, rules.preferences, Decision(visit.preference).metadata)
        if reply.outcome not in NO_ANSWER:
            host.silent = 0
            host.answers += 1
            host.refusals += reply.outcome in EDGE
        elif not visit.failures:
            host.silent += 1
        return reply

    async def _ask_for_rules(self, host: Host, visit: Visit) -> None:
        """One request for a robots.txt, or where a redirect of it leads, or for another file with an owner's
        preferences; the next one waits for its turn as any."""
        start, left = time.monotonic(), max(0.0, self._settings.timeout - visit.seconds)
        path = visit.asked.removeprefix(visit.robots_of)
        limit = robots_txt.MAX_BYTES if path in signals.HOST_FILES else licences.MAX_BYTES
        try:
            reply = await self._client.get(visit.url, any_type=True, max_bytes=limit, seconds=left)
        finally:
            host.running -= 1
            self._queues.offer(host)
            self._wake.set()
        visit.seconds += time.monotonic() - start - reply.waited
        if reply.outcome == PageOutcome.REDIRECT and path != signals.AI_TXT:
            refusal = self._redirect_of_file(visit, reply)
            if refusal is None:
                self._queues.add(visit)
                return
            reply = refusal
        if visit.rules is not None:
            found = await robots.preferences_of(visit.asked, visit.robots_of, reply, self._client.user_agent)
            self._learn(visit, visit.rules.with_preferences(found))
            return
        if reply.retry_now and visit.failures + 1 < robots.ATTEMPTS:
            again = Visit(visit.asked, visit.asked, failures=visit.failures + 1, robots_of=visit.robots_of)
            self._queues.add_later(
                time.monotonic() + self._backoff(visit.failures), self._queues.host(again.url), again
            )
            return
        rules = await robots.rules_of(reply, self._client.user_agent, with_preferences=self._reads_preferences)
        self._learn(visit, rules)

    def _redirect_of_file(self, visit: Visit, reply: Reply) -> Reply | None:
        """Point the visit to a file of a host to where it goes on, or say why it does not.

        The files of two hosts may lead to each other: rules that are not known are not waited for.
        """
        target = next_url(reply.url, reply.location)
        if target is None or visit.redirects >= robots.MAX_ROBOTS_REDIRECTS:
            return Reply(PageOutcome.TOO_MANY_REDIRECTS, visit.url)
        if visit.rules is not None:
            origin = host_and_origin(target)[1]
            rules = visit.rules if origin == visit.robots_of else self._robots.get(origin)
            if rules is not None and rules.refusal(target) is not None:
                return Reply(PageOutcome.ROBOTS, visit.url)
        visit.url, visit.redirects = target, visit.redirects + 1
        return None

    @property
    def _reads_preferences(self) -> bool:
        """Whether files are read for what owners say of training."""
        return self._settings.opt_outs != "ignore"

    def _learn(self, visit: Visit, rules: robots.RobotsRules) -> None:
        """Take the rules of an origin from the last of its files, or ask for the next one that may be fetched."""
        if self._reads_preferences and rules.failure is None:
            files = [visit.robots_of + path for path in signals.HOST_FILES] + [rules.preferences.licence]
            for file in filter(None, files[files.index(visit.asked) + 1 :]):
                known = rules if file.startswith(f"{visit.robots_of}/") else self._robots.get(host_and_origin(file)[1])
                if known is None or known.refusal(file) is None:
                    self._follow_rules(self._queues.host(file), rules)
                    self._queues.add(Visit(file, file, robots_of=visit.robots_of, rules=rules))
                    self._wake.set()
                    return
        self._robots.learn(visit.robots_of, rules)
        self._queues.give_back(self._queues.host(visit.asked), self._aside.pop(visit.robots_of))
        self._wake.set()

    def _follow_rules(self, host: Host, rules: robots.RobotsRules) -> None:
        crawl_delay = rules.crawl_delay or 0.0
        if crawl_delay > host.delay:
            host.delay = min(crawl_delay, LONGEST_CRAWL_DELAY)
            host.not_before = max(host.not_before, time.monotonic() + host.delay)
        # Our own pause is enough for it.
        elif crawl_delay <= self._settings.delay and host.limit < self._settings.per_host:
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
        visit.cookies = reply.cookies
        return None

    def _retry(self, host: Host, visit: Visit, reply: Reply) -> bool:
        """Have the visit made once more, later; False if its time is up or the server asks for too long a wait."""
        if visit.seconds >= self._settings.url_seconds or visit.retries >= self._settings.retries:
            return False
        wait = self._backoff(visit.failures)
        if reply.retry_after is not None:
            if reply.retry_after > LONGEST_WAIT:
                return False
            wait = reply.retry_after
            host.not_before = max(host.not_before, time.monotonic() + wait)  # it means all of us
        visit.failures += 1
        visit.retries += 1
        self._queues.add_later(time.monotonic() + wait, host, visit)
        return True

    @staticmethod
    def _backoff(failures: int) -> float:
        # Spread out, so that what failed together does not come back together.
        return BACKOFF_SECONDS * 2**failures * random.uniform(0.75, 1.25)
