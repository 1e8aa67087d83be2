"""`webtext download --save-pages`: standard archives next to the documents, which no interruption loses or tears."""

import gzip
import io
import json
import sqlite3
from pathlib import Path

import pytest
import warcio
import warcio.archiveiterator
from fastwarc.warc import ArchiveIterator
from jobs import job_of
from outputs import outcomes_of, saved_pages
from pages_on_loopback import write_list

from webtext_prep import cli
from webtext_prep.crawl import database as crawl_database
from webtext_prep.crawl.database import CrawlDatabase, DatabaseWriter, Entry
from webtext_prep.crawl.http.client import Reply
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.stage_record import trace
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.page_stage import pages_of
from webtext_prep.stages.download import Download


def html(words="Some words of a page, long enough to be its text. ", head=""):
    return f"<html><head>{head}</head><body><article><p>{words * 5}</p></article></body></html>"


def answer(status, headers, body):
    """A route of a `Site`."""
    kind, body = headers.pop("Content-Type", None), body.encode() if isinstance(body, str) else body
    return lambda request: request.answer(status, body, kind, **headers)


def download(inputs, output, **settings):
    inputs = [inputs] if isinstance(inputs, Path) else inputs
    defaults = {"extractor": "resiliparse", "allow_private_addresses": True, "delay": 0.0, "robots": False}
    return job_of(Download(**{**defaults, "save_pages": True, **settings}), inputs, output).run()


def extract(source, output, *more):
    return cli.main(["extract", "--input", str(source), "--output", str(output), "--workers", "1", *more])


def test_saved_pages_are_standard_records_that_other_programs_read_and_check(site, tmp_path):
    packed = gzip.compress(html("Packed. ").encode())
    site.routes |= {
        "/packed": answer(200, {"Content-Type": "text/html; charset=utf-8", "Content-Encoding": "gzip"}, packed),
        "/moved": answer(301, {"Location": "/b"}, ""),
        "/list": answer(200, {"Content-Type": "text/html"}, html("<ul><li>One of a list.<li>Another one.</ul>")),
        "/gone": answer(404, {"Content-Type": "text/html"}, html()),
        "/picture": answer(200, {"Content-Type": "image/png"}, b"\x89PNG"),
        "/nothing": answer(200, {"Content-Type": "text/html"}, "<html></html>"),
    }
    urls = site.urls("/a", "/packed", "/gone", "/moved", "/picture", "/nothing", "/a")
    list_of_urls = [Document(urls[0], metadata={"score": 5, "title": "Größe"}), *urls[1:]]
    download(write_list(tmp_path / "urls.jsonl.zst", list_of_urls), tmp_path / "out")
    file = tmp_path / "out" / "pages" / "part-00000.warc.gz"
    with file.open("rb") as stream:
        records = [
            (record.rec_type, record.rec_headers.get_header("WARC-Target-URI"), record.content_stream().read())
            for record in warcio.archiveiterator.ArchiveIterator(stream, check_digests="raise")
        ]
    assert [(kind, url) for kind, url, _ in records] == [
        ("warcinfo", None),
        ("metadata", None),
        ("response", urls[0]),
        ("response", urls[1]),
        ("metadata", None),
        ("response", site.urls("/b")[0]),
        ("response", urls[5]),
    ]
    assert b"software: webtext/" in records[0][2] and b"http-header-user-agent: webtext/0.1" in records[0][2]
    assert json.loads(records[1][2]) == {"url": urls[0], "metadata": {"score": 5, "title": "Größe"}}
    assert json.loads(records[4][2]) == {"url": urls[3], "final_url": site.urls("/b")[0]}
    assert records[3][2].decode() == html("Packed. ")
    for record in ArchiveIterator(file, parse_http=False):
        assert record.verify_block_digest()
        assert record.record_id.startswith("<urn:uuid:")
    headers = [record.http_headers for record in ArchiveIterator(file) if record.is_http]
    assert headers[1].status_code == 200
    assert headers[1]["Content-Type"] == "text/html; charset=utf-8"
    assert headers[1]["X-Crawler-Content-Encoding"] == "gzip" and "Content-Encoding" not in headers[1]
    assert headers[1]["X-Crawler-Content-Length"] == str(len(packed))
    assert headers[1]["Content-Length"] == str(len(html("Packed. ")))


