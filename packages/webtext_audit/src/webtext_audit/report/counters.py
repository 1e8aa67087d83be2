"""What passes over shards count: figures of documents, of outcomes, and of duplicates, which can be added together.

Counters are of bounded size: a pass over millions of documents keeps them in memory.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from webtext_prep.extraction.outcomes import PageOutcome, has_document

MOST_NAMES = 50_000
"""A `TopCounter` holds at most twice as many names, some 20 MB."""
BINS_PER_DOUBLING = 16
"""A histogram's bins are so fine that a median read from them is off by 2% at most."""


class Figures:
    """A dataclass whose fields can be added up."""

    def merge(self, other: Self) -> None:
        """Add what another pass found: numbers, and values that hold numbers or figures; of texts the first stay."""
        for name, theirs in vars(other).items():
            setattr(self, name, _sum(getattr(self, name), theirs))


def _sum(mine: Any, theirs: Any) -> Any:
    if isinstance(mine, str):
        return mine
    if isinstance(mine, list):
        return [_sum(*pair) for pair in zip(mine, theirs, strict=True)]
    if isinstance(mine, dict):
        for key, value in theirs.items():
            mine[key] = _sum(mine[key], value) if key in mine else value
        return mine
    if isinstance(mine, int | float):
        return mine + theirs
    mine.merge(theirs)
    return mine


@dataclass
class TopCounter:
    """Several numbers for each name (documents, bytes, ...), for the names with most of the first number.

    When there are too many names, the smallest are put together. A name that was put together and comes again
    begins at 0: all names together lack `rest`, and no name lacks more than `lost`.

    Attributes:
        numbers: how many there are for each name.
        names: name to its numbers.
        rest: the numbers of all names that were put together.
        lost: the most that one name may lack of the first number.
    """

    numbers: int = 1
    names: dict[str, list[float]] = field(default_factory=dict)
    rest: list[float] = field(default_factory=list)
    lost: float = 0.0

    def __post_init__(self) -> None:
        self.rest = self.rest or [0.0] * self.numbers

    def add(self, name: str, *values: float) -> None:
        """Add to the numbers of `name`."""
        found = self.names.get(name)
        if found is None:
            self.names[name] = list(values)
            if len(self.names) > 2 * MOST_NAMES:
                self._cut()
        else:
            for at, value in enumerate(values):
                found[at] += value

    def merge(self, other: TopCounter) -> None:
        """Add another counter's numbers."""
        for name, values in other.names.items():
            self.add(name, *values)
        self.rest = [a + b for a, b in zip(self.rest, other.rest, strict=True)]
        self.lost += other.lost

    def _cut(self) -> None:
        ordered = sorted(self.names.items(), key=lambda item: (-item[1][0], item[0]))
        self.names = dict(ordered[:MOST_NAMES])
        gone = [values for _, values in ordered[MOST_NAMES:]]
        self.rest = [sum(column) for column in zip(*gone, self.rest, strict=True)]
        self.lost += gone[0][0]

    @property
    def is_cut(self) -> bool:
        """Whether some names were put together."""
        return self.lost > 0

    def top(self, most: int, by: int = 0) -> list[tuple[str, list[float]]]:
        """The names with most of number `by`, the largest first."""
        return heapq.nsmallest(most, self.names.items(), key=lambda item: (-item[1][by], item[0]))

    def totals(self) -> list[float]:
        """Each number over all names."""
        return [sum(column) for column in zip(*self.names.values(), self.rest, strict=True)]


