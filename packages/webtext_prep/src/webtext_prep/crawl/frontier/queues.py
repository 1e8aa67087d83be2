"""The queues of a crawler: a visit waits at the host that it has come to, and a host until it may be asked again.

Nothing here sends a request or waits: `ready` is the line of hosts that can take one now, and `pause` says when to look
again.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from webtext_prep.crawl.frontier.robots import RobotsRules
from webtext_prep.crawl.http.client import host_name
from webtext_prep.opt_outs.preferences import Preference


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
        robots_of: the origin whose robots.txt, or another file of it, this asks for; nothing for a URL of the list.
        rules: what its files have said so far, or nothing yet; of a URL that only asks for them, all that they say.
        is_for_rules: whether only the rules for the URL are asked for, and not the URL.
        preference: of the first host on its way that refuses it, where that is only recorded.
        cookies: those that the redirects on its way have set.
        earlier: the row that an earlier pass has left of the URL, if there is one.
    """

    asked: str
    url: str
    redirects: int = 0
    attempts: int = 0
    failures: int = 0
    retries: int = 0
    seconds: float = 0.0
    robots_of: str = ""
    rules: RobotsRules | None = None
    is_for_rules: bool = False
    preference: Preference | None = None
    cookies: aiohttp.CookieJar | None = None
    earlier: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Host:
    """A host that is asked for something, and what holds for it.

    Attributes:
        name: of the host.
        limit: requests at once.
        delay: seconds from the start of one request to the next.
        queue: visits that wait for their turn.
        running: requests under way.
        waiting: its entries among the timers.
        is_timed: whether one of them only wakes it.
        not_before: when the next request may start.
        is_offered: whether it stands in the line of hosts that can take a request.
        silent: URLs in a row that had no answer.
        answers: URLs that had one.
        refusals: those of them that the host's shield refused.
    """

    name: str
    limit: int
    delay: float
    queue: collections.deque[Visit] = field(default_factory=collections.deque)
    running: int = 0
    waiting: int = 0
    is_timed: bool = False
    not_before: float = 0.0
    is_offered: bool = False
    silent: int = 0
    answers: int = 0
    refusals: int = 0


class Queues:
    """All hosts that something waits for.

    Args:
        limit: requests at once to a host at first.
        delay: seconds from the start of one request to the next at a host, if it does not ask for more.

    Attributes:
        ready: hosts that can take a request now.
        queued: visits that wait, for a host, a timer or the rules of an origin.
    """

    def __init__(self, limit: int, delay: float) -> None:
        self._limit, self._delay = limit, delay
        self.ready: collections.deque[Host] = collections.deque()
        self.queued = 0
        self._hosts: dict[str, Host] = {}
        self._timers: list[tuple[float, int, Host, Visit | None]] = []
        self._count = itertools.count()

    def host(self, url: str) -> Host:
        """The host of a URL."""
        name = host_name(url)
        host = self._hosts.get(name)
        if host is None:
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
            is_past = host.not_before <= time.monotonic() and not (host.silent or host.refusals)
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


def _join(host: Host, visit: Visit) -> None:
    if visit.robots_of:
        host.queue.appendleft(visit)  # others wait for it
    else:
        host.queue.append(visit)
