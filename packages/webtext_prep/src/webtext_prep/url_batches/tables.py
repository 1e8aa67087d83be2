"""Sets of short byte strings that compiled code looks up: rules, and the labels of a tree of suffixes.

A table is open-addressing hashing over arrays. Equal hashes are not enough: the bytes are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import xxhash

from webtext_prep.compiled import compiled
from webtext_prep.near_duplicates.hashes import Bytes, xxh3

_MIX = 0x9E3779B97F4A7C15


class Table(NamedTuple):
    """A set of pairs of a group (a number) and a key (bytes).

    Attributes:
        slots: number of the entry in each slot, -1 in an empty one; a power of two, at most half of it in use.
        groups: the group of each entry.
        ends: where in `keys` the key of each entry ends, and the next one begins.
        keys: all keys, one after another.
        longest: the length of the longest key.
    """

    slots: Any
    groups: Any
    ends: Any
    keys: Any
    longest: int


def table_of(entries: Iterable[tuple[int, bytes]]) -> Table:
    """The table of some (group, key); an entry's number is its place among them."""
    found = list(entries)
    size = 1 << (2 * len(found) + 1).bit_length()
    slots = np.full(size, -1, np.int32)
    for number, (group, key) in enumerate(found):
        slot = (xxhash.xxh3_64_intdigest(key) ^ (group * _MIX & 0xFFFFFFFFFFFFFFFF)) & (size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = number
    return Table(
        slots,
        np.array([group for group, _ in found], np.int32),
        np.cumsum([0] + [len(key) for _, key in found]).astype(np.int64),
        np.frombuffer(b"".join(key for _, key in found) + b"\0", np.uint8),
        max((len(key) for _, key in found), default=0),
    )


@compiled
def find(table: Table, group: int, data: Bytes, start: int, end: int) -> int:
    """The number of the entry with this group and the key `data[start:end]`, or -1."""
    length = end - start
    if length > table.longest:
        return -1
    mask = len(table.slots) - 1
    slot = np.int64((xxh3(data, start, end) ^ (np.uint64(group) * np.uint64(_MIX))) & np.uint64(mask))
    while table.slots[slot] >= 0:
        number = table.slots[slot]
        begin = table.ends[number]
        if table.groups[number] == group and table.ends[number + 1] - begin == length:
            at = 0
            while at < length and table.keys[begin + at] == data[start + at]:
                at += 1
            if at == length:
                return number
        slot = (slot + 1) & mask
    return -1
