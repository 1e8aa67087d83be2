"""Downloading: fetching alone beside aiohttp alone, the whole stage beside the extractors alone, and hostile servers.

All from a server on loopback in a process that is not counted. The extractors alone get the bytes of the same pages, as
their documentation shows it. Pages are made of prose from Python's manual in what surrounds the text of real pages:
navigation, links, styles, scripts, a footer.
"""

from __future__ import annotations

import asyncio
import html
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

import measuring
from measuring import Row, documents, rate_of, rate_on_all_cores, sentences, webtext
from page_server import serving
from webtext_prep.crawl.crawl import Crawl, write_shard
from webtext_prep.crawl.database import CrawlDatabase, Entry
from webtext_prep.documents.document import Document
from webtext_prep.extraction.extractors import EXTRACTORS, warm_up
from webtext_prep.extraction.processes import pool as pool_module
from webtext_prep.extraction.processes.workers import Parsed
from webtext_prep.running.tasks import Files
from webtext_prep.stages.blacklist import BYTES_PER_SHARD
from webtext_prep.stages.download import Download

TITLE = "download: small pages of 1.3 kB; pages of 105 kB with 8 kB of text; servers that use up every limit"
PEERS = ("aiohttp", "trafilatura", "newspaper3k", "resiliparse", "lxml")
GOAL = 2000
SHARES = {"learned": 0.8, "trafilatura": 0.9, "newspaper": 0.9, "resiliparse": 0.8}
"""Of an extractor's own rate, what the whole stage is to reach."""
COUNTS = {"learned": 1500, "trafilatura": 1200, "newspaper": 500, "resiliparse": 6000}
LONG_COUNTS = {"learned": 15_000, "trafilatura": 15_000, "newspaper": 3_000, "resiliparse": 80_000}
"""Pages for two minutes of processor time or more."""
LARGEST_SHARD = BYTES_PER_SHARD // 16
"""URLs in a list that `webtext blacklist` writes, if each has 15 characters; with ordinary ones it is a sixth."""
HOSTILE_SERVER = Path(__file__).parents[2] / "tests" / "webtext_prep" / "support"
PACE = ("--delay", "0", "--per-host", "64", "--workers", "1", "--allow-private-addresses", "loopback")


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """Fetching alone, then each extractor, then hostile servers."""
    yield from _fetching(500 if quick else 10_000, folder)
    pages = _pages(30 if quick else 300)
    with serving(pages, folder / "pages") as address:
        for name, count in (LONG_COUNTS if measuring.is_long else COUNTS).items():
            yield from _stage(name, pages, count // 20 if quick else count, address, folder)
        for name in ("learned", "resiliparse"):
            yield _opt_outs(name, COUNTS[name] // (20 if quick else 1), address, folder)
    yield _writing(500 if quick else 5000, folder)
    yield _hostile(40 if quick else 200, folder)


# Fetching alone


class _NoExtractor:
    """In the place of the extractors: a text at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._parsed = Parsed("ok", " ".join(sentences()[:8]), "A page")

    async def __aenter__(self) -> _NoExtractor:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def extract(self, *_: Any, **__: Any) -> Parsed:
        return self._parsed


async def _fetch_plainly(urls: list[str]) -> None:
    left = iter(urls)
    async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def work() -> None:
            for url in left:
                async with session.get(url) as response:
                    assert response.status == 200 and len(await response.read()) > 1000

        await asyncio.gather(*(work() for _ in range(64)))


def _fetching(count: int, folder: Path) -> Iterator[Row]:
    body = f"<html><head><title>A page</title></head><body><p>{' '.join(sentences()[:100])[:1200]}</p></body></html>"
    stage = Download(allow_private_addresses="loopback", delay=0.0, per_host=64)
    numbers = iter(range(100))

    def ours() -> None:
        with CrawlDatabase(folder / f"{next(numbers)}.sqlite") as database:
            Crawl(stage, database, 1, lambda done: None).fetch(map(Document, urls), folder)
            assert len(database) == count

    with serving([body.encode()], folder / "small") as address:
        urls = [f"{address}/{number}" for number in range(count)]
        yield rate_of("aiohttp alone", lambda: asyncio.run(_fetch_plainly(urls)), count, unit="pages")
        real = pool_module.ExtractorPool
        pool_module.ExtractorPool = _NoExtractor  # type: ignore[assignment, misc]
        try:
            note = "robots.txt, limits, politeness and database included"
            yield rate_of("ours: fetching alone", ours, count, unit="pages", goal=GOAL, note=note)
        finally:
            pool_module.ExtractorPool = real  # type: ignore[misc]


# The whole stage


def _pages(count: int) -> list[bytes]:
    """Pages of some 105 kB, 900 elements and 8 kB of text, somewhat cheaper to extract than real ones of that size."""
    source, pool = random.Random(5), sentences()

    def links(number: int, name: str) -> str:
        items = "".join(
            f'<div class="{name}-item item-{at}" data-id="{source.getrandbits(60):x}"><div class="{name}-inner">'
            f'<a class="{name}-link" href="/{name}/{at}?from=page" title="{html.escape(line)}"><span class="label">'
            f'{html.escape(line[:60])}</span></a><p class="summary">{html.escape(line)}</p></div></div>\n'
            for at, line in enumerate(source.choices(pool, k=number))
        )
        return f'<div class="{name} {name}-box"><div class="row"><div class="column">{items}</div></div></div>'

    def marked_up(line: str) -> str:
        """A paragraph with a link or an emphasis every few words."""
        words = [html.escape(word) for word in line.split()]
        for at in range(3, len(words), 9):
            words[at] = f'<a href="/words/{at}">{words[at]}</a>' if at % 2 else f"<em>{words[at]}</em>"
        return f"<p>{' '.join(words)}</p>\n"

    def page(text: str) -> str:
        article = "".join(map(marked_up, text.split("\n")))
        style = "".join(f".c{at} {{ color: #{at:06x}; margin: {at % 9}px auto; }}\n" for at in range(300))
        script = "".join(f'window.settings["key{at}"] = {{"value": {at}, "on": true}};\n' for at in range(300))
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(text[:50])}</title>'
            f"<style>{style}</style><script>{script}</script></head><body><header>{links(40, 'menu')}</header>"
            f"<main><article><h1>{html.escape(text[:50])}</h1>{article}</article></main><aside>{links(60, 'related')}"
            f"</aside><footer>{links(40, 'footer')}<p>All rights reserved.</p></footer></body></html>"
        )

    return [page(row["text"]).encode() for row in documents(count, 8000, duplicates=0)]


def _alone(name: str) -> Callable[[bytes], Any]:
    """What the library's documentation says to call."""
    if name == "learned":
        warm_up(name)
        return lambda page: EXTRACTORS[name](page, "http://example.com/", None)
    if name == "trafilatura":
        trafilatura = importlib.import_module("trafilatura")
        return lambda page: trafilatura.extract(page, fast=True, include_comments=False)
    if name == "newspaper":
        newspaper = importlib.import_module("newspaper")
        # Gone where our extractor has loaded newspaper in this process, which gives it a folder for that time.
        Path(importlib.import_module("newspaper.settings").TOP_DIRECTORY).mkdir(parents=True, exist_ok=True)

        def parse(page: bytes) -> Any:
            article = newspaper.Article("http://example.com/", fetch_images=False)
            article.download(input_html=page.decode())
            article.parse()
            return article.text

        return parse
    text = importlib.import_module("resiliparse.extract.html2text")
    tree = importlib.import_module("resiliparse.parse.html").HTMLTree
    detect = importlib.import_module("resiliparse.parse.encoding").detect_encoding

    def extract(page: bytes) -> Any:
        return text.extract_plain_text(tree.parse_from_bytes(page, detect(page)), main_content=True)

    return extract


def _stage(name: str, pages: list[bytes], count: int, address: str, folder: Path) -> Iterator[Row]:
    """The library alone before the stage and after it, in one long pass each: caches and neighbours as it has them."""
    work = _alone(name)
    few = pages[: max(10, count // 20)]

    def alone() -> float:
        passed = rate_on_all_cores("", lambda: [work(page) for page in few], len(few), repeats=1)
        assert passed.rate is not None
        return passed.rate

    before = alone()
    usages = []
    for kind, number in (("one", 1), ("all", count)):
        source = folder / f"{name}-{kind}.txt"
        source.write_text("".join(f"{address}/{at}\n" for at in range(number)))
        flags = ("--input", source, "--output", folder / f"{name}-{kind}", "--extractor", name, *PACE)
        usages.append(webtext("download", *flags))
    library = 2 / (1 / before + 1 / alone())
    yield Row(f"{name} alone", library, "pages")
    start, used = usages
    rate = count / used.cpu
    warm = (count - 1) / (used.cpu - start.cpu)
    yield Row(
        f"ours: download with {name}", rate, "pages", goal=SHARES[name] * library, peak=used.peak,
        note=f"{rate / library:.0%} of it alone over {used.cpu:.0f} s of CPU; {warm / library:.0%} without the "
        f"{start.cpu:.1f} s of start-up",
    )  # fmt: skip


def _opt_outs(name: str, count: int, address: str, folder: Path) -> Row:
    """The whole stage where opt-outs are obeyed, and where nothing looks for them, in turn; the best of each counts.

    All pages are of one host, which has no file of preferences, and no page has one.
    """
    source = folder / f"{name}-preferences.txt"
    source.write_text("".join(f"{address}/{at}\n" for at in range(count)))
    best = dict.fromkeys(("ignore", "obey"), float("inf"))
    for turn in range(5):
        for choice in best:
            flags = ("--input", source, "--output", folder / f"{name}-{choice}-{turn}", "--extractor", name, *PACE)
            best[choice] = min(best[choice], webtext("download", *flags, "--opt-outs", choice).cpu)
    note = f"{best['obey'] / best['ignore'] - 1:+.1%} of CPU beside --opt-outs ignore"
    return Row(f"ours: download with {name}, opt-outs obeyed", count / best["obey"], "pages",
               goal=count / best["ignore"] / 1.03, note=note)  # fmt: skip


# From the database to the shard


def _writing(count: int, folder: Path) -> Row:
    """The last step of a shard, which a kill would have done again, per document of 8 kB."""
    rows = documents(count, 8000, duplicates=0)
    listed = [Document(row["url"], metadata={"score": 7}) for row in rows]
    stage = Download()
    with CrawlDatabase(folder / "writing.sqlite") as database:
        database.add_many(
            Entry({"url": row["url"], "outcome": "ok", "status": 200, "bytes": 100_000, "attempts": 1, "passes": 1},
                  Document(row["url"], row["text"], {"title": "A page", "domain": "site.example"}))
            for row in rows
        )  # fmt: skip
        files = Files(**{name: folder / f"{name}.jsonl.zst" for name in ("kept", "outcomes", "gone")})
        row = rate_of(
            "ours: writing a shard from the database",
            lambda: write_shard(listed, database, files, folder / "new", stage),
            count,
        )
    assert row.rate is not None
    row.goal = LARGEST_SHARD / 60
    row.note = f"{LARGEST_SHARD / row.rate:.0f} s for {LARGEST_SHARD:,} documents"
    return row


# Hostile servers


def _hostile(count: int, folder: Path) -> Row:
    sys.path.insert(0, str(HOSTILE_SERVER))
    try:
        server_class = importlib.import_module("hostile_server").HostileServer
    finally:
        sys.path.remove(str(HOSTILE_SERVER))
    limits = {"timeout": 2.0, "retries": 1, "per_host": 50, "extract_timeout": 5.0, "extract_memory": 256}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
    with server_class() as server:
        urls = [f"http://127.0.0.1:{server.port}/page/0", *server.urls(count)]  # one that is well: there is an output
        (folder / "hostile.txt").write_text("".join(f"{url}\n" for url in urls))
        place = ("--input", folder / "hostile.txt", "--output", folder / "hostile", "--extractor", "resiliparse")
        used = webtext("download", *place, "--delay", "0", *flags, "--allow-private-addresses", "loopback")
    return Row(
        f"ours: {count} pages that use up every limit", peak=used.peak,
        note=f"in {used.wall:.0f} s and {used.cpu:.0f} s of CPU",
    )  # fmt: skip
