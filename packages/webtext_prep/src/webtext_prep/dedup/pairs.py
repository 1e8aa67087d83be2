"""Which documents go, decided without machine code: the rule of `greedy` as it reads, for few pairs.

Each document is compared with all kept ones that share a bucket with it, at some 20 microseconds a pair.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from webtext_prep.dedup.buckets import shared_buckets
from webtext_prep.text.fingerprints import jaccard

MOST_PAIRS = 100_000
"""More pairs than this are left to `greedy`, which compares few of them in full."""


def pairs_in_buckets(keys: npt.NDArray[np.uint64]) -> int:
    """How many pairs of documents share a bucket, those that share several as often; keys as in `find_duplicates`."""
    sizes = [np.diff(shared_buckets(keys[:, band])[1], prepend=0) for band in range(keys.shape[1])]
    return sum(int((size * (size - 1) // 2).sum()) for size in sizes)


def find_duplicates(
    hashes: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint64],
    threshold: float,
    *,
    is_old: npt.NDArray[np.bool_],
    report: Callable[[int], None] = lambda decided: None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """The representative of each document that goes, and how similar it is: see `greedy.find_duplicates`."""
    representatives, similarities = np.full(len(starts), -1, np.int32), np.zeros(len(starts))
    sets = [hashes[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    kept: list[dict[int, list[int]]] = [{} for _ in range(keys.shape[1])]
    for document, own_keys in enumerate(keys.tolist()):
        own = list(zip(kept, own_keys, strict=True))
        near = {other for bucket, key in own for other in bucket.get(key, ())}
        for other in sorted(near):  # the first of equals is taken
            if is_old[document] and is_old[other]:
                continue
            similarity = jaccard(sets[document], sets[other])
            if similarity >= threshold and similarity > similarities[document]:
                representatives[document], similarities[document] = other, similarity
        if representatives[document] < 0:
            for bucket, key in own:
                bucket.setdefault(key, []).append(document)
        report(document + 1)
    return representatives, similarities
