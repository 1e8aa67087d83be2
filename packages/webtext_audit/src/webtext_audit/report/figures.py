"""What passes over shards count: figures of documents, of outcomes, and of duplicates, which can be added together."""

from __future__ import annotations

from dataclasses import dataclass, field

from webtext_audit.report.counting import LogHistogram, Lowest, TopCounter
from webtext_prep.extraction.outcomes import PageOutcome

KEPT_EXAMPLES = 3

GROUPS = ("ok", "client", "server", "robots", "network", "content")
"""What outcomes are put together as, in the order of the bars."""
_NETWORK = frozenset(
    {
        PageOutcome.BLOCKED_ADDRESS,
        PageOutcome.DNS,
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
    if outcome == PageOutcome.OK:
        return "ok"
    if outcome.startswith("http_"):
        return "server" if outcome.startswith("http_5") else "client"
    if outcome.startswith("robots"):
        return "robots"
    return "network" if outcome in _NETWORK else "content"


@dataclass
class DocumentFigures:
    """What some documents are, all together.

    Attributes:
        documents: how many were read.
        bytes: of their texts, in UTF-8.
        counted: bytes of the texts of which tokens were counted, and those tokens.
        lengths: characters.
        domains: documents, bytes, and of those that were counted bytes and tokens.
        languages: documents.
        examples: a few documents, as JSON-like values.
    """

    documents: int = 0
    bytes: int = 0
    counted: list[float] = field(default_factory=lambda: [0.0, 0.0])
    lengths: LogHistogram = field(default_factory=LogHistogram)
    domains: TopCounter = field(default_factory=lambda: TopCounter(4))
    languages: TopCounter = field(default_factory=TopCounter)
    examples: Lowest = field(default_factory=lambda: Lowest(KEPT_EXAMPLES))

    def merge(self, other: DocumentFigures) -> None:
        """Add what another pass found."""
        self.documents += other.documents
        self.bytes += other.bytes
        self.counted = [a + b for a, b in zip(self.counted, other.counted, strict=True)]
        for name in ("lengths", "domains", "languages", "examples"):
            getattr(self, name).merge(getattr(other, name))

    def tokens_in(self, bytes_: float, counted_bytes: float = 0.0, counted_tokens: float = 0.0) -> float:
        """The tokens of so many bytes: as many a byte as where they were counted, or else as many as in all."""
        if counted_bytes:
            return bytes_ * counted_tokens / counted_bytes
        return bytes_ * self.counted[1] / self.counted[0] if self.counted[0] else 0.0


@dataclass
class OutcomeFigures:
    """How the URLs of a download ended.

    Attributes:
        outcomes: URLs by outcome.
        hosts: URLs of a host: all, and those of each of `GROUPS`.
        examples: outcome to a few URLs.
    """

    outcomes: TopCounter = field(default_factory=TopCounter)
    hosts: TopCounter = field(default_factory=lambda: TopCounter(1 + len(GROUPS)))
    examples: dict[str, Lowest] = field(default_factory=dict)

    def merge(self, other: OutcomeFigures) -> None:
        """Add what another pass found."""
        self.outcomes.merge(other.outcomes)
        self.hosts.merge(other.hosts)
        for outcome, urls in other.examples.items():
            self.examples.setdefault(outcome, Lowest(3)).merge(urls)


@dataclass
class DuplicateFigures:
    """What duplicates what.

    Attributes:
        rows: dropped documents.
        similarities: by per cent, rounded down.
        groups: dropped documents by the URL of what stays.
        matches: the URL of what stays, to a passage that one of its group has, too.
        examples: some rows.
    """

    rows: int = 0
    similarities: dict[int, int] = field(default_factory=dict)
    groups: TopCounter = field(default_factory=TopCounter)
    matches: dict[str, str] = field(default_factory=dict)
    examples: Lowest = field(default_factory=lambda: Lowest(4))

    def merge(self, other: DuplicateFigures) -> None:
        """Add what another pass found."""
        self.rows += other.rows
        for percent, rows in other.similarities.items():
            self.similarities[percent] = self.similarities.get(percent, 0) + rows
        self.groups.merge(other.groups)
        self.matches = {**other.matches, **self.matches}
        self.forget()
        self.examples.merge(other.examples)

    def forget(self) -> None:
        """Leave out passages of groups that are no longer counted by themselves."""
        self.matches = {name: match for name, match in self.matches.items() if name in self.groups.names}
