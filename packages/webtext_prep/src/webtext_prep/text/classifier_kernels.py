"""A linear classifier on hashed n-grams of words, in compiled code: which buckets count, learning, scores.

The score is a logistic function of the mean weight of a text's different n-grams: fastText's classifier (Joulin et al.
2016, "Bag of Tricks for Efficient Text Classification") has a mean of vectors there, of which with two classes only one
direction counts. No bias is needed: a constant on all weights is one.

Sums are made in one order, and the exponential is made of sums and products, so that the same texts give the same
weights on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import compiled, inner

U32 = np.uint32
Offsets = npt.NDArray[np.int64]
Buckets = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

signed: Any = np.int64
_U32S, _I64S, _F64S = types.uint32[::1], types.int64[::1], types.float64[::1]
_WEIGHTS = types.Array(types.float32, 1, "C", readonly=True)
NO_BUCKET = U32(0xFFFFFFFF)


@inner
def logistic(value: float) -> float:
    """1 / (1 + exp(-value)): the exponential of a 1,024th, by its Taylor series, squared ten times."""
    part = -min(abs(value), 40.0) / 1024.0  # a larger one makes no difference to a score
    power = 1.0 + part * (1.0 + part / 2.0 * (1.0 + part / 3.0 * (1.0 + part / 4.0)))
    for _ in range(10):
        power *= power
    return 1.0 / (1.0 + power) if value >= 0.0 else power / (1.0 + power)


@inner
def _keep_distinct(buckets: Buckets, start: int, end: int, to: int, table: Buckets) -> int:
    """Move each bucket of `buckets[start:end]` once, at its first place, to `buckets[to:]`; returns the new end.

    `table` is room for four times as many.
    """
    size = 16
    while size < 2 * (end - start):
        size *= 2
    for slot in range(size):
        table[slot] = NO_BUCKET
    filled = to
    for at in range(start, end):
        bucket = buckets[at]
        slot = signed(U32(U32(bucket * U32(0x9E3779B1)) >> U32(8))) & (size - 1)
        while table[slot] != NO_BUCKET and table[slot] != bucket:
            slot = (slot + 1) & (size - 1)
        if table[slot] == NO_BUCKET:
            table[slot] = bucket
            buckets[filled] = bucket
            filled += 1
    return filled


@compiled(types.void(_U32S, _I64S))
def keep_distinct(buckets: Buckets, ends: Offsets) -> None:
    """Leave each bucket once in its text, at its first place, and close the gaps, in place; `ends` is updated."""
    longest, start = signed(0), signed(0)
    for end in ends:
        longest = max(longest, end - start)
        start = end
    table = np.empty(4 * longest + 16, np.uint32)
    start, filled = signed(0), signed(0)
    for row in range(len(ends)):
        filled = _keep_distinct(buckets, start, ends[row], filled, table)
        start, ends[row] = ends[row], filled


@compiled(types.float64(_U32S, types.int64, types.int64, _WEIGHTS))
def score(buckets: Buckets, start: int, end: int, weights: Weights) -> float:
    """The score of the text whose n-grams are `buckets[start:end]`."""
    total = 0.0
    for at in range(start, end):
        total += weights[buckets[at]]
    return logistic(total / max(end - start, 1))


@compiled(_F64S(_U32S, _I64S, _WEIGHTS))
def scores_of(buckets: Buckets, ends: Offsets, weights: Weights) -> Floats:
    """The score of each text, from 0 to 1; one half for a text without words."""
    scores, start = np.empty(len(ends), np.float64), signed(0)
    for row in range(len(ends)):
        scores[row] = score(buckets, start, ends[row], weights)
        start = ends[row]
    return scores


@compiled(types.float32[::1](_U32S, _I64S, _I64S, _F64S, _F64S, types.int64, types.float64, types.int64))
def learn(
    buckets: Buckets,
    starts: Offsets,
    ends: Offsets,
    targets: Floats,
    shares: Floats,
    epochs: int,
    rate: float,
    bits: int,
) -> Weights:
    """The weights that stochastic gradient descent on the logistic loss finds, shape (buckets,).

    A step is divided by the squared length of the text's vector, so that it moves the text's own logit by `rate` times
    the error, whatever the length of the text ("normalised" descent: Nagumo and Noda 1967); it falls to 0 in a line.
    As n-grams count once, that length is one over their number, which cancels out.

    Args:
        buckets: of the n-grams of all texts, each once in its text.
        starts, ends: which of them are those of each text, in the order in which they are learned from.
        targets: 1 or 0 for each text.
        shares: what a step of each text is multiplied with.
        epochs: how often all texts are gone through.
        rate: of the first step.
        bits: there are 2**bits weights.
    """
    weights = np.zeros(1 << bits, np.float32)
    done = 0
    for _ in range(epochs):
        for row in range(len(ends)):
            left = 1.0 - done / (epochs * len(ends))
            done += 1
            error = targets[row] - score(buckets, starts[row], ends[row], weights)
            step = np.float32(rate * left * shares[row] * error)
            for at in range(starts[row], ends[row]):
                weights[buckets[at]] += step
    return weights
