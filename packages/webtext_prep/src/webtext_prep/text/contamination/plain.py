"""The functions of `matching` without machine code, for few and short texts: the same to the bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


def numbers_of(known: npt.NDArray[np.int32], starts: Array, sizes: npt.NDArray[np.int32]) -> dict[tuple[int, ...], int]:
    """The number of each n-gram, by its words."""
    words = known.tolist()
    spans = zip(starts.tolist(), sizes.tolist(), strict=True)
    return {tuple(words[start : start + size]): number for number, (start, size) in enumerate(spans)}


def find(
    words: npt.NDArray[np.int32], ngrams: dict[tuple[int, ...], int], lengths: Array, chosen: npt.NDArray[np.bool_]
) -> tuple[Array, Array]:
    """See `matching.find`; `ngrams` come from `numbers_of`."""
    own, found = words.tolist(), []
    for at in range(len(own)):
        for length in lengths.tolist():
            number = ngrams.get(tuple(own[at : at + length]), -1)
            if number >= 0 and chosen[number]:
                found.append((at, number))
                break
    positions, numbers = np.array(found, np.int64).reshape(-1, 2).T
    return positions.copy(), numbers.copy()


def any_in(
    values: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], table: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """See `matching.any_in`."""
    hits = np.append(0, np.cumsum(np.isin(np.maximum(values, np.uint64(1)), table)))
    return np.diff(hits[np.append(0, ends)]) > 0
