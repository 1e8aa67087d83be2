"""Fingerprints of texts, by which the documents that hold a passage are found without reading the others.

White space is normalised: words are what it parts. Of the hashes of all runs of 8 words, winnowing keeps about one in
nine: 60 for a document of 500 words, 8 bytes each with its row. A passage of at least 25 words shares a fingerprint
with every document that holds it; a shorter one perhaps.

Winnowing: Schleimer, Wilkerson, Aiken 2003, "Winnowing: Local Algorithms for Document Fingerprinting",
https://doi.org/10.1145/872757.872770, section 3: of each window of hashes the smallest is kept, the last one of equals.
Which ones are kept follows from the window alone: two texts that share a passage share its fingerprints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.text.compiled import compiled

U64: Any = np.uint64
SPACE = 32
PRIME = np.uint64(0x9E3779B185EBCA87)
FOLD = np.uint64(0xC2B2AE3D27D4EB4F)


@compiled
def run_hashes(text: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint32]:
    """The hashes of all runs of `size` words, of a text whose words are separated by single spaces."""
    count = 1 if len(text) else 0
    for byte in text:
        if byte == SPACE:
            count += 1
    words = np.zeros(count, np.uint64)
    word, value = 0, U64(0)
    for byte in text:
        if byte == SPACE:
            words[word] = value
            word, value = word + 1, U64(0)
        else:
            value = (value ^ U64(byte)) * PRIME
            value ^= value >> U64(29)
    if count:
        words[word] = value
    runs = np.zeros(max(0, count - size + 1), np.uint32)
    for first in range(len(runs)):
        value = U64(size)
        for word in range(first, first + size):
            value = (value ^ words[word]) * FOLD
            value ^= value >> U64(31)
        runs[first] = value >> U64(32)
    return runs


@compiled
def winnow(hashes: npt.NDArray[np.uint32], window: int) -> npt.NDArray[np.uint32]:
    """The smallest hash of each window, once for windows that share it; of fewer hashes than a window the smallest."""
    kept = np.zeros(len(hashes), np.uint32)
    count, least = 0, -1
    for last in range(min(window, len(hashes)) - 1, len(hashes)):
        if last < 0:
            break
        first = max(0, last - window + 1)
        before = least
        if least < first:
            least = first
            for place in range(first + 1, last + 1):
                if hashes[place] <= hashes[least]:
                    least = place
        elif hashes[last] <= hashes[least]:
            least = last
        if least != before:
            kept[count] = hashes[least]
            count += 1
    return kept[:count].copy()


RUN = 8
"""Words in a run,"""
WINDOW = 16
"""and runs of which one at least is kept."""
CERTAIN_WORDS = RUN + WINDOW - 1 + 2
"""Words with which a passage is found for certain; its first and last word may be parts of words."""


def fingerprints_of(text: str) -> npt.NDArray[np.uint32]:
    """The fingerprints of a whole document, each once."""
    return np.unique(winnow(_runs(text), WINDOW))


def of_passage(text: str) -> tuple[npt.NDArray[np.uint32], bool]:
    """The hashes that tell of a passage, and whether every document that holds it has all of them.

    Its first and last word are left out: they may be parts of words.
    """
    runs = _runs(" ".join(text.split()[1:-1]))
    is_certain = len(runs) >= WINDOW
    return np.unique(winnow(runs, WINDOW) if is_certain else runs), is_certain


def _runs(text: str) -> npt.NDArray[np.uint32]:
    """The hashes of all runs of words."""
    return run_hashes(np.frombuffer(" ".join(text.split()).encode("utf-8", "surrogatepass"), np.uint8), RUN)
