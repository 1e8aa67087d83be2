"""A linear classifier on hashed n-grams of words, in compiled code: n-grams to buckets, learning, scores.

A text's n-grams are ranges of its normal form, as for MinHash, and each is hashed in place by XXH3. The score is a
logistic function of the mean weight of its different n-grams: fastText's classifier (Joulin et al. 2016, "Bag of Tricks
for Efficient Text Classification") has a mean of vectors there, of which with two classes only one direction counts. No
bias is needed: a constant on all weights is one.

Sums are made in one order, and the exponential is made of sums and products, so that the same texts give the same
weights on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from webtext_prep.text.compiled import compiled
from webtext_prep.text.fingerprint_kernels import Alphabet, Offsets, Space, normalise, signed
from webtext_prep.text.hashes import U32, U64, Bytes, xxh3

Buckets = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

NO_BUCKET = U32(0xFFFFFFFF)
_LARGEST = 40.0
"""A larger exponent makes no difference to a score."""
_HALVINGS = 10


@compiled
def logistic(value: float) -> float:
    """1 / (1 + exp(-value)): the exponential of a 1,024th, by its Taylor series, squared ten times."""
    part = -min(abs(value), _LARGEST) / 1024.0
    power = 1.0 + part * (1.0 + part / 2.0 * (1.0 + part / 3.0 * (1.0 + part / 4.0)))
    for _ in range(_HALVINGS):
        power *= power
    return 1.0 / (1.0 + power) if value >= 0.0 else power / (1.0 + power)


class Grams(NamedTuple):
    """How texts are cut: into n-grams of 1 to `orders` words, in 2**bits buckets; and room for one text."""

    orders: int
    bits: int
    alphabet: Alphabet
    space: Space


@compiled
def buckets_of(
    data: Bytes, start: int, end: int, grams: Grams, found: Buckets, filled: int, table: Buckets | None
) -> int:
    """Write the bucket of each n-gram of `data[start:end]` to `found[filled:]`: all words, then all pairs, and so on.

    Returns where they end. With room for a `table`, each bucket is written once.
    """
    begin = filled
    _, count = normalise(data, start, end, True, grams.alphabet, grams.space, None)
    text, units = grams.space
    shift = U64(64 - grams.bits)
    for order in range(1, grams.orders + 1):
        for at in range(count - order + 1):
            found[filled] = U32(xxh3(text, signed(units[at]), signed(units[at + order]) - 1) >> shift)
            filled += 1
    return filled if table is None else keep_distinct(found, begin, filled, table)


@compiled
def keep_distinct(buckets: Buckets, start: int, end: int, table: Buckets) -> int:
    """Leave each bucket of `buckets[start:end]` once, at its first place, and close the gaps; returns the new end.

    `table` is room for four times as many.
    """
    size = 16
    while size < 2 * (end - start):
        size *= 2
    for slot in range(size):
        table[slot] = NO_BUCKET
    filled = start
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


@compiled
def buckets_of_all(data: Bytes, ends: Offsets, grams: Grams, found: Buckets, table: Buckets | None) -> Offsets:
    """Write the buckets of several texts, which end at `ends`, one after the other; returns where each text's end."""
    found_ends = np.empty(len(ends), np.int64)
    start, filled = signed(0), signed(0)
    for row in range(len(ends)):
        filled = buckets_of(data, start, ends[row], grams, found, filled, table)
        found_ends[row] = filled
        start = ends[row]
    return found_ends


@compiled
def scores_of(data: Bytes, ends: Offsets, grams: Grams, found: Buckets, table: Buckets, weights: Weights) -> Floats:
    """The score of each text, from 0 to 1; one half for a text without words."""
    scores = np.empty(len(ends), np.float64)
    start = signed(0)
    for row in range(len(ends)):
        filled = buckets_of(data, start, ends[row], grams, found, signed(0), table)
        scores[row] = score(found, signed(0), filled, weights)
        start = ends[row]
    return scores


@compiled
def score(buckets: Buckets, start: int, end: int, weights: Weights) -> float:
    """The score of the text whose n-grams are `buckets[start:end]`."""
    total = 0.0
    for at in range(start, end):
        total += weights[buckets[at]]
    return logistic(total / max(end - start, 1))


@compiled
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
