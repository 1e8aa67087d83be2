"""Extraction: each library alone beside our whole call, the share of our own code, and handing pages to workers.

The libraries alone get decoded text; ours gets bytes, and decodes, scrubs, finds the title and judges the outcome.
Pages of both are timed in turn, so that a machine that grows slower does so for both.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_tables import download
from measuring import Row, run_command
from webtext_prep.extraction import extractors
from webtext_prep.extraction.processes.workers import PageHead, extract_page
from webtext_prep.text import decoding

TITLE = "extraction: pages of 105 kB with 8 kB of text, some with \\r\\n or in windows-1252"
PEERS = ("resiliparse", "trafilatura", "newspaper3k", "lxml", "numpy")
HEAD = PageHead("http://example.com/page")
COUNTS = {"resiliparse": 300, "trafilatura": 100, "newspaper": 30}
SHARE = 0.10
"""Of an extractor's time, what our own code may take."""

POOL = """
import asyncio, sys
from pathlib import Path
from webtext_prep.extraction.processes.pool import ExtractorPool
from webtext_prep.extraction.processes.workers import PageLimits

async def run(folder, rounds):
    pages = [path.read_bytes() for path in sorted(Path(folder).glob("*.html"))]
    async with ExtractorPool(PageLimits("resiliparse", (), 60, 1024, folder), 2) as pool:
        for _ in range(rounds):
            await asyncio.gather(*(pool.extract(page, "http://example.com/page", None) for page in pages))

asyncio.run(run(sys.argv[1], int(sys.argv[2])))
"""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """Each extractor, then the pool of workers."""
    found = pages(20 if quick else 300)
    for name, count in COUNTS.items():
        yield from _extractor(name, found[:count], repeats=3 if quick else 7)
    yield from _pool(found, 2 if quick else 20, folder)


def pages(count: int) -> list[bytes]:
    """The pages of the table of downloads; of five, two with `\\r\\n`; of twenty, one in windows-1252."""
    made = []
    for number, page in enumerate(download._pages(count)):
        if number % 5 < 2:
            page = page.replace(b"\n", b"\r\n")
        if number % 20 == 0:
            text = page.decode().replace('charset="utf-8"', 'charset="windows-1252"')
            page = text.encode("cp1252", "xmlcharrefreplace")
        made.append(page)
    return made


def _alone(name: str) -> Callable[[str], Any]:
    """A library, called as our extractor calls it."""
    if name == "resiliparse":
        from resiliparse.extract.html2text import extract_plain_text

        return functools.partial(extract_plain_text, main_content=True, alt_texts=False, list_bullets=False)
    if name == "trafilatura":
        from trafilatura import extract

        return functools.partial(extract, url=HEAD.url, fast=True, include_comments=False)
    configuration_class, extractor_class, cleaner_class, formatter_class, known = extractors._newspaper()

    def newspaper(page: str) -> None:
        configuration = configuration_class()
        configuration.fetch_images = False
        tree = configuration.get_parser().fromstring(page)
        extractor, formatter = extractor_class(configuration), formatter_class(configuration)
        language = extractor.get_meta_lang(tree)
        if language in known:
            extractor.update_language(language)
            formatter.update_language(language)
        best = extractor.calculate_best_node(cleaner_class(configuration).clean(tree))
        if best is not None:
            formatter.get_formatted(extractor.post_cleanup(best))

    return newspaper


def _in_turn(works: Sequence[Callable[[bytes], Any]], found: Sequence[bytes], repeats: int) -> list[float]:
    """The seconds that each of `works` takes for all pages, the best of the repeats for each page."""
    seconds = [0.0] * len(works)
    for page in found:
        best = [float("inf")] * len(works)
        for _ in range(repeats):
            for number, work in enumerate(works):
                start = time.process_time()
                work(page)
                best[number] = min(best[number], time.process_time() - start)
        seconds = [total + one for total, one in zip(seconds, best, strict=True)]
    return seconds


def _extractor(name: str, found: Sequence[bytes], repeats: int) -> Iterator[Row]:
    extractors.warm_up(name)
    alone = _alone(name)
    works = [
        decoding.decode,
        lambda page: alone(decoding.decode(page)),
        lambda page: extract_page(name, HEAD, page),
    ]
    decoded, both, ours = _in_turn(works, found, repeats)
    library = both - decoded
    size = sum(map(len, found)) / 1e6
    yield Row(f"{name} alone, of decoded text", len(found) / library, "pages", size / library)
    yield Row(f"{name} alone, with decoding", len(found) / both, "pages", size / both)
    share = (ours - library) / library
    note = f"our own code takes {share:.1%} of the extractor's time ({(ours - both) / library:.1%} beside decoding)"
    yield Row(f"ours: {name}", len(found) / ours, "pages", size / ours, len(found) / library / (1 + SHARE), note=note)


def _pool(found: Sequence[bytes], rounds: int, folder: Path) -> Iterator[Row]:
    """What workers cost in all, less what the same pages cost in one process."""
    for number, page in enumerate(found):
        (folder / f"{number:04}.html").write_bytes(page)
    command: list[str | Path] = [sys.executable, "-c", POOL, folder]
    started = run_command([*command, "1"]).cpu
    usage = run_command([*command, str(1 + rounds)])
    count = rounds * len(found)
    seconds = (usage.cpu - started) / count
    start = time.process_time()
    for page in found:
        extract_page("resiliparse", HEAD, page)
    here = (time.process_time() - start) / len(found)
    note = f"handing over a page costs {1e6 * (seconds - here):,.0f} microseconds of all processes"
    yield Row("ours: resiliparse, in two workers", 1 / seconds, "pages", peak=usage.peak, note=note)
