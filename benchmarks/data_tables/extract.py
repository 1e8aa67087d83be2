"""Archives to documents: the whole stage beside the loop over FastWARC's records that anybody would write.

The loop reads, decodes as our stage does, and calls the library: in one process, without limits on a page, without
outcomes. Ours is measured with all its processes, after its start-up, on the same file.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType

from data_tables import extraction
from measuring import Row, documents, webtext
from webtext_prep.crawl.archives.warc_writing import response_record
from webtext_prep.crawl.http.client import Reply
from webtext_prep.extraction import extractors
from webtext_prep.text import decoding

TITLE = "extract: a WARC file of pages of 105 kB with 8 kB of text, and a WET file of such texts"
PEERS = ("fastwarc", "resiliparse", "trafilatura", "warcio")
SHARE = 0.15
"""Of the loop's time, what our stage may take more."""
DATE = "2024-01-01T00:00:00Z"
HTML = ((b"Content-Type", b"text/html"),)


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """Reading alone, then each extractor beside its loop, saving, and texts."""
    found = extraction.pages(20 if quick else 300)
    packed = [_record(number, page) for number, page in enumerate(found)]
    big, small = folder / "big.warc.gz", folder / "small.warc.gz"
    repeats = 2 if quick else 10
    big.write_bytes(b"".join(packed * repeats))
    small.write_bytes(b"".join(packed[:10]))
    size = sum(map(len, found)) * repeats
    yield _loop("FastWARC: reading alone", big, lambda body: None, len(found) * repeats, size)
    yield _saving(found)
    for name, share in (("resiliparse", 1), ("trafilatura", 5)):
        part = folder / f"{name}.warc.gz"
        count = max(20, len(found) * repeats // share)
        part.write_bytes(b"".join((packed * repeats)[:count]))
        size = sum(len(found[number % len(found)]) for number in range(count))
        extractors.warm_up(name)
        alone = extraction._alone(name)
        loop = _loop(
            f"FastWARC and {name}, a loop", part, lambda body, call=alone: call(decoding.decode(body)), count, size
        )
        yield loop
        assert loop.rate is not None
        yield _ours(f"ours: the whole stage, {name}", name, part, small, count - 10, size, loop.rate / (1 + SHARE))
    yield _texts(quick, folder)


def _record(number: int, body: bytes) -> bytes:
    url = f"http://site-{number % 97}.example/{number}"
    return response_record(Reply("ok", url, 200, body=body, reason="OK", headers=HTML), url, DATE)


def _loop(what: str, path: Path, call: Callable[[bytes], Any], count: int, size: int) -> Row:
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        for record in ArchiveIterator(path, record_types=WarcRecordType.response):
            call(record.reader.read())
        best = min(best, time.process_time() - start)
    return Row(what, count / best, "pages", size / best / 1e6)


def _saving(found: list[bytes]) -> Row:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for number, page in enumerate(found):
            _record(number, page)
        best = min(best, time.process_time() - start)
    share = sum(map(len, (_record(0, page) for page in found))) / sum(map(len, found))
    note = f"what `download --save-pages` costs; {share:.0%} of the pages' bytes"
    return Row("ours: a page to its record", len(found) / best, "pages", sum(map(len, found)) / best / 1e6, note=note)


def _ours(what: str, name: str, path: Path, small: Path, count: int, size: int, goal: float | None) -> Row:
    def run(source: Path) -> Any:
        output = path.with_suffix(f".{source.stem}")
        return webtext("extract", "--input", source, "--output", output, "--workers", "1", "--extractor", name)

    start, used = run(small).cpu, run(path)
    seconds = used.cpu - start
    note = f"after {start:.1f} s of start-up"
    return Row(what, count / seconds, "pages", size / seconds / 1e6, goal, used.peak, note)


def _texts(quick: bool, folder: Path) -> Row:
    """A WET file."""
    found = documents(200 if quick else 20_000, size=8_000, duplicates=0)
    head = "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:uuid:{:032x}>\r\nWARC-Date: {}\r\n"
    more = "WARC-Target-URI: {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n"
    packed = []
    for number, row in enumerate(found):
        text = row["text"].encode()
        record = (head.format(number, DATE) + more.format(row["url"], len(text))).encode() + text + b"\r\n\r\n"
        packed.append(gzip.compress(record, 3))
    big, small = folder / "texts.wet.gz", folder / "few.wet.gz"
    big.write_bytes(b"".join(packed))
    small.write_bytes(b"".join(packed[:10]))
    size = sum(len(row["text"].encode()) for row in found)
    return _ours("ours: the whole stage, texts (WET)", "resiliparse", big, small, len(found) - 10, size, None)
