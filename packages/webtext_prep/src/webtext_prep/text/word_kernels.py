"""The words of a text as numbers (which are equal, how long, which have a letter), and repeated n-grams of them.

Words are the same as `text.split()`, a dictionary of its words and `str.isalpha`, five times faster.

N-grams are exact: each is numbered by its first n - 1 words and its last one.

Numbers stand for n-grams one to one, unlike hashes. Once all n-grams of a length differ, so do all longer ones; most
texts are done at five words.
"""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from webtext_prep.compiled import compiled, inner

Integers = NDArray[np.int64]

_CHARACTERS = types.Array(types.uint32, 1, "C", readonly=True)
_SPACE, _LETTER = 1, 2
_PLANES = 0x40000
"""Above the fourth plane Unicode has no letters and no white space."""


class Words(NamedTuple):
    """The words of one text.

    Attributes:
        numbers: for each word a number that equal words share, counted up by first occurrence, shape (words,).
        lengths: the length of each in characters, shape (words,).
        with_letter: how many of them have an alphabetic character.
    """

    numbers: Integers
    lengths: Integers
    with_letter: int


@functools.lru_cache(maxsize=1)
def words_of(text: str) -> Words:
    """The words of a text; the last answer is kept, because several rules ask the same."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    numbers = np.empty(len(characters) // 2 + 1, np.int64)
    lengths = np.empty(len(characters) // 2 + 1, np.int64)
    count, with_letter = _split(characters, _kinds(), numbers, lengths)
    return Words(numbers[:count], lengths[:count], with_letter)


@functools.lru_cache(maxsize=1)
def _kinds() -> NDArray[np.uint8]:
    """What `str.isspace` and `str.isalpha` say of each character, as bits; shape (0x110000,)."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    everything = [chr(code) for code in range(_PLANES)]
    kinds[:_PLANES] += np.fromiter(map(str.isalpha, everything), np.uint8, _PLANES) * np.uint8(_LETTER)
    kinds[:_PLANES] += np.fromiter(map(str.isspace, everything), np.uint8, _PLANES) * np.uint8(_SPACE)
    return kinds


@inner
def _equal(characters: NDArray[np.uint32], earlier: int, start: int, end: int) -> bool:
    while start < end and characters[earlier] == characters[start]:
        earlier += 1
        start += 1
    return start == end


@compiled(types.UniTuple(types.int64, 2)(_CHARACTERS, types.uint8[::1], types.int64[::1], types.int64[::1]))
def _split(
    characters: NDArray[np.uint32], kinds: NDArray[np.uint8], numbers: Integers, lengths: Integers
) -> tuple[int, int]:
    """Fill `numbers` and `lengths`; how many words there are, and how many of them have a letter."""
    size = 1024
    slots = np.full(size, -1, np.int64)  # word number by hash
    starts = np.empty(len(numbers), np.int64)  # where a word number was seen first
    hashes = np.empty(len(numbers), np.uint64)
    sizes = np.empty(len(numbers), np.int64)
    count = with_letter = distinct = at = 0
    while at < len(characters):
        if kinds[characters[at]] == _SPACE:
            at += 1
            continue
        start, seen, mixed = at, 0, np.uint64(0)
        while at < len(characters) and kinds[characters[at]] != _SPACE:
            seen |= kinds[characters[at]]
            mixed = (mixed ^ np.uint64(characters[at])) * np.uint64(0x9E3779B97F4A7C15)
            at += 1
        mixed ^= mixed >> np.uint64(32)
        slot = np.int64(mixed & np.uint64(size - 1))
        while slots[slot] >= 0:
            word = slots[slot]
            if hashes[word] == mixed and sizes[word] == at - start and _equal(characters, starts[word], start, at):
                break
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = distinct
            starts[distinct], hashes[distinct], sizes[distinct] = start, mixed, at - start
            distinct += 1
        numbers[count], lengths[count] = slots[slot], at - start
        count += 1
        with_letter += seen >> 1
        if 2 * distinct > size:  # make room
            size *= 4
            slots = np.full(size, -1, np.int64)
            for word in range(distinct):
                slot = np.int64(hashes[word] & np.uint64(size - 1))
                while slots[slot] >= 0:
                    slot = (slot + 1) & (size - 1)
                slots[slot] = word
    return count, with_letter


