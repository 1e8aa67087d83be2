"""Compiled: where n-grams of word numbers stand in a document.

Looking up takes one hash per word and length of n-gram, only where as many known words follow one another; what a
hash finds is compared word by word.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import compiled, inner

Array = npt.NDArray[np.int64]
_I32S, _I64S = types.int32[::1], types.int64[::1]


@inner
def _hash(words: npt.NDArray[np.int32], start: int, size: int) -> np.uint64:
    """See `contamination.ngram_hashes`."""
    value = np.uint64(0xCBF29CE484222325)
    for at in range(start, start + size):
        value = (value ^ np.uint64(words[at])) * np.uint64(0x100000001B3)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    return value ^ (value >> np.uint64(33))


@inner
def _find(words, start, size, known, starts, sizes, table):  # type: ignore[no-untyped-def]
    """The number of the n-gram at `start` of `words`, or -1."""
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
    return -1


@compiled(types.UniTuple(_I64S, 2)(_I32S, _I32S, _I64S, _I32S, _I64S, _I64S, types.boolean[::1]))
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


@compiled(types.boolean[::1](types.uint64[::1], types.int64[::1], types.uint64[::1]))
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
