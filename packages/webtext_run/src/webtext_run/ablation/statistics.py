"""Intervals of paired differences, of which seeds and documents are both samples; Holm's correction; power.

A difference is a number for each seed and held-out document: the two models of a seed began with the same weights and
read what their corpora share in the same order, so that much of what the seed decides cancels. Other seeds would give
others, and so would other documents of the same kind: seeds and documents are crossed random effects. `estimate` takes
the variance apart (Owen 2007, "The pigeonhole bootstrap"; Cameron, Gelbach and Miller 2011): that of the seeds' values,
and that of the documents' values less what seeds and documents have in common, which the first holds already. That of
documents is the jackknife's (MacKinnon and White 1985, HC3): they weigh by their sizes, as in the figure itself, and
have as many degrees of freedom as their effective number (Kish 1965) less one, at least one.

`interval_of` joins both, each with its own t (Banerjee 1961): no confidence is lost however the variance is divided.
One t of Satterthwaite's degrees of freedom would cover as little as 87% with two seeds, and 92% with three
(docs/guide/ablate.md has what this one covers). SciPy is imported when it is needed: it takes a while.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
POWER = 0.8
"""The probability with which a difference is found that a comparison is said to see."""

Values = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.int64]


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


class Variance(NamedTuple):
    """A part of the variance of an estimate.

    Attributes:
        value: the variance.
        degrees: of freedom, with which it is known.
    """

    value: float
    degrees: float


class EffectEstimate(NamedTuple):
    """A figure of all seeds and documents.

    Attributes:
        value: the figure.
        seeds: its variance over seeds, with that of seeds and documents together.
        documents: its variance over documents.
    """

    value: float
    seeds: Variance
    documents: Variance

    def reach(self, level: float) -> float:
        """The half width of its interval of confidence 1 - `level`."""
        from scipy.special import stdtrit

        return math.sqrt(sum(float(stdtrit(part.degrees, level / 2)) ** 2 * part.value for part in self._parts()))

    def can_see(self, level: float) -> float:
        """The true difference whose interval of confidence 1 - `level` excludes 0 with probability `POWER`.

        The interval's reach varies as the root of chi-squared with Satterthwaite's (1946) degrees of freedom, of whose
        distribution the mean over 1,000 quantiles is taken: SciPy's noncentral t has no values for two seeds and many
        comparisons.
        """
        from scipy.optimize import brentq
        from scipy.special import gammaincinv, ndtr

        parts = self._parts()
        variance = sum(part.value for part in parts)
        if variance == 0:
            return 0.0
        degrees = variance**2 / sum(part.value**2 / part.degrees for part in parts)
        error, reach = math.sqrt(variance), self.reach(level)
        reaches = reach * np.sqrt(2 * gammaincinv(degrees / 2, (np.arange(1000) + 0.5) / 1000) / degrees)
        found = brentq(lambda true: ndtr((true - reaches) / error).mean() - POWER, 0, 3 * reach)
        return float(found)

    def _parts(self) -> list[Variance]:
        return [part for part in (self.seeds, self.documents) if part.value > 0]


def estimate(differences: Values, sizes: Sizes) -> EffectEstimate:
    """The sum of `differences` by that of `sizes`, the mean over seeds, with its variances.

    Args:
        differences: of each seed and document, in any unit: (seeds, documents), at least two of both.
        sizes: of each document: (documents,).
    """
    seeds, shares = len(differences), sizes / sizes.sum()
    parts = differences / sizes.sum()
    of_seeds, of_documents = parts.sum(axis=1), parts.mean(axis=0)
    value = float(of_seeds.mean())
    # Without a document the figure differs from that of all by what is here squared.
    without = (of_documents - shares * value) / (1 - shares)
    joint = (parts - of_documents - np.outer(of_seeds - value, shares)) / (1 - shares)
    among, both = float((without**2).sum()), float((joint**2).sum()) / (seeds * (seeds - 1))
    effective = 1 / float((shares**2).sum())
    return EffectEstimate(
        value,
        Variance(float(of_seeds.var(ddof=1)) / seeds, seeds - 1),
        Variance(max(0.0, among - both), max(1.0, effective - 1)),
    )


def interval_of(found: EffectEstimate) -> Interval:
    """The 95% interval of an estimate, and its two-sided probability."""
    from scipy.optimize import bisect

    reach, value = found.reach(1 - CONFIDENCE), found.value
    if reach == 0:
        return Interval(value, value, value, 0.0 if value else 1.0)
    p = float(bisect(lambda level: found.reach(level) - abs(value), 0, 1, xtol=1e-12)) if value else 1.0
    return Interval(value, value - reach, value + reach, p)


def over_seeds(differences: Sequence[float]) -> Interval:
    """The t interval of the mean of paired differences, one a seed; at least two."""
    error = Variance(statistics.variance(differences) / len(differences), len(differences) - 1)
    return interval_of(EffectEstimate(statistics.fmean(differences), error, Variance(0.0, 1)))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Each probability corrected for how many there are (Holm 1979): all below a level hold together."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    found, largest = [0.0] * len(order), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * probabilities[place]))
        found[place] = largest
    return found


def ratio(differences: Values, slopes: Values, sizes: Sizes) -> Interval | None:
    """The difference in units of the slope; both of the same seeds and documents, (seeds, documents) each.

    The interval holds every ratio r for which the differences less r slopes may be 0 (Fieller 1954): so it knows what
    both have in common, the same runs of the baseline above all. None where the slope is not surely above 0: then
    there is no end to it.
    """
    from scipy.optimize import brentq

    slope = interval_of(estimate(slopes, sizes))
    if slope.low <= 0:
        return None
    value = float(differences.sum() / slopes.sum())

    def beyond(tried: float) -> float:
        rest = estimate(differences - tried * slopes, sizes)
        return abs(rest.value) - rest.reach(1 - CONFIDENCE)

    def end(step: float) -> float:
        if beyond(value) >= 0:
            return value
        while beyond(value + step) < 0:
            step *= 2
        return float(brentq(beyond, value, value + step))

    step = max(estimate(differences - value * slopes, sizes).reach(1 - CONFIDENCE) / slope.value, 1e-12)
    return Interval(value, end(-step), end(step), interval_of(estimate(differences, sizes)).p)
