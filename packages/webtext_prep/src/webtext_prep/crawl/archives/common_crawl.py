"""Common Crawl: its list of crawls, the index files of each, and records of its WARC files, all by plain requests.

Its index server is one small machine, so that its files are read instead, a part at a time: `cluster.idx` says in which
block of which file a key lies (`cluster_index.py`), and the block which record of which WARC file a page is.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import re
from collections import OrderedDict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

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
from webtext_prep.crawl.archives.cluster_index import MOST_BLOCKS, Block, ClusterIndex, Pieces
from webtext_prep.crawl.archives.warc import ArchiveReader, Damage, Found
from webtext_prep.crawl.http.bodies import CutShortError, DamagedBodyError, TooLargeError, decoded, may_be_page
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
_GZIP = b"\x1f\x8b"
_CRAWL = re.compile(r"CC-MAIN-(\d{4})-(\d{2})")


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
        self._max_bytes = max_bytes
        self._crawls: list[tuple[str, str]] = []
        self._indexes: dict[str, ClusterIndex] = {}
        self._pieces = Pieces()
        self._blocks: OrderedDict[tuple[str, Block], list[bytes]] = OrderedDict()

    @property
    def addresses(self) -> tuple[str, ...]:
        """See `Archive`."""
        return (self._address, self._index_address)

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
            place = (crawl, block)
            if place not in self._blocks:
                reply = yield Request(f"{folder}/{block.file}", block.length, (block.offset, block.length))
                if reply.outcome != PageOutcome.OK:
                    return reply.outcome
                try:
                    text = _unpacked(reply.body, BLOCK_BYTES)
                except (DamagedBodyError, CutShortError, TooLargeError):
                    return PageOutcome.MALFORMED_RESPONSE
                self._blocks[place] = text.split(b"\n")
            self._blocks.move_to_end(place)
            found += [line for line in self._blocks[place] if line.startswith(key)]
            while len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
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
        except TooLargeError:
            return PageOutcome.TOO_LARGE
        except (DamagedBodyError, CutShortError):
            return PageOutcome.DAMAGED
        found = next(pages_in(data, self._max_bytes), None)
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
    if not data.startswith(_GZIP):
        raise DamagedBodyError("gzip")
    return decoded(data, "", "gzip", limit=limit, may_be_cut=False)


class _Held(ArchiveReader):
    """An archive in memory."""

    def __init__(self, data: bytes, max_bytes: int) -> None:
        super().__init__(Path("record.warc"), "record", max_bytes=max_bytes, keep_truncated=False)
        self._data = data

    def _opened(self) -> BinaryIO:
        return io.BytesIO(self._data)


def pages_in(data: bytes, max_bytes: int) -> Iterator[Found]:
    """The pages in the bytes of an archive, damaged ones with their outcome."""
    for found, _ in _Held(data, max_bytes).pages():
        page = found.page if isinstance(found, Damage) else found
        if page is not None:
            yield page


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