def test_the_row_of_a_url_says_where_its_page_lies(site, tmp_path):
    urls = site.urls("/a", "/b")
    download(write_list(tmp_path / "urls.jsonl.zst", urls), tmp_path / "out")
    data = (tmp_path / "out" / "pages" / "part-00000.warc.gz").read_bytes()
    for row in outcomes_of(tmp_path / "out"):
        place = row["page"]
        (record,) = ArchiveIterator(io.BytesIO(data[place["offset"] : place["offset"] + place["length"]]))
        assert record.headers["WARC-Target-URI"] == row["url"]
        assert record.headers["WARC-Date"] == row["fetched_at"]


ODD = {
    "/typed-twice": answer(
        200,
        {"Content-Type": "text/plain; charset=koi8-r", "Content_type": "text/html; charset=utf-8"},
        html("Größe, typed <b>twice</b>. "),
    ),
    "/latin": answer(
        200, {"Content-Type": "text/html; charset=windows-1252"}, html("Größe und Übermut. ").encode("cp1252")
    ),
    "/meta": answer(200, {"Content-Type": "text/html"}, html("Ärger. ", "<meta charset=iso-8859-1>").encode("latin-1")),
    "/text": answer(200, {"Content-Type": "text/plain"}, "Plain <b>text</b> & more."),
    "/untyped": answer(200, {}, html("Without a type. ")),
    "/odd-type": answer(200, {"Content-Type": "text/html charset=utf-8"}, html("An odd type. ")),
    "/packed": answer(200, {"Content-Type": "text/html", "Content-Encoding": "gzip"}, gzip.compress(html().encode())),
    "/moved": answer(302, {"Location": "/end?a=b#c"}, ""),
    "/proxied": answer(203, {"Content-Type": "text/html"}, html("By a proxy. ")),
    "/empty": answer(200, {"Content-Type": "text/html"}, "<html></html>"),
    "/list": answer(200, {"Content-Type": "text/html"}, html("<ul><li>One of a list.<li>Another one.</ul>")),
    "/gone": answer(404, {"Content-Type": "text/html"}, html()),
    "/nul": answer(200, {"Content-Type": "text/html"}, html("Between\0 the words. ")),
}

FOLDERS = ("out", "reference", "again", "other")


def test_extracting_saved_pages_again_gives_the_same_documents(site, tmp_path):
    """Byte for byte, with redirects and what the list says; another extractor gives its own. Nothing is fetched."""
    site.routes |= ODD
    lists = []
    for n in range(2):
        urls = site.urls("/a", *list(ODD)[n::2], "/plain?\u00e4 b", "/a")
        rows = [Document(url, metadata={"score": n, "tags": [{"a": None}]}) for url in urls]
        lists.append(write_list(tmp_path / f"list{n}.jsonl.zst", rows))
    shards = ("part-00000.jsonl.zst", "part-00001.jsonl.zst")
    download(lists, tmp_path / "out", extractor="learned")
    download(lists, tmp_path / "reference", extractor="resiliparse")
    site.asked.clear()
    assert (
        cli.main(["extract", "--input", str(tmp_path / "out"), "--output", str(tmp_path / "again"), "--workers", "1"])
        == 0
    )
    assert extract(tmp_path / "out" / "pages", tmp_path / "other", "--extractor", "resiliparse") == 0
    assert site.paths == []
    found = {name: [(tmp_path / name / shard).read_bytes() for shard in shards] for name in FOLDERS}
    assert found["again"] == found["out"]
    assert found["other"] == found["reference"]
    assert found["other"] != found["again"]
    documents = [document for shard in shards for document in read_documents(tmp_path / "again" / shard)]
    moved = next(document for document in documents if document.url.endswith("/moved"))
    assert moved.metadata["final_url"] == site.urls("/end?a=b")[0]
    assert moved.metadata["tags"] == [{"a": None}]
    texts = {document.url.rpartition("/")[2]: document.text for document in documents}
    assert texts["typed-twice"].startswith("Größe, typed twice.")  # of two content types the last holds


def test_the_record_of_extracted_pages_leads_to_their_download(site, tmp_path):
    download(write_list(tmp_path / "urls.jsonl.zst", site.urls("/a")), tmp_path / "out")
    assert (
        cli.main(["extract", "--input", str(tmp_path / "out"), "--output", str(tmp_path / "again"), "--workers", "1"])
        == 0
    )
    (before,) = trace(str(tmp_path / "again")).inputs
    assert before.stage == "download" and before.place == tmp_path / "out"


