"""The queues of a crawler: a visit waits at the host that it has come to, and a host until it may be asked again.

Nothing here sends a request or waits: `ready` is the line of hosts that can take one now, and `pause` says when to look
again.

A visit to a page that is gone goes on at an archive, a host like every other: with its robots.txt, its pauses and its
turn in the rounds (`Archives`). What the archives say is kept in the row of the URL, so that none is asked twice.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from webtext_prep.crawl.archives.captures import Archive, Capture, Request, Search
from webtext_prep.crawl.http.client import Reply, host_name
from webtext_prep.crawl.settings import Fetching
from webtext_prep.crawl.state.page_cache import KEY
from webtext_prep.extraction.outcomes import is_gone, is_retryable

ANSWERS = "archives"
"""Under it, the row of a URL that is gone says what the archives answered that did not have it."""


@dataclass(slots=True)
class Retrieval:
    """A page on its way out of the archives.

    Attributes:
        archive: the name of the one that is asked.
        known: the row of the URL if none of them has it.
        search: in that archive, once it has begun.
        request: what the search asks for,
        capture: or what it has found,
        answer: or how it has ended.
    """

    archive: str
    known: dict[str, Any]
    search: Search | None = None
    request: Request | None = None
    capture: Capture | None = None
    answer: str = ""


@dataclass(slots=True)
class Visit:
    """A URL on its way: where it stands now, and what it has cost.

    Attributes:
        asked: the URL of the list.
        url: the URL to ask for next, another one after a redirect.
        redirects: how many were followed.
        attempts: requests that were sent for it, robots.txt not counted.
        failures: attempts that failed at this hop.
        retries: attempts that were made because another had failed, at all hops.
        seconds: what its requests took so far, without waits for memory.
        robots_of: the origin whose robots.txt this asks for, or nothing for a URL of the list.
        earlier_attempts: requests that earlier passes over the list have sent for it.
        earlier_rounds: how many passes have tried it.
        date: the `timestamp` to which a capture in an archive is to be the nearest, "" for the newest.
        answers: what archives said of it in earlier passes.
        retrieval: what an archive is asked for it, once the page is gone.
    """

    asked: str
    url: str
    redirects: int = 0
    attempts: int = 0
    failures: int = 0
    retries: int = 0
    seconds: float = 0.0
    robots_of: str = ""
    earlier_attempts: int = 0
    earlier_rounds: int = 0
    date: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    retrieval: Retrieval | None = None


@dataclass(slots=True)
class Host:
    """A host that is asked for something, and what holds for it.

    Attributes:
        name: of the host.
        limit: requests at once.
        delay: seconds from the start of one request to the next.
        archive: the name of the archive whose hosts share this queue; "" for any other host.
        queue: visits that wait for their turn.
        running: requests under way.
        waiting: its entries among the timers.
        is_timed: whether one of them only wakes it.
        not_before: when the next request may start.
        is_offered: whether it stands in the line of hosts that can take a request.
        silent: URLs in a row that had no answer.
        refusals: answers in a row by which an archive asked for a pause.
    """

    name: str
    limit: int
    delay: float
    archive: str = ""
    queue: collections.deque[Visit] = field(default_factory=collections.deque)
    running: int = 0
    waiting: int = 0
    is_timed: bool = False
    not_before: float = 0.0
    is_offered: bool = False
    silent: int = 0
    refusals: int = 0


class Queues:
    """All hosts that something waits for.

    Args:
        limit: requests at once to a host at first.
        delay: seconds from the start of one request to the next at a host, if it does not ask for more.
        archives: whose hosts share a queue each, and are asked for one thing at a time, also before the first request
            with their pause: a run that was killed may have asked a moment ago.

    Attributes:
        ready: hosts that can take a request now.
        queued: visits that wait, for a host, a timer or the rules of an origin.
    """

    def __init__(self, limit: int, delay: float, archives: Archives) -> None:
        self._limit, self._delay, self._archives = limit, delay, archives
        self.ready: collections.deque[Host] = collections.deque()
        self.queued = 0
        self._hosts: dict[str, Host] = {}
        self._timers: list[tuple[float, int, Host, Visit | None]] = []
        self._count = itertools.count()

    def host(self, url: str) -> Host:
        """The host of a URL."""
        name = host_name(url)
        archive = self._archives.hosts.get(name, "")
        host = self._hosts.get(archive or name)
        if host is None and archive:
            host = self._hosts[archive] = Host(archive, 1, max(self._delay, self._archives.pause), archive)
            host.not_before = time.monotonic() + host.delay
        elif host is None:
            host = self._hosts[name] = Host(name, self._limit, self._delay)
        return host

    def add(self, visit: Visit) -> None:
        """Have a visit wait at the host of its URL."""
        host = self.host(visit.url)
        self.queued += 1
        _join(host, visit)
        self.offer(host)

    def give_back(self, host: Host, visits: list[Visit]) -> None:
        """Put visits that stood aside, and are counted as waiting, in front of the others again."""
        host.queue.extendleft(reversed(visits))
        self.offer(host)

    def offer(self, host: Host) -> None:
        """Put a host that can take a request in the line of such hosts, or wake it when it can."""
        if host.is_offered or host.running >= host.limit:
            return
        if not host.queue:
            # Forgotten as soon as nothing is lost by it: a list has millions of hosts.
            is_past = host.not_before <= time.monotonic() and not host.silent and not host.archive
            if is_past and not host.running and not host.waiting:
                self._hosts.pop(host.name, None)
            return
        if host.not_before > time.monotonic():
            if not host.is_timed:
                host.is_timed = True
                self._schedule(host.not_before, host, None)
            return
        host.is_offered = True
        self.ready.append(host)

    def add_later(self, when: float, host: Host, visit: Visit) -> None:
        """Have a visit wait at a host from a time on."""
        self.queued += 1
        self._schedule(when, host, visit)

    def _schedule(self, when: float, host: Host, visit: Visit | None) -> None:
        host.waiting += 1
        # It may have been forgotten a moment ago, when nothing seemed to wait for it.
        self._hosts[host.name] = host
        heapq.heappush(self._timers, (when, next(self._count), host, visit))

    def fire_timers(self) -> None:
        """Do the due work."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, host, visit = heapq.heappop(self._timers)
            host.waiting -= 1
            if visit is None:
                host.is_timed = False
            else:
                _join(host, visit)
            self.offer(host)

    def pause(self) -> float | None:
        """Seconds until something is due; None if nothing is timed."""
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def rest(self) -> float:
        """Seconds until all hosts may be asked again."""
        ends = max((host.not_before for host in self._hosts.values()), default=0.0)
        return max(0.0, ends - time.monotonic())


