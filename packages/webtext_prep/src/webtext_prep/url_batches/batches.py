"""Blocks of lines of URLs, split into buckets or judged: compiled code for plain URLs, a function for each other line.

A block is bytes of whole lines, each with its newline. There is no Python object for a plain URL.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np

from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.urls import url_key
from webtext_prep.errors import WebtextError
from webtext_prep.running.tally import with_reason
from webtext_prep.url_batches.judged import Judged
from webtext_prep.url_batches.judging import ASK, KEEP, REASONS, KeySet, judge_lines, write_lines
from webtext_prep.url_batches.parsing import gather, scan
from webtext_prep.url_batches.suffixes import suffixes
from webtext_prep.url_batches.tables import Table, table_of

SAMPLE_EVERY = 256
"""One of so many URLs is judged once more, by itself."""

_BEFORE = np.frombuffer(b'{"url":"', np.uint8)
_ENDS = [b'"}\n', *(b'","reason":"%s"}\n' % reason.encode() for reason in REASONS[1:])]
_AFTER = np.array([list(end.ljust(max(map(len, _ENDS)) + 1, b"\0")) for end in _ENDS], np.uint8)
_AROUND = len(_BEFORE) + _AFTER.shape[1]


def split_lines(
    block: bytes, buckets: int, other: Callable[[bytes], tuple[int, bytes]]
) -> tuple[int, list[memoryview]]:
    """Split a block by host: the number of URLs, and for each bucket its lines in order, each with its newline.

    Empty lines and comments are left out. `other` says for a line that is not a plain URL its bucket, and the line to
    put there.
    """
    data, rows = _array(block), block.count(b"\n")
    starts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    chosen = np.empty(rows, np.int32)
    found = scan(data, starts, ends, chosen, buckets)
    starts, ends, chosen = starts[:found], ends[:found], chosen[:found]
    extra = bytearray()
    for number in np.flatnonzero(chosen < 0).tolist():
        chosen[number], line = other(block[starts[number] : ends[number]])
        starts[number], ends[number] = _appended(extra, line, len(block))
    bucket_ends = np.empty(buckets, np.int64)
    lines = np.empty(int((ends - starts).sum()) + found, np.uint8)
    gather(data, _array(bytes(extra)), starts, ends, chosen, bucket_ends, lines)
    view, places = lines.data, [0, *bucket_ends.tolist()]
    return found, [view[start:end] for start, end in itertools.pairwise(places)]


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data or b"\n", np.uint8)


def _appended(target: bytearray, data: bytes, before: int) -> tuple[int, int]:
    """Append `data`; where it begins and ends, counted from `before` bytes in front of `target`."""
    start = before + len(target)
    target += data
    return start, before + len(target)


class Judge:
    """Judges block after block; a URL whose key was in an earlier block, or before in its own, is a duplicate.

    Args:
        judge: says of a URL why to drop it, or None; what defines the verdicts.
        read: the row in a line.
        sites, extensions, max_length: the rules by which `judge` does so.
        keep_dropped: whether the rows that are dropped are wanted, too.
    """

    def __init__(
        self,
        judge: Callable[[str], str | None],
        read: Callable[[bytes], Document],
        sites: frozenset[str],
        extensions: frozenset[str],
        max_length: int,
        *,
        keep_dropped: bool,
    ) -> None:
        self._judge, self._read, self._keep_dropped = judge, read, keep_dropped
        self._rules = suffixes(), _rules_table(sites), _rules_table(extensions)
        self._max_length = max_length
        self._known = KeySet()

    def judge(self, block: bytes) -> Judged:
        """Judge the URLs of a block. Raises WebtextError if a sample shows that the compiled code is wrong."""
        data, rows = _array(block), block.count(b"\n")
        starts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
        verdicts = np.empty(rows, np.int8)
        keys, key_ends = np.empty(len(block) + rows, np.uint8), np.empty(rows, np.int64)
        judge_lines(data, self._max_length, *self._rules, starts, ends, verdicts, keys, key_ends)
        key_starts = np.concatenate(([0], key_ends[:-1]))
        self._check(block, starts, ends, verdicts, keys, key_starts, key_ends)

        others = {n: self._read(block[starts[n] : ends[n]]) for n in np.flatnonzero(verdicts == ASK).tolist()}
        other_keys = bytearray()
        used = int(key_ends[-1]) if rows else 0
        for number, row in others.items():
            reason = self._judge(row.url)
            verdicts[number] = REASONS.index(reason or "")
            if reason is None:
                key = url_key(row.url).encode("utf-8", "surrogatepass")
                key_starts[number], key_ends[number] = _appended(other_keys, key, used)
        if other_keys:
            keys = np.concatenate((keys[:used], _array(bytes(other_keys))))
        self._known.mark(keys, key_starts, key_ends, verdicts)

        extra = bytearray()
        for number, row in others.items():
            verdict = int(verdicts[number])
            line = b""
            if verdict == KEEP:
                line = encode_document(row) + b"\n"
            elif self._keep_dropped:
                line = encode_document(with_reason(row, REASONS[verdict])) + b"\n"
            starts[number], ends[number] = _appended(extra, line, len(block))
        counts = np.bincount(verdicts, minlength=len(REASONS)).tolist()
        places = data, _array(bytes(extra)), starts, ends, verdicts
        return Judged(
            rows,
            _rows(*places, KEEP),
            counts[KEEP],
            _rows(*places, -1) if self._keep_dropped else memoryview(b""),
            Counter({reason: count for reason, count in zip(REASONS, counts, strict=True) if reason and count}),
        )

    def _check(
        self,
        block: bytes,
        starts: np.ndarray,
        ends: np.ndarray,
        verdicts: np.ndarray,
        keys: np.ndarray,
        key_starts: np.ndarray,
        key_ends: np.ndarray,
    ) -> None:
        """Compare a sample with what defines the verdicts: tldextract, and the standard library."""
        for number in range(0, len(starts), SAMPLE_EVERY):
            verdict = int(verdicts[number])
            if verdict == ASK:
                continue
            url = block[starts[number] : ends[number]].decode("ascii")
            found = REASONS[verdict], bytes(keys[key_starts[number] : key_ends[number]])
            reason = self._judge(url)
            expected = reason or "", b"" if reason else url_key(url).encode()
            if found != expected:
                raise WebtextError(
                    f"internal error: compiled code and plain code differ over {url}: {found} and {expected}; "
                    "please report it with this line."
                )


@functools.lru_cache(maxsize=4)
def _rules_table(rules: frozenset[str]) -> Table:
    return table_of((0, rule.encode()) for rule in sorted(rules))


def _rows(
    data: np.ndarray, extra: np.ndarray, starts: np.ndarray, ends: np.ndarray, verdicts: np.ndarray, wanted: int
) -> memoryview:
    lines = np.empty(int((ends - starts).sum()) + len(starts) * _AROUND, np.uint8)
    written = write_lines(data, extra, starts, ends, verdicts, wanted, _BEFORE, _AFTER, lines)
    return lines.data[:written]
