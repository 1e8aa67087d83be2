"""Forests of decision trees, read feature by feature for many rows at a time.

Each tree has a word of bits for its leaves, from left to right. What a node's feature rules out, the leaves below it,
loses its bits; the first bit that is left is the leaf that the row comes to (Lucchese et al., QuickScorer: a Fast
Algorithm to Rank Documents with Additive Ensembles of Regression Trees, 2015; for several rows at once: Exploiting
CPU SIMD Extensions to Speed-up Document Scoring with Tree Ensembles, 2016). Nothing is jumped to that depends on a row,
and processors do one step for several rows: less than half the time of going down each tree, and the same sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import compiled

MOST_LEAVES = 32
"""Of a tree: the bits of a word."""
_TOGETHER = 64
"""Most rows at a time: their features and leaves stay in a fast cache."""
_FACTOR = 0x077CB531
_BITS = np.zeros(MOST_LEAVES, np.int64)
_BITS[[(_FACTOR << bit & 0xFFFFFFFF) >> 27 for bit in range(MOST_LEAVES)]] = range(MOST_LEAVES)
"""The number of a bit by its product with a de Bruijn sequence (Leiserson, Prokop, Randall 1998)."""


@compiled(
    types.float64[::1](
        types.float32[:, ::1],
        types.int64[::1],
        types.float32[::1],
        types.int32[::1],
        types.uint32[::1],
        types.float64[:, ::1],
    )
)
def _sums(rows: Any, ends: Any, thresholds: Any, trees: Any, masks: Any, values: Any) -> Any:
    """The sum of each row's leaves."""
    # Not a number that the compiler knows: LLVM 22 writes loops of 16 out step by step, and takes twice as long.
    together = min(_TOGETHER, len(rows) // 8 * 8 + 8)
    totals = np.empty(len(rows))
    features, left = np.empty((len(ends), together), np.float32), np.empty((len(values), together), np.uint32)
    for first in range(0, len(rows), together):
        for feature in range(len(ends)):
            for one in range(together):
                features[feature, one] = rows[min(first + one, len(rows) - 1), feature]
        for tree in range(len(values)):
            for one in range(together):
                left[tree, one] = 0xFFFFFFFF
        node = 0
        for feature in range(len(ends)):
            largest = features[feature, 0]
            for one in range(1, together):
                largest = max(largest, features[feature, one])
            while node < ends[feature] and thresholds[node] < largest:
                tree, mask, threshold = trees[node], masks[node], thresholds[node]
                for one in range(together):
                    left[tree, one] &= mask if features[feature, one] > threshold else np.uint32(0xFFFFFFFF)
                node += 1
            node = ends[feature]
        for one in range(min(together, len(rows) - first)):
            total = 0.0
            for tree in range(len(values)):
                lowest = np.uint32(left[tree, one] & (~left[tree, one] + np.uint32(1)))
                total += values[tree, _BITS[np.uint32(lowest * np.uint32(_FACTOR)) >> np.uint32(27)]]
            totals[first + one] = total
    return totals


@dataclass(frozen=True)
class Forest:
    """The nodes of trees by their features, and their leaves.

    Attributes:
        names: of the features, in their order.
        ends: of each feature where its nodes end.
        thresholds: what a node asks: whether the feature is at most the threshold.
        trees: of each node the tree.
        masks: of each node the leaves of its tree that are left if it is not.
        values: of each leaf, shape (trees, MOST_LEAVES); their sum says how likely something is, by the logarithm of
            its odds or among others.
    """

    names: tuple[str, ...]
    ends: npt.NDArray[np.int64]
    thresholds: npt.NDArray[np.float32]
    trees: npt.NDArray[np.int32]
    masks: npt.NDArray[np.uint32]
    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, names: Sequence[str], trees: Sequence[Mapping[str, Any]]) -> Forest:
        """A forest of trees, each with its `nodes` and `leaves`, at most MOST_LEAVES.

        A node is [feature, threshold, below, above]: numbers of nodes, the first of which is 0, and of leaves, -1 less
        their number.
        """
        found: list[tuple[int, float, int, int]] = []
        values = np.zeros((len(trees), MOST_LEAVES))
        for number, tree in enumerate(trees):
            leaves: list[float] = []
            _add_below(0 if tree["nodes"] else -1, tree, number, found, leaves)
            values[number, : len(leaves)] = leaves
        found.sort()
        feature, threshold, of, mask = np.array(found, np.float64).reshape(-1, 4).T
        return cls(
            tuple(names),
            np.searchsorted(feature, np.arange(len(names)), "right"),
            threshold.astype(np.float32),
            of.astype(np.int32),
            mask.astype(np.uint32),
            values,
        )

    def sums(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum of its leaves for each row of features (rows, names)."""
        return np.asarray(_sums(rows, self.ends, self.thresholds, self.trees, self.masks, self.values))


def _add_below(
    node: int, tree: Mapping[str, Any], number: int, found: list[tuple[int, float, int, int]], leaves: list[float]
) -> None:
    """Add a node of a tree, and those below it, to what was `found`; its leaves, from left to right, to `leaves`."""
    if node < 0:
        leaves.append(tree["leaves"][-node - 1])
        return
    feature, threshold, below, above = tree["nodes"][node]
    begin = len(leaves)
    _add_below(below, tree, number, found, leaves)
    lost = (1 << len(leaves)) - (1 << begin)
    found.append((feature, threshold, number, 0xFFFFFFFF & ~lost))
    _add_below(above, tree, number, found, leaves)
