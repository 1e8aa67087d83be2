"""What Python makes of each code point, as tables for compiled code: how it case-folds, and what belongs to a word.

The tables come from the running interpreter (`str.casefold`, `re`, `str.isspace`), whose Unicode version thus decides
here as well. They are made once a process, in some 80 ms, and take 6 MB each.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SEPARATOR, SEQUENCE = 0, 255


class Alphabet(NamedTuple):
    """How to cut text into parts (words, or runs of visible characters) and fold them.

    Attributes:
        sizes: shape (code points,), uint8: how many bytes of UTF-8 a code point folds to; `SEPARATOR` if it is no part
            of a part, and `SEQUENCE` if it folds to several code points.
        codes: shape (code points,), uint32: those bytes, the first one lowest; a space for a separator; for a
            sequence its row in the following two.
        sequence_sizes: shape (sequences, 3), uint8: sizes of its code points, as above, or 254 after the last one.
        sequence_codes: shape (sequences, 3), uint32: their bytes.
    """

    sizes: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.uint32]
    sequence_sizes: npt.NDArray[np.uint8]
    sequence_codes: npt.NDArray[np.uint32]


NO_MORE = 254


def _utf8(points: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """How many bytes each code point has in UTF-8 (surrogates too), and these, the first one lowest."""
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    codes = points.copy()
    for size, lead in ((2, 0xC0), (3, 0xE0), (4, 0xF0)):
        chosen = sizes == size
        found = points[chosen]
        code = lead | found >> 6 * (size - 1)
        for place in range(1, size):
            code |= (0x80 | found >> 6 * (size - 1 - place) & 0x3F) << 8 * place
        codes[chosen] = code
    return sizes.astype(np.uint8), codes


@functools.lru_cache(maxsize=1)
def _foldings() -> tuple[str, npt.NDArray[np.uint32], dict[int, str]]:
    """All code points as one text; the one to which each folds; and, of those that fold to several, which."""
    points = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    everything = points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    several = {}
    for start in range(0, len(points), 256):
        characters = everything[start : start + 256]
        if characters.casefold() != characters:
            for character in characters:
                folded = character.casefold()
                if len(folded) == 1:
                    points[ord(character)] = ord(folded)
                else:
                    several[ord(character)] = folded
    return everything, points, several


@functools.lru_cache(maxsize=2)
def alphabet(kind: str) -> Alphabet:
    """The tables for `word` (parts match the regular expression \\w+) or `char` (parts are what `str.split` gives)."""
    part = re.compile(r"\w+" if kind == "word" else r"\S+")
    everything, points, several = _foldings()
    is_part = np.zeros(len(points), np.bool_)
    for found in part.finditer(everything):
        is_part[found.start() : found.end()] = True
    sizes, codes = _utf8(points)
    separators = ~is_part[points]
    sizes[separators], codes[separators] = SEPARATOR, ord(" ")
    sequence_sizes = np.full((len(several), 3), NO_MORE, np.uint8)
    sequence_codes = np.zeros((len(several), 3), np.uint32)
    for row, (point, folded) in enumerate(several.items()):
        sizes[point], codes[point] = SEQUENCE, row
        found_sizes, found_codes = _utf8(np.array([ord(character) for character in folded], np.uint32))
        for place, character in enumerate(folded):
            kept = is_part[ord(character)]
            sequence_sizes[row, place] = found_sizes[place] if kept else SEPARATOR
            sequence_codes[row, place] = found_codes[place] if kept else ord(" ")
    return Alphabet(sizes, codes, sequence_sizes, sequence_codes)
