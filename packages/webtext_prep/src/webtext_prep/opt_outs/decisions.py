"""Which preference holds for a page: the precedence of all signals, in one place.

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

from webtext_prep.opt_outs import licences, signals
from webtext_prep.opt_outs.preferences import (
    CONTENT_USAGE,
    LICENCE,
    SIGNALS,
    TDM_RESERVATION,
    HostPreferences,
    Preference,
)
from webtext_prep.text.tags import meta_tags, text_with

AGENT = "webtext"  # the name of our crawler, unless a user gives it another
_IN_TAGS = (signals.SIGNAL, signals.RESERVATION, signals.POLICY)
_HEADERS = (signals.USAGE_HEADER, signals.ROBOTS_HEADER, signals.LINK_HEADER, *_IN_TAGS)
_WORDS = (b"noai", b"tdm-reservation", b"content-signal", licences.MEDIA_TYPE.encode())
"""Each of which makes a page one whose tags are read."""
_IN_BYTES = frozenset(name.encode() for name in _HEADERS)
SIGNAL, WORDS, SOURCE, UNREADABLE = "opt_out", "opt_out_words", "opt_out_source", "opt_outs_unreadable"
KEYS = (SIGNAL, WORDS, SOURCE)
"""Under them a row of the outcomes, and the metadata of a page that is kept all the same, say which preference
refuses it."""


class Decision(NamedTuple):
    """What the owner of a page says of it.

    Attributes:
        preference: the one that holds; None where nothing is said.
        unreadable: the signals that could not be read.
    """

    preference: Preference | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def refusal(self) -> Preference | None:
        """The preference, if it refuses the page."""
        return None if self.preference is None or self.preference.is_allowed else self.preference

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


def decide_by_host(url: str, host: HostPreferences) -> Preference | None:
    """The preference of its host that refuses a page, whatever the page says itself."""
    return Decision(
        _first(preference for preference in host.for_page(url) if preference.signal != TDM_RESERVATION)
    ).refusal


def decide(
    url: str, host: HostPreferences, headers: Headers, page: bytes, agent: str = AGENT, known: Metadata = NO_METADATA
) -> Decision:
    """What holds for a page.

    Args:
        url: of the page, after redirects.
        host: what the files of its host say.
        headers: of its answer.
        page: its HTML; nothing for plain text.
        agent: the name of our crawler.
        known: metadata in which an earlier run may have left a preference.
    """
    preferences, unreadable = host.for_page(url), list(host.unreadable)
    said: dict[str, list[str]] = {}
    for name, value in headers:
        if name.lower() in _IN_BYTES:
            said.setdefault(name.lower().decode(), []).append(value.decode("latin-1"))
    text = text_with(_WORDS, page)
    tags = [tag.attributes() for tag in meta_tags(text)] if text else []
    named, documents = licences.in_page(text, url) if text else ([], [])
    named += licences.linked(said.pop(signals.LINK_HEADER, []), url)
    for licence in (licences.read_licence(document, url, url) for document in documents):
        preferences += licence.for_page(url)
        unreadable += licence.unreadable
    read = {rules.source for rules in host.rules if rules.signal == LICENCE}
    unreadable += [LICENCE for document in named if document not in read]
    if said or tags:
        preferences += _of_page(url, said, tags, agent, unreadable)
    if isinstance(known.get(SIGNAL), str):
        preferences.append(Preference(known[SIGNAL], False, str(known.get(WORDS, "")), str(known.get(SOURCE, ""))))
    if not preferences and not unreadable:
        return NOTHING
    reserved = [preference for preference in preferences if preference.signal == TDM_RESERVATION]
    others = [preference for preference in preferences if preference.signal != TDM_RESERVATION]
    return Decision(_first([*others, *reserved[-1:]]), tuple(sorted({*unreadable})))


def _of_page(
    url: str, said: dict[str, list[str]], tags: list[dict[str, str]], agent: str, unreadable: list[str]
) -> list[Preference]:
    """The preferences in the headers and tags of a page, those after others that supersede them."""
    named = [(tag["name"].strip().lower(), tag.get("content", "")) for tag in tags if tag.get("name")]
    found = [
        signals.read_robots_header(said.get(signals.ROBOTS_HEADER, ()), agent, url),
        signals.read_robots_tags(named, agent, url),
    ]
    try:
        found.append(signals.read_usage_header(said.get(signals.USAGE_HEADER, ()), url))
    except ValueError:
        unreadable.append(CONTENT_USAGE)
    in_tags = {name: [content for key, content in named if key == name] for name in _IN_TAGS}
    for values in (said, in_tags):
        found.append(signals.read_signals(values.get(signals.SIGNAL, ()), url))
        policies = values.get(signals.POLICY, [])
        found.append(signals.read_reservation(values.get(signals.RESERVATION, ()), policies, url))
    return [preference for preference in found if preference is not None]


def _first(preferences: Iterable[Preference]) -> Preference | None:
    """A refusal, if there is one, and of several preferences alike the one whose signal comes first."""
    return min(
        preferences,
        key=lambda preference: (preference.is_allowed, (*SIGNALS, preference.signal).index(preference.signal)),
        default=None,
    )
