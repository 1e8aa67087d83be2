"""Which wish holds for a page: the precedence of all signals, in one place.

Within a signal its own text decides (the modules say how); of several signals a refusal holds, whatever others allow:
no text lets one standard overrule another, and so the stricter holds. The page that a redirect led to is judged, and
so are the hosts on the way to it by their files.

What a page says itself may lift what tdmrep.json reserves, but nothing else of its host: so a page is asked for, unless
another file of its host refuses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from webtext_prep.opt_outs import ai_txt, content_signal, content_usage, meta_tags, robots_tag, tdm_reservation
from webtext_prep.opt_outs.robots_txt import groups_in, lines_for, text_of
from webtext_prep.opt_outs.training_crawlers import crawlers, rules_for
from webtext_prep.opt_outs.wishes import CONTENT_USAGE, SIGNALS, TDM_RESERVATION, TRAINING_CRAWLERS, HostWishes, Wish

ROBOTS_TXT = "/robots.txt"
HOST_FILES = (ROBOTS_TXT, tdm_reservation.PATH, ai_txt.PATH)
"""The files of a host in which signals stand, in the order in which they are asked for."""
AGENT = "webtext"  # the name of our crawler, unless a user gives it another
_HEADERS = (content_usage.HEADER, robots_tag.HEADER, tdm_reservation.NAME, tdm_reservation.POLICY)
_IN_BYTES = frozenset(name.encode() for name in _HEADERS)
SIGNAL, WORDS, SOURCE, UNREADABLE = "opt_out", "opt_out_words", "opt_out_source", "opt_outs_unreadable"
KEYS = (SIGNAL, WORDS, SOURCE)
"""Under them a row of the outcomes, and the metadata of a page that is kept all the same, say which wish refuses it."""


class Decision(NamedTuple):
    """What the owner of a page says of it.

    Attributes:
        wish: the one that holds; None where nothing is said.
        unreadable: the signals that could not be read.
    """

    wish: Wish | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def refusal(self) -> Wish | None:
        """The wish, if it refuses the page."""
        return None if self.wish is None or self.wish.is_allowed else self.wish

    @property
    def metadata(self) -> dict[str, str]:
        """What the metadata of the page say of it."""
        refusal = self.refusal
        return {} if refusal is None else {SIGNAL: refusal.signal, WORDS: refusal.words, SOURCE: refusal.source}

    @property
    def row(self) -> dict[str, Any]:
        """What its row of the outcomes says."""
        return self.metadata | ({UNREADABLE: list(self.unreadable)} if self.unreadable else {})


Headers = Iterable[tuple[bytes, bytes]]
Metadata = Mapping[str, Any]
NO_METADATA: Metadata = MappingProxyType({})
NOTHING = Decision()


def count(row: Mapping[str, Any], notes: Counter[str]) -> None:
    """Count what the owner of a page says, as a row of the outcomes has it."""
    if SIGNAL in row:
        notes[f"{SIGNAL}_{row[SIGNAL]}"] += 1
    if UNREADABLE in row:
        notes[UNREADABLE] += 1


def read_host_file(path: str, body: bytes, agent: str, source: str) -> HostWishes:
    """What a file of a host says to `agent`; `path` is one of `HOST_FILES`, `source` its URL."""
    if path == ROBOTS_TXT:
        return read_robots_txt(text_of(body), agent, source)
    if path == tdm_reservation.PATH:
        return tdm_reservation.read(body, source)
    return HostWishes(ai_txt.read(body, agent, source))


def read_robots_txt(text: str, agent: str, source: str) -> HostWishes:
    """What a robots.txt says of training to `agent`."""
    groups = groups_in(text, of_usage=True)
    ours = [*(line for group in groups if not group.agents for line in group.lines), *lines_for(groups, agent)]
    of_crawlers = HostWishes(rules_for(groups_in(text), crawlers(), TRAINING_CRAWLERS, source))
    return of_crawlers + content_signal.read(ours, source) + content_usage.read(ours, source)


def decide_by_host(url: str, host: HostWishes) -> Wish | None:
    """The wish of its host that refuses a page, whatever the page says itself."""
    return Decision(_first(wish for wish in host.for_page(url) if wish.signal != TDM_RESERVATION)).refusal


def decide(
    url: str, host: HostWishes, headers: Headers, page: bytes, agent: str = AGENT, known: Metadata = NO_METADATA
) -> Decision:
    """What holds for a page.

    Args:
        url: of the page, after redirects.
        host: what the files of its host say.
        headers: of its answer.
        page: its HTML; nothing for plain text.
        agent: the name of our crawler.
        known: metadata in which an earlier run may have left a wish.
    """
    wishes, unreadable = host.for_page(url), list(host.unreadable)
    said: dict[str, list[str]] = {}
    for name, value in headers:
        if name.lower() in _IN_BYTES:
            said.setdefault(name.lower().decode(), []).append(value.decode("latin-1"))
    tags = meta_tags.meta_tags(page)
    if said or tags:
        wishes += _of_page(url, said, tags, agent, unreadable)
    if isinstance(known.get(SIGNAL), str):
        wishes.append(Wish(known[SIGNAL], False, str(known.get(WORDS, "")), str(known.get(SOURCE, ""))))
    if not wishes and not unreadable:
        return NOTHING
    reserved = [wish for wish in wishes if wish.signal == TDM_RESERVATION]
    others = [wish for wish in wishes if wish.signal != TDM_RESERVATION]
    return Decision(_first([*others, *reserved[-1:]]), tuple(sorted({*unreadable})))


def _of_page(
    url: str, said: dict[str, list[str]], tags: list[tuple[str, str]], agent: str, unreadable: list[str]
) -> list[Wish]:
    """The wishes in the headers and tags of a page, those after others that supersede them."""
    found = [
        robots_tag.read_header(said.get(robots_tag.HEADER, ()), agent, url),
        robots_tag.read_meta(tags, agent, url),
    ]
    try:
        found.append(content_usage.read_header(said.get(content_usage.HEADER, ()), url))
    except ValueError:
        unreadable.append(CONTENT_USAGE)
    in_tags = {name: [content for key, content in tags if key == name] for name in _HEADERS[2:]}
    for values in (said, in_tags):
        of_policy = values.get(tdm_reservation.POLICY, [])
        found.append(tdm_reservation.read_values(values.get(tdm_reservation.NAME, ()), of_policy, url))
    return [wish for wish in found if wish is not None]


def _first(wishes: Iterable[Wish]) -> Wish | None:
    """A refusal, if there is one, and of several wishes alike the one whose signal comes first."""
    return min(wishes, key=lambda wish: (wish.is_allowed, (*SIGNALS, wish.signal).index(wish.signal)), default=None)
