"""All pairs of documents, and what a tool that drops near-duplicates finds of them.

Precision is the share of the dropped documents to which one that was kept is similar; recall the share of the similar
pairs of which at least one went. Neither asks which of two a tool prefers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from webtext_prep.text.fingerprints import Shingling, shingle_sets

SIMILAR, NEARLY = 0.8, 0.7
"""Jaccard similarities of the sets of 5-grams of words."""


Pairs = list[tuple[int, int, float]]
"""Indexes of two documents, and their similarity."""


def truth(texts: Sequence[str], kept: npt.NDArray[np.bool_]) -> tuple[list[dict[str, Any]], Pairs]:
    """Of each tool its precision and recall by all pairs, and pairs a little too unlike, which the first one keeps.

    Args:
        texts: of the documents.
        kept: of shape (tools, documents).
    """
    hashes, ends = shingle_sets(texts, Shingling("word", 5))
    starts = np.append(0, ends[:-1])
    order = np.argsort(ends - starts, kind="stable")
    pairs, both_kept, justified, near, near_similarity = _all_pairs(
        hashes, starts[order], ends[order], np.ascontiguousarray(kept[:, order])
    )
    found = []
    for tool in range(len(kept)):
        gone = ~kept[tool, order]
        right, dropped = int((gone & justified[tool]).sum()), int(gone.sum())
        found.append({
            "dropped": dropped, "precision": round(right / max(1, dropped), 4),
            "pairs": int(pairs.sum()),
            "recall": round(1 - int(both_kept[:, tool].sum()) / max(1, int(pairs.sum())), 4),
        })  # fmt: skip
    chosen = np.flatnonzero(near >= 0)
    return found, [(int(order[at]), int(order[near[at]]), float(near_similarity[at])) for at in chosen]


@numba.njit  # type: ignore[untyped-decorator]
def _all_pairs(hashes, starts, ends, kept):  # type: ignore[no-untyped-def]
    """All pairs of documents, which are in the order of their numbers of shingles.

    Returns how many similar ones each document has behind it; for how many of them a tool keeps both; whether a
    document that a tool dropped has a similar one that it keeps; and of each document one behind it that is nearly
    similar where the first tool keeps both, or -1, with the similarity.
    """
    count, tools = len(starts), len(kept)
    pairs = np.zeros(count, np.int64)
    both_kept = np.zeros((count, tools), np.int64)
    justified = np.zeros((tools, count), np.bool_)
    near, near_similarity = np.full(count, -1, np.int64), np.zeros(count)
    for x in range(count):
        own = ends[x] - starts[x]
        for y in range(x + 1, count):
            other = ends[y] - starts[y]
            if own < NEARLY * other or own == 0:
                break
            needed = NEARLY / (1 + NEARLY) * (own + other)
            i, j, common = starts[x], starts[y], 0
            while i < ends[x] and j < ends[y] and common + min(ends[x] - i, ends[y] - j) >= needed:
                if hashes[i] == hashes[j]:
                    common, i, j = common + 1, i + 1, j + 1
                elif hashes[i] < hashes[j]:
                    i += 1
                else:
                    j += 1
            similarity = common / (own + other - common)
            if similarity >= SIMILAR:
                pairs[x] += 1
                for tool in range(tools):
                    if kept[tool, x] and kept[tool, y]:
                        both_kept[x, tool] += 1
                    elif kept[tool, x]:
                        justified[tool, y] = True
                    elif kept[tool, y]:
                        justified[tool, x] = True
            elif similarity >= NEARLY and kept[0, x] and kept[0, y]:
                near[x], near_similarity[x] = y, similarity
    return pairs, both_kept, justified, near, near_similarity
