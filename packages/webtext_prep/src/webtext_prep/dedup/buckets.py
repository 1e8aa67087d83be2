"""From signatures to groups of documents that may be alike: band keys, buckets, and their connected components.

Documents whose signatures agree in all rows of a band share a bucket (Leskovec, Rajaraman, Ullman, Mining of Massive
Datasets, 3.4). A band of a document is one 64-bit key: two different bands that share one by chance (never seen in
practice) make a false candidate, which the exact comparison refutes. Only documents that buckets connect can ever be
compared, so each component of that graph is decided by itself. A band of 10 million documents is sorted in about a
second in 240 MB; the union-find takes 4 bytes a document (8 from 2^31 documents on), in a file mapped into memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Numbers of documents: 32 bits wide where that will do."""

DOCUMENT_WEIGHT = 256
"""What a document weighs besides its text, in characters: its keys, its URL, and its place in memory."""


def number_type(documents: int) -> type[np.int32] | type[np.int64]:
    """The integers that can number so many documents."""
    return np.int32 if documents <= np.iinfo(np.int32).max else np.int64


def band_keys(signatures: npt.NDArray[np.uint32], bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """The key of each band, shape (bands, documents), of signatures of shape (documents, at least bands * rows)."""
    keys = np.full((bands, len(signatures)), rows, np.uint64)
    for row in range(rows):
        # One round of MurmurHash3's 64-bit finalizer for each value (A. Appleby, public domain).
        keys ^= signatures[:, row : bands * rows : rows].T
        keys *= np.uint64(0xFF51AFD7ED558CCD)
        keys ^= keys >> np.uint64(33)
    keys *= np.uint64(0xC4CEB9FE1A85EC53)
    keys ^= keys >> np.uint64(33)
    return keys


def shared_buckets(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which positions of `keys` hold the same key: the buckets of one band with more than one member.

    Returns:
        members, one bucket after the other; and ends, of each bucket in `members`. The order in a bucket is arbitrary.
    """
    order = np.argsort(keys)
    ranked = keys[order]
    is_last = np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)]
    bounds = np.flatnonzero(is_last) + 1
    sizes = np.diff(bounds, prepend=0)
    is_shared = np.repeat(sizes > 1, sizes)
    return order[is_shared], np.cumsum(sizes[sizes > 1])


# Loops over documents, which `forests` compiles for large corpora: they call nothing that it would not know.


def unite(parents: Numbers, members: Numbers, ends: npt.NDArray[np.int64]) -> None:
    """Join the components of the members of each bucket.

    `parents` is a forest, shape (documents,), that begins as `arange`: its roots are the smallest numbers of their
    components, so that the result does not depend on the order of the buckets.
    """
    start = 0
    for end in ends:
        root = members[start]
        for at in range(start, end):
            other = members[at]
            while parents[other] != other:
                parents[other] = parents[parents[other]]  # path halving
                other = parents[other]
            if other < root:
                parents[root] = other
                root = other
            elif root < other:
                parents[other] = root
        start = end


def flatten(parents: Numbers, lengths: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> None:
    """Let each document point to the root of its component, and add up there what the component weighs.

    Args:
        parents: as `unite` leaves it; changed in place.
        lengths: of the documents' texts.
        weights: zeros, shape (documents,). That of the root of a component with several members becomes the sum
            of their lengths and `DOCUMENT_WEIGHT`; all others become 0.
    """
    for document in range(len(parents)):
        root = parents[parents[document]]  # a parent is smaller than its child, so its own root is known already
        parents[document] = root
        weight = lengths[document] + DOCUMENT_WEIGHT
        # Until a second member comes, a root holds its own weight as a negative number.
        if root == document:
            weights[root] = -weight
        elif weights[root] < 0:
            weights[root] = weight - weights[root]
        else:
            weights[root] += weight
    for document in range(len(parents)):
        weights[document] = max(weights[document], 0)


def divide(parents: Numbers, weights: npt.NDArray[np.int64], most: int, parts: npt.NDArray[np.int32]) -> int:
    """Divide the components into parts of at most `most`, but for a component that weighs more by itself.

    Args:
        parents: as `flatten` leaves it.
        weights: as `flatten` leaves it.
        most: the weight of a part.
        parts: is filled with the part of each document, shape (documents,); -1 for one that no bucket connects.

    Returns the number of parts.
    """
    part, filled = 0, 0
    for document in range(len(parents)):
        root = parents[document]
        if root != document:
            parts[document] = parts[root]
        elif weights[document] == 0:
            parts[document] = -1
        else:
            if filled > 0 and filled + weights[document] > most:
                part, filled = part + 1, 0
            filled += weights[document]
            parts[document] = part
    return part + 1 if filled > 0 else 0
