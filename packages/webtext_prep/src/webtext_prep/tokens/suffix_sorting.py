"""Suffixes of token sequences in order, in time and memory that grow with their number alone: SA-IS.

Nong, Zhang, Chan 2011, "Two Efficient Algorithms for Linear Time Suffix Array Construction",
https://doi.org/10.1109/TC.2010.188. A suffix is S if it comes before the one after it in the text, else L; an S after
an L is the beginning of a block (LMS). Blocks are sorted by induction and named by rank, the text of the names is
sorted the same way, and its order induces that of all suffixes. A million copies of one page cost no more than a
million different ones, which sorting by comparison, or by a limited number of tokens, can't say.

Memory is some 17 bytes a token besides the result; 0.35 microseconds a token on one core (docs/benchmarks.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.text.compiled import compiled

Int32s = npt.NDArray[np.int32]
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
    letters, alphabet = _letters(tokens, len(ends))
    # Each document ends with a letter of its own, smaller than all tokens: no suffix is compared beyond it.
    text = np.empty(len(tokens) + len(ends), np.int32)
    begin = 0
    for number, end in enumerate(ends.tolist()):
        text[begin + number : end + number] = letters[begin:end]
        text[end + number] = number
        begin = end
    text[ends + np.arange(len(ends))] = np.arange(len(ends))
    del letters
    order = suffix_array(text, alphabet)[len(ends) :]
    return _without_ends(order, text, len(ends))


def _letters(tokens: npt.NDArray[Any], first: int) -> tuple[Int32s, int]:
    """Tokens as letters from `first` on, in the same order, and one more than the largest letter."""
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or first + most > max(1 << 20, 2 * len(tokens)):  # ids far apart would need buckets for all between
        values, ranks = np.unique(tokens, return_inverse=True)
        return (ranks + first).astype(np.int32), first + len(values)
    letters = tokens.astype(np.int32)
    letters += np.int32(first)
    return letters, first + most + 1


@compiled
def _without_ends(order: Int32s, text: Int32s, documents: int) -> npt.NDArray[np.uint32]:
    """Positions in the text with a letter at the end of each document, as positions among the tokens alone."""
    places = np.empty(len(text), np.uint32)
    place = np.uint32(0)
    for at in range(len(text)):
        places[at] = place
        if text[at] >= documents:
            place += np.uint32(1)
    found = np.empty(len(order), np.uint32)
    for at in range(len(order)):
        found[at] = places[order[at]]
    return found


def suffix_array(text: Int32s, alphabet: int) -> Int32s:
    """The positions of `text` in the order of the suffixes that begin there, shape (n,).

    Args:
        text: letters from 0 on, shape (n,).
        alphabet: one more than the largest letter.

    >>> suffix_array(np.array([1, 0, 2, 0, 2, 0], np.int32), 3)  # "banana"
    array([5, 3, 1, 0, 4, 2], dtype=int32)
    """
    if len(text) > MOST_TOKENS or alphabet > MOST_TOKENS:
        raise ValueError(f"{len(text)} letters of {alphabet} are more than can be sorted at once")
    typed = _with_types(text)
    begins = _bucket_begins(typed, alphabet)
    blocks = _blocks(typed)
    if len(blocks):
        order = np.empty(len(text), np.int32)
        _induce(typed, begins, blocks, order)
        names, count = _named(typed, blocks, order)
        del order
        if count == len(blocks):
            ranked = np.empty(count, np.int32)
            ranked[names] = np.arange(count, dtype=np.int32)
        else:
            ranked = suffix_array(names, count)
        del names
        blocks = blocks[ranked]
    order = np.empty(len(text), np.int32)
    _induce(typed, begins, blocks, order)
    return order


@compiled
def _with_types(text: Int32s) -> Int32s:
    """Each letter doubled, plus 1 if its suffix is S: one look at memory tells both."""
    typed = np.empty(len(text), np.int32)
    is_s, behind = 0, -1
    for at in range(len(text) - 1, -1, -1):
        letter = text[at]
        if letter != behind:
            is_s = 1 if letter < behind else 0
        typed[at] = 2 * letter + is_s
        behind = letter
    return typed


@compiled
def _bucket_begins(typed: Int32s, alphabet: int) -> Int32s:
    """Where the suffixes of each letter begin, L and then S: entry 2c, entry 2c + 1; and where all end."""
    begins = np.zeros(2 * alphabet + 1, np.int32)
    for at in range(len(typed)):
        begins[typed[at] + 1] += 1
    for bucket in range(2 * alphabet):
        begins[bucket + 1] += begins[bucket]
    return begins


@compiled
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


@compiled
def _induce(typed: Int32s, begins: Int32s, blocks: Int32s, order: Int32s) -> None:
    """Fill `order` from the order of `blocks`: from left to right the L suffixes, back the S ones."""
    size = len(typed)
    for at in range(size):
        order[at] = -1
    free = begins.copy()
    for block in blocks:
        bucket = typed[block]
        order[free[bucket]] = block
        free[bucket] += 1
    free = begins.copy()
    order[free[typed[size - 1]]] = size - 1
    free[typed[size - 1]] += 1
    for at in range(size):
        before = order[at] - 1
        if before >= 0:
            bucket = typed[before]
            if not bucket & 1:
                order[free[bucket]] = before
                free[bucket] += 1
    free = begins.copy()
    for at in range(size - 1, -1, -1):
        before = order[at] - 1
        if before >= 0:
            bucket = typed[before]
            if bucket & 1:
                # From the end of its bucket, which is where the next one begins.
                free[bucket + 1] -= 1
                order[free[bucket + 1]] = before


@compiled
def _named(typed: Int32s, blocks: Int32s, order: Int32s) -> tuple[Int32s, int]:
    """The rank of each block among the different ones, in the order of the text; and how many blocks differ.

    A block goes on to the beginning of the next one, which belongs to it.
    """
    size, count = len(typed), len(blocks)
    number_of = np.full(size, -1, np.int32)
    for number in range(count):
        number_of[blocks[number]] = number
    names = np.empty(count, np.int32)
    name, last = -1, -1
    for at in range(size):
        number = number_of[order[at]]
        if number < 0:
            continue
        if last < 0 or _differ(typed, blocks, last, number):
            name += 1
        names[number] = name
        last = number
    return names, name + 1


@compiled
def _differ(typed: Int32s, blocks: Int32s, one: int, other: int) -> bool:
    count = len(blocks)
    left, right = blocks[one], blocks[other]
    # The last block reaches the end of the text, where no other does.
    if one + 1 == count or other + 1 == count:
        return True
    length = blocks[one + 1] - left
    if blocks[other + 1] - right != length:
        return True
    for step in range(length + 1):  # noqa: SIM110 - compiled
        if typed[left + step] != typed[right + step]:
            return True
    return False
