"""Common Crawl: its list of crawls, the index files of each, and records of its WARC files, all by plain requests.

Its index server is one small machine, so that its files are read instead, a part at a time: `cluster.idx` says in which
block of which file a key lies, and the block which record of which WARC file a page is.

`cluster.idx` of a crawl holds the first key of each block of its index, sorted, and has some 100 MB. A key is found by
halving, in 7 requests for the first and fewer for each further one; what was read is kept, so that no piece is asked
for twice while memory holds it.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from webtext_prep.crawl.archives.answers import (
    MOST_CAPTURES,
    IndexBlock,
    MalformedAnswerError,
    WarcRange,
    block_named,
    captures_in,
    crawls_listed,
    file_size,
)
from webtext_prep.crawl.archives.captures import CAPTURES, Accept, Ask, Capture, Request, first_accepted, sensible
from webtext_prep.crawl.archives.stored_bodies import decoded
from webtext_prep.crawl.archives.surt import surt
from webtext_prep.crawl.archives.times import nearest, readable_time, timestamp
from webtext_prep.crawl.archives.warc import ArchiveReader, Damage
from webtext_prep.crawl.http.bodies import GZIP, BodyError, DamagedBodyError, TooLargeError
from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome, is_retryable

CRAWLS = 3
"""Crawls that are asked for a page, by the nearest time: each has a part of the web only, and each costs."""
LIST_BYTES = 4 << 20
BLOCK_BYTES = 8 << 20
"""Of a block of the index, decompressed; it has 3,000 lines."""
HEADER_BYTES = 1 << 20
"""Of a record, on top of its page."""
KEPT_BLOCKS = 4
"""Pages of one site, which a list often names one after the other, lie in one block."""
PIECE_BYTES = 1 << 20
OVERLAP_BYTES = 1 << 14
"""Of the next piece: a line that begins in a piece ends there."""
KEPT_PIECES = 64
MOST_BLOCKS = 3
"""Blocks that one URL may have captures in."""
MOST_KEY_BYTES = 2_048
"""Of the first line of a piece that are remembered: keys that are longer and begin alike are not told apart there."""
_BEYOND = b"\xff"


class Kept:
    """The pieces of files that were used last, by the file and the piece; `most` of them.

    They are kept as they came: lines taken apart may need many times the memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._texts: OrderedDict[tuple[str, Any], bytes] = OrderedDict()

    def get(self, url: str, piece: Any) -> bytes | None:
        """The lines of a piece, None where it was never read or is forgotten."""
        found = self._texts.get((url, piece))
        if found is not None:
            self._texts.move_to_end((url, piece))
        return found

    def keep(self, url: str, piece: Any, text: bytes) -> None:
        """Remember a piece, and forget others that were used longer ago."""
        self._texts[url, piece] = text
        while len(self._texts) > self._most:
            self._texts.popitem(last=False)


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

    async def find(self, key: bytes, ask: Ask) -> list[IndexBlock] | str:
        """The blocks in which lines that begin with `key` may be, or the outcome of a request that failed."""
        if self._size < 0 and (failure := (await self._read(0, ask))):
            return [] if failure == "http_416" else failure  # there is not one byte
        low, high = 0, max(0, (self._size - 1) // PIECE_BYTES)
        while low < high:
            middle = (low + high + 1) // 2
            if middle not in self._first and (failure := (await self._read(middle, ask))):
                return failure
            if self._first[middle] < key:
                low = middle
            else:
                high = middle - 1
        if self._pieces.get(self._url, low) is None and (failure := (await self._read(low, ask))):
            return failure
        # The block that may begin before the key, and the blocks that begin with it.
        found: list[bytes] = []
        for line in io.BytesIO(self._pieces.get(self._url, low) or b""):
            if line < key:
                found = [line.rstrip()]
            elif line.startswith(key) and len(found) <= MOST_BLOCKS:
                found.append(line.rstrip())
            else:
                break
        return [block for block in map(block_named, found) if block is not None][:MOST_BLOCKS]

    async def _read(self, number: int, ask: Ask) -> str:
        """Ask for a piece; returns the outcome of a request that failed, or ""."""
        # One byte more, to see whether a line begins with the piece.
        start = max(0, number * PIECE_BYTES - 1)
        end = (number + 1) * PIECE_BYTES + OVERLAP_BYTES
        reply = await ask(Request(self._url, end - start, (start, end - start)))
        if reply.outcome != PageOutcome.OK:
            return reply.outcome
        try:
            size = file_size(reply.headers)
        except MalformedAnswerError:
            return PageOutcome.MALFORMED_RESPONSE
        if start + len(reply.body) != min(end, size):
            return PageOutcome.MALFORMED_RESPONSE
        self._size = size
        text = reply.body if start == 0 else reply.body.partition(b"\n")[2]
        if end < size:
            text = text[: text.rfind(b"\n") + 1]  # its last line may go on
        text = text.lstrip(b"\n")
        if not text and end < size:
            return PageOutcome.MALFORMED_RESPONSE
        # The last piece may hold no more than the end of a line: then it is beyond every key.
        self._first[number] = text.partition(b"\n")[0][:MOST_KEY_BYTES] or _BEYOND
        self._pieces.keep(self._url, number, text)
        return ""


class CommonCrawl:
    """Common Crawl, or a copy of it.

    Args:
        address: of its files.
        index_address: of its list of crawls.
        max_bytes: most bytes of a page, decompressed.
    """

    name: ClassVar[str] = "common-crawl"
    usual_requests: ClassVar[int] = 6

    def __init__(self, address: str, index_address: str, max_bytes: int) -> None:
        self._address, self._index_address = address.rstrip("/"), index_address.rstrip("/")
        self.addresses: tuple[str, ...] = (self._address, self._index_address)
        self._max_bytes = max_bytes
        self._crawls: list[tuple[str, str]] = []
        self._indexes: dict[str, ClusterIndex] = {}
        self._pieces, self._blocks = Kept(KEPT_PIECES), Kept(KEPT_BLOCKS)

    @sensible
    async def find(self, url: str, date: str, ask: Ask, accept: Accept) -> Capture | str:
        """See `Archive`."""
        key = surt(url)
        if not key:
            return PageOutcome.NOT_ARCHIVED
        if not self._crawls:
            reply = await ask(Request(f"{self._index_address}/collinfo.json", LIST_BYTES))
            if reply.outcome != PageOutcome.OK:
                return reply.outcome
            self._crawls = crawls_listed(reply.body)
        answer: str = PageOutcome.NOT_ARCHIVED
        for _, crawl in nearest(self._crawls, date)[:CRAWLS]:
            found = await self._find_in(crawl, key, date, ask, accept, answer)
            if isinstance(found, Capture) or is_retryable(found) or found == PageOutcome.OPTED_OUT:
                return found
            answer = found
        return answer

    @sensible
    async def _find_in(self, crawl: str, key: str, date: str, ask: Ask, accept: Accept, answer: str) -> Capture | str:
        """Look into one crawl; `answer` is what those before it have said."""
        lines = await self._lines(crawl, f"{key} ".encode(), ask)
        if isinstance(lines, str):
            return lines if lines != "http_404" else answer  # some early crawls have no such index
        captures = nearest(captures_in(lines), date)[:CAPTURES]
        return await first_accepted((self._record(record, key, time, ask) for time, record in captures), accept, answer)

    async def _lines(self, crawl: str, key: bytes, ask: Ask) -> list[bytes] | str:
        """The lines of a crawl's index that begin with `key`, or why they can't be read."""
        folder = f"{self._address}/cc-index/collections/{crawl}/indexes"
        index = self._indexes.setdefault(crawl, ClusterIndex(f"{folder}/cluster.idx", self._pieces))
        blocks = await index.find(key, ask)
        if isinstance(blocks, str):
            return blocks
        found: list[bytes] = []
        for block in blocks:
            text = self._blocks.get(crawl, block)
            if text is None:
                reply = await ask(Request(f"{folder}/{block.file}", block.length, (block.offset, block.length)))
                if reply.outcome != PageOutcome.OK:
                    return reply.outcome
                try:
                    text = _unpacked(reply.body, BLOCK_BYTES)
                except BodyError:
                    return PageOutcome.MALFORMED_RESPONSE
                self._blocks.keep(crawl, block, text)
            found += _lines_with(text, key, MOST_CAPTURES - len(found))
        return found

    async def _record(self, record: WarcRange, key: str, time: str, ask: Ask) -> Capture | str:
        """The page in one record of a WARC file, or why there is none."""
        file, offset, length = record
        if length > self._max_bytes:
            return PageOutcome.TOO_LARGE
        reply = await ask(Request(f"{self._address}/{file}", length, (offset, length)))
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


def _lines_with(text: bytes, key: bytes, most: int) -> list[bytes]:
    """The first lines that begin with a key, `most` of them."""
    found: list[bytes] = []
    begin = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
    while len(found) < most and text.startswith(key, begin):
        end = text.find(b"\n", begin)
        found.append(text[begin:] if end < 0 else text[begin:end])
        begin = text.find(b"\n" + key, begin) + 1
        if not begin:
            break
    return found


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
