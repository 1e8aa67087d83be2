"""Where sequences of tokens stand in indexed token files: longest matches, and all occurrences of one.

All positions of a text are searched at once, each step of the binary searches being a few numpy operations: a text of
300 tokens takes as long as one of 30. What two ends of a search have in common with what is looked for is not compared
again (Manber and Myers 1993, "Suffix Arrays: A New Method for On-Line String Searches",
https://doi.org/10.1137/0222058, section 2), so that a long passage of the corpus costs no more than its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexed_tokens.errors import IndexedTokensError
from indexed_tokens.suffix_index import SuffixIndex, part_name

Ints = npt.NDArray[np.int64]
FIRST_COMPARED, MOST_COMPARED = 4, 64
"""Tokens that are compared at once: few at first, as most searches differ soon."""
STRIDE = 64
"""Of a text, one position in so many is searched first."""
RANGE_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Occurrences:
    """The suffixes of one part that begin with a sequence: entries `begin` to `end` of its order."""

    part: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def longest_matches(indices: Sequence[SuffixIndex], query: npt.ArrayLike) -> Ints:
    """For each position of a text, how many tokens from there on stand in a document of any index, shape (n,).

    Where a match ends never comes before where that of the position before ends. So positions between two whose matches
    end at one place need no search: a text that was copied whole costs little.

    Args:
        indices: what is searched.
        query: token ids, shape (n,).

    Raises IndexedTokensError for a damaged index.
    """
    query = np.asarray(query, np.int64)
    size = len(query)
    ends = np.full(size, -1, np.int64)

    def search(places: Ints) -> None:
        lengths = [_longest_in(index, part, query, places) for index in indices for part in range(len(index.parts))]
        ends[places] = places + np.max(lengths, axis=0, initial=0)

    if not size:
        return ends
    search(np.union1d(np.arange(0, size, STRIDE), [size - 1]))
    step = STRIDE
    while step > 1:
        step //= 2
        places = np.arange(step, size - 1, 2 * step)
        after = np.minimum(places + step, size - 1)
        is_same = ends[places - step] == ends[after]
        ends[places[is_same]] = ends[after[is_same]]
        search(places[~is_same])
    return ends - np.arange(size)


def occurrences(index: SuffixIndex, query: npt.ArrayLike) -> list[Occurrences]:
    """All places of an index at which a sequence stands, part by part. Raises IndexedTokensError for a damaged one."""
    query = np.asarray(query, np.int64)
    begin, end = np.array([0]), np.array([len(query)])
    found = []
    for part in range(len(index.parts)):
        low = int(_bisect(index, part, query, begin, end, is_behind=False)[0][0])
        high = int(_bisect(index, part, query, begin, end, is_behind=True)[0][0])
        if low < high:
            found.append(Occurrences(part, low, high))
    return found


def documents_with(index: SuffixIndex, found: Sequence[Occurrences], most: int) -> tuple[int, list[tuple[int, int]]]:
    """How many documents hold occurrences, and the first of them, each with its first occurrence.

    Memory is that of a million occurrences and of a bit for each document, whatever their number.

    Returns:
        the number of documents, and at most `most` pairs of a document and a place in the `.bin`, in token ids.
    """
    holds = np.zeros(index.tokens.documents, bool)
    first: dict[int, int] = {}
    for some in found:
        for places in _places(index, some):
            documents, at = np.unique(index.document_of(places), return_index=True)
            holds[documents] = True
            for document, place in zip(documents[:most].tolist(), places[at[:most]].tolist(), strict=True):
                first[document] = min(place, first.get(document, place))
    return int(holds.sum()), sorted(first.items())[:most]


def _places(index: SuffixIndex, some: Occurrences) -> Iterator[Ints]:
    """The places of occurrences in the `.bin`, each million in ascending order."""
    begin = index.parts[some.part].tokens[0]
    for at in range(some.begin, some.end, RANGE_AT_ONCE):
        positions = index.positions[some.part][at : min(at + RANGE_AT_ONCE, some.end)]
        yield np.sort(positions.astype(np.int64)) + begin


def _longest_in(index: SuffixIndex, part: int, query: Ints, places: Ints) -> Ints:
    """The length of the longest match in one part at each of `places`."""
    _, left, right = _bisect(index, part, query, places, np.full(len(places), len(query)), is_behind=False)
    return np.maximum(left, right)


def _bisect(
    index: SuffixIndex, part: int, query: Ints, begins: Ints, ends: Ints, *, is_behind: bool
) -> tuple[Ints, Ints, Ints]:
    """Where the sequences `query[begins:ends]` belong in the order of a part's suffixes.

    Args:
        index: which.
        part: the number of the part.
        query: a text.
        begins: of each sequence in it, shape (k,).
        ends: one behind the last token of each.
        is_behind: behind the suffixes that begin with the sequence, rather than before them.

    Returns:
        how many suffixes come before each; and how many tokens the last of these, and the one behind it, have in
        common with the sequence: each of shape (k,).
    """
    positions, size = index.positions[part], index.parts[part].size
    low, high = np.zeros(len(begins), np.int64), np.full(len(begins), size)
    common_low, common_high = np.zeros_like(low), np.zeros_like(low)
    todo = np.flatnonzero(low < high)
    while len(todo):
        middle = (low[todo] + high[todo]) // 2
        places = positions[middle].astype(np.int64)
        if len(places) and int(places.max()) >= size:
            raise IndexedTokensError(f"{index.folder / part_name(part)} is damaged: make the index again.")
        known = np.minimum(common_low[todo], common_high[todo])
        common, is_before = _compare(index, part, places, query, begins[todo], ends[todo], known, is_behind=is_behind)
        low[todo[is_before]], common_low[todo[is_before]] = middle[is_before] + 1, common[is_before]
        high[todo[~is_before]], common_high[todo[~is_before]] = middle[~is_before], common[~is_before]
        todo = todo[low[todo] < high[todo]]
    return low, common_low, common_high


def _compare(
    index: SuffixIndex,
    part: int,
    places: Ints,
    query: Ints,
    begins: Ints,
    ends: Ints,
    known: Ints,
    *,
    is_behind: bool,
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Suffixes beside sequences, the first `known` tokens of which are the same, all of shape (k,).

    Returns how many tokens they have in common, and which suffixes come before their sequence.
    """
    begin, end = index.parts[part].tokens
    places = places + begin
    limits = np.minimum(index.begins[index.document_of(places) + 1], end)
    # As many tokens as there are of both.
    shared = np.minimum(limits - places, ends - begins)
    common = np.minimum(known, shared)
    todo, width = np.flatnonzero(common < shared), FIRST_COMPARED
    while len(todo):
        steps = common[todo][:, None] + np.arange(width)
        is_there = steps < shared[todo][:, None]
        steps = np.where(is_there, steps, 0)
        same = is_there & (_at(index.text, places[todo][:, None] + steps) == query[begins[todo][:, None] + steps])
        run = np.where(same.all(axis=1), width, same.argmin(axis=1))
        common[todo] += run
        todo = todo[(run == width) & (common[todo] < shared[todo])]
        width = min(2 * width, MOST_COMPARED)
    is_ended = common == ends - begins
    is_short = ~is_ended & (common == limits - places)
    differ = ~is_ended & ~is_short
    is_before = np.where(is_ended, is_behind, is_short)
    at = common[differ]
    is_before[differ] = _at(index.text, places[differ] + at) < query[begins[differ] + at]
    return common, is_before


def _at(text: npt.NDArray[Any], places: Ints) -> Ints:
    return text[places].astype(np.int64)
