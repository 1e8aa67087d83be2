"""A gradient-boosted forest of decision trees as a readable file, and what it says of rows of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.text.compiled import compiled


@compiled
def _sums(rows: Any, roots: Any, feature: Any, threshold: Any, below: Any, above: Any, value: Any) -> Any:
    """The sum of each row's leaves. A child that is negative is the leaf -child - 1."""
    sums = np.zeros(len(rows))
    for row in range(len(rows)):
        for root in roots:
            node = root
            while node >= 0:
                node = below[node] if rows[row, feature[node]] <= threshold[node] else above[node]
            sums[row] += value[-node - 1]
    return sums


@dataclass(frozen=True)
class Forest:
    """Trees one after the other: nodes, and apart from them leaves.

    Attributes:
        names: of the features, in their order.
        roots: each tree's first node.
        feature, threshold: what a node asks: whether the feature is at most the threshold.
        below, above: the node that follows; a leaf is -1 less its number.
        value: of each leaf; their sum says how likely something is, by the logarithm of its odds or among others.
    """

    names: tuple[str, ...]
    roots: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    threshold: npt.NDArray[np.float32]
    below: npt.NDArray[np.int64]
    above: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]

    @classmethod
    def of(cls, names: Sequence[str], trees: Sequence[Mapping[str, Any]]) -> Forest:
        """A forest of trees, each with its `nodes` and `leaves`.

        A node is [feature, threshold, below, above], with numbers of nodes and leaves of its own tree.
        """
        nodes: list[list[float]] = []
        roots: list[int] = []
        leaves: list[float] = []
        for tree in trees:
            first, first_leaf = len(nodes), len(leaves)
            roots.append(first if tree["nodes"] else -first_leaf - 1)
            for feature, threshold, *children in tree["nodes"]:
                moved = [child + first if child >= 0 else child - first_leaf for child in children]
                nodes.append([feature, threshold, *moved])
            leaves += tree["leaves"]
        feature, threshold, below, above = np.array(nodes, np.float64).reshape(-1, 4).T
        return cls(
            tuple(names),
            np.array(roots, np.int64),
            feature.astype(np.int64),
            threshold.astype(np.float32),
            below.astype(np.int64),
            above.astype(np.int64),
            np.array(leaves, np.float64),
        )

    def sums(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum of its leaves for each row of features (rows, names)."""
        found = _sums(rows, self.roots, self.feature, self.threshold, self.below, self.above, self.value)
        return np.asarray(found)

    def probabilities(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """One for each row of features (rows, names): the logistic function of the sum."""
        return np.asarray(1 / (1 + np.exp(-self.sums(rows))))
