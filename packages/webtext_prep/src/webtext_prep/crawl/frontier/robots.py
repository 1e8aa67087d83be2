"""robots.txt, asked for once per origin and obeyed as RFC 9309 says.

A file that is not there (4xx) allows everything. A server in trouble (5xx, 429) forbids all for now: its URLs end
as `robots_unreachable`, which is retryable. An origin that cannot be reached at all gives its URLs the same
outcome as it gave this file, at once, so that ten thousand URLs of a dead host cost one attempt.

What a server sends as its robots.txt must cost little, whatever it is: Protego's time and memory grow with the number
of user agents times the number of rules, so that it is given the rules for our agent alone, a limited number of them,
in a thread next to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from protego import Protego

from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome

MAX_BYTES = 500 << 10
"""RFC 9309, section 2.5: at least 500 kibibytes are read; the rest is left."""
MAX_LINE = 4096
"""Characters: a longer line is passed over, since URLs are shorter than that."""
MAX_RULES = 10_000
"""Further rules for our agent are left; the largest files of real sites have some thousand."""
MAX_WILDCARDS = 10_000
"""Rules are left from the one on with which they hold more `*` than this: each of them is a search in every URL."""
MAX_ROBOTS_REDIRECTS = 5
"""RFC 9309, section 2.3.1.2."""
ATTEMPTS = 2
"""At the file, each with its redirects."""
KEPT_ORIGINS = 5_000
"""The number of origins whose rules are remembered; the ones asked for longest ago are forgotten first."""
KEPT_RULES = 500_000
"""The number of rules, of all origins together, that are remembered: some 150 MB, whatever thousands of hosts send."""
PARSED_AT_ONCE = 8 << 10
"""Bytes: a file up to this size costs less than the thread in which a larger one is parsed."""

_NO_FILE = frozenset({PageOutcome.TOO_MANY_REDIRECTS, PageOutcome.MALFORMED_URL, PageOutcome.MALFORMED_RESPONSE})
_AGENT = re.compile(r"user[- ]?agent\s*[:\s]\s*(.*)", re.IGNORECASE)
_RULE = re.compile(r"(?:allow|diss?all?[oa]w|diasllow|crawl[- ]delay)\s*[:\s]", re.IGNORECASE)
_SITE_WIDE = re.compile(r"(?:site-?maps?|host)\s*[:\s]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """What an origin allows our agent.

    Attributes:
        parsed: its rules, as rules for any agent, or None where it has none.
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
        try:
            return None if self.parsed is None or self.parsed.can_fetch(url, "*") else PageOutcome.ROBOTS
        except ValueError:  # half a character, half an address
            return PageOutcome.MALFORMED_URL

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


def rules_for(text: str, agent: str) -> list[str]:
    """The lines of a robots.txt that hold for `agent`: all groups with the longest matching name.

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
    rules = [] if best is None else groups[best][:MAX_RULES]
    wildcards = itertools.accumulate(rule.count("*") for rule in rules)
    return [rule for rule, count in zip(rules, wildcards, strict=True) if count <= MAX_WILDCARDS]


def parse_rules(body: bytes, agent: str) -> RobotsRules:
    """The rules of a robots.txt for `agent`. What cannot be parsed allows all, as a file without valid lines does."""
    text = body[:MAX_BYTES].decode("utf-8-sig", "replace").replace("\0", "")
    rules = rules_for(text, agent)
    try:
        parsed = Protego.parse("\n".join(["User-agent: *", *rules])) if rules else None
    except Exception:  # whatever the parser stumbles over is not a rule
        return RobotsRules()
    return RobotsRules(parsed, count=len(rules))


class Robots:
    """The rules of the origins met last. `Crawler` asks for the files, each in its turn at the host that has it."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, RobotsRules] = OrderedDict()
        self._rules = 0

    def get(self, origin: str) -> RobotsRules | None:
        """The rules of an origin, or None where they are not known, or forgotten."""
        found = self._known.get(origin)
        if found is not None:
            self._known.move_to_end(origin)
        return found

    def learn(self, origin: str, rules: RobotsRules) -> None:
        """Remember the rules of an origin, and forget others where they have become too many."""
        earlier = self._known.pop(origin, None)
        self._known[origin] = rules
        self._rules += rules.count - (0 if earlier is None else earlier.count)
        while len(self._known) > KEPT_ORIGINS or (self._rules > KEPT_RULES and len(self._known) > 1):
            self._rules -= self._known.popitem(last=False)[1].count


async def rules_of(reply: Reply, user_agent: str) -> RobotsRules:
    """What the last reply to a robots.txt, redirects followed, says to who introduces itself as `user_agent`."""
    if reply.outcome == PageOutcome.OK:
        agent = user_agent.split("/")[0].split(" ")[0] or "*"
        if len(reply.body) <= PARSED_AT_ONCE:
            return parse_rules(reply.body, agent)
        return await asyncio.to_thread(parse_rules, reply.body, agent)
    status = reply.status or 0
    if reply.outcome.startswith("http_"):
        return RobotsRules(failure=PageOutcome.ROBOTS_UNREACHABLE) if status >= 500 or status == 429 else RobotsRules()
    if reply.outcome in _NO_FILE:
        return RobotsRules()
    return RobotsRules(failure=reply.outcome)
