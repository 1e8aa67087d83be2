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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from command_kit import parse_json
from webtext_prep.crawl.archives.captures import CAPTURES, Asker, Capture, MalformedAnswerError, taken_apart
from webtext_prep.crawl.archives.cdx import nearest, readable_time, surt, timestamp
from webtext_prep.crawl.archives.warc import ArchiveReader, Damage
from webtext_prep.crawl.http import bodies, media_types
from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction.outcomes import PageOutcome

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
MOST_CRAWLS = 1_000
"""Crawls of Common Crawl that are looked at; there are 120."""
MOST_CAPTURES = 1_000
"""Of one URL in one crawl that are looked at; a front page has some dozens."""
MOST_BLOCK_BYTES = 4 << 20
"""Of a block of an index, compressed."""
MOST_INDEX_BYTES = 1 << 30
"""Of `cluster.idx`; those of Common Crawl have 100 to 200 MB."""
_CRAWL = re.compile(r"CC-MAIN-(\d{4})-(\d{2})", re.ASCII)
_SIZE = re.compile(rb"bytes \d+-\d+/(\d{1,15})")
_INDEX_FILE = re.compile(r"[\w.-]+\.gz", re.ASCII)
_ARCHIVE_FILE = re.compile(r"[\w.=/-]+\.warc\.gz", re.ASCII)
_WHOLE = re.compile(r"\d{1,15}", re.ASCII)


class GzipMember(NamedTuple):
    """A part of a file that is compressed by itself: a block of an index, or a record of a WARC file."""

    file: str
    offset: int
    length: int


