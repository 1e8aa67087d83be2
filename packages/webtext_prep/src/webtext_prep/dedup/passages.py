"""Repeated passages of a corpus, found exactly: windows of N words that begin earlier in the corpus, too.

Every window of N words has N - k + 1 n-grams of k = N // 2 + 1 words; the one with the lowest hash is its anchor
(winnowing: Schleimer, Wilkerson and Aiken, 2003). Equal windows have equal anchors at the same place, so that a window
whose anchor the corpus has once is not repeated. There are about 2 anchors in N - k + 2 words: only they are sorted for
the whole corpus. Then windows with repeated anchors are compared, each by 128 bits of hashes. Two different ones among
10^10 share these bits with a probability of 1.5e-19.

Words are those of `text/words.py`: case and punctuation are put aside. A text of punctuation alone has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.dedup.candidates import runs_of
from webtext_prep.documents.document import in_batches
from webtext_prep.documents.folders.partitions import PartitionWriter, read_partitions
from webtext_prep.storage.locations import Location
from webtext_prep.text.fingerprints import Shingling, shingle_sequences
from webtext_prep.text.words import edges_of, has_word

Hashes = npt.NDArray[np.uint64]
Records = npt.NDArray[np.void]
Flags = npt.NDArray[np.bool_]

WINDOW = np.dtype([("key", "<u8"), ("check", "<u8"), ("document", "<u4"), ("word", "<u4"), ("start", "<u4")])
"""A window: its two hashes; where it begins: the document in its shard, the word, and the character."""
REPEAT = np.dtype([(name, "<u4") for name in ("document", "word", "count", "shard", "first", "start")])
"""A run of windows that begin earlier: document, word, and how many they are; and the document that has all of them
first, by its shard and number, and the character where the first of them stands there."""

_ORDER = np.uint64(0xFFFFFFFF80000000)
"""The bits of a hash that n-grams are ordered by; places, in words, take the others."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def minima(hashes: Hashes, size: int) -> npt.NDArray[np.int64]:
    """Where in each run of `size` hashes the lowest one is, the first of equal ones; shape (runs,)."""
    lowest, width = (hashes & _ORDER) | np.arange(len(hashes), dtype=np.uint64), 1
    while 2 * width <= size:
        lowest, width = np.minimum(lowest[:-width], lowest[width:]), 2 * width
    rest = size - width
    lowest = np.minimum(lowest[: len(lowest) - rest], lowest[rest:])
    return (lowest & ~_ORDER).astype(np.int64)


