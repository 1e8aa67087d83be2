"""Compiled: the components of documents that buckets connect, and which documents go.

Who goes: each document is compared, in the order of their ranks, with the documents that were kept before it.

A document is dropped if among the kept ones that share a bucket with it the most similar one (the first of equals)
is at least as similar as the threshold, by the exact Jaccard similarity of their sets. Documents of one template, just
below the threshold to each other, are all kept and share buckets with each other: the time must not grow with their
square. So

- a bucket with few kept members proposes them all; once it has more than `CROWDED`, its kept members are found by the
  shingles that they share: a prefix filter (Bayardo, Ma, Srikant, Scaling Up All Pairs Similarity Search, 2007; Xiao et
  al., Efficient Similarity Joins for Near Duplicate Detection, 2008). Two sets can only be similar if the rarest
  shingles of both have one in common. For each document the cheaper of both ways is taken, they find the same;
- a candidate is first held against a bitmap of the parities of hashed shingles, which bounds the overlap from
  above (Sandes, Teodoro, Melo, Bitmap Filter: Speeding up Exact Set Similarity Joins, 2020), at some 10 ns a pair;
- what remains is compared exactly, until the overlap can no longer be enough.

Filters are exact: they only leave out pairs that can't reach the threshold, with a margin for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import compiled, inner, tuple_of

# Components

Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Numbers of documents: 32 bits wide where that will do."""

DOCUMENT_WEIGHT = 256
"""What a document weighs besides its text, in characters: its keys, its URL, and its place in memory."""

_I32S, _I64S = types.int32[::1], types.int64[::1]


@compiled(types.void(_I32S, _I32S, _I64S), types.void(_I64S, _I64S, _I64S))
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


@compiled(types.void(_I32S, _I64S, _I64S), types.void(_I64S, _I64S, _I64S))
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


@compiled(types.int64(_I32S, _I64S, types.int64, _I32S), types.int64(_I64S, _I64S, types.int64, _I32S))
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


# Who goes


