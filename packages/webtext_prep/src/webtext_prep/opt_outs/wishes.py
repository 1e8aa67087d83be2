"""A wish: whether an owner lets a page be trained on, by which signal, in which words, said where.

Files of a host become rules by the paths that they are for, all in one form, which is kept as JSON.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from webtext_prep.urls.urls import url_key

TRAINING_CRAWLERS, CONTENT_SIGNAL, CONTENT_USAGE = "robots.txt", "content-signal", "content-usage"
AI_TXT, TDM_RESERVATION, NO_AI = "ai.txt", "tdm-reservation", "noai"
SIGNALS = (TRAINING_CRAWLERS, CONTENT_SIGNAL, CONTENT_USAGE, AI_TXT, TDM_RESERVATION, NO_AI)
"""In the order in which a refusal is named where several signals refuse: of a host first, of a page last."""
MAX_RULES = 10_000
"""Further rules of a file are left; the largest files of real sites have some thousand."""
MAX_WILDCARDS = 10_000
"""Rules are left from the one on with which they hold more `*` than this: each of them is a search in every URL."""
MAX_WORDS = 200  # characters of the words that are kept
_ASCII = bytes(range(128)).decode()
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_FILE_TYPE = re.compile(r"\*\.\w+")


class Wish(NamedTuple):
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
    """The wish for all pages whose path matches a pattern."""

    pattern: str
    is_allowed: bool
    words: str


class Rules(msgspec.Struct, omit_defaults=True):
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

    def wish(self, path: str) -> Wish | None:
        """The wish for a path with its query, as `path_of` gives it; None where no rule is for it.

        The first matching rule holds in tdmrep.json, the one with the longest pattern in all other files. Of two that
        are as long robots.txt prefers what allows (RFC 9309, section 2.2.2), and other signals the stricter one.
        """
        if self.signal == AI_TXT:
            path = path.partition("?")[0]
            path += "" if "." in path.rpartition("/")[2] else ".html"  # a page without a suffix is HTML
        matching = (rule for rule in self.rules if matches(rule.pattern, path))
        if self.signal == TDM_RESERVATION:
            found = next(matching, None)
        else:
            prefers = self.signal == TRAINING_CRAWLERS
            found = max(matching, key=lambda rule: (len(rule.pattern), rule.is_allowed == prefers), default=None)
        if found is None:
            return None
        words = f"{self.whose}; {found.words}" if self.whose else found.words
        return Wish(self.signal, found.is_allowed, words, self.source)


class HostWishes(msgspec.Struct, omit_defaults=True):
    """What the files of a host say, and the signals that could not be read."""

    rules: list[Rules] = []
    unreadable: list[str] = []

    @classmethod
    def of(cls, signal: str, source: str, rules: Iterable[Rule], unreadable: Iterable[str] = ()) -> HostWishes:
        """The wishes in one file by one signal."""
        found = limited(rules)
        return cls([Rules(signal, source, found)] if found else [], [*unreadable])

    def __add__(self, other: HostWishes) -> HostWishes:
        return HostWishes([*self.rules, *other.rules], sorted({*self.unreadable, *other.unreadable}))

    def for_page(self, url: str) -> list[Wish]:
        """All wishes for a page."""
        path = path_of(url) if self.rules else ""
        return [wish for rules in self.rules if (wish := rules.wish(path)) is not None]


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
    path = path if path.isascii() else quote(path, safe=_ASCII, errors="replace")
    return _ESCAPED.sub(_unescaped, path) if "%" in path else path


def _unescaped(found: re.Match[str]) -> str:
    sign = chr(int(found[1], 16))
    return sign if sign in _UNRESERVED else found[0].upper()


def path_of(url: str) -> str:
    """The path and query of a URL, as patterns are matched with it."""
    return normal("/" + "".join(url_key(url).split("/", 3)[3:]))


def pattern_of(text: str, *, is_file_type: bool = False) -> str:
    """The pattern that a path in a file of a host is.

    Args:
        text: the path; one that does not begin with a slash or a wildcard lacks the slash.
        is_file_type: take `*.txt` for the end of a path alone: as a beginning, `*.h` would also be `/a.html`.
    """
    pattern = normal(text)
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
