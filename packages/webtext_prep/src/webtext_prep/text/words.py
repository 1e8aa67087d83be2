"""What a word is: the one definition for all that compares or counts words of texts in any script.

`dedup`, `dedup-passages`, `decontaminate`, `train-filter`, `filter`, `ablate`'s held-out passages and the search of
`webtext why` use it. Quality rules have the words of those who published them, mostly what white space divides.

A word is a run of letters, digits and underscores with their marks (General_Category M: accents, vowel signs, viramas).
The joiners U+200C and U+200D count as marks: they stand inside words of Persian and of Indic scripts. A mark without a
letter before it is in no word. Scripts that put no space between words have no such runs: there each letter is a word,
with its marks. These are the letters that Unicode calls ideographic, Han, kana, Bopomofo and Yi (`IDEOGRAPH`); and the
ones with the Line_Break property SA, AK, AP or AS, whose lines break by dictionary or syllable (`SYLLABIC`): Thai, Lao,
Khmer, Burmese, Tai, Javanese, Balinese and more. Tibetan syllables and Ethiopic words have a sign between them. This is
where UAX #29 (Unicode Text Segmentation, 4.1) finds no words without a dictionary; digits of all scripts make runs.

Words are found in a text as it is written, and compared case folded (CaseFolding.txt, full folding). All properties
come from `words.json`, made by `tools/word_characters.py`, and none from the running Python, whose Unicode version
depends on its own: the same text has the same words on every machine.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]

OTHER, LETTER, MARK, IDEOGRAPH, SYLLABIC = range(5)
"""The kinds of characters: between words, of runs, of the word before, and words by themselves."""
SHARES = {IDEOGRAPH: 15, SYLLABIC: 8}
"""What a character that is a word says, in 24ths of a word of a script with spaces: 13 ideographs are some 8 words of
Chinese (1.6 each), and a word of Thai has three letters that are no marks, about."""
WHOLE_WORD = 24
_ASCII_WORD = re.compile(r"\w+", re.ASCII)


class _Table(msgspec.Struct):
    unicode: str
    letters: list[tuple[int, int]]
    marks: list[tuple[int, int]]
    ideographs: list[tuple[int, int]]
    syllabic: list[tuple[int, int]]
    foldings: list[list[int]]


class Characters(NamedTuple):
    """What each code point is.

    Attributes:
        kinds: `OTHER` to `SYLLABIC`, shape (code points,), uint8.
        folded: the code point to which each case folds, or `SEVERAL`, shape (code points,), uint32.
        several: what those fold to.
        unicode: the version of Unicode.
    """

    kinds: npt.NDArray[np.uint8]
    folded: npt.NDArray[np.uint32]
    several: dict[int, str]
    unicode: str


SEVERAL = sys.maxunicode + 1


@functools.lru_cache(maxsize=1)
def characters() -> Characters:
    """The table of all code points; it takes 6 MB."""
    content = resources.files(__package__).joinpath("words.json").read_bytes()
    table = msgspec.json.decode(content, type=_Table)
    kinds = np.zeros(SEVERAL, np.uint8)
    by_kind = {LETTER: table.letters, MARK: table.marks, IDEOGRAPH: table.ideographs, SYLLABIC: table.syllabic}
    for kind, ranges in by_kind.items():
        for first, last in ranges:
            kinds[first : last + 1] = kind
    folded, several = np.arange(SEVERAL, dtype=np.uint32), {}
    for point, *to in table.foldings:
        folded[point] = to[0] if len(to) == 1 else SEVERAL
        if len(to) > 1:
            several[point] = "".join(map(chr, to))
    return Characters(kinds, folded, several, table.unicode)


def fold(text: str) -> str:
    """The text case folded, as `str.casefold` does it in a Python of the table's version of Unicode."""
    if text.isascii():
        return text.lower()
    found = characters().folded[_points(text)]
    if found.max() == SEVERAL:
        return fold(text.translate(characters().several))
    return found.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def words_of(text: str) -> list[str]:
    """The words of a text, case folded, in order."""
    if text.isascii():
        return text.encode("ascii").translate(_ascii_words()).decode("ascii").split()
    points, table = _points(text), characters()
    kinds, folded = table.kinds[points], table.folded[points]
    if kinds.max() > LETTER or folded.max() == SEVERAL:
        whole = fold(text)
        is_same_length = len(whole) == len(text)
        return [whole[start:end] if is_same_length else fold(text[start:end]) for start, end in places_of(text)]
    return np.where(kinds == LETTER, folded, ord(" ")).astype("<u4").tobytes().decode("utf-32-le").split()


def places_of(text: str) -> list[tuple[int, int]]:
    """Where each of `words_of(text)` begins and ends."""
    starts, ends = edges_of(text)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def has_word(text: str) -> bool:
    """Whether there is a word in a text."""
    return _ASCII_WORD.search(text) is not None or (not text.isascii() and len(edges_of(text)[0]) > 0)


def shares(words: Iterable[str]) -> Places:
    """How much each word says, in 24ths of a word of a script with spaces between words: see `SHARES`."""
    kinds = characters().kinds
    return np.array([SHARES.get(int(kinds[ord(word[0])]), WHOLE_WORD) for word in words], np.int64)


def _points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


@functools.lru_cache(maxsize=1)
def _ascii_letters() -> bytes:
    """A table for `bytes.translate`: 1 for each letter of ASCII, or else 0."""
    return characters().kinds[:128].tobytes() + bytes(128)


@functools.lru_cache(maxsize=1)
def _ascii_words() -> bytes:
    """Each byte of ASCII case folded if it is a letter, or else a space."""
    return bytes(
        byte if is_letter else 32 for byte, is_letter in zip(bytes(range(256)).lower(), _ascii_letters(), strict=True)
    )


def _edges_of_runs(letters: bytes) -> tuple[Places, Places]:
    """Where runs of ones begin and end among bytes that are 0 or 1."""
    is_letter = np.frombuffer(b"\0" + letters + b"\0", np.bool_)
    edges = np.flatnonzero(is_letter[1:] != is_letter[:-1])
    return edges[::2], edges[1::2]


def edges_of(text: str) -> tuple[Places, Places]:
    """Where each of `words_of(text)` begins, and where it ends; shape (words,) each."""
    if text.isascii():
        return _edges_of_runs(text.encode("ascii").translate(_ascii_letters()))
    kinds = characters().kinds[_points(text)]
    if kinds.max() <= LETTER:
        return _edges_of_runs(kinds.tobytes())
    # A mark belongs to what is before it: to the last character that is no mark.
    base = np.maximum.accumulate(np.where(kinds != MARK, np.arange(len(kinds)), -1))
    of = np.where(base >= 0, kinds[base], OTHER)
    before = np.append(np.uint8(OTHER), of[:-1])
    begins = (kinds == IDEOGRAPH) | (kinds == SYLLABIC) | ((kinds == LETTER) & (before != LETTER))
    # After its first word a text is words, and what is between two of them: each goes on to the next edge.
    edges = np.flatnonzero(begins | ((of == OTHER) & (before != OTHER)))
    first = np.flatnonzero(begins[edges])
    return edges[first], np.append(edges, len(kinds))[first + 1]