Ranges = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Sets of documents: all hashes, and where each set begins and ends."""
CROWDED = 64
"""A bucket with more kept members than this is searched by shingles."""
CHUNK = 512
"""Documents between two reports of progress."""
MARGIN = 1e-6
"""What bounds give way to rounding, in shingles: float64 is exact to this for sets of up to a billion."""

_signed: Any = np.int64  # of a literal, so that no function is compiled once more for it
_DEGREES = 128
"""How many degrees of being common there are for shingles."""


class _Sets(NamedTuple):
    """The sets of all documents by rank: that of rank r is `hashes[starts[r] : ends[r]]`, sorted."""

    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    bitmaps: npt.NDArray[np.uint64]  # (documents, words)


class _Buckets(NamedTuple):
    """The buckets of all documents by rank, and the kept members of each."""

    of: npt.NDArray[np.int32]  # (documents, bands): the bucket in each band, -1 for a document alone in it
    kept: npt.NDArray[np.int32]  # the kept members of bucket b from firsts[b] on
    firsts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]  # kept members of each bucket


class _Index(NamedTuple):
    """Kept documents by the shingles of a prefix: chains of postings from a hash table."""

    heads: npt.NDArray[np.int64]  # the first posting of each slot + 1
    lengths: npt.NDArray[np.int32]  # postings of each slot
    following: npt.NDArray[np.int64]  # of each posting the next one of its slot + 1
    documents: npt.NDArray[np.int32]
    tags: npt.NDArray[np.uint32]  # the upper half of the posting's shingle
    used: npt.NDArray[np.int64]  # (1,): how many postings there are


class _State(NamedTuple):
    """The findings on each document by rank, and room to work in."""

    representatives: npt.NDArray[np.int32]
    similarities: npt.NDArray[np.float64]
    is_old: npt.NDArray[np.bool_]  # not compared with each other
    seen: npt.NDArray[np.int32]  # the last document that this one was proposed to + 1
    is_indexed: npt.NDArray[np.bool_]
    degrees: npt.NDArray[np.uint8]  # how common the shingles of each slot are among documents of large buckets
    room: npt.NDArray[np.uint64]  # as long as the longest set


class _Work(NamedTuple):
    """All of that, kept documents by short and by long prefixes, the threshold, and when a bucket is crowded; and the
    sets of which a document that goes must share so much with its representative."""

    sets: _Sets
    buckets: _Buckets
    state: _State
    short: _Index
    long: _Index
    threshold: float
    crowded: int
    grams: _Sets
    contained: float


_SETS = tuple_of(_Sets, types.uint64[::1], types.int64[::1], types.int64[::1], types.uint64[:, ::1])
_BUCKETS = tuple_of(_Buckets, types.int32[:, ::1], types.int32[::1], types.int64[::1], types.int64[::1])
_INDEX = tuple_of(_Index, _I64S, _I32S, _I64S, _I32S, types.uint32[::1], _I64S)
_FLAGS = types.boolean[::1]
_STATE = tuple_of(_State, _I32S, types.float64[::1], _FLAGS, _I32S, _FLAGS, types.uint8[::1], types.uint64[::1])
_WORK = tuple_of(_Work, _SETS, _BUCKETS, _STATE, _INDEX, _INDEX, types.float64, types.int64, _SETS, types.float64)


@inner
def _at_least(share: float, size: int) -> int:
    """The least whole number of shingles that is `share` of `size`, and at least one."""
    return max(math.ceil(share * size - MARGIN), 1)


@inner
def _slot(shingle: np.uint64, slots: int) -> int:
    # Hashes are uniform, but sets are sorted by them: the lower bits are as good as any.
    return int(shingle & np.uint64(slots - 1))


@inner
def _rarest(
    sets: _Sets, document: int, wanted: int, degrees: npt.NDArray[np.uint8], room: npt.NDArray[np.uint64]
) -> None:
    """Fill `room` with the first `wanted` shingles of a document in the order (degree, hash), the same for all."""
    starts = np.zeros(_DEGREES + 1, np.int64)
    for at in range(sets.starts[document], sets.ends[document]):
        starts[degrees[_slot(sets.hashes[at], len(degrees))] + 1] += 1
    for degree in range(_DEGREES):
        starts[degree + 1] += starts[degree]
    for at in range(sets.starts[document], sets.ends[document]):
        shingle = sets.hashes[at]
        degree = degrees[_slot(shingle, len(degrees))]
        if starts[degree] < wanted:
            room[starts[degree]] = shingle
        starts[degree] += 1


@inner
def _add(index: _Index, document: int, shingles: npt.NDArray[np.uint64]) -> None:
    used = int(index.used[0])
    for shingle in shingles:
        slot = _slot(shingle, len(index.heads))
        index.following[used] = index.heads[slot]
        index.documents[used] = document
        index.tags[used] = np.uint32(shingle >> np.uint64(32))
        used += 1
        index.heads[slot] = used
        index.lengths[slot] += 1
    index.used[0] = used


@inner
def _postings(index: _Index, shingles: npt.NDArray[np.uint64]) -> int:
    """How many postings a search for these shingles reads."""
    found = 0
    for shingle in shingles:
        found += index.lengths[_slot(shingle, len(index.heads))]
    return found


@inner
def _overlap(sets: _Sets, left: int, right: int, least: int) -> int:
    """How many shingles two documents share, or -1 if that is less than `least`."""
    at, end, other, other_end = sets.starts[left], sets.ends[left], sets.starts[right], sets.ends[right]
    spare, other_spare = end - at - least, other_end - other - least  # how many of each may be without a partner
    found = 0
    while at < end and other < other_end:
        ours, theirs = sets.hashes[at], sets.hashes[other]
        if ours == theirs:
            found += 1
            at += 1
            other += 1
        elif ours < theirs:
            at += 1
            spare -= 1
            if spare < 0:
                return -1
        else:
            other += 1
            other_spare -= 1
            if other_spare < 0:
                return -1
    return found if found >= least else -1


@inner
def _may_overlap(sets: _Sets, left: int, right: int, most_apart: int) -> bool:
    """Whether two documents may have at most `most_apart` shingles that only one of them has.

    Each shingle that only one has turns one bit of the parities over: as many bits differ, or fewer.
    """
    apart = np.int64(0)
    for first in range(0, sets.bitmaps.shape[1], 8):
        for word in range(first, first + 8):  # at once, by vector instructions
            # Population count, as Hacker's Delight has it (H. S. Warren, 2012, 5-1).
            bits = sets.bitmaps[left, word] ^ sets.bitmaps[right, word]
            bits -= (bits >> np.uint64(1)) & np.uint64(0x5555555555555555)
            bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
            bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
            apart += np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))
        if apart > most_apart:
            return False
    return True


@inner
def _compare(work: _Work, document: int, other: int) -> None:
    """Make `other` the representative of `document` if it is similar enough, and more so than the one it has."""
    sets, state, threshold = work.sets, work.state, work.threshold
    if state.is_old[document] and state.is_old[other]:
        return
    size = sets.ends[document] - sets.starts[document]
    other_size = sets.ends[other] - sets.starts[other]
    best = state.similarities[document]
    if size == 0 or other_size == 0:
        similarity = 1.0 if size == other_size else 0.0
    else:
        wanted = max(threshold, best)
        if min(size, other_size) < wanted * max(size, other_size) - MARGIN:
            return
        least = _at_least(wanted / (1 + wanted), size + other_size)
        if least > min(size, other_size) or not _may_overlap(sets, document, other, size + other_size - 2 * least):
            return
        common = _overlap(sets, document, other, least)
        if common < 0:
            return
        similarity = common / (size + other_size - common)
    if similarity < threshold:
        return
    if similarity > best or (similarity == best and other < state.representatives[document]):
        if work.contained > 0:
            grams, own = work.grams, work.grams.ends[document] - work.grams.starts[document]
            if own > 0 and _overlap(grams, document, other, _at_least(work.contained, own)) < 0:
                return
        state.similarities[document] = similarity
        state.representatives[document] = other


@inner
def _share_a_bucket(buckets: _Buckets, left: int, right: int) -> bool:
    for band in range(buckets.of.shape[1]):
        if buckets.of[left, band] >= 0 and buckets.of[left, band] == buckets.of[right, band]:
            return True
    return False


@inner
def _search_buckets(work: _Work, document: int, least: int, most: int) -> None:
    """Compare with all kept members of a document's buckets that have from `least` to `most` of them."""
    buckets, state = work.buckets, work.state
    for band in range(buckets.of.shape[1]):
        bucket = buckets.of[document, band]
        if bucket < 0 or not least <= buckets.counts[bucket] <= most:
            continue
        first = buckets.firsts[bucket]
        for at in range(first, first + buckets.counts[bucket]):
            other = buckets.kept[at]
            if state.seen[other] != document + 1:
                state.seen[other] = document + 1
                _compare(work, document, other)


