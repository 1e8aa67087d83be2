"""A preference: whether an owner lets a page be trained on, by which signal, in which words, said where.

Files of a host become rules by the paths that they are for, all in one form, which is kept as JSON.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from webtext_prep.urls.urls import url_key

TRAINING_CRAWLERS, CONTENT_SIGNAL, CONTENT_USAGE = "robots.txt", "content-signal", "content-usage"
AI_TXT, LICENCE, TDM_RESERVATION, NO_AI = "ai.txt", "rsl", "tdm-reservation", "noai"
AT_THE_EDGE = ("payment_required", "refused_by_edge")
"""Outcomes of asking a host that refuse all of its pages."""
SIGNALS = (TRAINING_CRAWLERS, CONTENT_SIGNAL, CONTENT_USAGE, AI_TXT, LICENCE, TDM_RESERVATION, NO_AI, *AT_THE_EDGE)
"""In the order in which a refusal is named where several signals refuse: of a host first, of a page last."""
MAX_RULES = 64_000
"""Further rules of a file are left: as many as the 500 kibibytes hold that are read of it (RFC 9309, section 2.5)."""
MAX_WILDCARDS = 50_000
"""Rules are left from the one on with which they hold more `*` than this: each of them is a search in every URL. As
many lines with one have room in those 500 kibibytes."""
MAX_WORDS = 200  # characters of the words that are kept
_SAFE = "%:/?#[]@!$&'()+*,;=-._~"
_ESCAPABLE = re.compile(rf"[^A-Za-z0-9{re.escape(_SAFE)}]")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_FILE_TYPE = re.compile(r"\*\.\w+")


class Preference(NamedTuple):
    """What one signal says of one page.

    Attributes:
        signal: one of `SIGNALS`.
        is_allowed: whether the page may be trained on.
        words: that said so.
        source: the URL of the file, or of the page, in which they stand.
    """

    signal: str
    is_allowed: bool
    words: str
    source: str


class Rule(msgspec.Struct, array_like=True, frozen=True):
    """The preference for all pages whose path matches a pattern."""

    pattern: str
    is_allowed: bool
    words: str


_Rank = tuple[int, bool, int]


class Rules(msgspec.Struct, omit_defaults=True, dict=True):
    """Rules that one signal has for a host; of those that match a page one holds.

    Attributes:
        signal: one of `SIGNALS`.
        source: the URL of the file.
        rules: in the order of the file.
        whose: the words that stand above the rules.
    """

    signal: str
    source: str
    rules: list[Rule]
    whose: str = ""

    def preference(self, path: str) -> Preference | None:
        """The preference for a path with its query, as `path_of` gives it; None where no rule is for it.

        The first matching rule holds in tdmrep.json, the one with the longest pattern in all other files. Of two that
        are as long robots.txt prefers what allows (RFC 9309, section 2.2.2), and other signals the stricter one.
        """
        if self.signal == AI_TXT:
            path = path.partition("?")[0]
            path += "" if "." in path.rpartition("/")[2] else ".html"  # a page without a suffix is HTML
        prefixes, lengths, others = self._index
        matching = [prefixes[path[:length]] for length in lengths if path[:length] in prefixes]
        matching += [rank for rank, pattern in others if matches(pattern, path)]
        if not matching:
            return None
        found = self.rules[-max(matching)[-1]]
        words = f"{self.whose}; {found.words}" if self.whose else found.words
        return Preference(self.signal, found.is_allowed, words, self.source)

    @functools.cached_property
    def _index(self) -> tuple[dict[str, _Rank], list[int], list[tuple[_Rank, str]]]:
        """The ranks of the rules: by the beginning of a path that one is for, the lengths of these, and all others."""
        prefixes, others = dict[str, _Rank](), list[tuple[_Rank, str]]()
        is_first, prefers = self.signal == TDM_RESERVATION, self.signal == TRAINING_CRAWLERS
        for number, rule in enumerate(self.rules):
            # Numbered from the end, so that of what is alike the first rule has the highest rank.
            length, liked = (0, False) if is_first else (len(rule.pattern), rule.is_allowed == prefers)
            rank = (length, liked, len(self.rules) - number)
            if "*" in rule.pattern or rule.pattern.endswith("$"):
                others.append((rank, rule.pattern))
            else:
                prefixes[rule.pattern] = max(rank, prefixes.get(rule.pattern, rank))
        return prefixes, sorted({*map(len, prefixes)}), others


class HostPreferences(msgspec.Struct, omit_defaults=True):
    """What the files of a host say, and the signals that could not be read.

    Attributes:
        rules: what they say.
        unreadable: the signals; a licence is one as long as its document has not been read.
        licence: the URL of the document with the licence for the host, where its robots.txt names one.
    """

    rules: list[Rules] = []
    unreadable: list[str] = []
    licence: str = ""

    @classmethod
    def of(cls, signal: str, source: str, rules: Iterable[Rule], unreadable: Iterable[str] = ()) -> HostPreferences:
        """The preferences in one file by one signal."""
        found = limited(rules)
        return cls([Rules(signal, source, found)] if found else [], [*unreadable])

    def __add__(self, other: HostPreferences) -> HostPreferences:
        rules, unreadable = [*self.rules, *other.rules], {*self.unreadable, *other.unreadable}
        if any(some.signal == LICENCE for some in rules):
            unreadable.discard(LICENCE)
        return HostPreferences(rules, sorted(unreadable), self.licence or other.licence)

    def for_page(self, url: str) -> list[Preference]:
        """All preferences for a page."""
        path = path_of(url) if self.rules else ""
        return [preference for rules in self.rules if (preference := rules.preference(path)) is not None]


def limited(rules: Iterable[Rule], before: Sequence[Rule] = ()) -> list[Rule]:
    """As many rules, from the first on, as are matched in a bounded time, with those that stand `before` them."""
    found = list(itertools.islice(rules, MAX_RULES - len(before)))
    wildcards = itertools.accumulate(rule.pattern.count("*") for rule in [*before, *found])
    counts = itertools.islice(wildcards, len(before), None)
    return [rule for rule, count in zip(found, counts, strict=True) if count <= MAX_WILDCARDS]


def shortened(words: str) -> str:
    """Words on one line, and not too many."""
    words = " ".join("".join(sign if sign.isprintable() else " " for sign in words[: 2 * MAX_WORDS]).split())
    return words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 3]}..."


def normal(path: str) -> str:
    """A path in the one form in which paths and patterns are compared (RFC 9309, section 2.2.2).

    >>> normal("/a%7eb/ü%2f")
    '/a~b/%C3%BC%2F'
    """
    path = quote(path, safe=_SAFE, errors="replace") if _ESCAPABLE.search(path) else path
    return _ESCAPED.sub(_unescaped, path) if "%" in path else path


def _unescaped(found: re.Match[str]) -> str:
    sign = chr(int(found[1], 16))
    return sign if sign in _UNRESERVED else found[0].upper()


def path_of(url: str) -> str:
    """The path and query of a URL, as patterns are matched with it: `*` and `$` have no meaning in it."""
    return normal("/" + "".join(url_key(url).split("/", 3)[3:])).replace("*", "%2A").replace("$", "%24")


def pattern_of(text: str, *, is_file_type: bool = False) -> str:
    """The pattern that a path in a file of a host is.

    Args:
        text: the path; one that does not begin with a slash or a wildcard lacks the slash.
        is_file_type: take `*.txt` for the end of a path alone: as a beginning, `*.h` would also be `/a.html`.
    """
    pattern = normal(text)
    pattern = pattern[:-1].replace("$", "%24") + pattern[-1:]  # a `$` in the middle is one
    if is_file_type and _FILE_TYPE.fullmatch(pattern):
        return f"{pattern}$"
    return pattern if pattern.startswith(("/", "*")) or not pattern else f"/{pattern}"


def matches(pattern: str, path: str) -> bool:
    """Whether a path begins as a pattern says, in which `*` stands for anything and `$` for the end.

    No part is tried twice: the leftmost place of each leaves most to the parts after it.

    >>> matches("/A*/c", "/A/b/c/d"), matches("/*.html$", "/a.html?b")
    (True, False)
    """
    is_whole = pattern.endswith("$")
    first, *parts = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    if not parts:
        return not is_whole or at == len(path)
    last = parts.pop() if is_whole else ""
    for part in parts:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return not is_whole or (path.endswith(last) and len(path) - len(last) >= at)
