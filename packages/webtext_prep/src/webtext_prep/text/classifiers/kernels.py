"""A linear classifier on hashed n-grams of words, in compiled code: n-grams to buckets, learning, scores.

A text's n-grams are ranges of its normal form, as for MinHash, and each is hashed in place by XXH3. The score is a
logistic function of the mean weight of all n-grams, repeated ones included: fastText's classifier (Joulin et al. 2016,
"Bag of Tricks for Efficient Text Classification") has a mean of vectors there, of which with two classes only one
direction counts. No bias is needed: a constant on all weights is one.

Sums are made in one order, and the exponential is made of sums and products, so that the same texts give the same
weights on every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from webtext_prep.text.compiled import compiled
from webtext_prep.text.fingerprint_kernels import Alphabet, Offsets, Space, normalise, signed
from webtext_prep.text.hashes import U32, U64, Bytes, xxh3

Buckets = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

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


@compiled
def buckets_of(
    data: Bytes,
    start: int,
    end: int,
    orders: int,
    bits: int,
    alphabet: Alphabet,
    space: Space,
    found: Buckets,
    filled: int,
) -> int:
    """Write the bucket of each n-gram of `data[start:end]` to `found[filled:]`: all words, then all pairs, and so on.

    Returns where they end.
    """
    _, count = normalise(data, start, end, True, alphabet, space, None)
    text, units = space
    shift = U64(64 - bits)
    for order in range(1, orders + 1):
        for at in range(count - order + 1):
            found[filled] = U32(xxh3(text, signed(units[at]), signed(units[at + order]) - 1) >> shift)
            filled += 1
    return filled


@compiled
def buckets_of_all(
    data: Bytes, ends: Offsets, orders: int, bits: int, alphabet: Alphabet, space: Space, found: Buckets
) -> Offsets:
    """Write the buckets of several texts, which end at `ends`, one after the other; returns where those of each end."""
    found_ends = np.empty(len(ends), np.int64)
    start, filled = signed(0), signed(0)
    for row in range(len(ends)):
        filled = buckets_of(data, start, ends[row], orders, bits, alphabet, space, found, filled)
        found_ends[row] = filled
        start = ends[row]
    return found_ends


@compiled
def scores_of(
    data: Bytes,
    ends: Offsets,
    orders: int,
    bits: int,
    alphabet: Alphabet,
    space: Space,
    found: Buckets,
    weights: Weights,
) -> Floats:
    """The score of each text, from 0 to 1; one half for a text without words."""
    scores = np.empty(len(ends), np.float64)
    start = signed(0)
    for row in range(len(ends)):
        filled = buckets_of(data, start, ends[row], orders, bits, alphabet, space, found, signed(0))
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

    Args:
        buckets: of the n-grams of all texts.
        starts, ends: which of them are those of each text, in the order in which they are learned from.
        targets: 1 or 0 for each text.
        shares: what a step of each text is multiplied with.
        epochs: how often all texts are gone through.
        rate: of the first step.
        bits: there are 2**bits weights.
    """
    weights, counts = np.zeros(1 << bits, np.float32), np.zeros(1 << bits, np.int64)
    lengths = np.zeros(len(ends), np.float64)  # of the vector of counts, squared
    for row in range(len(ends)):
        for at in range(starts[row], ends[row]):
            counts[buckets[at]] += 1
        for at in range(starts[row], ends[row]):
            lengths[row] += counts[buckets[at]]
        for at in range(starts[row], ends[row]):
            counts[buckets[at]] = 0
    done = 0
    for _ in range(epochs):
        for row in range(len(ends)):
            left = 1.0 - done / (epochs * len(ends))
            done += 1
            start, end = starts[row], ends[row]
            if end == start:
                continue
            error = targets[row] - score(buckets, start, end, weights)
            step = np.float32(rate * left * shares[row] * error * (end - start) / lengths[row])
            for at in range(start, end):
                weights[buckets[at]] += step
    return weights
