"""Suffixes of token sequences in order, in time and memory that grow with their number alone: SA-IS.

Nong, Zhang, Chan 2011, "Two Efficient Algorithms for Linear Time Suffix Array Construction",
https://doi.org/10.1109/TC.2010.188. A suffix is S if it comes before the one after it in the text, else L; an S after
an L is the beginning of a block (LMS). Blocks are sorted by induction and named by rank, the text of the names is
sorted the same way, and its order induces that of all suffixes. A million copies of one page cost no more than a
million different ones, which sorting by comparison, or by a limited number of tokens, can't say.

The letters are overwritten by what is known of them, and ranks stand in the free places of the order. So memory is some
13 bytes a token, the result included, besides the tokens themselves; 0.3 microseconds a token on one core
(docs/benchmarks/data.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import compiled, inner

Int32s = npt.NDArray[np.int32]
_I32S = types.int32[::1]
MOST_TOKENS = (1 << 30) - 1
"""Tokens and documents that can be sorted together: a letter and its type share 31 bits."""


def document_suffixes(tokens: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """The positions of all tokens, in the order of the suffixes that begin there.

    A suffix ends with its document, and comes before suffixes that begin with it; equal ones are in the order of
    the text.

    Args:
        tokens: of all documents, back to back, shape (n,), whole numbers of any type.
        ends: one after the last token of each document that has any, ascending, shape (documents,).
    """
    if not len(tokens):
        return np.zeros(0, np.uint32)
    text, alphabet = _joined(tokens, ends)
    # Where the letters at the ends of documents are, and how many of them come before each 64th letter.
    ends = ends + np.arange(len(ends))
    before = np.searchsorted(ends, np.arange(0, len(text), 64)).astype(np.int32)
    order = suffix_array(text, alphabet)[len(ends) :]
    _count_without_ends(order, ends, before)
    return order.view(np.uint32)


def _joined(tokens: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> tuple[Int32s, int]:
    """Tokens as letters in the same order, and after each document one of its own, smaller than those of all tokens: no
    suffix is compared beyond it. Also one more than the largest letter."""
    first, least, most = len(ends), int(tokens.min()), int(tokens.max())
    alphabet = first + most + 1
    if least < 0 or alphabet - 1 > max(1 << 20, 2 * len(tokens)):  # ids far apart would need buckets for all between
        values, tokens = np.unique(tokens, return_inverse=True)
        alphabet = first + len(values)
    text = np.empty(len(tokens) + len(ends), np.int32)
    begin = 0
    for number, end in enumerate(ends.tolist()):
        text[begin + number : end + number] = tokens[begin:end]
        text[begin + number : end + number] += first
        text[end + number] = number
        begin = end
    return text, alphabet


@compiled(types.void(_I32S, types.int64[::1], _I32S))
def _count_without_ends(order: Int32s, ends: npt.NDArray[np.int64], before: Int32s) -> None:
    """Positions in the text with a letter at the end of each document become positions among the tokens alone."""
    for at in range(len(order)):
        place = order[at]
        count = before[place >> 6]
        while count < len(ends) and ends[count] < place:
            count += 1
        order[at] = place - count


def suffix_array(text: Int32s, alphabet: int) -> Int32s:
    """The positions of `text` in the order of the suffixes that begin there, shape (n,).

    Args:
        text: letters from 0 on, shape (n,). It is overwritten.
        alphabet: one more than the largest letter.

    >>> suffix_array(np.array([1, 0, 2, 0, 2, 0], np.int32), 3)  # "banana"
    array([5, 3, 1, 0, 4, 2], dtype=int32)
    """
    if len(text) > MOST_TOKENS or alphabet > MOST_TOKENS:
        raise ValueError(f"{len(text)} letters of {alphabet} are more than can be sorted at once")
    typed = text
    _add_types(typed)
    blocks = _blocks(typed)
    if len(blocks):
        order = np.empty(len(text), np.int32)
        _induce(typed, alphabet, blocks, order)
        count = _name(typed, len(blocks), order)
        names = _names(order, len(blocks))
        del order
        if count == len(blocks):
            ranked = np.empty(count, np.int32)
            ranked[names] = np.arange(count, dtype=np.int32)
        else:
            ranked = suffix_array(names, count)
        del names
        blocks = blocks[ranked]
        del ranked
    order = np.empty(len(text), np.int32)
    _induce(typed, alphabet, blocks, order)
    return order


@compiled(types.void(_I32S))
def _add_types(text: Int32s) -> None:
    """Each letter becomes its double, plus 1 if its suffix is S: one look at memory tells both."""
    is_s, behind = 0, -1
    for at in range(len(text) - 1, -1, -1):
        letter = text[at]
        if letter != behind:
            is_s = 1 if letter < behind else 0
        text[at] = 2 * letter + is_s
        behind = letter


@inner
def _bucket_begins(typed: Int32s, alphabet: int) -> Int32s:
    """Where the suffixes of each letter begin, L and then S: entry 2c, entry 2c + 1; and where all end."""
    begins = np.zeros(2 * alphabet + 1, np.int32)
    for at in range(len(typed)):
        begins[typed[at] + 1] += 1
    for bucket in range(2 * alphabet):
        begins[bucket + 1] += begins[bucket]
    return begins


@compiled(_I32S(_I32S))
def _blocks(typed: Int32s) -> Int32s:
    """The positions at which a block begins: an S after an L."""
    count = 0
    for at in range(1, len(typed)):
        count += typed[at] & 1 & ~typed[at - 1]
    blocks = np.empty(count, np.int32)
    count = 0
    for at in range(1, len(typed)):
        if typed[at] & 1 & ~typed[at - 1]:
            blocks[count] = at
            count += 1
    return blocks


@compiled(types.void(_I32S, types.int64, _I32S, _I32S))
def _induce(typed: Int32s, alphabet: int, blocks: Int32s, order: Int32s) -> None:
    """Fill `order` from the order of `blocks`: from left to right the L suffixes, back the S ones."""
    size = len(typed)
    for at in range(size):
        order[at] = -1
    free = _bucket_begins(typed, alphabet)
    for block in blocks:
        bucket = typed[block]
        order[free[bucket]] = block
        free[bucket] += 1
    # The L buckets, which no block is in, are free still.
    order[free[typed[size - 1]]] = size - 1
    free[typed[size - 1]] += 1
    for at in range(size):
        before = order[at] - 1
        if before >= 0:
            bucket = typed[before]
            if not bucket & 1:
                order[free[bucket]] = before
                free[bucket] += 1
    free = _bucket_begins(typed, alphabet)
    for at in range(size - 1, -1, -1):
        before = order[at] - 1
        if before >= 0:
            bucket = typed[before]
            if bucket & 1:
                # From the end of its bucket, which is where the next one begins.
                free[bucket + 1] -= 1
                order[free[bucket + 1]] = before


@inner
def _begins_block(typed: Int32s, at: int) -> bool:
    return at > 0 and typed[at] & 1 == 1 and typed[at - 1] & 1 == 0


@inner
def _differ(typed: Int32s, left: int, right: int) -> bool:
    """Whether two blocks differ; the last one of the text reaches its end, where no other does."""
    for step in range(len(typed)):
        if left + step == len(typed) or right + step == len(typed) or typed[left + step] != typed[right + step]:
            return True
        if step:
            ends = _begins_block(typed, left + step)
            if ends != _begins_block(typed, right + step):
                return True
            if ends:
                return False
    return True


@compiled(types.int64(_I32S, types.int64, _I32S))
def _name(typed: Int32s, count: int, order: Int32s) -> int:
    """Replace sorted suffixes by the ranks of the `count` blocks among the different ones; returns how many differ.

    A block goes on to the beginning of the next one, which belongs to it. The block at position p has its rank at
    `order[count + p // 2]`, as no two blocks begin side by side; all other entries from `count` on are -1.
    """
    size, place = len(typed), 0
    for at in range(size):
        if _begins_block(typed, order[at]):
            order[place] = order[at]
            place += 1
    for at in range(count, size):
        order[at] = -1
    name, last = -1, -1
    for at in range(count):
        block = order[at]
        if last < 0 or _differ(typed, last, block):
            name += 1
        order[count + block // 2] = name
        last = block
    return name + 1


@compiled(_I32S(_I32S, types.int64))
def _names(order: Int32s, count: int) -> Int32s:
    """The ranks that `_name` left, in the order of the text."""
    names, place = np.empty(count, np.int32), 0
    for at in range(count, len(order)):
        if order[at] >= 0:
            names[place] = order[at]
            place += 1
    return names
