"""The database of a download: what was added is there after any kill, and damage costs no more than it hit."""

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from webtext_prep.crawl.database import CrawlDatabase, Entry, Facts, UrlSet, facts_in
from webtext_prep.documents.document import Document, decode_document
from webtext_prep.errors import WebtextError

URLS = [f"http://a.org/{n}" for n in range(200)]


def document_of(database, url):
    line = database.lines(url)[1]
    return None if line is None else decode_document(line)


def entry_of(database, url):
    """The record of a URL, without the page."""
    found = database.outcome(url)
    return None if found is None else replace(found, document=document_of(database, url))


def entry(url: str, **more: object) -> Entry:
    text = f"text of {url} " * 20
    return Entry({"url": url, "outcome": "ok", **more}, Document(url, text, {"title": url}), 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "crawl.sqlite"


@pytest.fixture
def full(path):
    with CrawlDatabase(path) as database:
        for url in URLS:
            database.add_many([entry(url)])
    return path


def found(path) -> tuple[set[str], list[str]]:
    with CrawlDatabase(path) as database:
        documents = {row["url"]: document_of(database, row["url"]) for row in database.rows()}
        assert documents == {url: entry(url).document for url in documents}
        return set(documents), database.notes


def test_what_was_added_is_found_by_url_and_replaced_by_what_comes_later(path):
    with CrawlDatabase(path) as database:
        database.add_many([entry("http://a.org/1")])
        database.add_many([Entry({"url": "http://a.org/2", "outcome": "http_404"}, None, 3)])
        assert entry_of(database, "http://a.org/1") == entry("http://a.org/1")
        assert database.outcome("http://a.org/1") == Entry({"url": "http://a.org/1", "outcome": "ok"}, None, 1)
        assert entry_of(database, "http://a.org/2") == Entry({"url": "http://a.org/2", "outcome": "http_404"}, None, 3)
        assert entry_of(database, "http://a.org/3") is database.outcome("http://a.org/3") is None
        assert "http://a.org/1" in database and "http://a.org/3" not in database
        database.add_many([entry("http://a.org/2", bytes=7)])
    with CrawlDatabase(path) as database:
        assert len(database) == 2 and [row["url"] for row in database.rows()] == ["http://a.org/1", "http://a.org/2"]
        assert entry_of(database, "http://a.org/2") == entry("http://a.org/2", bytes=7)
        assert database.notes == []


def test_an_outcome_is_read_without_its_document(full, monkeypatch):
    """Whoever asked for the outcome of a URL had its whole document read and decompressed."""
    with CrawlDatabase(full) as database:
        monkeypatch.setattr("webtext_prep.crawl.database.decompress_zstd", None)
        statements = []
        database._reader.set_trace_callback(statements.append)
        assert database.outcome(URLS[0]).row["outcome"] == "ok"
        assert len(statements) == 1 and "document" not in statements[0]


WRITER = """
import sys
from pathlib import Path
from webtext_prep.documents.document import Document
from webtext_prep.crawl.database import CrawlDatabase, Entry

database = CrawlDatabase(Path(sys.argv[1]))
n = 0
while True:
    url = f"http://a.org/{n}"
    database.add_many([Entry({"url": url, "outcome": "ok"}, Document(url, "text " * n))])
    print(n, flush=True)
    n += 1
"""


def test_a_kill_loses_nothing_that_was_added(path):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
        said = [int(process.stdout.readline()) for _ in range(300)]
        os.kill(process.pid, signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
    with CrawlDatabase(path) as database:
        assert database.notes == []
        texts = {row["url"]: document_of(database, row["url"]).text for row in database.rows()}
        assert all(texts[f"http://a.org/{n}"] == "text " * n for n in said)
        assert len(database) in (len(said), len(said) + 1)


def test_a_damaged_row_costs_itself_alone(full):
    """One flipped bit dropped every record behind it: 100 became 10."""
    with sqlite3.connect(full) as connection:
        (row,) = connection.execute("SELECT row FROM pages WHERE number = 11").fetchone()
        connection.execute("UPDATE pages SET row = ? WHERE number = 11", (row.replace(b"ok", b"oj"),))
        (text,) = connection.execute("SELECT document FROM pages WHERE number = 21").fetchone()
        connection.execute("UPDATE pages SET document = ? WHERE number = 21", (text[:-1] + b"\0",))
        connection.execute("UPDATE pages SET digest = 7 WHERE number = 31")
    urls, notes = found(full)
    assert urls == set(URLS) - {URLS[10], URLS[20], URLS[30]}
    assert len(notes) == 1 and "3 damaged records" in notes[0]
    assert found(full) == (urls, [])


@pytest.mark.parametrize("bit", [0, 4, 7])
def test_one_flipped_bit_anywhere_costs_the_records_of_one_page_at_most(full, bit):
    """One flipped bit dropped every record behind it."""
    whole = full.read_bytes()
    # The first two pages say where all the others are: what is damaged there may cost the whole file.
    for place in range(8192 + 137 * bit, len(whole), len(whole) // 12):
        for old in full.parent.glob("*"):
            old.unlink()
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        full.write_bytes(damaged)
        urls, _ = found(full)
        assert len(urls) >= len(URLS) - 20, f"byte {place}"
        assert found(full)[0] == urls
        with CrawlDatabase(full) as database:
            database.add_many([entry("http://b.org/")])
            assert "http://b.org/" in database


@pytest.mark.parametrize("length", [0, 50, 5000, 16_384, -4096, -1])
def test_a_file_that_was_cut_off_is_noted_and_goes_on_being_written(full, length):
    full.write_bytes(full.read_bytes()[:length])
    urls, notes = found(full)
    assert urls <= set(URLS)
    assert (length == 0) == (notes == [])
    with CrawlDatabase(full) as database:
        database.add_many([entry(URLS[0])])
        assert entry_of(database, URLS[0]) == entry(URLS[0])


def test_a_file_that_is_no_database_is_set_aside_whole(path):
    """A file of another format was truncated to nothing, so that a change of format would have erased days of work."""
    path.parent.mkdir()
    for number, content in enumerate([b"webtext database 1\n" + b"precious" * 1000, b"precious"], 1):
        path.write_bytes(content)
        with CrawlDatabase(path) as database:
            assert len(database) == 0 and "is not a database" in database.notes[0]
            database.add_many([entry(URLS[0])])
        assert path.with_name(f"{path.name}.set-aside-{number}").read_bytes() == content
        path.unlink()


def test_a_database_of_another_version_or_of_another_program_is_set_aside(full):
    with sqlite3.connect(full) as connection:
        connection.execute("PRAGMA user_version = 99")
    urls, notes = found(full)
    assert urls == set() and "another version" in notes[0]
    full.unlink()
    with sqlite3.connect(full) as connection:
        connection.execute("CREATE TABLE pages (recipe)")
    urls, notes = found(full)
    assert urls == set() and "is not a database" in notes[0]
    with sqlite3.connect(full.with_name(f"{full.name}.set-aside-2")) as connection:
        assert connection.execute("SELECT count(*) FROM pages").fetchone() == (0,)


def test_records_added_together_are_added_all_or_not_at_all(path):
    def failing():
        yield entry(URLS[0])
        raise KeyboardInterrupt

    with CrawlDatabase(path) as database:
        with pytest.raises(KeyboardInterrupt):
            database.add_many(failing())
        assert len(database) == 0
        database.add_many(map(entry, URLS))
        assert len(database) == len(URLS)


def test_a_full_disk_is_a_sentence_and_loses_nothing_that_was_added(path):
    with CrawlDatabase(path) as database:
        database.add_many([entry(URLS[0])])
        database._writer.execute("PRAGMA max_page_count = 10")
        with pytest.raises(WebtextError, match=r"can't use .* full"):
            for url in URLS:
                database.add_many([entry(url)])
        with pytest.raises(WebtextError, match="full"):
            database.add_many(map(entry, URLS))
    urls, notes = found(path)
    assert URLS[0] in urls and notes == []


def test_a_file_system_without_shared_memory_is_named_as_that(path, monkeypatch):
    """On a mount of bindfs 1.14.7 with `-o direct_io` it said to free some space; the code is SQLite's there."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_SHMMAP"

    def connect(*arguments, **options):
        raise error

    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(WebtextError, match=r"\(disk I/O error\): its file system lets no file be shared in memory"):
        CrawlDatabase(path)


def test_a_database_that_another_process_holds_is_not_taken_for_a_damaged_one(full, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *arguments, **more: connect(*arguments, timeout=0.1, **more))
    with sqlite3.connect(full, isolation_level=None) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(WebtextError, match="locked"):
            CrawlDatabase(full)
        holder.execute("ROLLBACK")
    holder.close()
    assert found(full) == (set(URLS), [])


def test_what_a_set_does_not_name_is_removed(full):
    with CrawlDatabase(full) as database, UrlSet() as kept:
        for url in URLS[:3]:
            kept.add(url)
        assert database.remove_others(kept) == len(URLS) - 3
        assert [row["url"] for row in database.rows()] == URLS[:3]
    assert all(url.encode() + b'"' not in full.read_bytes() for url in URLS[3:])


def test_numbers_of_records_grow_whatever_is_replaced_or_removed(path):
    """By them it is seen whether a shard was written from what is there now."""
    with CrawlDatabase(path) as database:
        seen = []
        for url in (URLS[0], URLS[1], URLS[1], URLS[0]):
            database.add_many([entry(url)])
            seen.append(database.newest)
        with UrlSet() as kept:
            kept.add(URLS[1])
            database.remove_others(kept)
        database.add_many([entry(URLS[2])])
        assert [*seen, database.newest] == [1, 2, 3, 4, 5]


def test_facts_last_and_are_none_where_there_is_no_database(path):
    assert facts_in(path) == Facts() and not path.exists()
    facts = Facts(2, {"1": 5, "2": 7})
    with CrawlDatabase(path) as database:
        assert (database.facts, database.newest) == (Facts(), 0)
        database.facts = facts
        database.add_many([entry(URLS[0])])
    assert facts_in(path) == facts
    assert (facts.retryable_below(1), facts.retryable_below(2), facts.retryable_below(3)) == (0, 5, 12)