def grams_of(texts: Sequence[str], size: int) -> list[Hashes]:
    """The hashes of each text's n-grams, by which windows of `size` words are anchored, in order."""
    with_words = [text if len(text) >= size and has_word(text) else "" for text in texts]
    return shingle_sequences(with_words, Shingling("word", size // 2 + 1))


def windows_of(texts: Sequence[str], size: int) -> list[Hashes]:
    """The hashes of each text's windows of `size` words, in order."""
    return shingle_sequences(texts, Shingling("word", size))


class Anchored:
    """The windows of one text, and their anchors.

    Args:
        grams: what `grams_of` gives of the text.
        size: words of a window, 3 or more.

    Attributes:
        anchors: the hashes of its anchors, in the order of the text.
        of_window: the number of each window's anchor, shape (windows,), rising.
    """

    def __init__(self, grams: Hashes, size: int) -> None:
        self._grams, self._size, self._within = grams, size, size - size // 2
        places = minima(grams, self._within) if len(grams) >= self._within else np.zeros(0, np.int64)
        is_new = _differs(places)
        self.anchors, self.of_window = grams[places[is_new]], np.cumsum(is_new) - 1

    def windows(self, text: str, hashes: Hashes, is_chosen: Flags, document: int) -> tuple[Records, Hashes]:
        """The windows of the chosen anchors of the text, as `WINDOW`, in order, and the anchor of each.

        `hashes` are what `windows_of` gives of the text.
        """
        words = np.flatnonzero(is_chosen[self.of_window])
        starts, _ = edges_of(text)
        found = np.empty(len(words), WINDOW)
        found["key"] = hashes[words]
        # Both halves of the window: with the hash of the whole, 128 bits differ wherever a word does.
        found["check"] = self._grams[words] * _FACTOR + self._grams[words + self._within - 1]
        found["document"], found["word"], found["start"] = document, words, starts[words]
        return found, self.anchors[self.of_window[words]]


def range_of(hashes: Hashes, ranges: int) -> npt.NDArray[np.uint16]:
    """Which of `ranges` (at most 65,536) of its lower bits each hash is in: the upper ones of anchors are low."""
    return ((hashes & np.uint64(0xFFFFFFFF)) * np.uint64(ranges) >> np.uint64(32)).astype(np.uint16)


def add_by_range(writer: PartitionWriter, values: npt.NDArray[Any], within: npt.NDArray[np.uint16]) -> None:
    """Add values to the buckets of their ranges, each in the order given."""
    for number, chosen in runs_of(within):
        writer.add_bytes(number, values[chosen].tobytes())


def read_range(place: Location, number: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """What `add_by_range` added for one range."""
    return np.frombuffer(b"".join(read_partitions([place], number)), kind)


def batches_of(
    places: Sequence[Location], number: int, kind: npt.DTypeLike, most: int
) -> Iterator[list[tuple[int, npt.NDArray[Any]]]]:
    """What the files of all shards have of one range: in each batch the numbers of shards, in order, and their values.

    Batches end with a shard, once they have `most` values.
    """
    found = ((shard, read_range(place, number, kind)) for shard, place in enumerate(places))
    return in_batches(found, len(places), most, lambda of_shard: len(of_shard[1]))


def repeated(batches: Iterable[Hashes]) -> Hashes:
    """The hashes that come more than once, sorted. Memory is that of one batch, and of the different hashes."""
    once = twice = np.zeros(0, np.uint64)
    for batch in batches:
        values, counts = np.unique(batch, return_counts=True)
        twice = np.union1d(twice, values[(counts > 1) | is_in(values, once)])
        once = np.union1d(once, values)
    return twice


def is_in(values: Hashes, known: Hashes) -> Flags:
    """Membership of each value in `known`, which are sorted, shape (values,)."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    return known[np.searchsorted(known, values).clip(max=len(known) - 1)] == values


def _differs(values: npt.NDArray[Any]) -> Flags:
    """Of each value whether it differs from the one before it; of the first it does."""
    found = np.ones(len(values), np.bool_)
    found[1:] = values[1:] != values[:-1]
    return found


class Firsts:
    """Where windows begin first; windows are given in the order of the corpus, batch after batch.

    Memory is that of one batch, and of the different windows.
    """

    def __init__(self) -> None:
        self._known = np.zeros(0, WINDOW)
        self._shards = np.zeros(0, np.uint32)

    def add(self, windows: Records, shards: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.int64], Records]:
        """Which of these windows, each of a shard, begin earlier; and these as `REPEAT`."""
        before = len(self._known)
        joined, of = np.concatenate([self._known, windows]), np.concatenate([self._shards, shards])
        keys, checks = joined["key"].copy(), joined["check"].copy()
        order = np.argsort(keys)
        is_new = _differs(keys[order])
        if np.any(_differs(checks[order]) > is_new):  # one hash, different windows: hardly ever
            order = np.lexsort((checks, keys))
            is_new = _differs(keys[order]) | _differs(checks[order])
        bounds = np.flatnonzero(is_new)
        firsts = np.minimum.reduceat(order, bounds) if len(order) else order
        first = np.empty(len(order), np.int64)
        first[order] = np.repeat(firsts, np.diff(np.append(bounds, len(order))))
        kept = np.sort(firsts)
        self._known, self._shards = joined[kept], of[kept]
        chosen = np.flatnonzero(first != np.arange(len(first)))
        origin, found = first[chosen], np.empty(len(chosen), REPEAT)
        found["document"], found["word"], found["count"] = joined["document"][chosen], joined["word"][chosen], 1
        found["shard"], found["first"], found["start"] = of[origin], joined["document"][origin], joined["start"][origin]
        return chosen - before, found


def longest_runs(repeats: Records) -> Records:
    """Repeats in order, joined where they follow one another and stand first in one document."""
    is_new = np.ones(len(repeats), np.bool_)
    is_new[1:] = repeats["word"][1:] != repeats["word"][:-1] + repeats["count"][:-1]
    for name in ("document", "shard", "first"):
        is_new[1:] |= repeats[name][1:] != repeats[name][:-1]
    found = repeats[is_new]
    if len(found):
        found["count"] = np.add.reduceat(repeats["count"], np.flatnonzero(is_new))
    return found
