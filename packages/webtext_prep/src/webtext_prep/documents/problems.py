"""Unreadable records put together by what is wrong with them, for the summary of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from command_kit import hide_credentials

PLACES_SHOWN = 3
"""Of each kind of unreadable record, so many are named with their places."""


@dataclass
class Problems:
    """Unreadable records, those of one kind together: a thousand lines without the right key are one sentence.

    Attributes:
        found: reason to the sentence about the first such record, the places of the first few, and their number.
    """

    found: dict[str, tuple[str, list[str], int]] = field(default_factory=dict)

    def add(self, reason: str, sentence: str, places: list[str], count: int = 1) -> None:
        """Count `count` more records, the first of which lie at `places`."""
        first, known, total = self.found.get(reason, (sentence, [], 0))
        shown = [*known, *map(hide_credentials, places)][:PLACES_SHOWN]
        self.found[reason] = (hide_credentials(first), shown, total + count)

    def sentences(self) -> list[str]:
        """One sentence for each kind, the most frequent one first."""
        kinds = sorted(self.found.values(), key=lambda kind: -kind[2])
        return [
            f"{'; '.join(places)}{f' and {count - len(places):,} more' if count > len(places) else ''}: {sentence}."
            for sentence, places, count in kinds
        ]
