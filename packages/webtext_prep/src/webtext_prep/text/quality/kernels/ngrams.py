"""Repeated word n-grams of one text, exactly: each n-gram is numbered by its first n - 1 words and its last one.

Numbers stand for n-grams one to one, unlike hashes. Once all n-grams of a length differ, so do all longer ones; most
texts are done at five words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from webtext_prep.text.compiled import compiled

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
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


@compiled
def _extend(ngrams: Integers, words: Integers, length: int, keys: NDArray[np.uint64], values: Integers) -> int:
    """Turn the numbers of n-grams into those of n-grams one word longer; how many of them there are."""
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


@compiled
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


@compiled
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