def _join(host: Host, visit: Visit) -> None:
    has_begun = visit.retrieval is not None and visit.retrieval.search is not None
    if visit.robots_of or (has_begun and not visit.failures):
        host.queue.appendleft(visit)  # others wait for it, or it has begun what is soon done
    else:
        host.queue.append(visit)


# Pages that are gone


class Archives:
    """The archives of a download, for one process.

    Attributes:
        names: of the archives, in the order in which they are asked.
        pause: seconds from one request to an archive to the next.
        hosts: their hosts, each with the name of its archive.
    """

    def __init__(self, fetching: Fetching) -> None:
        settings, self._rounds = fetching.settings, fetching.rounds
        self._archives: dict[str, Archive] = settings.make_archives(settings.max_bytes)
        self.names, self.pause = tuple(self._archives), settings.archive_pause
        self.hosts = {host_name(url): name for name, each in self._archives.items() for url in each.addresses}

    def _is_gone(self, row: Mapping[str, Any]) -> bool:
        return is_gone(row["outcome"], is_last=row.get("rounds", 0) >= self._rounds)

    def asked_for(self, row: Mapping[str, Any]) -> str | None:
        """The archives that were asked for a page that is gone, joined by commas; None for any other row."""
        return ",".join(sorted(row.get(ANSWERS, {}))) if self._is_gone(row) else None

    def is_due_again(self, row: Mapping[str, Any]) -> bool:
        """Whether a URL may end in another way in a later pass, the live page or what an archive has of it."""
        answers = row.get(ANSWERS, {}).items() if self._is_gone(row) else ()
        return is_retryable(row["outcome"]) or any(name in self._archives and is_retryable(a) for name, a in answers)

    def next(self, row: Mapping[str, Any], after: str = "") -> str | None:
        """The archive to ask for a URL with such a row, after the one that was asked; None if there is none."""
        if not self._is_gone(row):
            return None
        answers = row.get(ANSWERS, {})
        for name in self.names[self.names.index(after) + 1 if after else 0 :]:
            answer = answers.get(name)
            if answer is None or (is_retryable(answer) and row.get("rounds", 0) < self._rounds):
                return name
        return None

    def enter(self, visit: Visit, name: str, row: dict[str, Any]) -> None:
        """Have a visit go on at an archive; `row` is the row of its URL without that."""
        row = {key: value for key, value in row.items() if key != KEY}  # where the page that is none was saved
        visit.retrieval, visit.url = Retrieval(name, row), self._archives[name].addresses[0]
        visit.failures = visit.retries = 0
        visit.seconds = 0.0

    def go_on(self, visit: Visit, reply: Reply | None = None) -> None:
        """Begin the search of a visit, or take its next step with the reply to its request."""
        retrieval = visit.retrieval
        assert retrieval is not None
        if retrieval.search is None:
            retrieval.search = self._archives[retrieval.archive].search(visit.asked, visit.date)
        retrieval.request = retrieval.capture = None
        try:
            step = next(retrieval.search) if reply is None else retrieval.search.send(reply)
        except StopIteration as end:
            retrieval.answer = end.value
            return
        if isinstance(step, Capture):
            retrieval.capture = step
            return
        retrieval.request, visit.url = step, step.url
        visit.failures = visit.retries = 0
        visit.seconds = 0.0
