"""The signals by which owners of pages say whether models may train on them, each as its own text defines it.

1. robots.txt (RFC 9309): a page that is forbidden to a crawler known to collect for training (`crawlers.toml`). Only
   groups that name such a crawler count: what is forbidden to all crawlers is forbidden to ours, which is another
   matter. Each crawler obeys the groups that name it alone; a page that one of them may not have is refused, whatever
   others may.
2. `Content-Signal: ai-train=no`: Cloudflare's Content Signals Policy of 24 September 2025, in robots.txt; since 1 July
   2026 with `use=immediate`, `reference` or `full`, of which `full` alone covers training. Others write it as a header
   and as a `<meta>` of that name, in the plural, and with other words than yes and no.
3. `Content-Usage: train-ai=n`, the IETF's AI preferences, as header and in robots.txt: draft-ietf-aipref-vocab-08 (14
   September 2026) and draft-ietf-aipref-attach-05 (19 August 2026). A value is a dictionary of structured fields (RFC
   9651); a key or value that is not known says nothing, and neither does a value that is no dictionary. Keys of
   earlier drafts (`bots`, `all`, `genai`) are not known: the draft says to ignore them. Of a key that comes twice the
   last counts. Several statements are combined to the strictest (vocab, section 5.1).
4. ai.txt of Spawning: robots.txt's grammar for types of files, at the root of a host. Spawning's own description
   (2023) can't be had any more; the form is that of the files that its generator made, which sites still serve
   (`Disallow: *.html`). So only what is certain counts: rules for all, for training crawlers and for ours; `*.html` is
   for pages that end so, or without a suffix; the longest rule holds, and of two as long the stricter one.
5. The TDM Reservation Protocol: W3C Community Group Final Report of 10 May 2024. `tdm-reservation` is 1 where rights
   are reserved and 0 where not; anything else is unset. It stands in `/.well-known/tdmrep.json`, a list of rules of
   which the first that matches holds, in a header, and in a tag of the page; each supersedes the one before, and where
   it is unset what was said before stays ("Processing priority"). Of a header or tag that comes twice the stricter
   counts.
6. `noai`, as `X-Robots-Tag` and `<meta name="robots">`: DeviantArt's directive of 11 November 2022. Where such tags
   stand, and whom they are for, is as in Google's "Robots meta tag, data-nosnippet, and X-Robots-Tag specifications":
   a name in front of a header's directives, or in place of `robots`, is the crawler that they are for. Those for all
   crawlers, for ours and for training crawlers count. `noimageai` is about pictures, and says nothing of a text. No
   tag allows anything.
7. Licences by RSL 1.0: `licences.py`. A `License:` line of robots.txt names the document of a host: the one of our
   group there, or else of the lines in front of all groups (section 4.4.2), or else the first one anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import resources
from typing import Any

from command_kit import parse_json
from webtext_prep.opt_outs import preferences, robots_txt
from webtext_prep.opt_outs.preferences import HostPreferences, Preference, Rule, Rules, pattern_of, shortened

ROBOTS_TXT, TDMREP, AI_TXT = "/robots.txt", "/.well-known/tdmrep.json", "/ai.txt"
HOST_FILES = (ROBOTS_TXT, TDMREP, AI_TXT)
"""The files of a host in which signals stand, in the order in which they are asked for."""
USAGE_HEADER, ROBOTS_HEADER, LINK_HEADER = "content-usage", "x-robots-tag", "link"
SIGNAL = "content-signal"
RESERVATION, POLICY = "tdm-reservation", "tdm-policy"
_YES, _NO = ("yes", "y", "allow", "true", "1"), ("no", "n", "disallow", "deny", "none", "false", "0")
_SIGNALS = {("ai-train", word): word in _YES for word in (*_YES, *_NO)}
_SIGNALS |= {("use", word): word == "full" for word in ("immediate", "reference", "full")}
_RESERVED = {"1": False, "0": True}
_WITH_VALUES = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"})
"""Directives of robots tags that are no names of crawlers."""
_TIME = re.compile(r"\d:\d\d")
"""In the value of `unavailable_after`, in which a comma may stand, too."""
_KEY = r"[a-z*][a-z0-9_.*-]*+"
_ITEM = (
    r"(?:[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*+"  # a token
    r"|-?+[0-9]{1,15}+(?>(?:\.[0-9]{1,3}+)?)"
    r"|%?+\"(?>(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\[\"\\])*)\""
    r"|:[A-Za-z0-9+/=]*+:|\?[01]|@-?+[0-9]{1,15}+)"
)
_PARAMETERS = rf"(?>(?:;\x20*+{_KEY}(?>(?:={_ITEM})?))*)"
_LIST = rf"\(\x20*+(?>(?:{_ITEM}{_PARAMETERS}(?:\x20++|(?=\))))*)\)"
_MEMBER = re.compile(rf"({_KEY})(?>(?:=({_ITEM}|{_LIST}))?){_PARAMETERS}")
_DICTIONARY = re.compile(rf"(?>(?:{_MEMBER.pattern}(?>(?:[ \t]*+,[ \t]*+{_MEMBER.pattern})*))?)")


# Files of a host


def read_host_file(path: str, body: bytes, agent: str, source: str) -> HostPreferences:
    """What a file of a host says to `agent`; `path` is one of `HOST_FILES`, `source` its URL."""
    if path == ROBOTS_TXT:
        return read_robots_txt(robots_txt.text_of(body), agent, source)
    if body.lstrip()[:1] == b"<" or (path == AI_TXT and robots_txt.text_of(body).lstrip()[:1] == "<"):
        return HostPreferences()  # a host that answers with a page instead
    if path == AI_TXT:
        groups = robots_txt.groups_in(robots_txt.text_of(body))
        return HostPreferences(_rules_for(groups, {*crawlers(), "*", agent.lower()}, preferences.AI_TXT, source))
    entries: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        entries = parse_json(body.removeprefix(b"\xef\xbb\xbf")) if len(body) < robots_txt.MAX_BYTES else None
    if not isinstance(entries, list):
        return HostPreferences(unreadable=[preferences.TDM_RESERVATION])
    return HostPreferences.of(preferences.TDM_RESERVATION, source, filter(None, map(_reservation, entries)))


def read_robots_txt(text: str, agent: str, source: str) -> HostPreferences:
    """What a robots.txt says of training to `agent`."""
    groups = robots_txt.groups_in(text, of_usage=True)
    ours = [line for group in groups if not group.agents for line in group.lines]
    ours += robots_txt.lines_for(groups, agent)
    of_crawlers = _rules_for(robots_txt.groups_in(text), crawlers(), preferences.TRAINING_CRAWLERS, source)
    signals = _usage_in(ours, "Content-Signal", signal_allows, preferences.CONTENT_SIGNAL, source)
    usage = _usage_in(ours, "Content-Usage", usage_allows, preferences.CONTENT_USAGE, source)
    return HostPreferences(of_crawlers) + signals + usage + _licence_in(groups, agent)


def _licence_in(groups: Sequence[robots_txt.Group], agent: str) -> HostPreferences:
    """The document with the licence for a host, still to be read."""
    anywhere = [line for group in groups for line in group.lines]
    for lines in (robots_txt.lines_for(groups, agent), groups[0].lines, anywhere):
        for key, value in robots_txt.settings_in(lines):
            if key == "license" and value.lower().startswith(("https://", "http://")):
                return HostPreferences(unreadable=[preferences.LICENCE], licence=value)
    return HostPreferences()


@functools.cache
def crawlers() -> dict[str, str]:
    """Known crawlers that collect for training: the name in lower case, and as it is written."""
    text = resources.files(__package__).joinpath("crawlers.toml").read_text(encoding="utf-8")
    return {name.lower(): name for name in tomllib.loads(text)["crawlers"]}


def _rules_for(groups: Sequence[robots_txt.Group], names: Collection[str], signal: str, source: str) -> list[Rules]:
    """What each of `names` may have by the groups that name it; those that have the same groups together.

    The limits are for the file: every page of the host is matched with all rules of all crawlers.
    """
    theirs: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for name in dict.fromkeys(group.agents):
            if name in names:
                theirs.setdefault(name, []).append(number)
    first = {tuple(numbers): name for name, numbers in reversed(theirs.items())}
    found, before = [], list[Rule]()
    for numbers, name in reversed(first.items()):
        lines = (line for number in numbers for line in groups[number].lines)
        rules = preferences.limited(robots_txt.rules_in(lines, is_file_type=signal == preferences.AI_TXT), before)
        before += rules
        if rules:
            found.append(Rules(signal, source, rules, f"User-agent: {crawlers().get(name, name)}"))
    return found


def _usage_in(
    lines: Iterable[str], name: str, allows: Callable[[str], bool | None], signal: str, source: str
) -> HostPreferences:
    """The rules in lines of a name, whose value may have a path in front: then it is for the pages that begin so.

    The path ends at the first space (draft-ietf-aipref-attach-05, section 3.2). `allows` raises ValueError for no
    value.
    """
    found, unreadable = [], set[str]()
    for key, value in robots_txt.settings_in(lines):
        if key.removesuffix("s") == name.lower():
            path, _, said = value.replace("\t", " ").partition(" ") if value.startswith("/") else ("", "", value)
            try:
                is_allowed = allows(said)
            except ValueError:
                unreadable.add(signal)
                continue
            if is_allowed is not None:
                found.append(Rule(pattern_of(path), is_allowed, shortened(f"{name}: {value}")))
    return HostPreferences.of(signal, source, found, unreadable)


def signal_allows(value: str) -> bool | None:
    """Whether a value of `Content-Signal` allows training; None where it says nothing of it.

    >>> [signal_allows(value) for value in ("ai-train=no", "search=yes", "use=full", "ai-train=yes, use=reference")]
    [False, None, True, False]
    """
    signals = (map(str.strip, signal.partition("=")) for signal in value.lower().split(","))
    found = [_SIGNALS.get((name, said)) for name, _, said in signals]
    return min((one for one in found if one is not None), default=None)


def usage_allows(value: str) -> bool | None:
    """Whether a value of `Content-Usage` allows training; None where it says nothing of it.

    Raises ValueError for a value that is no dictionary.

    >>> [usage_allows(value) for value in ("search=y, train-ai=n;reason=tdm", "train-ai", "train-ai=n, train-ai=y")]
    [False, None, True]
    """
    if _DICTIONARY.fullmatch(value.strip(" ")) is None:
        raise ValueError("no dictionary")
    said = [
        {"y": True, "n": False}.get(member[2] or "") for member in _MEMBER.finditer(value) if member[1] == "train-ai"
    ]
    return said[-1] if said else None


def _reservation(entry: Any) -> Rule | None:
    """The rule in an entry of a tdmrep.json."""
    location, value = (entry.get("location"), entry.get(RESERVATION)) if isinstance(entry, dict) else (None, None)
    is_allowed = None if isinstance(value, bool) else _RESERVED.get(str(value))
    if is_allowed is None or not isinstance(location, str) or not 0 < len(location) <= robots_txt.MAX_BYTES >> 7:
        return None
    return Rule(pattern_of(location), is_allowed, _words_of_reservation(str(value), entry.get(POLICY)))


def _words_of_reservation(value: str, policy: Any) -> str:
    return shortened(
        f"{RESERVATION}: {value}" + (f"; {POLICY}: {policy}" if isinstance(policy, str) and policy else "")
    )


# Headers and tags of a page


def read_usage_header(values: Iterable[str], url: str) -> Preference | None:
    """What `Content-Usage` says, all lines of it together. Raises ValueError as `usage_allows`."""
    value = ", ".join(values)
    is_allowed = usage_allows(value)
    words = shortened(f"Content-Usage: {value}")
    return None if is_allowed is None else Preference(preferences.CONTENT_USAGE, is_allowed, words, url)


def read_signals(values: Iterable[str], url: str) -> Preference | None:
    """What `Content-Signal` says as a header, or as a tag of a page."""
    found = [(is_allowed, value) for value in values if (is_allowed := signal_allows(value)) is not None]
    if not found:
        return None
    is_allowed, value = min(found)
    return Preference(preferences.CONTENT_SIGNAL, is_allowed, shortened(f"Content-Signal: {value}"), url)


def read_robots_header(values: Iterable[str], agent: str, url: str) -> Preference | None:
    """What `X-Robots-Tag` says; a name holds up to the end of its line, or to the next one."""
    for value in values:
        is_for_us = True
        for part in value.split(","):
            before, colon, after = part.partition(":")
            if colon and before.strip().lower() not in _WITH_VALUES and not _TIME.search(part):
                is_for_us, part = _is_for_us(before, agent), after
            if is_for_us and part.strip().lower() == "noai":
                return Preference(preferences.NO_AI, False, shortened(f"X-Robots-Tag: {value}"), url)
    return None


def read_robots_tags(tags: Iterable[tuple[str, str]], agent: str, url: str) -> Preference | None:
    """What the `<meta>` tags of a page say, each with its name and content."""
    for name, content in tags:
        if "noai" in (part.strip().lower() for part in content.split(",")) and _is_for_us(name, agent):
            return Preference(preferences.NO_AI, False, shortened(f'<meta name="{name}" content="{content}">'), url)
    return None


def _is_for_us(name: str, agent: str) -> bool:
    name = name.strip().lower()
    return name in ("robots", "*", agent.lower()) or name in crawlers()


def read_reservation(values: Iterable[str], policies: Sequence[str], url: str) -> Preference | None:
    """What a page says in its headers, or in its tags; the policies are what it says of `tdm-policy` there."""
    found = [value for value in map(str.strip, values) if value in _RESERVED]
    if not found:
        return None
    words = _words_of_reservation(max(found), policies[0].strip() if policies else None)
    return Preference(preferences.TDM_RESERVATION, _RESERVED[max(found)], words, url)
