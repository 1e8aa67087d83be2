"""What web archives answer, taken apart: every value of an archive's server comes through here before it is used.

Whatever stands in an answer, one of these functions gives a sound value or raises `MalformedAnswerError`, and nothing
else: it costs one capture, and never the run.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from command_kit import parse_json
from webtext_prep.crawl.archives.times import READABLE, timestamp
from webtext_prep.crawl.http.media_types import may_be_page

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


class MalformedAnswerError(ValueError):
    """An answer that is not as its protocol says."""


@contextlib.contextmanager
def _taken_apart() -> Iterator[None]:
    """A block whose failures are the answer's."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise MalformedAnswerError(str(error)) from error


def _whole_number(value: Any) -> int:
    """A number from 0 on, as JSON has it or in digits; of at most 15 of them."""
    if isinstance(value, bool) or not isinstance(value, int | str) or not _WHOLE.fullmatch(str(value)):
        raise ValueError("no whole number")
    return int(value)


# The Wayback Machine


@_taken_apart()
def index_rows(body: bytes, most: int) -> list[tuple[str, str]]:
    """The time and address of each capture in an answer of the index, `most` of them; none if it is empty."""
    rows = parse_json(body) if body.strip() else []
    if not isinstance(rows, list):
        raise TypeError("no list")
    found = []
    for time, original in rows[: most + 1]:  # the first names the columns
        if not isinstance(time, str) or not isinstance(original, str):
            raise TypeError("no text")
        if time != "timestamp":
            found.append((time, original))
    return found[:most]


@_taken_apart()
def memento_time(headers: Mapping[bytes, bytes]) -> str | None:
    """When a capture was made, such as `2019-03-01T12:00:00Z`; None for an answer that is no capture (RFC 7089)."""
    said = headers.get(b"memento-datetime")
    if said is None:
        return None
    time = email.utils.parsedate_to_datetime(said.decode("latin-1"))
    return (time if time.tzinfo is None else time.astimezone(datetime.UTC)).strftime(READABLE)


# Common Crawl


class IndexBlock(NamedTuple):
    """A block of an index, a gzip member of one of its files."""

    file: str
    offset: int
    length: int


class WarcRange(NamedTuple):
    """A record of a WARC file, a gzip member of it."""

    file: str
    offset: int
    length: int


@_taken_apart()
def file_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The bytes of the whole file of which an answer has a part."""
    (found,) = [_SIZE.match(value) for name, value in headers if name.lower() == b"content-range"]
    if found is None or int(found[1]) > MOST_INDEX_BYTES:
        raise ValueError("no size, or too large")
    return int(found[1])


@_taken_apart()
def crawls_listed(body: bytes) -> list[tuple[str, str]]:
    """Of each crawl the `timestamp` of its beginning, and its id; at least one."""
    found = []
    for entry in parse_json(body)[:MOST_CRAWLS]:
        name = str(entry.get("id", "")) if isinstance(entry, dict) else ""
        week = _CRAWL.fullmatch(name)
        if week is None:
            continue  # crawls before 2013 have no such index
        begin = timestamp(str(entry.get("from", "")))
        with contextlib.suppress(ValueError):
            begin = begin or timestamp(datetime.date.fromisocalendar(int(week[1]), int(week[2]), 1).isoformat())
            found.append((begin, name))
    if not found:
        raise ValueError("no crawl")
    return found


def block_named(line: bytes) -> IndexBlock | None:
    """The block that a line names: key and time, file, offset, length, and a number, with tabs between; None if it is
    no such line."""
    with contextlib.suppress(MalformedAnswerError), _taken_apart():
        _, file, offset, length, *_ = line.decode("utf-8", "replace").split("\t")
        block = IndexBlock(file, _whole_number(offset), _whole_number(length))
        if _INDEX_FILE.fullmatch(file) and 0 < block.length <= MOST_BLOCK_BYTES:
            return block
    return None


def captures_in(lines: Iterable[bytes]) -> list[tuple[str, WarcRange]]:
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


@_taken_apart()
def _captures_in(line: bytes) -> list[tuple[str, WarcRange]]:
    _, time, values = line.split(b" ", 2)
    entry = parse_json(values)
    if str(entry.get("status")) != "200" or not may_be_page(str(entry.get("mime", "")).lower()):
        return []
    record = WarcRange(entry["filename"], _whole_number(entry["offset"]), _whole_number(entry["length"]))
    if not _ARCHIVE_FILE.fullmatch(record.file) or not record.length:
        raise ValueError("no record")
    return [(time.decode("ascii"), record)]
