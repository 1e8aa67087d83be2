"""Suffixes of few tokens in order, by numpy alone: in time that loading machine code would take.

Manber, Myers 1993, "Suffix Arrays: A New Method for On-Line String Searches", https://doi.org/10.1137/0222058: what is
in the order of its first h tokens is brought into that of its first 2h by the ranks of the suffixes h further on. Only
those are sorted again that are still equal to another. 0.3 microseconds a token of ordinary text, some 3 where all
tokens are the same; 60 bytes a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def document_suffixes(tokens: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """The positions of all tokens, in the order of the suffixes that begin there: see `suffix_sorting`."""
    count = len(tokens)
    if not count:
        return np.zeros(0, np.uint32)
    limits = np.repeat(ends, np.diff(ends, prepend=0)).astype(np.int32)
    keys, done = _first_keys(tokens, limits)
    order = np.argsort(keys, kind="stable")  # equal suffixes stay in the order of the text
    is_first = _changes(keys[order])  # of suffixes that are equal so far
    del keys
    ranks = np.empty(count, np.int32)
    ranks[order] = np.maximum.accumulate(np.where(is_first, np.arange(count, dtype=np.int32), 0))
    while True:
        places = np.flatnonzero(~(is_first & np.append(is_first[1:], True)))
        own = order[places]
        further = own + done
        is_inside = further < limits[own]
        if not is_inside.any():
            return order.astype(np.uint32)
        after = np.where(is_inside, ranks[np.minimum(further, count - 1)] + 1, 0)
        keys = ranks[own].astype(np.int64) * (count + 1) + after
        sorting = np.argsort(keys, kind="stable")
        order[places] = own[sorting]
        starts = _changes(keys[sorting])
        is_first[places] = starts
        ranks[order[places]] = np.maximum.accumulate(np.where(starts, places, 0))
        done *= 2


def _changes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which values differ from the one before them; the first one does."""
    return np.append(True, values[1:] != values[:-1])


def _first_keys(tokens: npt.NDArray[Any], limits: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], int]:
    """As many tokens from each position on as fit into one number, 0 after a document's end; and how many."""
    letters = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    bits = int(letters.max()).bit_length()
    done = min(63 // bits, len(tokens))
    places = np.arange(len(tokens), dtype=np.int32)
    keys = np.zeros(len(tokens), np.int64)
    for step in range(done):
        keys <<= bits
        size = len(tokens) - step
        keys[:size] |= np.where(places[step:] < limits[:size], letters[step:], 0)
    return keys, done