@inner
def _search_index(work: _Work, document: int, index: _Index, shingles: npt.NDArray[np.uint64]) -> None:
    """Compare with all indexed documents that share one of `shingles` and a bucket."""
    buckets, state = work.buckets, work.state
    for shingle in shingles:
        tag = np.uint32(shingle >> np.uint64(32))
        posting = index.heads[_slot(shingle, len(index.heads))]
        while posting > 0:
            other = index.documents[posting - 1]
            if index.tags[posting - 1] == tag and state.seen[other] != document + 1:
                state.seen[other] = document + 1
                if _share_a_bucket(buckets, document, other):
                    _compare(work, document, other)
            posting = index.following[posting - 1]


@inner
def _prefixes(size: int, threshold: float) -> tuple[int, int]:
    """How many of the rarest shingles of a set must be looked at: (against larger sets, against smaller ones).

    Of two sets the overlap is at least t times the larger one, and at least 2t / (1 + t) times the smaller one; sets
    that share so much share one of the first size - overlap + 1 of each, in any order that both have in common.
    """
    return (
        size - min(_at_least(2 * threshold / (1 + threshold), size), size) + 1,
        size - min(_at_least(threshold, size), size) + 1,
    )


@inner
def _enter(work: _Work, document: int) -> None:
    """Put a kept document into both indexes: larger ones find it by its short prefix, smaller ones by its long one."""
    sets, state = work.sets, work.state
    state.is_indexed[document] = True
    size = sets.ends[document] - sets.starts[document]
    if size > 0:
        fewer, more = _prefixes(size, work.threshold)
        _rarest(sets, document, more, state.degrees, state.room)
        _add(work.short, document, state.room[:fewer])
        _add(work.long, document, state.room[:more])


@inner
def _keep(work: _Work, document: int) -> None:
    """Add a document to its buckets, and all members of a bucket that is crowded now to the indexes."""
    buckets, crowded = work.buckets, work.crowded
    for band in range(buckets.of.shape[1]):
        bucket = buckets.of[document, band]
        if bucket < 0:
            continue
        first, count = buckets.firsts[bucket], buckets.counts[bucket] + 1
        buckets.kept[first + count - 1] = document
        buckets.counts[bucket] = count
        if count > crowded:
            # At the moment when it becomes crowded earlier ones; later this document alone.
            for at in range(first if count == crowded + 1 else first + count - 1, first + count):
                if not work.state.is_indexed[buckets.kept[at]]:
                    _enter(work, buckets.kept[at])


