"""Fingerprints of texts, by which the documents that hold a passage are found without reading the others.

White space is normalised: words are what it parts. Of the hashes of all runs of 8 words, winnowing keeps about one in
nine: 60 for a document of 500 words, 8 bytes each with its row. A passage of at least 25 words shares a fingerprint
with every document that holds it; a shorter one perhaps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RUN = 8
"""Words in a run,"""
WINDOW = 16
"""and runs of which one at least is kept."""
CERTAIN_WORDS = RUN + WINDOW - 1 + 2
"""A passage with so many words is found for certain; its first and last word may be parts of words."""


def normalised(text: str) -> str:
    """A text with single spaces for all its white space."""
    return " ".join(text.split())


class Fingerprints:
    """Computes fingerprints. Making it loads compiled code, about a second."""

    def __init__(self) -> None:
        from webtext_audit.lookup.index import run_hashes, winnow

        self._runs, self._winnow = run_hashes, winnow

    def of(self, text: str) -> npt.NDArray[np.uint32]:
        """The fingerprints of a whole document, each once."""
        kept: npt.NDArray[np.uint32] = np.unique(self._winnow(self.runs(text), WINDOW))
        return kept

    def runs(self, text: str) -> npt.NDArray[np.uint32]:
        """The hashes of all runs of words."""
        data = np.frombuffer(normalised(text).encode("utf-8", "surrogatepass"), np.uint8)
        found: npt.NDArray[np.uint32] = self._runs(data, RUN)
        return found

    def of_passage(self, text: str) -> tuple[npt.NDArray[np.uint32], bool]:
        """The hashes that tell of a passage, and whether every document that holds it has all of them.

        Its first and last word are left out: they may be parts of words.
        """
        inner = " ".join(text.split()[1:-1])
        runs = self.runs(inner)
        if len(runs) >= WINDOW:
            return np.unique(self._winnow(runs, WINDOW)), True
        return np.unique(runs), False