def test_no_pages_are_saved_unless_asked_for(site, tmp_path):
    download(write_list(tmp_path / "urls.jsonl.zst", site.urls("/a")), tmp_path / "out", save_pages=False)
    assert not (tmp_path / "out" / "pages").exists()
    assert "page" not in outcomes_of(tmp_path / "out")[0]


def test_a_retry_keeps_the_pages_that_were_there(site, tmp_path):
    site.routes["/trouble"] = answer(503, {}, "")
    source = write_list(tmp_path / "urls.jsonl.zst", site.urls("/a", "/trouble", "/b"))
    download(source, tmp_path / "out", retries=0)
    first = saved_pages(tmp_path / "out")
    del site.routes["/trouble"]
    download(source, tmp_path / "out", retries=0)
    assert site.paths.count("/a") == 1
    after = saved_pages(tmp_path / "out")
    assert [url for url, _ in after] == site.urls("/a", "/trouble", "/b")
    assert [after[0], after[2]] == first
    assert outcomes_of(tmp_path / "out")[0]["page"]["offset"] > 0


def test_a_list_that_changes_keeps_the_pages_of_its_urls(site, tmp_path):
    lists = [write_list(tmp_path / f"list{n}.jsonl.zst", site.urls(f"/{n}", f"/{n}x")) for n in range(3)]
    download(lists, tmp_path / "out")
    before = dict(saved_pages(tmp_path / "out"))
    site.asked.clear()
    write_list(lists[0], site.urls("/2", "/new", "/0x"))
    download([lists[2], lists[0]], tmp_path / "out")
    assert site.paths == ["/new"]
    after = saved_pages(tmp_path / "out")
    assert [url for url, _ in after] == site.urls("/2", "/2x", "/2", "/new", "/0x")  # /2 is in both lists
    assert all(before.get(url, body) == body for url, body in after)
    assert sorted(file.name for file in (tmp_path / "out" / "pages").iterdir()) == [
        "part-00000.warc.gz", "part-00001.warc.gz"
    ]  # fmt: skip


DATE = "2026-01-01T00:00:00Z"


def answer_of(url, body=b"<p>x"):
    return Reply("ok", url, 200, body=body, reason="OK", headers=((b"Content-Type", b"text/html"),))


def test_a_record_that_changed_on_the_disk_costs_its_page_alone(site, tmp_path, monkeypatch):
    """Between fetching and writing: the sentence says what to do, and doing it fetches that page again."""
    source = write_list(tmp_path / "urls.jsonl.zst", site.urls("/a", "/b"))
    fetch = Download.fetch

    def damaging(self, task, context):
        found = fetch(self, task, context)
        with sqlite3.connect(task.writes.database) as connection:
            connection.execute("UPDATE pages SET page = substr(page, 2) WHERE number = 1")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Download, "fetch", damaging)
        with pytest.raises(WebtextError, match=r"crawl\.sqlite is damaged: run the command again"):
            download(source, tmp_path / "out")
    site.asked.clear()
    download(source, tmp_path / "out")
    assert len(site.asked) == 1
    assert [url for url, _ in saved_pages(tmp_path / "out")] == site.urls("/a", "/b")


def test_pages_that_wait_to_be_saved_are_bounded(tmp_path, monkeypatch):
    """Their bytes count as text does."""
    import asyncio

    monkeypatch.setattr(crawl_database, "WAITING_TEXT", 10_000)
    most = 0

    async def run(database):
        nonlocal most
        async with DatabaseWriter(database, lambda count: None) as writer:
            for n in range(200):
                url = f"http://a/{n}"
                await writer.add(Entry({"url": url, "fetched_at": DATE}, answer=answer_of(url, b"x" * 1000)))
                most = max(most, writer._characters)

    with CrawlDatabase(tmp_path / "a.sqlite") as database:
        asyncio.run(run(database))
        assert len(database) == 200
    assert most <= 12_000


def test_the_estimate_of_space_knows_of_saved_pages():
    sample = Sample(size=650_000, text=650_000, written=240_000, documents=10_000)
    with_pages, without = (Download(save_pages=save).needs(sample, 1) for save in (True, False))
    assert with_pages.output - without.output > 10_000 * 10_000
    assert with_pages.scratch > 10_000 * 10_000


def test_pages_of_a_shard_have_its_name(tmp_path):
    assert pages_of(tmp_path / "part-00012.parquet") == tmp_path / "pages" / "part-00012.warc.gz"
