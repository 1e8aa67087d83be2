"""robots.txt, asked for once per origin and obeyed as RFC 9309 says; and what other files of a host say of training.

A file that is not there (4xx) allows everything. A server in trouble (5xx, 429) forbids all for now: its URLs end
as `robots_unreachable`, which is retryable. An origin that cannot be reached at all gives its URLs the same
outcome as it gave this file, at once, so that ten thousand URLs of a dead host cost one attempt.

What a server sends as its robots.txt must cost little, whatever it is: Protego's time and memory grow with the number
of user agents times the number of rules, so that it is given the rules for our agent alone, a limited number of them,
in a thread next to the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from protego import Protego

from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.opt_outs import ai_txt
from webtext_prep.opt_outs.decisions import read_host_file, read_robots_txt
from webtext_prep.opt_outs.robots_txt import agent_of, groups_in, lines_for, text_of
from webtext_prep.opt_outs.wishes import AI_TXT, MAX_RULES, MAX_WILDCARDS, TDM_RESERVATION, HostWishes

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
_RULE = re.compile(r"(?:allow|diss?all?[oa]w|diasllow|crawl[- ]delay)\s*[:\s]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """What an origin allows our agent.

    Attributes:
        parsed: its rules, as rules for any agent, or None where it has none.
        failure: the outcome for all of its URLs where the rules could not be had, or None.
        count: how many rules there are.
        wishes: what it says of training.
    """

    parsed: Protego | None = None
    failure: str | None = None
    count: int = 0
    wishes: HostWishes = field(default_factory=HostWishes)

    def with_wishes(self, wishes: HostWishes) -> RobotsRules:
        """The same with more that it says of training."""
        count = self.count + sum(len(rules.rules) for rules in wishes.rules)
        return replace(self, wishes=self.wishes + wishes, count=count)

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


def parse_rules(body: bytes, agent: str, source: str = "") -> RobotsRules:
    """The rules of a robots.txt for `agent`, and from its `source` on what it says of training, if that is given.

    What cannot be parsed allows all, as a file without valid lines does.
    """
    groups = groups_in(text_of(body))
    wishes = read_robots_txt(groups, agent, source) if source else HostWishes()
    rules = list(itertools.islice(filter(_RULE.match, lines_for(groups, agent)), MAX_RULES))
    wildcards = itertools.accumulate(rule.count("*") for rule in rules)
    rules = [rule for rule, count in zip(rules, wildcards, strict=True) if count <= MAX_WILDCARDS]
    try:
        parsed = Protego.parse("\n".join(["User-agent: *", *rules])) if rules else None
    except Exception:  # whatever the parser stumbles over is not a rule
        parsed, rules = None, []
    return RobotsRules(parsed, count=len(rules)).with_wishes(wishes)


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


async def rules_of(reply: Reply, user_agent: str, *, with_wishes: bool = False) -> RobotsRules:
    """What the last reply to a robots.txt, redirects followed, says to who introduces itself as `user_agent`."""
    if reply.outcome == PageOutcome.OK:
        agent, source = agent_of(user_agent), reply.url if with_wishes else ""
        if len(reply.body) <= PARSED_AT_ONCE:
            return parse_rules(reply.body, agent, source)
        return await asyncio.to_thread(parse_rules, reply.body, agent, source)
    status = reply.status or 0
    if reply.outcome.startswith("http_"):
        return RobotsRules(failure=PageOutcome.ROBOTS_UNREACHABLE) if status >= 500 or status == 429 else RobotsRules()
    if reply.outcome in _NO_FILE:
        return RobotsRules()
    return RobotsRules(failure=reply.outcome)


async def wishes_of(path: str, reply: Reply, user_agent: str) -> HostWishes:
    """What the reply to another file of a host says; a redirect is none, as it leads away from this host, and a server
    in trouble says nothing that could be read."""
    if reply.outcome == PageOutcome.OK:
        read = functools.partial(read_host_file, path, reply.body, agent_of(user_agent), reply.url)
        return read() if len(reply.body) <= PARSED_AT_ONCE else await asyncio.to_thread(read)
    signal = AI_TXT if path == ai_txt.PATH else TDM_RESERVATION
    return HostWishes(unreadable=[signal] if is_retryable(reply.outcome) else [])
