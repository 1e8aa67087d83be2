"""The functions of `matching` without machine code, for few and short texts: the same to the bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]
_MASK = (1 << 64) - 1


def _hash(words: tuple[int, ...]) -> int:
    value = 0xCBF29CE484222325
    for word in words:
        value = (value ^ word) * 0x100000001B3 & _MASK
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    return value ^ (value >> 33)


def index(
    words: npt.NDArray[np.int32], ends: Array, size: int
) -> tuple[Array, npt.NDArray[np.int32], npt.NDArray[np.int32], Array]:
    """See `matching.index`."""
    table = np.full(1 << max(4, (2 * len(words)).bit_length()), -1, np.int64)
    known: set[tuple[int, ...]] = set()
    rows: list[tuple[int, int, int]] = []
    numbers, begin = words.tolist(), 0
    for text, end in enumerate(ends.tolist()):
        own = min(size, end - begin)
        for start in range(begin, end - own + 1):
            ngram = tuple(numbers[start : start + own])
            if ngram in known:
                continue
            known.add(ngram)
            slot = _hash(ngram) & (len(table) - 1)
            while table[slot] >= 0:
                slot = (slot + 1) & (len(table) - 1)
            table[slot] = len(rows)
            rows.append((start, own, text))
        begin = end
    starts, sizes, texts = np.array(rows, np.int64).reshape(-1, 3).T
    return starts.copy(), sizes.astype(np.int32), texts.astype(np.int32), table


def numbers_of(known: npt.NDArray[np.int32], starts: Array, sizes: npt.NDArray[np.int32]) -> dict[tuple[int, ...], int]:
    """The number of each n-gram, by its words."""
    words = known.tolist()
    spans = zip(starts.tolist(), sizes.tolist(), strict=True)
    return {tuple(words[start : start + size]): number for number, (start, size) in enumerate(spans)}


def find(
    words: npt.NDArray[np.int32], ngrams: dict[tuple[int, ...], int], lengths: Array, chosen: npt.NDArray[np.bool_]
) -> tuple[Array, Array]:
    """See `matching.find`; `ngrams` are those of `numbers_of`."""
    own, found = words.tolist(), []
    for at in range(len(own)):
        for length in lengths.tolist():
            number = ngrams.get(tuple(own[at : at + length]), -1)
            if number >= 0 and chosen[number]:
                found.append((at, number))
                break
    positions, numbers = np.array(found, np.int64).reshape(-1, 2).T
    return positions.copy(), numbers.copy()


def hash_set(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """See `matching.hash_set`."""
    table = np.zeros(1 << max(4, (2 * len(values)).bit_length()), np.uint64)
    filled: dict[int, int] = {}
    for value in np.maximum(values, np.uint64(1)).tolist():
        slot = value & (len(table) - 1)
        while filled.get(slot, value) != value:
            slot = (slot + 1) & (len(table) - 1)
        filled[slot] = value
    table[list(filled)] = list(filled.values())
    return table


def any_in(
    values: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], table: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """See `matching.any_in`."""
    hits = np.append(0, np.cumsum(np.isin(np.maximum(values, np.uint64(1)), table)))
    return np.diff(hits[np.append(0, ends)]) > 0
