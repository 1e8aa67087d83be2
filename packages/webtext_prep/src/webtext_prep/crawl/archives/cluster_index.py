"""`cluster.idx` of a crawl: the first key of each block of its index, sorted, read in pieces as they are needed.

The file of a crawl has some 100 MB. A key is found by halving, in 7 requests for the first and fewer for each further
one; what was read is kept, so that no piece is asked for twice while memory holds it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Generator
from typing import NamedTuple

from webtext_prep.crawl.archives.captures import Capture, Request
from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome

PIECE_BYTES = 1 << 20
OVERLAP_BYTES = 1 << 14
"""Of the next piece: a line that begins in a piece ends there."""
KEPT_PIECES = 64
MOST_BLOCKS = 3
"""Blocks that one URL may have captures in."""
MOST_BLOCK_BYTES = 4 << 20
_BEYOND = b"\xff"
_SIZE = re.compile(rb"bytes \d+-\d+/(\d{1,15})")
_FILE = re.compile(r"[\w.-]+\.gz")

_Step = Generator[Request | Capture, Reply, str]


class Block(NamedTuple):
    """A block of an index, a gzip member of one of its files."""

    file: str
    offset: int
    length: int


class Pieces:
    """The pieces of all indexes that were used last, each as its lines."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, int], list[bytes]] = OrderedDict()

    def get(self, url: str, number: int) -> list[bytes] | None:
        """The lines of a piece, None where it was never read or is forgotten."""
        if (url, number) not in self._lines:
            return None
        self._lines.move_to_end((url, number))
        return self._lines[url, number]

    def keep(self, url: str, number: int, lines: list[bytes]) -> None:
        """Remember a piece, and forget others that were used longer ago."""
        self._lines[url, number] = lines
        while len(self._lines) > KEPT_PIECES:
            self._lines.popitem(last=False)


class ClusterIndex:
    """The file of one crawl.

    Args:
        url: of it.
        pieces: remembers what was read.
    """

    def __init__(self, url: str, pieces: Pieces) -> None:
        self._url, self._pieces = url, pieces
        self._size = -1  # not known yet
        self._first: dict[int, bytes] = {}  # the first line of each piece that was read

    def find(self, key: bytes) -> Generator[Request | Capture, Reply, list[Block] | str]:
        """The blocks in which lines that begin with `key` may be, or the outcome of a request that failed."""
        if self._size < 0 and (failure := (yield from self._read(0))):
            return [] if failure == "http_416" else failure  # there is not one byte
        low, high = 0, max(0, (self._size - 1) // PIECE_BYTES)
        while low < high:
            middle = (low + high + 1) // 2
            if middle not in self._first and (failure := (yield from self._read(middle))):
                return failure
            if self._first[middle] < key:
                low = middle
            else:
                high = middle - 1
        if self._pieces.get(self._url, low) is None and (failure := (yield from self._read(low))):
            return failure
        lines = self._pieces.get(self._url, low) or []
        # The block that may begin before the key, and the blocks that begin with it.
        before = [line for line in lines if line < key][-1:]
        found = map(_block, [*before, *(line for line in lines if line.startswith(key))])
        return [block for block in found if block is not None][:MOST_BLOCKS]

    def _read(self, number: int) -> _Step:
        """Ask for a piece; returns the outcome of a request that failed, or ""."""
        # One byte more, to see whether a line begins with the piece.
        start = max(0, number * PIECE_BYTES - 1)
        end = (number + 1) * PIECE_BYTES + OVERLAP_BYTES
        reply = yield Request(self._url, end - start, (start, end - start))
        if reply.outcome != PageOutcome.OK:
            return reply.outcome
        sizes = [_SIZE.match(value) for name, value in reply.headers if name.lower() == b"content-range"]
        size = next((int(found[1]) for found in sizes if found), -1)
        if size < 0 or start + len(reply.body) != min(end, size):
            return PageOutcome.MALFORMED_RESPONSE
        self._size = size
        text = reply.body if start == 0 else reply.body.partition(b"\n")[2]
        lines = text.split(b"\n")
        if end < size:
            lines.pop()  # it may go on
        lines = [line for line in lines if line]
        if not lines and end < size:
            return PageOutcome.MALFORMED_RESPONSE
        # The last piece may hold no more than the end of a line: then it is beyond every key.
        self._first[number] = lines[0] if lines else _BEYOND
        self._pieces.keep(self._url, number, lines)
        return ""


def _block(line: bytes) -> Block | None:
    """The block that a line names: key and time, file, offset, length, and a number, with tabs between."""
    try:
        _, file, offset, length, *_ = line.decode("utf-8", "replace").split("\t")
        block = Block(file, int(offset), int(length))
    except ValueError:
        return None
    is_sound = _FILE.fullmatch(file) and block.offset >= 0 and 0 < block.length <= MOST_BLOCK_BYTES
    return block if is_sound else None
