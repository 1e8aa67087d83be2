"""Records that come from an event loop: written many at a time, lost by no interruption, never many in memory."""

import asyncio
import threading

import pytest

from webtext_prep.crawl import database as crawl_database
from webtext_prep.crawl.database import CrawlDatabase, DatabaseWriter, Entry
from webtext_prep.documents.document import Document
from webtext_prep.errors import WebtextError

URLS = [f"http://a.org/{n}" for n in range(1000)]


def entry(url: str) -> Entry:
    return Entry({"url": url, "outcome": "ok"}, Document(url, f"text of {url} " * 20), 1)


@pytest.fixture
def database(tmp_path):
    with CrawlDatabase(tmp_path / "crawl.sqlite") as database:
        yield database


def test_records_share_transactions_and_are_reported_when_they_are_written(database):
    """A transaction for each page cost more than fetching it."""
    statements, reported = [], []
    database._writer.set_trace_callback(statements.append)

    async def run():
        async with DatabaseWriter(database, reported.append) as writer:
            for url in URLS:
                await writer.add(entry(url))

    asyncio.run(run())
    assert [row["url"] for row in database.rows()] == URLS
    assert statements.count("BEGIN") == len(reported) <= 4 + len(URLS) // crawl_database.BATCH
    assert sum(reported) == len(URLS)


def test_a_single_record_is_written_without_any_other_coming(database):
    async def run():
        written = asyncio.Event()
        async with DatabaseWriter(database, lambda count: written.set()) as writer:
            for url in URLS[:2]:
                written.clear()
                await writer.add(entry(url))
                await asyncio.wait_for(written.wait(), 60)
                assert url in database

    asyncio.run(run())


def test_text_that_waits_is_bounded(database, monkeypatch):
    monkeypatch.setattr(crawl_database, "WAITING_TEXT", 10_000)
    gate, most = threading.Event(), 0
    add_many = database.add_many

    def slow(entries, rules):
        assert gate.wait(60)
        add_many(entries, rules)

    monkeypatch.setattr(database, "add_many", slow)

    async def run():
        nonlocal most
        async with DatabaseWriter(database, lambda count: None) as writer:
            added = 0

            async def add_all():
                nonlocal added
                for url in URLS:
                    await writer.add(entry(url))
                    added += 1

            task = asyncio.create_task(add_all())
            for _ in range(10 * len(URLS)):
                await asyncio.sleep(0)
            most = added
            gate.set()
            await task

    asyncio.run(run())
    size = len(entry(URLS[0]).document.text)
    assert 10_000 // size <= most <= 3 * 10_000 // size
    assert len(database) == len(URLS)


def test_an_interruption_loses_nothing_that_was_added(database):
    async def run():
        async with DatabaseWriter(database, lambda count: None) as writer:
            for url in URLS[:10]:
                await writer.add(entry(url))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    assert [row["url"] for row in database.rows()] == URLS[:10]


@pytest.mark.parametrize("many", [True, False])
def test_a_full_disk_is_the_error_of_whoever_adds_next_or_of_the_end(database, many):
    database._writer.execute("PRAGMA max_page_count = 10")

    async def run():
        async with DatabaseWriter(database, lambda count: None) as writer:
            for url in URLS if many else URLS[:200]:
                await writer.add(entry(url))
                await asyncio.sleep(0)

    with pytest.raises(WebtextError, match="full"):
        asyncio.run(run())
