"""Intervals of paired differences: over seeds by Student's t, over documents by the bootstrap; Holm's correction.

A difference is one number a seed: the two models of a seed began with the same weights and read what their corpora
share in the same order, so that much of what the seed decides cancels. Few seeds are enough for Student's t, whose
intervals hold at any number if differences are about normal (Student 1908). That the held-out documents are a sample,
too, the seeds can't tell: for that the documents are drawn again with replacement (Efron and Tibshirani 1993, chapter
13: percentile intervals), each with the difference of all seeds. A verdict needs both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 10_000
_AT_ONCE = 1 << 22
"""Numbers of documents that are drawn at a time."""


class Interval(NamedTuple):
    """An estimate with the ends of its 95% interval, and how probable one as far from 0 would be without a difference.

    Attributes:
        value: the estimate.
        low, high: the ends.
        p: two-sided probability.
    """

    value: float
    low: float
    high: float
    p: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0

    @property
    def half_width(self) -> float:
        """Half of its width: the smallest difference that would be seen."""
        return (self.high - self.low) / 2


def t_within(t: float, degrees: int) -> float:
    """The probability that Student's t lies between -`t` and `t` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).

    The sum is finite for a whole number of degrees of freedom, so that no library is needed for it.
    """
    angle = math.atan2(t, math.sqrt(degrees))
    cosine2 = math.cos(angle) ** 2
    term, total = (1.0, 0.0) if degrees % 2 == 0 else (math.cos(angle), 0.0)
    for number in range(1 + degrees % 2, degrees, 2):
        total += term
        term *= cosine2 * number / (number + 1)
    total *= math.sin(angle)
    return total if degrees % 2 == 0 else 2 / math.pi * (angle + total)


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t within which Student's distribution lies with probability `confidence`: 2.776 for 4 degrees and 0.95."""
    low, high = 0.0, 1.0
    while t_within(high, degrees) < confidence:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, degrees) < confidence else (low, middle)
    return high


def over_seeds(differences: Sequence[float]) -> Interval:
    """The t interval of the mean of paired differences, one a seed; at least two."""
    count, mean = len(differences), statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(count)
    if error == 0:
        return Interval(mean, mean, mean, 0.0 if mean else 1.0)
    reach = t_quantile(count - 1) * error
    return Interval(mean, mean - reach, mean + reach, 1 - t_within(abs(mean) / error, count - 1))


def over_documents(
    differences: npt.NDArray[np.float64], sizes: npt.NDArray[np.int64], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """The bootstrap interval of the sum of `differences` by the sum of `sizes`, documents drawn with replacement.

    Args:
        differences: of each document, in any unit.
        sizes: of each document.
        seed: of the draws; the same seed gives the same interval.
        resamples: how often as many documents are drawn as there are.
    """
    random, count = np.random.default_rng(seed), len(sizes)
    found = np.empty(resamples)
    step = max(1, _AT_ONCE // count)
    for at in range(0, resamples, step):
        drawn = random.integers(0, count, (min(step, resamples - at), count))
        found[at : at + step] = differences[drawn].sum(1) / sizes[drawn].sum(1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    beyond = min(int((found <= 0).sum()), int((found >= 0).sum()))
    p = min(1.0, 2 * (beyond + 1) / (resamples + 1))
    return Interval(float(differences.sum() / sizes.sum()), float(low), float(high), p)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Each probability corrected for how many there are (Holm 1979): all below a level hold together."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    found, largest = [0.0] * len(order), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * probabilities[place]))
        found[place] = largest
    return found


def ratio(difference: Interval, differences: Sequence[float], slopes: Sequence[float]) -> Interval:
    """`difference` in units of the mean of `slopes`, which is uncertain, too: by the delta method (Casella and Berger
    2002, section 5.5.4), with the t of the differences."""
    count, slope = len(differences), statistics.fmean(slopes)
    value = difference.value / slope
    variance = statistics.variance(differences) / count
    if len(slopes) > 1:
        variance += value**2 * statistics.variance(slopes) / len(slopes)
    reach = t_quantile(count - 1) * math.sqrt(variance) / abs(slope)
    return Interval(value, value - reach, value + reach, difference.p)
