"""Compiled: an index of n-grams of word numbers, and where they stand in a document.

Looking up takes one hash per word and length of n-gram, only where as many known words follow one another; what a
hash finds is compared word by word.

Words as contamination is counted in them: runs of letters, digits and underscores, in lower case.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from webtext_prep.text.compiled import compiled

Array = npt.NDArray[np.int64]


@compiled
def _hash(words: npt.NDArray[np.int32], start: int, size: int) -> np.uint64:
    """FNV-1a over whole words, with a last mixing step (that of MurmurHash3)."""
    value = np.uint64(0xCBF29CE484222325)
    for at in range(start, start + size):
        value = (value ^ np.uint64(words[at])) * np.uint64(0x100000001B3)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    return value ^ (value >> np.uint64(33))


@compiled
def _find(words, start, size, known, starts, sizes, table):  # type: ignore[no-untyped-def]
    """The number of the n-gram at `start` of `words`, or minus one minus the slot in which it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = _hash(words, start, size) & mask
    while table[slot] >= 0:
        number = table[slot]
        if sizes[number] == size:
            first, same = starts[number], True
            for at in range(size):
                if known[first + at] != words[start + at]:
                    same = False
                    break
            if same:
                return number
        slot = (slot + np.uint64(1)) & mask
    return -1 - np.int64(slot)


@compiled
def _fill(words, ends, size, starts, sizes, texts, table) -> int:  # type: ignore[no-untyped-def]
    found, begin = 0, 0
    for text in range(len(ends)):
        own = min(size, ends[text] - begin)
        for start in range(begin, ends[text] - own + 1):
            slot = _find(words, start, own, words, starts, sizes, table)
            if slot < 0:
                table[-1 - slot] = found
                starts[found], sizes[found], texts[found] = start, own, text
                found += 1
        begin = ends[text]
    return found


def index(
    words: npt.NDArray[np.int32], ends: Array, size: int
) -> tuple[Array, npt.NDArray[np.int32], npt.NDArray[np.int32], Array]:
    """(starts, sizes, texts, table) of the distinct n-grams of texts that end at `ends` of `words`; see `NGrams`."""
    most = len(words)
    starts, sizes, texts = np.zeros(most, np.int64), np.zeros(most, np.int32), np.zeros(most, np.int32)
    table = np.full(1 << max(4, (2 * most).bit_length()), -1, np.int64)
    found = _fill(words, ends, size, starts, sizes, texts, table)
    return starts[:found].copy(), sizes[:found].copy(), texts[:found].copy(), table


@compiled
def find(words, known, starts, sizes, table, lengths, chosen) -> tuple[Array, Array]:  # type: ignore[no-untyped-def]
    """(positions, n-gram numbers) of the n-grams in a document, at each position the longest.

    Args:
        words: numbers of the document's words, -1 for words that no n-gram has, int32.
        known, starts, sizes, table: of `NGrams`.
        lengths: the sizes of n-grams that there are, falling, int64.
        chosen: which n-grams count, shape (n-grams,), bool.
    """
    count = len(words)
    positions, numbers = np.empty(count, np.int64), np.empty(count, np.int64)
    run = np.zeros(count + 1, np.int64)
    for at in range(count - 1, -1, -1):
        run[at] = run[at + 1] + 1 if words[at] >= 0 else 0
    found = 0
    for at in range(count):
        for length in lengths:
            if run[at] >= length:
                number = _find(words, at, length, known, starts, sizes, table)
                if number >= 0 and chosen[number]:
                    positions[found], numbers[found] = at, number
                    found += 1
                    break
    return positions[:found].copy(), numbers[:found].copy()


@compiled
def _add_all(values, table):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    for value in values:
        slot = value & mask
        while table[slot] != 0 and table[slot] != value:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = value


def hash_set(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A set of hashes as an open-addressing table, at most half full; 0 is an empty slot, and taken for 1."""
    table = np.zeros(1 << max(4, (2 * len(values)).bit_length()), np.uint64)
    _add_all(np.maximum(values, np.uint64(1)), table)
    return table


@compiled
def any_in(values, ends, table):  # type: ignore[no-untyped-def]
    """Of each range of `values`, which end at `ends`, whether one of its hashes is in the set; shape (ranges,)."""
    mask, found, begin = np.uint64(len(table) - 1), np.zeros(len(ends), np.bool_), 0
    for row in range(len(ends)):
        for at in range(begin, ends[row]):
            value = max(values[at], np.uint64(1))
            slot = value & mask
            while table[slot] != 0 and table[slot] != value:
                slot = (slot + np.uint64(1)) & mask
            if table[slot] == value:
                found[row] = True
                break
        begin = ends[row]
    return found


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
