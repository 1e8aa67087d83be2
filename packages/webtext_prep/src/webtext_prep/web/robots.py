"""robots.txt, asked for once per origin and obeyed as RFC 9309 says.

A file that is not there (4xx) allows everything. A server in trouble (5xx, 429) forbids all for now: its URLs end
as `robots_unreachable`, which is retryable. An origin that cannot be reached at all gives its URLs the same
outcome as it gave this file, at once, so that ten thousand URLs of a dead host cost one attempt.

What a server sends as its robots.txt must cost little, whatever it is: Protego's time and memory grow with the number
of user agents times the number of rules, so that it is given the rules for our agent alone, and so many at most, in a
thread beside the event loop.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from protego import Protego

from webtext_prep.documents.outcomes import PageOutcome
from webtext_prep.web.fetcher import Fetcher, Reply, host_and_origin, next_url

MAX_BYTES = 500 << 10
"""RFC 9309, section 2.5: at least 500 kibibytes are read; the rest is left."""
MAX_LINE = 4096
"""Characters: a longer line is passed over, since URLs are shorter than that."""
MAX_RULES = 10_000
"""Further rules for our agent are left; the largest files of real sites have some thousand."""
MAX_WILDCARDS = 10_000
"""Rules are left from the one on with which they hold more `*` than this: each of them is a search in every URL."""
MAX_REDIRECTS = 5
"""RFC 9309, section 2.3.1.2."""
ATTEMPTS = 2
KEPT_ORIGINS = 5_000
"""How many origins' rules are remembered; the ones asked for longest ago are forgotten first."""
KEPT_RULES = 500_000
"""How many rules of all origins together are remembered: some 150 MB, whatever thousands of hosts send."""
PARSED_AT_ONCE = 8 << 10
"""Bytes: a file up to this size costs less than the thread in which a larger one is parsed."""

