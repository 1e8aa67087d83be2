"""How well scores tell two classes apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def auc(scores: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a good document has a higher score than another one; ties count half.

    It is the statistic of Mann and Whitney (1947), from the ranks.
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal scores share the mean of their ranks
    good = int(is_good.sum())
    above = float(ranks[is_good].sum()) - good * (good + 1) / 2
    return above / (good * (len(scores) - good))


def precision_at(
    shares: Sequence[float], scores: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]
) -> list[float]:
    """For each share of the documents, taken from the highest score down, how much of it is good."""
    best = is_good[np.argsort(-scores, kind="stable")]
    return [float(best[: max(1, round(share * len(best)))].mean()) for share in shares]