@compiled(types.void(_WORK, types.int64, types.int64, types.int64))
def _decide(work: _Work, first: int, last: int, first_new: int) -> None:
    """Decide the documents of ranks `first` to `last` - 1, when all before them are decided.

    Documents before the first new one have none to be compared with.
    """
    everyone = _signed(np.iinfo(np.int64).max)
    sets, buckets, state, crowded = work.sets, work.buckets, work.state, work.crowded
    for document in range(first, last):
        if document < first_new:
            _keep(work, document)
            continue
        _search_buckets(work, document, _signed(1), crowded)
        members = 0
        for band in range(buckets.of.shape[1]):
            bucket = buckets.of[document, band]
            if bucket >= 0 and buckets.counts[bucket] > crowded:
                members += buckets.counts[bucket]
        if members > 0:
            size = sets.ends[document] - sets.starts[document]
            by_shingles = False
            fewer, more = 0, 0
            if size > 0:  # empty sets have no shingle to be found by
                fewer, more = _prefixes(size, work.threshold)
                _rarest(sets, document, more, state.degrees, state.room)
                postings = _postings(work.short, state.room[:more]) + _postings(work.long, state.room[:fewer])
                by_shingles = 2 * postings < members  # a step along a chain waits for memory
            if by_shingles:
                _search_index(work, document, work.short, state.room[:more])
                _search_index(work, document, work.long, state.room[:fewer])
            else:
                _search_buckets(work, document, crowded + 1, everyone)
        if state.representatives[document] < 0:
            _keep(work, document)


@compiled(types.void(_SETS, types.int64[::1], types.int32[::1]))
def _count(sets: _Sets, documents: npt.NDArray[np.int64], counts: npt.NDArray[np.int32]) -> None:
    for document in documents:
        for at in range(sets.starts[document], sets.ends[document]):
            counts[_slot(sets.hashes[at], len(counts))] += 1


@compiled(types.void(_SETS))
def _draw_bitmaps(sets: _Sets) -> None:
    bits = np.uint64(64 * sets.bitmaps.shape[1] - 1)
    for document in range(len(sets.starts)):
        for at in range(sets.starts[document], sets.ends[document]):
            bit = (sets.hashes[at] >> np.uint64(32)) & bits
            sets.bitmaps[document, int(bit >> np.uint64(6))] ^= np.uint64(1) << (bit & np.uint64(63))


def find_duplicates(
    hashes: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint64],
    threshold: float,
    *,
    is_old: npt.NDArray[np.bool_] | None = None,
    grams: Ranges | None = None,
    contained: float = 0.0,
    crowded: int = CROWDED,
    report: Callable[[int], None] = lambda decided: None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """The representative of each document that goes, and how similar it is.

    Args:
        hashes: the sets of all documents, each sorted and without repetition.
        starts: where the set of each document begins, shape (documents,), in the order of ranks.
        ends: where it ends.
        keys: the band keys of the documents, shape (documents, bands), in the order of ranks.
        threshold: the least similarity for which a document goes, above 0.
        is_old: which documents are not compared among themselves, shape (documents,), in the order of ranks.
        grams: other sets of the same documents, as `hashes`, `starts` and `ends`.
        contained: the share of its own one of these that a document must share with another to go for it.
        crowded: kept members of a bucket above which it is searched by shingles.
        report: called now and then with the number of documents decided.

    Returns:
        representatives, shape (documents,): a rank, or -1 for a document that stays; and similarities, 0 where it
        stays.
    """
    buckets, sizes = _buckets(keys)
    sets = _sets(hashes, starts, ends)
    large = np.flatnonzero(((buckets.of >= 0) & (sizes[buckets.of] > crowded)).any(axis=1)) if len(sizes) else _NONE
    is_old = np.zeros(len(starts), np.bool_) if is_old is None else is_old
    first_new = len(is_old) if is_old.all() else int(np.argmin(is_old))
    state = _state(sets, large, is_old)
    others = _Sets(*(grams or (hashes, starts, ends)), sets.bitmaps)
    indexes = _indexes(sets, large, threshold)
    work = _Work(sets, buckets, state, *indexes, threshold, crowded, others, contained if grams else 0.0)
    for first in range(0, len(starts), CHUNK):
        last = min(first + CHUNK, len(starts))
        _decide(work, first, last, first_new)
        report(last)
    return state.representatives, state.similarities


_NONE = np.zeros(0, np.int64)


def _buckets(keys: npt.NDArray[np.uint64]) -> tuple[_Buckets, npt.NDArray[np.int64]]:
    """The buckets of documents with these keys, and how many members each has."""
    of = np.full(keys.shape, -1, np.int32)
    sizes = []
    count = 0
    for band in range(keys.shape[1]):
        members, bounds = shared_buckets(np.ascontiguousarray(keys[:, band]))
        sizes.append(np.diff(bounds, prepend=0))
        of[members, band] = np.repeat(np.arange(count, count + len(bounds)), sizes[-1])
        count += len(bounds)
    all_sizes = np.concatenate([*sizes, _NONE])
    room = int(all_sizes.sum())
    return _Buckets(of, np.empty(room, np.int32), np.cumsum(all_sizes) - all_sizes, np.zeros_like(all_sizes)), all_sizes