_NO_FILE = frozenset({PageOutcome.TOO_MANY_REDIRECTS, PageOutcome.MALFORMED_URL, PageOutcome.MALFORMED_RESPONSE})
_AGENT = re.compile(r"user[- ]?agent\s*[:\s]\s*(.*)", re.IGNORECASE)
_RULE = re.compile(r"(?:allow|diss?all?[oa]w|diasllow|crawl[- ]delay)\s*[:\s]", re.IGNORECASE)
_SITE_WIDE = re.compile(r"(?:site-?maps?|host)\s*[:\s]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rules:
    """What an origin allows our agent.

    Attributes:
        parsed: its rules, as those of any agent, or None where it has none.
        failure: the outcome for all of its URLs where the rules could not be had, or None.
        count: how many rules there are.
    """

    parsed: Protego | None = None
    failure: str | None = None
    count: int = 0

    def refusal(self, url: str) -> str | None:
        """The outcome for `url` if it must not be fetched, or None."""
        if self.failure is not None:
            return self.failure
        return None if self.parsed is None or self.parsed.can_fetch(url, "*") else PageOutcome.ROBOTS

    @property
    def crawl_delay(self) -> float | None:
        """Seconds between requests that the origin asks for, or None."""
        return None if self.parsed is None else self.parsed.crawl_delay("*")


def _lines(text: str) -> Iterator[str]:
    """The lines that say something, without comments."""
    for line in text.splitlines():
        stripped = line.partition("#")[0].strip()
        if stripped and len(stripped) <= MAX_LINE:
            yield stripped


def _bounded(rules: list[str]) -> list[str]:
    wildcards = 0
    for position, rule in enumerate(rules[:MAX_RULES]):
        wildcards += rule.count("*")
        if wildcards > MAX_WILDCARDS:
            return rules[:position]
    return rules[:MAX_RULES]


def rules_for(text: str, agent: str) -> list[str]:
    """The lines of a robots.txt that hold for `agent`: those of all groups with the longest matching name.

    A name matches that is ours, or the first part of it, in any case; `*` matches where no other does (RFC 9309,
    section 2.2.1, and what sites that name `bot` expect). Linear in the length of `text`, and at most `MAX_RULES`.
    """
    agent = agent.lower()
    groups: dict[str, list[str]] = {}
    current: list[list[str]] = []  # the groups that the present line belongs to, if it is a rule
    names_agents = False
    for line in _lines(text):
        if found := _AGENT.fullmatch(line):
            if not names_agents:
                current, names_agents = [], True
            # Wildcards and versions are not part of a name, though some write them.
            name = "*" if found[1] == "*" else found[1].lower().split("/")[0].replace("*", "").strip()
            if name and (name == "*" or agent.startswith(name)):
                group = groups.setdefault(name, [])
                if not any(group is other for other in current):
                    current.append(group)
        elif not _SITE_WIDE.match(line):
            names_agents = False
            if _RULE.match(line):
                for group in current:
                    group.append(line)
    best = max(groups, key=lambda name: 0 if name == "*" else len(name), default=None)
    return [] if best is None else _bounded(groups[best])


def parse_rules(body: bytes, agent: str) -> Rules:
    """The rules of a robots.txt for `agent`. What cannot be parsed allows all, as a file without valid lines does."""
    text = body[:MAX_BYTES].decode("utf-8-sig", "replace").replace("\0", "")
    rules = rules_for(text, agent)
    try:
        parsed = Protego.parse("\n".join(["User-agent: *", *rules])) if rules else None
    except Exception:  # whatever the parser stumbles over is not a rule
        return Rules()
    return Rules(parsed, count=len(rules))


class Robots:
    """The rules of every origin met, each asked for once.

    Args:
        fetcher: makes the requests.
        pause: awaited with the number of the attempt before a second one.
        seconds: for an attempt with all its redirects, if that is limited.
    """

    def __init__(
        self, fetcher: Fetcher, pause: Callable[[int], Awaitable[None]], *, seconds: float | None = None
    ) -> None:
        self._fetcher, self._pause, self._seconds = fetcher, pause, seconds
        self._agent = fetcher.user_agent.split("/")[0].split(" ")[0] or "*"
        self._known: OrderedDict[str, asyncio.Task[Rules]] = OrderedDict()
        self._counts: dict[str, int] = {}  # of the rules of each origin whose file is here
        self._rules = 0

    async def rules(self, url: str) -> Rules:
        """The rules for the origin of `url`. Raises ValueError if `url` is not a URL."""
        origin = host_and_origin(url)[1]
        task = self._known.get(origin)
        if task is None:
            task = self._known[origin] = asyncio.create_task(self._fetch_and_count(origin))
        self._known.move_to_end(origin)
        self._forget()
        if task.done():
            return task.result()
        # Shielded: a visit that is given up does not take the answer from the others that wait for it.
        return await asyncio.shield(task)

    def _forget(self) -> None:
        while len(self._known) > KEPT_ORIGINS or (self._rules > KEPT_RULES and self._known):
            origin, _ = self._known.popitem(last=False)
            self._rules -= self._counts.pop(origin, 0)

    async def _fetch_and_count(self, origin: str) -> Rules:
        rules = await self._fetch(origin)
        if origin in self._known:  # it may have been forgotten meanwhile
            self._rules += rules.count - self._counts.get(origin, 0)
            self._counts[origin] = rules.count
            self._forget()
        return rules

    async def _fetch(self, origin: str) -> Rules:
        reply = await self._follow(origin)
        for attempt in range(1, ATTEMPTS):
            if not reply.retry_now:
                break
            await self._pause(attempt)
            reply = await self._follow(origin)
        if reply.outcome == PageOutcome.OK:
            if len(reply.body) <= PARSED_AT_ONCE:
                return parse_rules(reply.body, self._agent)
            return await asyncio.to_thread(parse_rules, reply.body, self._agent)
        status = reply.status or 0
        if reply.outcome.startswith("http_"):
            return Rules(failure=PageOutcome.ROBOTS_UNREACHABLE) if status >= 500 or status == 429 else Rules()
        if reply.outcome in _NO_FILE:
            return Rules()
        return Rules(failure=reply.outcome)

    async def _follow(self, origin: str) -> Reply:
        url = f"{origin}/robots.txt"
        end = None if self._seconds is None else time.monotonic() + self._seconds
        for _ in range(MAX_REDIRECTS + 1):
            seconds = None if end is None else max(0.0, end - time.monotonic())
            reply = await self._fetcher.get(url, any_type=True, max_bytes=MAX_BYTES, seconds=seconds)
            if reply.outcome != PageOutcome.REDIRECT:
                return reply
            target = next_url(reply.url, reply.location)
            if target is None:
                break
            url = target
        return Reply(PageOutcome.TOO_MANY_REDIRECTS, url)