Floats = NDArray[np.float64]


@inner
def _extend(ngrams: Integers, words: Integers, length: int, keys: NDArray[np.uint64], values: Integers) -> int:
    """Turn the numbers of n-grams into numbers of n-grams one word longer; how many of them there are."""
    mask = len(keys) - 1
    values[:] = -1
    distinct = 0
    for at in range(len(words) - length):
        key = np.uint64(ngrams[at]) << np.uint64(32) | np.uint64(words[at + length])
        mixed = key * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(32)) & mask
        while values[slot] >= 0 and keys[slot] != key:
            slot = (slot + 1) & mask
        if values[slot] < 0:
            keys[slot], values[slot] = key, distinct
            distinct += 1
        ngrams[at] = values[slot]
    return distinct


@inner
def _top_characters(ngrams: Integers, ends: Integers, length: int, distinct: int) -> int:
    """The characters in the most frequent n-gram, spaces between words included; of equally frequent ones the first."""
    count = len(ends) - length
    times, first = np.zeros(distinct, np.int64), np.empty(distinct, np.int64)
    for at in range(count):
        if times[ngrams[at]] == 0:
            first[ngrams[at]] = at
        times[ngrams[at]] += 1
    best = np.argmax(times)
    return times[best] * (ends[first[best] + length] - ends[first[best]] + length - 1)


@inner
def _repeated_characters(ngrams: Integers, ends: Integers, length: int, distinct: int) -> int:
    """The characters of n-grams that were seen before; none of them twice, where such n-grams overlap."""
    count = len(ends) - length
    seen = np.zeros(distinct, np.bool_)
    found = at = 0
    while at < count:
        if seen[ngrams[at]]:
            found += ends[at + length] - ends[at]
            at += length
        else:
            seen[ngrams[at]] = True
            at += 1
    return found


@compiled(types.int64(types.int64[::1], types.int64[::1], types.int64, types.float64[:, ::1], types.float64[:, ::1]))
def repetition(words: Integers, lengths: Integers, characters: int, top: Floats, duplicate: Floats) -> int:
    """The first n whose n-grams pass their limit, or 0.

    Args:
        words: the words' numbers, shape (count,).
        lengths: their lengths in characters, shape (count,).
        characters: the length of the whole text.
        top: rows of n, ascending, and the largest share of characters in the most frequent n-gram.
        duplicate: rows of n, all larger, and the largest share of characters in n-grams that were seen before.
    """
    count = len(words)
    ends = np.zeros(count + 1, np.int64)  # characters in the words before each
    for at in range(count):
        ends[at + 1] = ends[at] + lengths[at]
    size = 16
    while size < 2 * count:
        size *= 2
    keys, values = np.empty(size, np.uint64), np.empty(size, np.int64)
    ngrams, length = words.copy(), 1
    distinct = -1  # not known
    for row in range(len(top)):
        while length < top[row, 0]:
            distinct = _extend(ngrams, words, length, keys, values)
            length += 1
        if length <= count and _top_characters(ngrams, ends, length, distinct) / characters > top[row, 1]:
            return length
    for row in range(len(duplicate)):
        while length < duplicate[row, 0]:
            if distinct == count - length + 1:
                return 0  # all differ, and longer ones as well
            distinct = _extend(ngrams, words, length, keys, values)
            length += 1
        if length <= count and _repeated_characters(ngrams, ends, length, distinct) / characters > duplicate[row, 1]:
            return length
    return 0
