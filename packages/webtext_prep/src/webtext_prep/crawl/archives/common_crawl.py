"""Common Crawl: its list of crawls, the index files of each, and records of its WARC files, all by plain requests.

Its index server is one small machine, so that its files are read instead, a part at a time: `cluster.idx` says in which
block of which file a key lies, and the block which record of which WARC file a page is.

`cluster.idx` of a crawl holds the first key of each block of its index, sorted, and has some 100 MB. A key is found by
halving, in 7 requests for the first and fewer for each further one; what was read is kept, so that no piece is asked
for twice while memory holds it.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import re
from collections import OrderedDict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

from command_kit import parse_json
from webtext_prep.crawl.archives.captures import (
    CAPTURES,
    Capture,
    Request,
    Search,
    nearest,
    readable_time,
    timestamp,
    tried,
)
from webtext_prep.crawl.archives.warc import ArchiveReader, Damage
from webtext_prep.crawl.http.bodies import GZIP, BodyError, DamagedBodyError, TooLargeError, decoded, may_be_page
from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable
from webtext_prep.urls.urls import surt

CRAWLS = 3
"""Crawls that are asked for a page, by the nearest time: each has a part of the web only, and each costs."""
LIST_BYTES = 4 << 20
BLOCK_BYTES = 8 << 20
"""Of a block of the index, decompressed; it has 3,000 lines."""
HEADER_BYTES = 1 << 20
"""Of a record, on top of its page."""
KEPT_BLOCKS = 4
"""Pages of one site, which a list often names one after the other, lie in one block."""
_CRAWL = re.compile(r"CC-MAIN-(\d{4})-(\d{2})")
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


class Block(NamedTuple):
    """A block of an index, a gzip member of one of its files."""

    file: str
    offset: int
    length: int


class Kept:
    """The lines of the pieces of files that were used last, by the file and the piece; `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: OrderedDict[tuple[str, Any], list[bytes]] = OrderedDict()

    def get(self, url: str, piece: Any) -> list[bytes] | None:
        """The lines of a piece, None where it was never read or is forgotten."""
        found = self._lines.get((url, piece))
        if found is not None:
            self._lines.move_to_end((url, piece))
        return found

    def keep(self, url: str, piece: Any, lines: list[bytes]) -> None:
        """Remember a piece, and forget others that were used longer ago."""
        self._lines[url, piece] = lines
        while len(self._lines) > self._most:
            self._lines.popitem(last=False)


class ClusterIndex:
    """The file of one crawl.

    Args:
        url: of it.
        pieces: remembers what was read.
    """

    def __init__(self, url: str, pieces: Kept) -> None:
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

    def _read(self, number: int) -> Generator[Request | Capture, Reply, str]:
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


class CommonCrawl:
    """Common Crawl, or a copy of it.

    Args:
        address: of its files.
        index_address: of its list of crawls.
        max_bytes: most bytes of a page, decompressed.
    """

    name: ClassVar[str] = "common-crawl"
    usual_requests: ClassVar[int] = 6
    most_requests: ClassVar[int] = 1 + CRAWLS * (12 + MOST_BLOCKS + CAPTURES)

    def __init__(self, address: str, index_address: str, max_bytes: int) -> None:
        self._address, self._index_address = address.rstrip("/"), index_address.rstrip("/")
        self.addresses: tuple[str, ...] = (self._address, self._index_address)
        self._max_bytes = max_bytes
        self._crawls: list[tuple[str, str]] = []
        self._indexes: dict[str, ClusterIndex] = {}
        self._pieces, self._blocks = Kept(KEPT_PIECES), Kept(KEPT_BLOCKS)

    def search(self, url: str, date: str) -> Search:
        """See `Archive`."""
        key = surt(url)
        if not key:
            return PageOutcome.NOT_ARCHIVED
        if not self._crawls:
            reply = yield Request(f"{self._index_address}/collinfo.json", LIST_BYTES)
            if reply.outcome != PageOutcome.OK:
                return reply.outcome
            self._crawls = _crawls(reply.body)
            if not self._crawls:
                return PageOutcome.MALFORMED_RESPONSE
        answer: str = PageOutcome.NOT_ARCHIVED
        for _, crawl in nearest(self._crawls, date)[:CRAWLS]:
            lines = yield from self._lines(crawl, f"{key} ".encode())
            if isinstance(lines, str):
                if is_retryable(lines):
                    return lines
                answer = lines if lines != "http_404" else answer  # some early crawls have no such index
                continue
            captures = nearest(_captures(lines), date)[:CAPTURES]
            answer = yield from tried((self._record(entry, key, time) for time, entry in captures), answer)
            if is_retryable(answer):
                return answer
        return answer

    def _lines(self, crawl: str, key: bytes) -> Generator[Request | Capture, Reply, list[bytes] | str]:
        """The lines of a crawl's index that begin with `key`, or why they can't be read."""
        folder = f"{self._address}/cc-index/collections/{crawl}/indexes"
        index = self._indexes.setdefault(crawl, ClusterIndex(f"{folder}/cluster.idx", self._pieces))
        blocks = yield from index.find(key)
        if isinstance(blocks, str):
            return blocks
        found: list[bytes] = []
        for block in blocks:
            lines = self._blocks.get(crawl, block)
            if lines is None:
                reply = yield Request(f"{folder}/{block.file}", block.length, (block.offset, block.length))
                if reply.outcome != PageOutcome.OK:
                    return reply.outcome
                try:
                    lines = _unpacked(reply.body, BLOCK_BYTES).split(b"\n")
                except BodyError:
                    return PageOutcome.MALFORMED_RESPONSE
                self._blocks.keep(crawl, block, lines)
            found += [line for line in lines if line.startswith(key)]
        return found

    def _record(self, entry: dict[str, Any], key: str, time: str) -> Generator[Request | Capture, Reply, Capture | str]:
        """The page in one record of a WARC file, or why there is none."""
        offset, length = entry["offset"], entry["length"]
        if length > self._max_bytes:
            return PageOutcome.TOO_LARGE
        reply = yield Request(f"{self._address}/{entry['filename']}", length, (offset, length))
        if reply.outcome != PageOutcome.OK:
            return reply.outcome
        if len(reply.body) != length:
            return PageOutcome.DAMAGED
        try:
            data = _unpacked(reply.body, self._max_bytes + HEADER_BYTES)
        except BodyError as error:
            return error.outcome if isinstance(error, TooLargeError) else PageOutcome.DAMAGED
        entries = (entry for entry, _ in _Held(data, self._max_bytes).pages())
        pages = (entry.page if isinstance(entry, Damage) else entry for entry in entries)
        found = next(filter(None, pages), None)
        if found is None or found.page is None:
            return PageOutcome.DAMAGED if found is None or found.outcome == PageOutcome.OK else found.outcome
        if surt(found.url) != key:
            return PageOutcome.NOT_ARCHIVED
        page = found.page
        kind = f"text/{'html' if page.is_html else 'plain'}{f'; charset={page.charset}' if page.charset else ''}"
        headers = ((b"Content-Type", kind.encode("latin-1", "replace")),)
        sent = Reply(PageOutcome.OK, found.url, 200, body=page.body, charset=page.charset, is_html=page.is_html,
                     reason="OK", headers=headers)  # fmt: skip
        return Capture(readable_time(timestamp(found.fetched_at or "") or time), sent)


def _unpacked(data: bytes, limit: int) -> bytes:
    """What gzip data hold. Raises as `decoded` does, also for other data."""
    if not data.startswith(GZIP):
        raise DamagedBodyError("gzip")
    return decoded(data, "", "gzip", limit=limit, may_be_cut=False)


class _Held(ArchiveReader):
    """An archive in memory."""

    def __init__(self, data: bytes, max_bytes: int) -> None:
        super().__init__(Path("record.warc"), "record", max_bytes=max_bytes, keep_truncated=False)
        self._data = data

    def _opened(self) -> BinaryIO:
        return io.BytesIO(self._data)


def _crawls(body: bytes) -> list[tuple[str, str]]:
    """Of each crawl the `timestamp` of its beginning, and its id."""
    try:
        listed = [entry for entry in parse_json(body) if isinstance(entry, dict)]
    except (ValueError, TypeError):
        return []
    found = []
    for entry in listed:
        name = str(entry.get("id", ""))
        week = _CRAWL.fullmatch(name)
        if week is None:
            continue  # crawls before 2013 have no such index
        begin = timestamp(str(entry.get("from", "")))
        with contextlib.suppress(ValueError):
            begin = begin or timestamp(datetime.date.fromisocalendar(int(week[1]), int(week[2]), 1).isoformat())
            found.append((begin, name))
    return found


def _captures(lines: list[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The captures in lines of an index that may be pages: `key timestamp {json}`."""
    for line in lines:
        try:
            _, time, values = line.split(b" ", 2)
            entry = parse_json(values)
            entry = {**entry, "offset": int(entry["offset"]), "length": int(entry["length"])}
            is_page = str(entry.get("status")) == "200" and may_be_page(str(entry.get("mime", "")).lower())
            if is_page and entry["offset"] >= 0 < entry["length"] and str(entry["filename"]).endswith(".warc.gz"):
                yield time.decode("ascii"), entry
        except (ValueError, KeyError, TypeError):
            continue
