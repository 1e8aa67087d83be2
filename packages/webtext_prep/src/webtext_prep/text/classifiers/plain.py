"""The same as the compiled functions, to the last bit, for inputs that are too small for a compiler to pay.

A text of 3 kB takes half a millisecond, ten times as long.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import xxhash

_WORD = re.compile(r"\w+")


def ngrams_of(text: str, orders: int) -> list[str]:
    """All words of a text, case-folded, then all pairs, and so on."""
    words = _WORD.findall(text.casefold())
    return [" ".join(words[at : at + size]) for size in range(1, orders + 1) for at in range(len(words) - size + 1)]


def buckets_of(text: str, orders: int, bits: int, *, distinct: bool = True) -> list[int]:
    """The bucket of each n-gram of a text, the first bits of its hash; each once, if `distinct`."""
    ngrams = (ngram.encode("utf-8", "surrogatepass") for ngram in ngrams_of(text, orders))
    found = [xxhash.xxh3_64_intdigest(ngram) >> (64 - bits) for ngram in ngrams]
    return list(dict.fromkeys(found)) if distinct else found


def logistic(value: float) -> float:
    """1 / (1 + exp(-value))."""
    part = -min(abs(value), 40.0) / 1024.0
    power = 1.0 + part * (1.0 + part / 2.0 * (1.0 + part / 3.0 * (1.0 + part / 4.0)))
    for _ in range(10):
        power *= power
    return 1.0 / (1.0 + power) if value >= 0.0 else power / (1.0 + power)


def score(buckets: npt.NDArray[np.uint32], start: int, end: int, weights: npt.NDArray[np.float32]) -> float:
    """The score of the text whose n-grams are `buckets[start:end]`."""
    if start == end:
        return 0.5
    total = weights[buckets[start:end]].astype(np.float64).cumsum()[-1]  # which adds one after the other
    return logistic(float(total) / (end - start))


def learn(
    buckets: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    targets: npt.NDArray[np.float64],
    shares: npt.NDArray[np.float64],
    epochs: int,
    rate: float,
    bits: int,
) -> npt.NDArray[np.float32]:
    """The weights of a classifier; see the compiled function."""
    weights = np.zeros(1 << bits, np.float32)
    rows = list(zip(starts.tolist(), ends.tolist(), targets.tolist(), shares.tolist(), strict=True))
    steps = epochs * len(rows)
    for done in range(steps):
        start, end, target, share = rows[done % len(rows)]
        error = target - score(buckets, start, end, weights)
        weights[buckets[start:end]] += np.float32(rate * (1.0 - done / steps) * share * error)
    return weights
