"""Unreadable records put together by what is wrong with them, for the summary of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from command_kit import hide_credentials
from webtext_prep.errors import InputError

PLACES_SHOWN = 3
"""Of each kind of unreadable record, so many are named with their places."""

UNREADABLE_SHARE = 0.1
"""More unreadable records than this share of all are an error."""


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

    def check(self, unreadable: int, read: int, records: str, *, is_allowed: bool) -> None:
        """Raise InputError if a tenth of all `records` (how messages call them) are unreadable, unless it is allowed.

        Where so many are, the keys or the files are wrong.
        """
        if unreadable > UNREADABLE_SHARE * read and not is_allowed:
            first = " ".join(self.sentences()[:3])
            raise InputError(
                f"{unreadable:,} of {read:,} {records} could not be read: {first} Nothing was written: correct the "
                "input, or the settings (and give --restart), or accept the loss with --allow-unreadable."
            )
