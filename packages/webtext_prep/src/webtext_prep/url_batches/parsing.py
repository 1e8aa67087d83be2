"""The parts of a URL, found by compiled code: of plain ones only; any other is left to `documents.urls`.

Plain is `http://host/path?query#fragment` (or https) in printable ASCII without the characters that a URL may not
hold, where the host is letters, digits, hyphens, underscores and single dots inside it: no user, port, brackets,
percent-escapes or dot at the end. Of such a URL `urlsplit`, `host_of` and `url_key` give what is read off here, which
tests hold equal; of others, some hundredths of a list from the web, this module says nothing but that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.compiled import compiled
from webtext_prep.near_duplicates.hashes import Bytes, xxh3

Places = npt.NDArray[np.int64]

LONGEST_HOST = 253
NOT_PLAIN = -1

_FORBIDDEN = b'<>"\\^`{|}'
_IN_URL, _IN_HOST = 1, 2
_KINDS = np.zeros(256, np.uint8)
for _byte in range(0x21, 0x7F):
    if _byte not in _FORBIDDEN:
        _KINDS[_byte] = _IN_URL | (_IN_HOST if chr(_byte).isalnum() or chr(_byte) in "-_." else 0)
_SLASH, _QUESTION, _HASH, _DOT, _NEWLINE = 47, 63, 35, 46, 10


@compiled
def is_space(byte: int) -> bool:
    """Whether `bytes.strip` removes it."""
    return byte == 32 or 9 <= byte <= 13


@compiled
def lower(byte: Any) -> Any:
    """The byte, in lower case if it is an ASCII letter."""
    return byte + np.uint8(32) if 65 <= byte <= 90 else byte


@compiled
def parse(data: Bytes, start: int, end: int) -> tuple[int, int, int, int]:
    """Where host, path, query, fragment of the URL `data[start:end]` begin; NOT_PLAIN (four times) for other URLs.

    The host ends where the path begins, and so on; an absent part is empty. `?` and `#` belong to what they begin.
    """
    nothing = NOT_PLAIN, NOT_PLAIN, NOT_PLAIN, NOT_PLAIN
    at = start + 4
    if end - start < 8 or data[start] | 32 != 104 or data[start + 1] | 32 != 116:
        return nothing
    if data[start + 2] | 32 != 116 or data[start + 3] | 32 != 112:
        return nothing
    if data[at] | 32 == 115:
        at += 1
    if data[at] != 58 or data[at + 1] != _SLASH or data[at + 2] != _SLASH:
        return nothing
    host = at = at + 3
    before = _DOT  # an empty label is not plain, nor is an empty host
    while at < end and _KINDS[data[at]] & _IN_HOST:
        if data[at] == _DOT and before == _DOT:
            return nothing
        before = data[at]
        at += 1
    if before == _DOT or at - host > LONGEST_HOST:
        return nothing
    path, query, fragment = at, end, end
    if at < end and data[at] != _SLASH and data[at] != _QUESTION and data[at] != _HASH:
        return nothing
    while at < end:
        byte = data[at]
        if not _KINDS[byte]:
            return nothing
        if byte == _HASH:
            fragment = min(fragment, at)
        elif byte == _QUESTION and fragment == end:
            query = min(query, at)
        at += 1
    return host, path, min(query, fragment), fragment


@compiled
def scan(data: Bytes, starts: Places, ends: Places, buckets: Any, number_of_buckets: int) -> int:
    """The lines of a block that are not empty and no comment, stripped, and the bucket of each by its host.

    Fills `starts`, `ends` and `buckets` (-1 for a line that is not a plain URL) and returns how many there are.
    """
    host = np.empty(LONGEST_HOST, np.uint8)
    found, at, size = 0, 0, len(data)
    while at < size:
        line = at
        while at < size and data[at] != _NEWLINE:
            at += 1
        end = at
        at += 1
        while line < end and is_space(data[line]):
            line += 1
        while end > line and is_space(data[end - 1]):
            end -= 1
        if line == end or data[line] == _HASH:
            continue
        starts[found], ends[found], buckets[found] = line, end, -1
        begin, path, _, _ = parse(data, line, end)
        if begin >= 0:
            for place in range(begin, path):
                host[place - begin] = lower(data[place])
            buckets[found] = xxh3(host, 0, path - begin) % np.uint64(number_of_buckets)
        found += 1
    return found


@compiled
def gather(
    data: Bytes, extra: Bytes, starts: Places, ends: Places, buckets: Any, bucket_ends: Places, lines: Bytes
) -> None:
    """Put lines together by their buckets, in order, each with a newline; a place behind `data` is one in `extra`.

    `bucket_ends` is filled with where in `lines` each bucket ends; `lines` has room for all of them.
    """
    size = len(data)
    bucket_ends[:] = 0
    for number in range(len(starts)):
        bucket_ends[buckets[number]] += ends[number] - starts[number] + 1
    total = 0
    for bucket in range(len(bucket_ends)):
        length = bucket_ends[bucket]
        bucket_ends[bucket] = total
        total += length
    for number in range(len(starts)):
        to = bucket_ends[buckets[number]]
        start, end = starts[number], ends[number]
        if start < size:
            copy(data, start, end, lines, to)
        else:
            copy(extra, start - size, end - size, lines, to)
        to += end - start
        lines[to] = _NEWLINE
        bucket_ends[buckets[number]] = to + 1


@compiled
def copy(source: Bytes, start: int, end: int, target: Bytes, to: int) -> None:
    """Copy `source[start:end]` to `target[to:]`."""
    for offset in range(end - start):
        target[to + offset] = source[start + offset]
