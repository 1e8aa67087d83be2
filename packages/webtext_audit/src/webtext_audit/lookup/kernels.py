"""Fingerprints of a text in compiled code: the hashes of its runs of words, and which of them winnowing keeps.

Winnowing: Schleimer, Wilkerson, Aiken 2003, "Winnowing: Local Algorithms for Document Fingerprinting",
https://doi.org/10.1145/872757.872770, section 3: of each window of hashes the smallest is kept, the last one of equals.
Which ones are kept follows from the window alone: two texts that share a passage share its fingerprints.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from webtext_audit.lookup.index import U64
from webtext_prep.text.compiled import compiled

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
