"""robots.txt, asked for once per origin and obeyed as RFC 9309 says; and what other files of a host say of training.

A file that is not there (4xx) allows everything. A server in trouble (5xx, 429) forbids all for now: its URLs end
as `robots_unreachable`, which is retryable. An origin that cannot be reached at all gives its URLs the same
outcome as it gave this file, at once, so that ten thousand URLs of a dead host cost one attempt.

A file is read by `opt_outs/robots_txt.py`, the same reader for what we may fetch and for what others may not have for
training; a large one in a thread next to the event loop. What an origin says is kept for a day, in memory that of the
origins met last, and on disk that of all.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.opt_outs import licences, signals
from webtext_prep.opt_outs.preferences import (
    AI_TXT,
    LICENCE,
    TDM_RESERVATION,
    TRAINING_CRAWLERS,
    HostPreferences,
    Rules,
    limited,
    path_of,
)
from webtext_prep.opt_outs.robots_txt import agent_of, crawl_delay_in, groups_in, lines_for, rules_in, text_of

if TYPE_CHECKING:
    from webtext_prep.crawl.database import DatabaseWriter

MAX_ROBOTS_REDIRECTS = 5
"""RFC 9309, section 2.3.1.2; also of tdmrep.json."""
ATTEMPTS = 2
"""At the file, each with its redirects."""
KEPT_SECONDS = 24 * 3600
"""RFC 9309, section 2.4: no longer than a day."""
KEPT_ORIGINS = 5_000
"""The number of origins whose rules are in memory; the ones asked for longest ago are forgotten first."""
KEPT_RULES = 500_000
"""The number of rules, of all origins together, that are in memory: some 150 MB, whatever thousands of hosts send."""
PARSED_AT_ONCE = 8 << 10
"""Bytes: a file up to this size costs less than the thread in which a larger one is parsed."""

_NO_PAGE_BEHIND = frozenset({PageOutcome.TOO_MANY_REDIRECTS, PageOutcome.BLOCKED_ADDRESS, PageOutcome.ROBOTS})
_NO_FILE = frozenset({PageOutcome.TOO_MANY_REDIRECTS, PageOutcome.MALFORMED_URL, PageOutcome.MALFORMED_RESPONSE})


class RobotsRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an origin allows our agent.

    Attributes:
        rules: those for our agent, or None where it has none.
        crawl_delay: seconds between requests that the origin asks for, or None.
        failure: the outcome for all of its URLs where the rules could not be had, or None.
        preferences: what it says of training.
        asked_at: when it was asked, in seconds of Unix time.
    """

    rules: Rules | None = None
    crawl_delay: float | None = None
    failure: str | None = None
    preferences: HostPreferences = msgspec.field(name="wishes", default_factory=HostPreferences)
    asked_at: float = msgspec.field(default_factory=lambda: time.time())

    @property
    def count(self) -> int:
        """How many rules there are."""
        rules = self.preferences.rules if self.rules is None else [self.rules, *self.preferences.rules]
        return sum(len(some.rules) for some in rules)

    @property
    def is_fresh(self) -> bool:
        """Whether it may still be used."""
        return abs(time.time() - self.asked_at) < KEPT_SECONDS

    def with_preferences(self, preferences: HostPreferences) -> RobotsRules:
        """The same with more that it says of training."""
        return msgspec.structs.replace(self, preferences=self.preferences + preferences)

    def refusal(self, url: str) -> str | None:
        """The outcome for `url` if it must not be fetched, or None."""
        if self.failure is not None or self.rules is None:
            return self.failure
        preference = self.rules.preference(path_of(url))
        return (
            None if preference is None or preference.is_allowed or path_of(url) == "/robots.txt" else PageOutcome.ROBOTS
        )


