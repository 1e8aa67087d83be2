"""Judging the URLs of a block of lines in compiled code: what `Blacklist.judge` and `url_key` say of each plain one.

Plain is what `parsing` says. A verdict is the number of a reason to drop the URL, KEEP, or ASK for one that the code
for single URLs must judge. Repeated URLs are found by comparing their keys as bytes: hashes only say where to look.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.compiled import compiled
from webtext_prep.near_duplicates.hashes import Bytes, fold_product, load64
from webtext_prep.url_batches.parsing import Places, copy, lower, parse
from webtext_prep.url_batches.suffixes import NOT_KNOWN, Suffixes, registered_name
from webtext_prep.url_batches.tables import Table, find

Verdicts = npt.NDArray[np.int8]

REASONS = ("", "not_utf8", "too_long", "malformed", "blocked_domain", "blocked_extension", "duplicate")
"""The reason of each verdict."""
ASK, KEEP = -1, 0
TOO_LONG, BLOCKED_DOMAIN, BLOCKED_EXTENSION, DUPLICATE = map(REASONS.index, (REASONS[2], *REASONS[4:]))
_SLASH, _QUESTION, _DOT, _PERCENT, _NEWLINE = 47, 63, 46, 37, 10
_NOT_ASCII = 255
_ODD = np.uint64(0x9E3779B97F4A7C15)


@compiled
def judge_lines(
    data: Bytes,
    max_length: int,
    tree: Suffixes,
    sites: Table,
    extensions: Table,
    starts: Places,
    ends: Places,
    verdicts: Verdicts,
    keys: Bytes,
    key_ends: Places,
) -> None:
    """Judge the lines of `data`, which end with a newline each, whatever was seen before.

    Fills the places of the lines, their verdicts, and for those to keep their keys, one after another.
    """
    scratch = np.empty(len(data), np.uint8)
    at = size = 0
    for number in range(len(starts)):
        start = at
        while data[at] != _NEWLINE:
            at += 1
        end, at = at, at + 1
        starts[number], ends[number] = start, end
        host, path, query, fragment = parse(data, start, end)
        if host < 0:
            verdict = ASK
        elif end - start > max_length:
            verdict = TOO_LONG
        else:
            # The key begins with scheme and host in lower case, in which the host is judged.
            for place in range(start, path):
                keys[size + place - start] = lower(data[place])
            host_end = size + path - start
            verdict = _site_verdict(tree, sites, keys, size + host - start, host_end)
            if verdict == KEEP:
                verdict = _path_verdict(extensions, data, path, query, scratch)
            if verdict == KEEP:
                size = _rest_of_key(data, path, query, fragment, keys, host_end)
        verdicts[number], key_ends[number] = verdict, size


@compiled
def _rest_of_key(data: Bytes, path: int, query: int, fragment: int, keys: Bytes, size: int) -> int:
    if path == query:
        keys[size] = _SLASH
        size += 1
    end = fragment if fragment > query + 1 else query  # a question mark with nothing behind it does not count
    copy(data, path, end, keys, size)
    return size + end - path


@compiled
def _site_verdict(tree: Suffixes, sites: Table, keys: Bytes, start: int, end: int) -> int:
    name, suffix = registered_name(tree, keys, start, end)
    if name == NOT_KNOWN:
        return ASK
    if find(sites, 0, keys, name, end) >= 0:
        return BLOCKED_DOMAIN
    return BLOCKED_DOMAIN if suffix < end and find(sites, 0, keys, name, suffix - 1) >= 0 else KEEP


@compiled
def _path_verdict(extensions: Table, data: Bytes, start: int, end: int, scratch: Bytes) -> int:
    """Whether the last part of the path has one of the extensions, percent-escapes decoded, in lower case."""
    name = size = 0
    has_dot, is_ascii, at = False, True, start
    while at < end:
        byte = data[at]
        if byte == _PERCENT and at + 2 < end and _digit(data[at + 1]) >= 0 and _digit(data[at + 2]) >= 0:
            byte = np.uint8(16 * _digit(data[at + 1]) + _digit(data[at + 2]))
            at += 2
        at += 1
        if byte == _SLASH:
            name, has_dot, is_ascii = size + 1, False, True
        elif byte == _DOT:
            has_dot = True
        elif byte >= 128:
            byte, is_ascii = np.uint8(_NOT_ASCII), False
        scratch[size] = lower(byte)
        size += 1
    if not has_dot:
        return KEEP
    if not is_ascii:  # some letters become ASCII in lower case
        return ASK
    for place in range(name, size):
        if scratch[place] == _DOT and find(extensions, 0, scratch, place + 1, size) >= 0:
            return BLOCKED_EXTENSION
    return KEEP


@compiled
def _digit(byte: int) -> int:
    """The value of a hexadecimal digit, or -1."""
    if 48 <= byte <= 57:
        return byte - 48
    letter = byte | 32
    return letter - 87 if 97 <= letter <= 102 else -1


@compiled
def _seeded_hash(data: Bytes, start: int, end: int, seed: Any) -> Any:
    """Multiplication of 64 by 64 bits, folded, word after word: without the seed nobody can make two keys collide."""
    digest = seed ^ np.uint64(end - start)
    while end - start >= 8:
        digest = fold_product(digest ^ load64(data, start), seed ^ _ODD)
        start += 8
    word = np.uint64(0)
    for at in range(start, end):
        word = (word << np.uint64(8)) | np.uint64(data[at])
    return fold_product(digest ^ word, seed ^ _ODD)


@compiled
def mark_repeated(
    data: Bytes,
    starts: Places,
    ends: Places,
    verdicts: Verdicts,
    seed: np.uint64,
    slots: Places,
    hashes: Any,
    key_ends: Places,
    known: Bytes,
    count: int,
) -> int:
    """Turn KEEP into DUPLICATE for each key `data[start:end]` that is known, and make known the others.

    The arrays have room for all of them (`KeySet`). Returns how many keys are known now.
    """
    mask = np.uint64(len(slots) - 1)
    for number in range(len(starts)):
        if verdicts[number] != KEEP:
            continue
        start, end = starts[number], ends[number]
        digest = _seeded_hash(data, start, end, seed)
        slot = digest & mask
        while slots[slot] >= 0:
            entry = slots[slot]
            if hashes[entry] == digest and _equal(known, key_ends[entry], key_ends[entry + 1], data, start, end):
                verdicts[number] = DUPLICATE
                break
            slot = (slot + np.uint64(1)) & mask
        if verdicts[number] == KEEP:
            slots[slot], hashes[count] = count, digest
            copy(data, start, end, known, key_ends[count])
            key_ends[count + 1] = key_ends[count] + end - start
            count += 1
    return count


@compiled
def _equal(known: Bytes, start: int, end: int, data: Bytes, data_start: int, data_end: int) -> bool:
    if end - start != data_end - data_start:
        return False
    for offset in range(end - start):  # noqa: SIM110 - compiled
        if known[start + offset] != data[data_start + offset]:
            return False
    return True


@compiled
def fill_slots(slots: Places, hashes: Any, count: int) -> None:
    """Put known keys into the slots of a larger table."""
    slots[:] = -1
    mask = np.uint64(len(slots) - 1)
    for entry in range(count):
        slot = hashes[entry] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = entry


class KeySet:
    """The keys of the URLs that were kept: 1.3 times their bytes and some 40 bytes for each."""

    def __init__(self) -> None:
        self._count = 0
        # Random, so that no list can be made to fill one place of the table; no result depends on it.
        self._seed = np.uint64(int.from_bytes(os.urandom(8), "little"))
        self._slots = np.full(1 << 10, -1, np.int64)
        self._hashes = np.zeros(1 << 9, np.uint64)
        self._ends = np.zeros((1 << 9) + 1, np.int64)
        self._known = np.zeros(1 << 15, np.uint8)

    def mark(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, verdicts: np.ndarray) -> None:
        """Turn KEEP into DUPLICATE where the key `data[start:end]` came before, here or in an earlier call."""
        self._make_room(len(starts), len(data))
        self._count = mark_repeated(
            data, starts, ends, verdicts, self._seed, self._slots, self._hashes, self._ends, self._known, self._count
        )

    def _make_room(self, keys: int, size: int) -> None:
        used = int(self._ends[self._count])
        if used + size > len(self._known):
            self._known = _grown(self._known, used + size)
        if self._count + keys > len(self._hashes):
            self._hashes = _grown(self._hashes, self._count + keys)
            self._ends = _grown(self._ends, self._count + keys + 1)
            self._slots = np.empty(1 << (2 * len(self._hashes) - 1).bit_length(), np.int64)
            fill_slots(self._slots, self._hashes, self._count)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    """A copy with room for `size` entries, and for a third of that more."""
    longer = np.zeros(size + size // 3, array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def write_lines(
    data: Bytes,
    extra: Bytes,
    starts: Places,
    ends: Places,
    verdicts: Verdicts,
    wanted: int,
    before: Bytes,
    after: Any,
    lines: Bytes,
) -> int:
    """Write each line whose verdict is `wanted`, or is not KEEP if that is -1, into `lines`; returns the bytes.

    A line of `data` is put between `before` and `after`, the parts of a JSON object around a URL, the row of
    `after` being that of its verdict; a place behind `data` is one in `extra`, a whole line as it is.
    """
    size, written = len(data), 0
    for number in range(len(starts)):
        verdict = verdicts[number]
        if verdict != wanted and (wanted != -1 or verdict == KEEP):
            continue
        start, end = starts[number], ends[number]
        if start >= size:
            copy(extra, start - size, end - size, lines, written)
            written += end - start
            continue
        copy(before, 0, len(before), lines, written)
        written += len(before)
        copy(data, start, end, lines, written)
        written += end - start
        at = 0
        while after[verdict, at] != 0:
            lines[written] = after[verdict, at]
            at += 1
            written += 1
    return written
