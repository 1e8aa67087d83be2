"""New documents beside old ones, which are compared with the new ones but not with each other."""

from __future__ import annotations

import sys
from typing import NamedTuple

LOSERS = ("new", "old", "shorter")
"""Which of a new and an old document that are alike may go."""


class Against(NamedTuple):
    """The old documents of a corpus.

    Attributes:
        first: the number of the first of them; they come after all new documents.
        loses: one of `LOSERS`.
    """

    first: int
    loses: str = LOSERS[0]


NOTHING = Against(sys.maxsize)
"""All documents are new."""
