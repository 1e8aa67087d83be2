"""What earlier runs have fetched is found by URL, wherever it lies, without reading what does not hold it."""

import errno
import os
import random

import numpy as np
import pytest

from webtext_prep.crawl.state import snapshots
from webtext_prep.crawl.state.database import Entry, Journal, journal_path
from webtext_prep.crawl.state.snapshots import Generation, carry_over, generations_in, key_of, set_aside
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.extraction.outcomes import OUTCOMES


def entry_of(journal, url):
    return next((found for found in journal.entries() if found.row["url"] == url), None)


def write_finished(output, number, urls):
    """A finished shard of a download."""
    name = f"part-{number:05}.jsonl.zst"
    with write_documents(output / name) as documents, write_documents(output / OUTCOMES / name) as outcomes:
        for position, url in enumerate(urls):
            outcome = "duplicate" if url in urls[:position] else "ok"
            outcomes.write(Document(url, metadata={"outcome": outcome, "rounds": 1}))
            if outcome == "ok":
                documents.write(Document(url, f"text of {url}", {"title": url, "score": 3}))


@pytest.fixture
def make_generation(tmp_path):
    def make(parts, journals=()) -> Generation:
        output, scratch = tmp_path / "out", tmp_path / "scratch"
        for old in output.glob("**/part-*"):
            old.unlink()
        for number, urls in enumerate(parts):
            write_finished(output, number, urls)
        for number, entries in enumerate(journals):
            with Journal(journal_path(scratch / "journals", f"part-{number:05}")) as journal:
                journal.add_many(iter(entries))
        set_aside(output, scratch / "journals", tmp_path / "earlier")
        generation = generations_in(tmp_path / "earlier")[0]
        generation.build_index(generation.index, tmp_path / "index", lambda count: None)
        return generation

    return make


def carried(tmp_path, urls):
    none = [tmp_path / "none.jsonl.zst", tmp_path / OUTCOMES / "none.jsonl.zst"]
    with Journal(tmp_path / "new" / "part-00000.sqlite") as journal:
        carry_over(urls, journal, generations_in(tmp_path / "earlier"), none)
        return {entry.row["url"]: entry for entry in journal.entries()}


@pytest.mark.parametrize("chunk", [1 << 18, 7])
def test_only_the_shards_that_hold_a_url_of_the_list_are_read(tmp_path, make_generation, monkeypatch, chunk):
    monkeypatch.setattr(snapshots, "_CHUNK", chunk)
    urls = [f"http://a.org/{n}" for n in range(400)]
    random.Random(1).shuffle(urls)
    generation = make_generation([urls[start : start + 10] for start in range(0, 400, 10)])
    read = []
    entries = Generation.entries
    monkeypatch.setattr(Generation, "entries", lambda self, source: read.append(source.name) or entries(self, source))
    wanted = [urls[0], urls[7], urls[155], urls[399], "http://b.org/"]
    found = carried(tmp_path, wanted)
    assert set(found) == set(wanted[:-1])
    assert read == [f"part-{number:05}.jsonl.zst" for number in (0, 15, 39)]
    assert found[urls[7]] == Entry(
        {"url": urls[7], "outcome": "ok", "rounds": 1}, Document(urls[7], f"text of {urls[7]}", {"title": urls[7]})
    )
    assert [source.name for source in generation.sources_with(np.sort(np.fromiter(map(key_of, urls), np.uint64)))] == [
        f"part-{number:05}.jsonl.zst" for number in range(40)
    ]


def test_the_index_is_sorted_and_a_url_that_was_listed_often_stands_in_it_once(make_generation):
    generation = make_generation([["http://a.org/"] * 500 + ["http://b.org/"], ["http://a.org/"], []])
    found = np.fromfile(generation.index, "<u8").tolist()
    a, b = (key_of(f"http://{host}.org/") >> 24 for host in "ab")
    assert [(entry >> 24, entry & 0xFFFFFF) for entry in found] == sorted([(a, 0), (a, 1), (b, 0)])


def test_the_newest_generation_wins_and_in_it_the_journal_that_a_kill_left(tmp_path, make_generation):
    urls = ["http://a.org/1", "http://a.org/2", "http://a.org/3"]
    make_generation([urls])
    newer = Entry({"url": urls[1], "outcome": "http_404", "rounds": 2}, None, 5)
    newest = Entry({"url": urls[0], "outcome": "http_410", "rounds": 3}, None, 6)
    make_generation([urls[:1]], [[newer, newest]])
    assert not (tmp_path / "scratch" / "journals").exists()
    found = carried(tmp_path, urls)
    assert found[urls[0]] == newest and found[urls[1]] == newer
    assert found[urls[2]].row["outcome"] == "ok"


def test_a_shard_that_is_damaged_costs_what_cannot_be_read(tmp_path, make_generation):
    generation = make_generation([["http://a.org/1"], ["http://a.org/2"]])
    shard = generation.folder / "part-00000.jsonl.zst"
    shard.unlink()
    shard.write_bytes(b"no shard at all")
    assert set(carried(tmp_path, ["http://a.org/1", "http://a.org/2"])) == {"http://a.org/2"}


def test_a_journal_is_newer_than_its_shard_also_where_there_are_no_links(tmp_path, make_generation, monkeypatch):
    """Behind a URL, or without hard links, a finished shard hid what a later run had in its journal."""

    def no_links(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    newer = Entry({"url": "http://a.org/1", "outcome": "http_410", "rounds": 2}, None, 5)
    make_generation([["http://a.org/1", "http://a.org/2"]], [[newer]])
    name = "part-00000.jsonl.zst"
    outputs = [tmp_path / "out" / name, tmp_path / "out" / OUTCOMES / name]
    with Journal(tmp_path / "new" / "part-00000.sqlite") as journal:
        carry_over(["http://a.org/1", "http://a.org/2"], journal, generations_in(tmp_path / "earlier"), outputs)
        assert entry_of(journal, "http://a.org/1") == newer
        assert entry_of(journal, "http://a.org/2").row["outcome"] == "ok"