def _sets(hashes: npt.NDArray[np.uint64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Sets:
    mean = int((ends - starts).mean()) if len(starts) else 0
    # Twice as many bits as a document has shingles tell .73 from .8.
    words = _power_of_two(min(max(2 * mean, 512), 8192)) // 64
    sets = _Sets(hashes, starts, ends, np.zeros((len(starts), words), np.uint64))
    _draw_bitmaps(sets)
    return sets


def _state(sets: _Sets, large: npt.NDArray[np.int64], is_old: npt.NDArray[np.bool_]) -> _State:
    sizes = sets.ends - sets.starts
    slots = _power_of_two(min(int(sizes[large].sum()), 1 << 22))
    counts = np.zeros(slots, np.int32)
    _count(sets, large, counts)
    # Exact up to 32, then logarithmic: to tell rare from common is what matters.
    degrees = np.where(counts <= 32, counts, 12 + 4 * np.log2(np.maximum(counts, 1))).astype(np.uint8)
    return _State(
        np.full(len(sizes), -1, np.int32),
        np.zeros(len(sizes)),
        is_old,
        np.zeros(len(sizes), np.int32),
        np.zeros(len(sizes), np.bool_),
        degrees,
        np.empty(int(sizes.max(initial=0)), np.uint64),
    )


def _indexes(sets: _Sets, large: npt.NDArray[np.int64], threshold: float) -> tuple[_Index, _Index]:
    """The indexes by short and by long prefixes, with room for all of `large`: memory is taken as it fills."""
    sizes = (sets.ends - sets.starts)[large].astype(np.float64)
    shares = (2 * threshold / (1 + threshold), threshold)
    short, long = (_index(int((sizes * (1 - share) + 2).sum())) for share in shares)
    return short, long


def _index(room: int) -> _Index:
    slots = _power_of_two(room // 2)
    return _Index(
        np.zeros(slots, np.int64),
        np.zeros(slots, np.int32),
        np.empty(room, np.int64),
        np.empty(room, np.int32),
        np.empty(room, np.uint32),
        np.zeros(1, np.int64),
    )


def _power_of_two(least: int) -> int:
    """The smallest power of two from `least` on."""
    return 1 << max(least - 1, 0).bit_length()


@compiled(types.int64[:, ::1](types.uint64[::1], _I64S, types.uint64[::1], _I64S, _I64S))
def longest_runs(
    values: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.int64],
    others: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Of each range of `values`, which end at `ends`, the longest run that is in its own sorted range of `others`.

    Returns the first and the last place of each, of equal ones the first, shape (ranges, 2). (0, -1) if there is none.
    """
    found, firsts = np.empty((len(ends), 2), np.int64), np.empty((1 << 16) + 1, np.int64)
    begin = _signed(0)
    for row in range(len(ends)):
        first, last, run = _signed(0), _signed(-1), _signed(0)
        own = others[starts[row] : stops[row]]
        # Hashes are uniform: of those with the same upper bits there are few, and where these begin is known.
        bits = _signed(1)
        while bits < 16 and 1 << bits < len(own):
            bits += 1
        shift, place = np.uint64(64 - bits), _signed(0)
        for upper in range(1 << bits):
            while place < len(own) and own[place] >> shift < np.uint64(upper):
                place += 1
            firsts[upper] = place
        firsts[1 << bits] = len(own)
        for at in range(begin, ends[row]):
            upper = values[at] >> shift
            low, high = firsts[upper], firsts[upper + np.uint64(1)]
            while low < high:
                middle = (low + high) >> 1
                if own[middle] < values[at]:
                    low = middle + 1
                else:
                    high = middle
            run = run + 1 if low < len(own) and own[low] == values[at] else 0
            if run > last - first + 1:
                first, last = at - run + 1, at
        found[row, 0], found[row, 1] = first, last
        begin = ends[row]
    return found


@compiled(types.int64(types.uint64[::1], types.uint64[::1]))
def count_lacking(values: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many of sorted `values` are not in sorted `others`."""
    at, lacking = 0, 0
    for value in values:
        while at < len(others) and others[at] < value:
            at += 1
        lacking += at == len(others) or others[at] != value
    return lacking