def parse_rules(body: bytes, agent: str, source: str = "") -> RobotsRules:
    """The rules of a robots.txt for `agent`, and from its `source` on what it says of training, if that is given.

    What cannot be parsed allows all, as a file without valid lines does.
    """
    text = text_of(body)
    preferences = signals.read_robots_txt(text, agent, source) if source else HostPreferences()
    rules = limited(rules_in(lines_for(groups_in(text), agent)))
    found = Rules(TRAINING_CRAWLERS, source, rules) if rules else None
    return RobotsRules(found, crawl_delay_in(lines_for(groups_in(text, of_usage=True), agent)), preferences=preferences)


class Robots:
    """The rules of the origins met. `Crawler` asks for the files, each in its turn at the host that has it.

    Args:
        store: where what origins say is kept beyond this process, if anywhere; failures are not: a later run asks.
    """

    def __init__(self, store: DatabaseWriter | None = None) -> None:
        self._store = store
        self._known: OrderedDict[str, RobotsRules] = OrderedDict()
        self._rules = 0

    def get(self, origin: str) -> RobotsRules | None:
        """The rules of an origin, or None where they are not known, or forgotten."""
        found = self._known.get(origin)
        if found is not None and found.is_fresh:
            self._known.move_to_end(origin)
            return found
        stored = None if self._store is None else self._store.load_rules(origin)
        if stored is not None:
            try:
                found = _decode(stored)
            except msgspec.MsgspecError:  # damaged, or of another version
                return None
            if found.is_fresh:
                self._remember(origin, found)
                return found
        return None

    def learn(self, origin: str, rules: RobotsRules) -> None:
        """Remember the rules of an origin."""
        self._remember(origin, rules)
        if self._store is not None and rules.failure is None:
            self._store.store_rules(origin, _encode(rules))

    def _remember(self, origin: str, rules: RobotsRules) -> None:
        """Have rules in memory, and forget others where they have become too many."""
        earlier = self._known.pop(origin, None)
        self._known[origin] = rules
        self._rules += rules.count - (0 if earlier is None else earlier.count)
        while len(self._known) > KEPT_ORIGINS or (self._rules > KEPT_RULES and len(self._known) > 1):
            self._rules -= self._known.popitem(last=False)[1].count


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RobotsRules).decode


async def rules_of(reply: Reply, user_agent: str, *, with_preferences: bool = False) -> RobotsRules:
    """What the last reply to a robots.txt, redirects followed, says to who introduces itself as `user_agent`."""
    if reply.outcome == PageOutcome.OK:
        agent, source = agent_of(user_agent), reply.url if with_preferences else ""
        if len(reply.body) <= PARSED_AT_ONCE:
            return parse_rules(reply.body, agent, source)
        return await asyncio.to_thread(parse_rules, reply.body, agent, source)
    status = reply.status or 0
    if reply.outcome.startswith("http_"):
        return RobotsRules(failure=PageOutcome.ROBOTS_UNREACHABLE) if status >= 500 or status == 429 else RobotsRules()
    if reply.outcome in _NO_FILE:
        return RobotsRules()
    return RobotsRules(failure=reply.outcome)


async def preferences_of(file: str, origin: str, reply: Reply, user_agent: str) -> HostPreferences:
    """What the last reply to another file says of a host: to one of its own, or to the licence that it names.

    A redirect of ai.txt says nothing: no text has them. Where a server is in trouble, or redirects of tdmrep.json lead
    nowhere, that is unreadable.
    """
    path = file.removeprefix(origin)
    if reply.outcome == PageOutcome.OK:
        if path in signals.HOST_FILES:
            read = functools.partial(signals.read_host_file, path, reply.body, agent_of(user_agent), reply.url)
        else:
            read = functools.partial(licences.read_licence, reply.body, file, origin)
        return read() if len(reply.body) <= PARSED_AT_ONCE else await asyncio.to_thread(read)
    signal = {signals.AI_TXT: AI_TXT, signals.TDMREP: TDM_RESERVATION}.get(path, LICENCE)
    is_lost = is_retryable(reply.outcome) or reply.outcome in _NO_PAGE_BEHIND
    return HostPreferences(unreadable=[signal] if is_lost else [])