Get = Callable[[str, int, tuple[int, int]], Awaitable[Reply]]
"""Asks for a part of a file: the address, the bytes that are read, the part; see `Asker.get`."""


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

    async def find(self, key: bytes, get: Get) -> tuple[list[GzipMember], str]:
        """The blocks in which lines that begin with `key` may be, and the outcome of a request that failed, or ""."""
        if self._size < 0 and (failure := (await self._read(0, get))):
            return [], "" if failure == "http_416" else failure  # there is not one byte
        low, high = 0, max(0, (self._size - 1) // PIECE_BYTES)
        while low < high:
            middle = (low + high + 1) // 2
            if middle not in self._first and (failure := (await self._read(middle, get))):
                return [], failure
            if self._first[middle] < key:
                low = middle
            else:
                high = middle - 1
        if self._pieces.get(self._url, low) is None and (failure := (await self._read(low, get))):
            return [], failure
        # The block that may begin before the key, and the blocks that begin with it.
        found: list[bytes] = []
        for line in io.BytesIO(self._pieces.get(self._url, low) or b""):
            if line < key:
                found = [line.rstrip()]
            elif line.startswith(key) and len(found) <= MOST_BLOCKS:
                found.append(line.rstrip())
            else:
                break
        return [block for block in map(block_named, found) if block is not None][:MOST_BLOCKS], ""

    async def _read(self, number: int, get: Get) -> str:
        """Ask for a piece; returns the outcome of a request that failed, or ""."""
        # One byte more, to see whether a line begins with the piece.
        start = max(0, number * PIECE_BYTES - 1)
        end = (number + 1) * PIECE_BYTES + OVERLAP_BYTES
        reply = await get(self._url, end - start, (start, end - start))
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
        asker: sends its requests.
        address: of its files.
        index_address: of its list of crawls.
        max_bytes: most bytes of a page, decompressed.
    """

    def __init__(self, asker: Asker, address: str, index_address: str, max_bytes: int) -> None:
        self._get, self._address, self._index_address = asker.get, address.rstrip("/"), index_address.rstrip("/")
        self._max_bytes = max_bytes
        self._crawls: list[tuple[str, str]] = []
        self._indexes: dict[str, ClusterIndex] = {}
        self._pieces, self._blocks = Kept(KEPT_PIECES), Kept(KEPT_BLOCKS)

    async def captures(self, url: str, date: str) -> AsyncGenerator[Capture, None]:
        """See `Archive`."""
        key = surt(url)
        if not key:
            return
        if failure := await self._list_crawls():
            yield Capture.failed(url, failure)
            return
        for _, crawl in nearest(self._crawls, date)[:CRAWLS]:
            lines, failure = await self._lines(crawl, f"{key} ".encode())
            try:
                captures = nearest(captures_in(lines), date)[:CAPTURES]
            except MalformedAnswerError:
                captures, failure = [], PageOutcome.MALFORMED_RESPONSE
            if failure and failure != "http_404":  # some early crawls have no such index
                yield Capture.failed(url, failure)
            for time, record in captures:
                yield await self._record(record, key, time)

    async def _list_crawls(self) -> str:
        """Ask for the crawls that there are, once; returns the outcome of a request that failed, or ""."""
        if not self._crawls:
            reply = await self._get(f"{self._index_address}/collinfo.json", LIST_BYTES)
            if reply.outcome != PageOutcome.OK:
                return reply.outcome
            try:
                self._crawls = crawls_listed(reply.body)
            except MalformedAnswerError:
                return PageOutcome.MALFORMED_RESPONSE
        return ""

    async def _lines(self, crawl: str, key: bytes) -> tuple[list[bytes], str]:
        """The lines of a crawl's index that begin with `key`, and why not all of them could be read, or ""."""
        folder = f"{self._address}/cc-index/collections/{crawl}/indexes"
        index = self._indexes.setdefault(crawl, ClusterIndex(f"{folder}/cluster.idx", self._pieces))
        blocks, failure = await index.find(key, self._get)
        found: list[bytes] = []
        for block in blocks:
            text = self._blocks.get(crawl, block)
            if text is None:
                reply = await self._get(f"{folder}/{block.file}", block.length, (block.offset, block.length))
                if reply.outcome != PageOutcome.OK:
                    return [], reply.outcome
                try:
                    text = _unpacked(reply.body, BLOCK_BYTES)
                except bodies.BodyError:
                    return [], PageOutcome.MALFORMED_RESPONSE
                self._blocks.keep(crawl, block, text)
            found += _lines_with(text, key, MOST_CAPTURES - len(found))
        return found, failure

    async def _record(self, record: GzipMember, key: str, time: str) -> Capture:
        """The page in one record of a WARC file."""
        file, offset, length = record
        url = f"{self._address}/{file}"
        if length > self._max_bytes:
            return Capture.failed(url, PageOutcome.TOO_LARGE)
        reply = await self._get(url, length, (offset, length))
        if reply.outcome != PageOutcome.OK:
            return Capture(reply)
        try:
            data = _unpacked(reply.body, self._max_bytes + HEADER_BYTES) if len(reply.body) == length else b""
        except bodies.BodyError as error:
            is_large = isinstance(error, bodies.TooLargeError)
            return Capture.failed(url, error.outcome if is_large else PageOutcome.DAMAGED)
        held = ArchiveReader(Path("record.warc"), "record", max_bytes=self._max_bytes, keep_truncated=False, data=data)
        entries = (entry for entry, _ in held.pages())
        pages = (entry.page if isinstance(entry, Damage) else entry for entry in entries)
        found = next(filter(None, pages), None)
        if found is None or found.page is None:
            outcome = PageOutcome.OK if found is None else found.outcome
            return Capture.failed(url, PageOutcome.DAMAGED if outcome == PageOutcome.OK else outcome)
        if surt(found.url) != key:
            return Capture.failed(url, PageOutcome.NOT_ARCHIVED)
        page = found.page
        kind = f"text/{'html' if page.is_html else 'plain'}{f'; charset={page.charset}' if page.charset else ''}"
        headers = ((b"Content-Type", kind.encode("latin-1", "replace")),)
        sent = Reply(PageOutcome.OK, found.url, 200, body=page.body, charset=page.charset, is_html=page.is_html,
                     reason="OK", headers=headers)  # fmt: skip
        with contextlib.suppress(ValueError):
            time = timestamp(found.fetched_at or "")
        return Capture(sent, readable_time(time))


# Its answers, taken apart


def _whole_number(value: Any) -> int:
    """A number from 0 on, as JSON has it or in digits; of at most 15 of them."""
    if isinstance(value, bool) or not isinstance(value, int | str) or not _WHOLE.fullmatch(str(value)):
        raise ValueError("no whole number")
    return int(value)


@taken_apart()
def file_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The bytes of the whole file of which an answer has a part."""
    (found,) = [_SIZE.match(value) for name, value in headers if name.lower() == b"content-range"]
    if found is None or int(found[1]) > MOST_INDEX_BYTES:
        raise ValueError("no size, or too large")
    return int(found[1])


@taken_apart()
def crawls_listed(body: bytes) -> list[tuple[str, str]]:
    """Of each crawl the `timestamp` of the week after which it is called, and its id; at least one."""
    found = []
    for entry in parse_json(body)[:MOST_CRAWLS]:
        name = str(entry.get("id", "")) if isinstance(entry, dict) else ""
        week = _CRAWL.fullmatch(name)
        if week is None:
            continue  # crawls before 2013 have no such index
        with contextlib.suppress(ValueError):
            found.append((timestamp(datetime.date.fromisocalendar(int(week[1]), int(week[2]), 1).isoformat()), name))
    if not found:
        raise ValueError("no crawl")
    return found


def block_named(line: bytes) -> GzipMember | None:
    """The block that a line names: key and time, file, offset, length, and a number, with tabs between; None if it is
    no such line."""
    with contextlib.suppress(MalformedAnswerError), taken_apart():
        _, file, offset, length, *_ = line.decode("utf-8", "replace").split("\t")
        block = GzipMember(file, _whole_number(offset), _whole_number(length))
        if _INDEX_FILE.fullmatch(file) and 0 < block.length <= MOST_BLOCK_BYTES:
            return block
    return None


def captures_in(lines: Iterable[bytes]) -> list[tuple[str, GzipMember]]:
    """The captures in lines of an index that may be pages, `key timestamp {json}`, each with its time.

    Raises MalformedAnswerError where there are none, but lines that can't be read.
    """
    found, error = [], None
    for line in lines:
        try:
            found += _captures_in(line)
        except MalformedAnswerError as why:
            error = why
    if error is not None and not found:
        raise error
    return found


@taken_apart()
def _captures_in(line: bytes) -> list[tuple[str, GzipMember]]:
    _, time, values = line.split(b" ", 2)
    entry = parse_json(values)
    if str(entry.get("status")) != "200" or not media_types.may_be_page(str(entry.get("mime", "")).lower()):
        return []
    record = GzipMember(entry["filename"], _whole_number(entry["offset"]), _whole_number(entry["length"]))
    if not _ARCHIVE_FILE.fullmatch(record.file) or not record.length:
        raise ValueError("no record")
    return [(time.decode("ascii"), record)]


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
    if not data.startswith(bodies.GZIP):
        raise bodies.DamagedBodyError("gzip")
    return bodies.decoded(data, "", "gzip", limit=limit, may_be_cut=False)