@dataclass
class LogHistogram(Figures):
    """How often values of each order of magnitude came: bins that grow by a constant factor, and the exact sum.

    >>> lengths = LogHistogram()
    >>> lengths.add(1000)
    >>> lengths.add(0)
    >>> (lengths.count, lengths.total)
    (2, 1000.0)
    """

    bins: dict[int, float] = field(default_factory=dict)
    zeros: float = 0.0
    total: float = 0.0

    def add(self, value: float, times: float = 1.0) -> None:
        """Count `value`, which must not be negative."""
        self.total += value * times
        if value < 1:
            self.zeros += times
        else:
            place = int(math.log2(value) * BINS_PER_DOUBLING)
            self.bins[place] = self.bins.get(place, 0.0) + times

    @property
    def count(self) -> int:
        """The number of values."""
        return round(sum(self.bins.values()) + self.zeros)

    def quantile(self, share: float) -> float:
        """The value below which `share` of the values lie, about."""
        wanted = share * (sum(self.bins.values()) + self.zeros)
        seen = self.zeros
        if seen >= wanted:
            return 0.0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= wanted:
                return float(2 ** ((place + 0.5) / BINS_PER_DOUBLING))
        return 0.0

    def columns(self, wanted: int = 36) -> Iterator[tuple[float, float, float]]:
        """About `wanted` columns of equal ratio, as (from, to, count), without gaps."""
        if not self.bins:
            return
        first, last = min(self.bins), max(self.bins)
        step = next((step for step in (2, 4, 8, 16, 32) if (last - first) / step <= wanted), 64)
        sums: dict[int, float] = {}
        for place, times in self.bins.items():
            sums[place // step] = sums.get(place // step, 0.0) + times
        for column in range(first // step, last // step + 1):
            low, high = (2 ** (edge * step / BINS_PER_DOUBLING) for edge in (column, column + 1))
            yield low, high, sums.get(column, 0.0)


@dataclass
class Lowest:
    """The entries with the lowest keys: with hashes for keys, a sample that does not depend on the order.

    Attributes:
        most: how many are kept.
        entries: (key, entry), in the order of the keys.
    """

    most: int
    entries: list[tuple[int, Any]] = field(default_factory=list)

    def wants(self, key: int) -> bool:
        """Whether an entry with this key would be kept now."""
        return len(self.entries) < self.most or key < self.entries[-1][0]

    def add(self, key: int, entry: Any) -> None:
        """Keep `entry` if its key is among the lowest; one key is kept once."""
        if self.wants(key) and all(key != other for other, _ in self.entries):
            self.entries = sorted([*self.entries, (key, entry)], key=lambda item: item[0])[: self.most]

    def merge(self, other: Lowest) -> None:
        """Add another sample's entries."""
        for key, entry in other.entries:
            self.add(key, entry)

    def ordered(self) -> list[Any]:
        """The entries by their keys."""
        return [entry for _, entry in self.entries]


KEPT_EXAMPLES = 3

GROUPS = ("ok", "archived", "client", "server", "robots", "network", "content")
"""What outcomes are put together as, in the order of the bars."""
_NETWORK = frozenset(
    {
        PageOutcome.BLOCKED_ADDRESS,
        PageOutcome.DNS,
        PageOutcome.NO_SUCH_HOST,
        PageOutcome.CONNECTION,
        PageOutcome.TLS,
        PageOutcome.TIMEOUT,
        PageOutcome.HOST_DOWN,
    }
)


def group_of(outcome: str) -> str:
    """The member of `GROUPS` that an outcome belongs to.

    >>> group_of("http_404"), group_of("timeout"), group_of("empty")
    ('client', 'network', 'content')
    """
    if has_document(outcome):
        return outcome
    if outcome.startswith("http_"):
        return "server" if outcome.startswith("http_5") else "client"
    if outcome.startswith("robots") or outcome == PageOutcome.OPTED_OUT:
        return "robots"
    return "network" if outcome in _NETWORK else "content"


@dataclass
class DocumentFigures(Figures):
    """What some documents are, all together.

    Attributes:
        documents: how many were read.
        bytes: of their texts, in UTF-8.
        counted: bytes of the texts whose tokens were counted, and the tokens.
        lengths: characters.
        domains: documents, bytes, and of the counted texts bytes and tokens.
        languages: documents.
        kinds: of pages: documents and bytes.
        refusals: of documents whose owners refuse training, by signal: as of `domains`.
        odd: of pages by language and kind: documents, short ones, those of which is known what share of their page
            they are, and those that are nearly all of it.
        examples: a few documents, as JSON-like values.
    """

    documents: int = 0
    bytes: int = 0
    counted: list[float] = field(default_factory=lambda: [0.0, 0.0])
    lengths: LogHistogram = field(default_factory=LogHistogram)
    domains: TopCounter = field(default_factory=lambda: TopCounter(4))
    languages: TopCounter = field(default_factory=TopCounter)
    kinds: TopCounter = field(default_factory=lambda: TopCounter(2))
    refusals: TopCounter = field(default_factory=lambda: TopCounter(4))
    odd: TopCounter = field(default_factory=lambda: TopCounter(4))
    examples: Lowest = field(default_factory=lambda: Lowest(KEPT_EXAMPLES))

    def tokens_in(self, bytes_: float, counted_bytes: float = 0.0, counted_tokens: float = 0.0) -> float:
        """The tokens of a number of bytes: as many a byte as where they were counted, or else as many as in all."""
        if counted_bytes:
            return bytes_ * counted_tokens / counted_bytes
        return bytes_ * self.counted[1] / self.counted[0] if self.counted[0] else 0.0


@dataclass
class OutcomeFigures(Figures):
    """How the URLs of a download ended.

    Attributes:
        outcomes: URLs by outcome.
        hosts: URLs of a host: all, and of each of `GROUPS`.
        refusals: URLs that owners refuse, by signal and host, with a tab between.
        examples: outcome to a few URLs.
    """

    outcomes: TopCounter = field(default_factory=TopCounter)
    hosts: TopCounter = field(default_factory=lambda: TopCounter(1 + len(GROUPS)))
    refusals: TopCounter = field(default_factory=TopCounter)
    examples: dict[str, Lowest] = field(default_factory=dict)


@dataclass
class DuplicateFigures(Figures):
    """What duplicates what.

    Attributes:
        rows: dropped documents, or passages that were cut out.
        similarities: of documents, by per cent, rounded down.
        groups: rows by what stays: its URL, and of a passage where in it that begins.
        matches: the URL of what stays, to a passage that one of its group has, too.
        examples: some rows.
    """

    rows: int = 0
    similarities: dict[int, int] = field(default_factory=dict)
    groups: TopCounter = field(default_factory=TopCounter)
    matches: dict[str, str] = field(default_factory=dict)
    examples: Lowest = field(default_factory=lambda: Lowest(4))

    def merge(self, other: Self) -> None:
        """See `Figures`."""
        super().merge(other)
        self.forget()

    def forget(self) -> None:
        """Leave out passages of groups that are no longer counted by themselves."""
        self.matches = {name: match for name, match in self.matches.items() if name in self.groups.names}
