"""The interface of a quality rule, and what rules have in common: lines, words, and how much of a text repeats.

A word is what white space parts, as in the reference code of C4 and Dolma: rules that count words are for languages
that are written with spaces.

A rule of your own is one file next to these, or a class that another distribution announces under the entry-point group
`webtext.rules`:

    class NoShouting(Rule):
        name = "no-shouting"

        def apply(self, text):
            return text, "capitals" if text.isupper() else None
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Iterator, Sequence
from typing import ClassVar


class Rule(abc.ABC):
    """A rule: it looks at a text alone, and drops it for a reason, or leaves it, or leaves a part of it.

    A rule is made once in each process that uses it; making it loads what it needs.
    """

    name: ClassVar[str]
    """What `--rules` calls it."""
    version: ClassVar[int] = 1
    """Raised whenever it would judge a text differently, so that old shards are made again."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions decide what it says: with another one a run is not gone on with."""

    @abc.abstractmethod
    def apply(self, text: str) -> tuple[str, str | None]:
        """The text, or its rest, and the reason to drop it, or None."""

    def measure(self, text: str) -> dict[str, float | str]:
        """What of a text that it drops was beyond its limits: the values in the receipt."""
        return {}

    def judge(self, text: str) -> tuple[str, str | None]:
        """`apply`, with the rule's name before the reason: `gopher_quality: too_few_words`."""
        text, reason = self.apply(text)
        return text, f"{self.name.replace('-', '_')}: {reason}" if reason else None


Criterion = tuple[str, float, str, float, str]
"""The name of a measure, its value, a key of `HOLDS`, the limit, and the reason to drop a text that is beyond it."""
HOLDS = {"at least": operator.ge, "at most": operator.le, "more than": operator.gt, "less than": operator.lt}


class CriteriaRule(Rule):
    """A rule that compares figures of a text with limits; the first that is not met is the reason to drop it."""

    @abc.abstractmethod
    def criteria(self, text: str) -> Iterator[Criterion]:
        """The figures, one after the other: none is computed if one before it drops the text."""

    def apply(self, text: str) -> tuple[str, str | None]:
        """See `Rule`."""
        for _, value, needs, limit, reason in self.criteria(text):
            if not HOLDS[needs](value, limit):
                return text, reason
        return text, None

    def measure(self, text: str) -> dict[str, float | str]:
        """The first figure that is beyond its limit, and this."""
        for name, value, needs, limit, _ in self.criteria(text):
            if not HOLDS[needs](value, limit):
                shown = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
                return {name: f"{shown}, needs {needs} {limit:,g}"}
        return {}


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not blank, without the white space around them."""
    return [line for line in map(str.strip, text.split("\n")) if line]


def share(part: float, whole: float) -> float:
    """`part / whole`, and 0 of nothing: a division, so that a share that is exactly a threshold is one."""
    return part / whole if whole else 0.0


def repeated(parts: Sequence[str]) -> tuple[int, int]:
    """How many of `parts` repeat an earlier one, and the sum of their lengths in characters."""
    distinct = set(parts)
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))
