"""Words as contamination is counted in them: runs of letters, digits and underscores, in lower case."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of `text` in lower case, in order."""
    if text.isascii():
        return _WORD.findall(text.lower())
    # Each by itself: lower-casing a whole text may split a word (a dotted capital I becomes two characters).
    return [word.lower() for word in _WORD.findall(text)]


def places_of(text: str) -> list[tuple[int, int]]:
    """Where each of `words_of(text)` begins and ends."""
    return [found.span() for found in _WORD.finditer(text)]
