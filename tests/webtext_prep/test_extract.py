"""`webtext extract`: archives and files of HTML to documents, as a download would have made them."""

import base64
import functools
import gzip
import hashlib
import io
import itertools
import json
import random
import subprocess
import sys
import time

import brotli
import pytest
import zstandard
from archives import DATE, Archive, answer, members, page, raw_record
from hypothesis import given
from hypothesis import strategies as st
from jobs import job_of
from outputs import documents_of, outcomes_of
from warcio.statusandheaders import StatusAndHeaders

from webtext_prep.crawl.archives import warc as archives_module
from webtext_prep.crawl.archives.html_files import said_urls
from webtext_prep.crawl.archives.warc import ArchiveReader, Damage, FoundPage
from webtext_prep.crawl.http.bodies import CutShortError, DamagedBodyError, TooLargeError, decoded, without_chunks
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.stages.extract import Extract

TEXT = "Some words of a page, long enough for anybody to see that they are its text."


def extract(inputs, output, **more):
    inputs = inputs if isinstance(inputs, list) else [inputs]
    run = {name: more.pop(name) for name in ("workers", "format") if name in more}
    return job_of(Extract(**{"extractor": "resiliparse", **more}), inputs, output, **run).run()


def found_in(tmp_path, data, name="a.warc.gz", **more):
    path = tmp_path / name
    path.write_bytes(data)
    more = {"max_bytes": 5_000_000, "keep_truncated": False, **more}
    return list(ArchiveReader(path, name, **more).pages())


def in_ranges(tmp_path, name, every):
    """The same of the file that `found_in` wrote, read in ranges of so many pages or more."""
    reader = ArchiveReader(tmp_path / name, name, max_bytes=5_000_000, keep_truncated=False)
    places = reader.entrances(every, lambda size: None)
    return [list(reader.pages(*ends)) for ends in itertools.pairwise([None, *places, None])]


def outcomes_found(items):
    return [item.outcome if isinstance(item, archives_module.FoundPage) else item for item, _ in items]


def pages_and_losses(items):
    """The bodies of the pages that were found, by URL, and the pages that were lost."""
    pages = {item.url: item.page.body for item, _ in items if isinstance(item, FoundPage) and item.page is not None}
    lost = [
        item.page if isinstance(item, Damage) else item for item, _ in items if getattr(item, "url", 0) not in pages
    ]
    return pages, [page for page in lost if page is not None]


# What an archive may hold


def test_each_record_ends_in_one_outcome_as_a_fetched_page_would(tmp_path):
    archive = Archive()
    archive.writer.write_record(archive.writer.create_warcinfo_record("a.warc.gz", {"software": "test"}))
    archive.add("request", "http://a.org/page", http=StatusAndHeaders("GET /page HTTP/1.1", [], is_http_request=True))
    archive.response("http://a.org/page")
    archive.add("metadata", "http://a.org/page", b"fetchTimeMs: 5\r\n", content_type="application/warc-fields")
    archive.response("http://a.org/gone", status="404 Not Found")
    archive.response("http://a.org/moved", status="301 Moved", Location="/page")
    archive.response(
        "http://a.org/led-on", '<meta http-equiv=refresh content="0; url=/page">It is at another place now.'
    )
    archive.response("http://a.org/itself", f'<meta http-equiv=refresh content="0; url=itself">{page()}')
    archive.response("http://a.org/a.png", b"\x89PNG\r\n", Content_Type="image/png")
    archive.response("http://a.org/robots.txt", "User-agent: *", Content_Type="text/plain")
    archive.response("http://a.org/text", "Plain <text>, as it is.", Content_Type="text/plain")
    archive.response("http://a.org/empty", "<html></html>")
    archive.response("http://a.org/pdf", b"%PDF-1.4", Content_Type="text/html")
    archive.response("http://a.org/bytes", b"\0\xff" * 5000, Content_Type="text/html")
    archive.response("http://a.org/big", page("x" * 50_000))
    archive.response("http://a.org/cut", more={"WARC-Truncated": "length"})
    same = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
    archive.add("revisit", "http://a.org/again", http=same)
    archive.add("resource", "http://a.org/resource", page().encode(), content_type="text/html; charset=utf-8")
    archive.add("response", "dns:a.org", b"20240301\r\na.org. 1 IN A 1.2.3.4\r\n", content_type="text/dns")
    archive.add("conversion", "http://a.org/text-of", b"  As it was.\nA second <line>.\n", content_type="text/plain")
    (tmp_path / "a.warc.gz").write_bytes(archive.data)
    summary = extract(tmp_path / "a.warc.gz", tmp_path / "out", max_bytes=100_000)
    rows = outcomes_of(tmp_path / "out")
    assert [(row["url"].removeprefix("http://a.org/"), row["outcome"], row.get("status")) for row in rows] == [
        ("page", "ok", 200),
        ("gone", "http_404", 404),
        ("moved", "http_301", 301),
        ("led-on", "redirect", 200),
        ("itself", "ok", 200),
        ("a.png", "not_html", 200),
        ("robots.txt", "not_html", 200),
        ("text", "ok", 200),
        ("empty", "empty", 200),
        ("pdf", "not_html", 200),
        ("bytes", "not_html", 200),
        ("big", "too_large", 200),
        ("cut", "truncated", 200),
        ("again", "revisit", None),
        ("resource", "ok", None),
        ("dns:a.org", "not_a_page", None),
        ("text-of", "ok", None),
    ]
    assert {row["fetched_at"] for row in rows} == {DATE}
    assert summary.tally.read == summary.tally.kept + summary.tally.dropped.total() == 17
    texts = {document.url.removeprefix("http://a.org/"): document.text for document in documents_of(tmp_path / "out")}
    assert "The text of http://a.org/page is here." in texts["page"]
    assert texts["text"] == "Plain <text>, as it is."
    assert texts["text-of"] == "As it was.\nA second <line>."
    assert TEXT in texts["resource"]


def test_extractors_work_for_an_output_whose_name_is_not_utf8(tmp_path, latin):
    """The name could not be told to the workers, and no page was ever extracted, without an error."""
    html = tmp_path / "a.html"
    html.write_text(f"<article><p>{'A text that is long enough. ' * 20}</p></article>")
    assert extract(html, latin / "out").tally.kept == 1


@pytest.mark.parametrize("extractor", ["learned", "trafilatura", "newspaper", "resiliparse"])
def test_the_text_is_that_of_the_extractor_that_is_chosen(tmp_path, extractor):
    (tmp_path / "a.warc.gz").write_bytes(Archive().response("http://a.org/1", page()).data)
    extract(tmp_path / "a.warc.gz", tmp_path / "out", extractor=extractor)
    (document,) = documents_of(tmp_path / "out")
    assert TEXT in document.text
    if extractor == "learned":
        assert document.metadata.pop("kind") == "article"
        assert 0 < document.metadata.pop("kind_probability") <= 1
        assert document.metadata.pop("text_share") == 1
    assert document.metadata == {"title": "A page", "domain": "a.org"}


def test_kinds_of_pages_are_told_and_some_alone_may_be_kept(tmp_path):
    posts = "".join(
        f"<div class=post id=post-{n}><div class=avatar><a class=username>user{n}</a></div><div class=postbody>"
        f"<p>Post {n}. {TEXT}</p></div><div class=post-actions><a>Like</a> <a>Reply</a></div></div>"
        for n in range(12)
    )
    thread = f"<title>A thread</title><body class=phpbb><main class=topic><h1>A thread</h1>{posts}</main></body>"
    archive = Archive()
    archive.response("http://a.org/1", page())
    archive.response("http://forum.a.org/t/a-thread/2", thread)
    (tmp_path / "a.warc.gz").write_bytes(archive.data)
    extract(tmp_path / "a.warc.gz", tmp_path / "all", extractor="learned")
    assert [document.metadata["kind"] for document in documents_of(tmp_path / "all")] == ["article", "forum"]
    found = extract(tmp_path / "a.warc.gz", tmp_path / "out", extractor="learned", kinds=("forum",))
    assert [document.url for document in documents_of(tmp_path / "out")] == ["http://forum.a.org/t/a-thread/2"]
    assert [(row["outcome"], row["kind"]) for row in outcomes_of(tmp_path / "out")] == [
        ("other_kind", "article"),
        ("ok", "forum"),
    ]
    assert found.tally.dropped == {"other_kind": 1}
    with pytest.raises(InputError, match="--kinds needs --extractor learned: newspaper does not tell"):
        Extract(extractor="newspaper", kinds=("forum",))


def test_urls_are_taken_as_they_were_meant(tmp_path):
    """Wget writes angle brackets; some crawlers, passwords; some, nothing at all."""
    records = [
        raw_record(1, answer(page()), WARC_Target_URI="<http://a.org/wget>"),
        raw_record(2, answer(page()), WARC_Target_URI="http://user:secret@a.org/"),
        raw_record(3, answer(page()), WARC_Target_URI=""),
        raw_record(4, answer(page()), WARC_Target_URI="http://[broken/"),
        raw_record(5, answer(page()), WARC_Target_URI="http://a.org/größe"),
    ]
    found = [item for item, _ in found_in(tmp_path, members(*records))]
    assert [item.url for item in found[:2]] == ["http://a.org/wget", "http://a.org/"]
    assert [item.outcome for item in found[2:4]] == ["malformed_url"] * 2
    assert found[2].url == "file:a.warc.gz:3"
    assert found[4].url == "http://a.org/größe"


# Bodies as they were sent


def chunked(data: bytes, size: int = 7, ending: bytes = b"\r\n") -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x;a=b" % len(piece) + ending + piece + ending for piece in pieces) + b"0" + ending * 2


def body_of(body, transfer="", encoding="", limit=10_000_000, may_be_cut=False):
    return decoded(body, transfer, encoding, limit=limit, may_be_cut=may_be_cut)


PAGE = page().encode()
PACKED = {
    "gzip": gzip.compress(PAGE),
    "br": brotli.compress(PAGE),
    "zstd": zstandard.compress(PAGE),
    "deflate": gzip.zlib.compress(PAGE),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_a_body_is_decoded_as_its_headers_say(encoding):
    assert body_of(PACKED[encoding], encoding=encoding) == PAGE
    assert body_of(chunked(PACKED[encoding]), "chunked", encoding.upper()) == PAGE
    assert body_of(PAGE, "chunked", encoding) == PAGE  # decoded by the crawler, which left the headers as they were
    with pytest.raises(TooLargeError):
        body_of(PACKED[encoding], encoding=encoding, limit=len(PAGE) - 1)
    with pytest.raises(DamagedBodyError):
        body_of(b"\x01\x02\x03" * 50, encoding=encoding)


def test_a_body_that_breaks_off_is_taken_only_where_that_was_asked_for():
    packed = gzip.compress(random.Random(1).randbytes(100_000))
    for body, transfer, encoding in ((packed[:-500], "", "gzip"), (chunked(PAGE)[:-40], "chunked", "")):
        with pytest.raises(CutShortError):
            body_of(body, transfer, encoding)
        assert body_of(body, transfer, encoding, may_be_cut=True)
    with pytest.raises(DamagedBodyError):
        body_of(b"5\r\nhello\r\nworld\r\n", "chunked")


@given(st.binary(min_size=1, max_size=300), st.integers(1, 50), st.sampled_from([b"\r\n", b"\n"]))
def test_chunks_are_put_together_again(data, size, ending):
    assert without_chunks(chunked(data, size, ending)) == data


def test_a_bomb_is_too_large_and_does_not_fill_the_memory(tmp_path):
    bomb = gzip.compress(bytes(100_000_000))
    blocks = [
        answer(bomb, "Content-Type: text/html", "Content-Encoding: gzip"),
        answer(bytes(100_000_000)),
        answer(page()),
    ]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(members(*(raw_record(n, block) for n, block in enumerate(blocks))))
    del blocks
    code = (
        "import resource, sys; from pathlib import Path; from webtext_prep.crawl.archives.warc import ArchiveReader;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "reader = ArchiveReader(Path(sys.argv[1]), 'a', max_bytes=5_000_000, keep_truncated=False);"
        "print(*(found.outcome for found, _ in reader.pages()));"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    outcomes, grown = done.stdout.splitlines()
    assert outcomes == "too_large too_large ok"
    assert int(grown) < 60


# Damage


ZSTANDARD = zstandard.ZstdCompressor(write_checksum=True)
KINDS = {
    "gzip": ("a.warc.gz", lambda records: [gzip.compress(record, mtime=0) for record in records]),
    "two in a gzip member": (
        "a.warc.gz",
        lambda records: [gzip.compress(a + b, mtime=0) for a, b in in_pairs(records)],
    ),
    "zstandard": ("a.warc.zst", lambda records: [ZSTANDARD.compress(record) for record in records]),
    "plain": ("a.warc", list),
}


def in_pairs(records):
    return zip(records[::2], records[1::2], strict=True)


def numbered_records(count, *, with_digests):
    """Pages of several sizes that hardly compress, and their bodies by URL."""
    random_text = random.Random(7)
    bodies = [page("".join(random_text.choices("abcdefgh <>", k=40 + 900 * (n % 3)))).encode() for n in range(count)]
    blocks = [answer(body) for body in bodies]
    digests = [base64.b32encode(hashlib.sha1(block).digest()).decode() for block in blocks]
    more = [{"WARC-Block-Digest": f"sha1:{digest}"} if with_digests else {} for digest in digests]
    records = [raw_record(n, block, **more[n]) for n, block in enumerate(blocks)]
    return records, {f"http://a.org/{n}": body for n, body in enumerate(bodies)}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_costs_the_record_that_it_is_in(tmp_path, kind):
    """A byte that changed in an archive cost all pages behind it, and nothing counted them."""
    records, bodies = numbered_records(6, with_digests=kind == "plain")
    name, pack = KINDS[kind]
    pieces = pack(records)
    data, each = b"".join(pieces), len(records) // len(pieces)
    assert pages_and_losses(found_in(tmp_path, data, name)) == (bodies, [])
    for number, piece in enumerate(pieces):
        start, urls = sum(map(len, pieces[:number])), [f"http://a.org/{number * each + n}" for n in range(each)]
        for at in range(0, len(piece), max(1, len(piece) // 40)):
            damaged = bytearray(data)
            damaged[start + at] ^= (0xFF, 0x01, 0x20)[at % 3]
            items = found_in(tmp_path, bytes(damaged), name)
            pages, lost = pages_and_losses(items)
            others = bodies.keys() - urls
            assert {url: pages.get(url) for url in others} == {url: bodies[url] for url in others}, (number, at)
            # What a header of the archive says of a page has no digest, nor have a gzip member's time and name.
            is_header = kind == "plain" and at < piece.index(b"\r\n\r\n")
            intact = [url for url in urls if pages.get(url) == bodies[url]]
            if not is_header:
                assert len(intact) < each == 2 or len(lost) == each - len(intact), (number, at)
                assert lost or len(intact) == each, (number, at)
            assert [place.number for _, place in items] == list(range(1, len(items) + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_lost_some_bytes_is_read_behind_them(tmp_path, kind):
    records, bodies = numbered_records(6, with_digests=False)
    name, pack = KINDS[kind]
    pieces = pack(records)
    each = len(records) // len(pieces)
    for cut in range(4, len(pieces[1]) - 4, max(1, len(pieces[1]) // 15)):
        items = found_in(tmp_path, b"".join([pieces[0], pieces[1][:cut], *pieces[2:]]), name)
        pages, lost = pages_and_losses(items)
        assert [url for url in bodies if int(url[-1]) // each != 1] == list(pages)[:each] + list(pages)[
            -len(bodies) + 2 * each :
        ]
        assert len(lost) == 1
        assert [*itertools.chain.from_iterable(in_ranges(tmp_path, name, 1))] == items


def test_a_page_is_compared_with_its_digest(tmp_path):
    """A bit that had flipped in the text of a plain archive came out as other text."""
    records, _ = numbered_records(3, with_digests=True)
    damaged = bytearray(b"".join(records))
    damaged[len(records[0]) + records[1].index(b"<p>") + 20] ^= 0x04
    (tmp_path / "a.warc").write_bytes(damaged)
    summary = extract(tmp_path / "a.warc", tmp_path / "out")
    assert [(row["url"], row["outcome"]) for row in outcomes_of(tmp_path / "out")] == [
        ("http://a.org/0", "ok"), ("http://a.org/1", "damaged"), ("http://a.org/2", "ok"),
    ]  # fmt: skip
    assert (summary.tally.read, summary.tally.kept, summary.tally.dropped) == (3, 2, {"damaged": 1})
    assert summary.tally.problems == [
        f"{tmp_path / 'a.warc'}: the page is not what its digest in the archive says: fetch the archive again."
    ]
    unknown = [raw_record(0, answer(page()), WARC_Block_Digest=digest) for digest in ("crc32:AAAA", "sha1:?", "")]
    assert outcomes_found(found_in(tmp_path, b"".join(unknown), "b.warc")) == ["ok"] * 3


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.warc.zst"])
def test_what_looks_like_records_and_holds_none_costs_little(tmp_path, name):
    mark = {"a.warc": b"WARC/1.0\r\n\0", "a.warc.gz": b"\x1f\x8b\x08", "a.warc.zst": b"\x28\xb5\x2f\xfd"}[name]
    records, _ = numbered_records(1, with_digests=False)
    data = b"".join(KINDS["gzip" if "gz" in name else "zstandard" if "zst" in name else "plain"][1](records))
    started = time.process_time()
    items = found_in(tmp_path, data + mark * 100_000 + data, name)
    assert time.process_time() - started < 5
    assert outcomes_found(items[:1]) == ["ok"] and items[-1][0].is_last


def test_everything_before_the_end_of_a_truncated_archive_is_kept(tmp_path):
    archive = Archive()
    for n in range(4):
        archive.response(f"http://a.org/{n}")
    last = archive.offsets[-1]
    for cut in (last + 2, last + 60, len(archive.data) - 1, len(archive.data) - 6):
        *found, (damage, _) = found_in(tmp_path, archive.data[:cut])
        assert isinstance(damage, Damage) and damage.is_last and damage.page.outcome == "damaged", cut
        assert [item.url for item, _ in found] == [f"http://a.org/{n}" for n in range(3)]
    assert outcomes_found(found_in(tmp_path, archive.data)) == ["ok"] * 4


def test_a_plain_archive_that_is_cut_off_anywhere_is_noticed(tmp_path):
    data = b"".join(raw_record(n, answer(page())) for n in range(3))
    start = len(raw_record(0, answer(page()))) * 2
    for cut in range(start + 1, len(data) - 4, 7):
        found = found_in(tmp_path, data[:cut], "a.warc")
        assert isinstance(found[-1][0], Damage) and found[-1][0].page is not None, cut
        assert outcomes_found(found[:-1]) == ["ok"] * 2
    assert outcomes_found(found_in(tmp_path, data, "a.warc")) == ["ok"] * 3


@pytest.mark.parametrize("kind", ["gzip", "plain"])
def test_zeros_behind_an_archive_are_no_damage(tmp_path, kind):
    records, bodies = numbered_records(3, with_digests=False)
    name, pack = KINDS[kind]
    items = found_in(tmp_path, b"".join(pack(records)) + bytes(512), name)
    assert pages_and_losses(items) == (bodies, []) and len(items) == 3


@pytest.mark.parametrize("size", [9_000, 100_000])
def test_a_large_archive_in_one_gzip_member_is_whole(tmp_path, size):
    """Its end was looked for where no gzip member begins: a whole archive passed for one that is cut off."""
    text = "".join(random.Random(1).choices("abcdefgh ", k=size))
    records = [raw_record(n, answer(page(text))) for n in range(3)]
    assert outcomes_found(found_in(tmp_path, gzip.compress(b"".join(records), mtime=0))) == ["ok"] * 3


def test_a_damaged_archive_is_named_in_the_summary_and_the_others_are_read(tmp_path):
    good, bad = Archive(), Archive()
    for n in range(3):
        good.response(f"http://good.org/{n}")
        bad.response(f"http://bad.org/{n}")
    (tmp_path / "bad.warc.gz").write_bytes(bad.data[: bad.offsets[2] + 30])
    (tmp_path / "good.warc.gz").write_bytes(good.data)
    files = [tmp_path / "bad.warc.gz", tmp_path / "good.warc.gz"]
    summary = extract(files, tmp_path / "out")
    assert [document.url for document in documents_of(tmp_path / "out")] == [
        "http://bad.org/0", "http://bad.org/1", "http://good.org/0", "http://good.org/1", "http://good.org/2",
    ]  # fmt: skip
    assert summary.tally.notes["damaged archives"] == 1
    assert summary.tally.dropped == {"damaged": 1}
    (sentence,) = summary.tally.problems
    assert sentence.startswith(f"{tmp_path / 'bad.warc.gz'}: it can't be read beyond byte ")
    assert "cut off" in sentence and "fetch it again" in sentence
    (tmp_path / "bad.warc.gz").write_bytes(bad.data)
    assert extract(files, tmp_path / "out").tally.problems == []
    assert len(documents_of(tmp_path / "out")) == 6


@pytest.mark.parametrize(
    "data", [b"", b"<html>no archive</html>", gzip.compress(b"no archive", mtime=0), b"\x1f\x8b broken"]
)
def test_what_is_no_archive_at_all_is_an_error(tmp_path, data):
    (tmp_path / "a.warc.gz").write_bytes(data)
    with pytest.raises(InputError, match=r"no pages in the input: .*a\.warc\.gz: it can't be read beyond byte 0"):
        extract(tmp_path / "a.warc.gz", tmp_path / "out")


def test_bad_http_costs_one_page(tmp_path):
    blocks = [
        b"",
        b"no http at all",
        b"HTTP/1.1 OK\r\n\r\n" + PAGE,
        answer(page(), *(f"X-{n}: {'a' * 60_000}" for n in range(5))),
        answer(b"\x01\x02\x03", "Content-Type: text/html", "Content-Encoding: gzip"),
        answer(page()).replace(b"\r\n", b"\n"),  # lines that end as on Unix
        answer(page(), "Content-Type: image/png", "content-type:  text/html ;charset=utf-8"),
    ]
    found = found_in(tmp_path, members(*(raw_record(n, block) for n, block in enumerate(blocks))))
    assert outcomes_found(found) == ["malformed_response"] * 5 + ["ok", "ok"]


@given(st.data())
def test_no_archive_raises_whatever_it_holds(tmp_path, data):
    """Pieces of records in any order, with bytes that changed."""
    records = [
        raw_record(n, answer(page("words "), "Content-Type: text/html", *more))
        for n, more in enumerate([(), ("Transfer-Encoding: chunked",), ("Content-Encoding: br",)])
    ]
    whole = bytearray(b"".join(data.draw(st.lists(st.sampled_from(records), min_size=1, max_size=4))))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=6)):
        whole[at] = value
    compress = data.draw(st.sampled_from([bytes, functools.partial(gzip.compress, mtime=0), zstandard.compress]))
    packed = compress(bytes(whole))
    cut = data.draw(st.integers(0, len(packed)))
    packed = packed[:cut] if data.draw(st.booleans()) else packed
    items = found_in(tmp_path, packed, "a.warc")
    assert all(isinstance(item, Damage) or item.url for item, _ in items)
    assert [*itertools.chain.from_iterable(in_ranges(tmp_path, "a.warc", data.draw(st.integers(1, 3))))] == items


def test_an_error_of_the_disk_is_no_damage(tmp_path, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 0:
                raise OSError(5, "Input/output error")
            return super().read(100)

    monkeypatch.setattr(
        archives_module.storage, "open_for_reading", lambda place: Broken(Archive().response("a:b").data)
    )
    with pytest.raises(OSError, match="Input/output error"):
        list(ArchiveReader(tmp_path / "a.warc.gz", "a", max_bytes=100, keep_truncated=False).pages())


# In ranges


@pytest.mark.parametrize("kind", ["members", "one member", "plain", "zstd", "two a member"])
def test_an_archive_is_read_in_ranges_as_fine_as_its_pieces(tmp_path, kind):
    records = [raw_record(n, answer(page(f"Page {n} is here. "))) for n in range(7)]
    data, name = {
        "members": (members(*records), "a.warc.gz"),
        "one member": (gzip.compress(b"".join(records)), "a.warc.gz"),
        "plain": (b"".join(records), "a.warc"),
        "zstd": (zstandard.compress(b"".join(records)), "A.WARC.ZST"),
        "two a member": (members(*(b"".join(records[n : n + 2]) for n in range(0, 7, 2))), "a.warc.gz"),
    }[kind]
    whole = found_in(tmp_path, data, name)
    assert outcomes_found(whole) == ["ok"] * 7
    assert [place.number for _, place in whole] == [*range(1, 8)]
    sizes = {}
    for every in (1, 2, 5, 7):
        ranges = in_ranges(tmp_path, name, every)
        assert list(itertools.chain.from_iterable(ranges)) == whole
        sizes[every] = [len(pages) for pages in ranges]
    assert (
        sizes
        == {
            "members": {1: [1] * 7, 2: [2, 2, 2, 1], 5: [5, 2], 7: [7]},
            "plain": {1: [1] * 7, 2: [2, 2, 2, 1], 5: [5, 2], 7: [7]},
            "one member": {1: [1, 6], 2: [7], 5: [7], 7: [7]},
            "zstd": {1: [1, 6], 2: [7], 5: [7], 7: [7]},
            "two a member": {1: [1, 2, 2, 2], 2: [7], 5: [5, 2], 7: [7]},
        }[kind]
    )


@pytest.mark.parametrize(("workers", "ahead"), [(1, 1), (2, 3)])
def test_the_same_bytes_whatever_the_workers(tmp_path, monkeypatch, workers, ahead):
    for name in "abc":
        archive = Archive()
        for n in range(20):
            archive.response(f"http://{name}.org/{n}", page(f"{name} {n} " * (400 if n % 3 else 10)))
        (tmp_path / f"{name}.warc.gz").write_bytes(archive.data)
    files = sorted(tmp_path.glob("*.warc.gz"))
    extract(files, tmp_path / "reference")
    monkeypatch.setattr("webtext_prep.stages.extract.PAGES_AHEAD", ahead)
    extract(files, tmp_path / "out", workers=workers)
    for file in (tmp_path / "reference").glob("*/part-*"):
        assert (tmp_path / "out" / file.parent.name / file.name).read_bytes() == file.read_bytes()


# Files of HTML


def test_a_page_in_a_file_gets_its_url_from_what_lies_there(tmp_path):
    folder = tmp_path / "site"
    (folder / "deep").mkdir(parents=True)
    canonical = page().replace("<head>", '<head><link rel="canonical" href="https://c.org/canonical?a=1&amp;b=2">')
    (folder / "a.html").write_text(canonical)
    (folder / "a.json").write_text(json.dumps({"url": "https://u:p@s.org/sidecar", "score": 7, "text": "x"}))
    (folder / "https%3A%2F%2Fn.org%2Fname.html").write_text(canonical)
    (folder / "c.htm.gz").write_bytes(gzip.compress(canonical.encode()))
    (folder / "deep" / "d.html").write_text(page())
    (folder / "deep" / "saved.html").write_text("<!-- saved from url=(0020)https://b.org/saved -->" + page())
    (folder / "notes.txt").write_text("no page")
    (folder / "other.json").write_text("{}")
    summary = extract([path for path in sorted(folder.rglob("*")) if Extract.reads.accepts(path)], tmp_path / "out")
    found = {document.url: document for document in documents_of(tmp_path / "out")}
    assert list(found) == [
        "https://s.org/sidecar", "https://c.org/canonical?a=1&b=2", "file:deep/d.html", "https://b.org/saved",
        "https://n.org/name",
    ]  # fmt: skip
    assert found["https://s.org/sidecar"].metadata == {"score": 7, "title": "A page", "domain": "s.org"}
    assert found["file:deep/d.html"].metadata == {"title": "A page"}
    assert summary.tally.problems == ["not read: 1 .json files without a page next to them."]


@pytest.mark.parametrize(
    ("head", "url"),
    [
        ('<LINK href=http://a.org/x REL="Canonical">', "http://a.org/x"),
        ("<base href='https://a.org/b/'><link rel=canonical href=c>", "https://a.org/b/c"),
        ("<base href='https://a.org/b/'>", ""),
        ('<link rel="canonical" href="/relative">', ""),
        ('<link rel="canonical" href="javascript:alert(1)">', ""),
        ('<link rel="canonical" href="http://[">', ""),
        ('<link rel="canonical shortlink" href="http://a.org/x">', "http://a.org/x"),
        (f"<style>{'a{b:c}' * 20_000}</style><link rel=canonical href=http://a.org/x>", "http://a.org/x"),
        ('<link rel="alternate canonical" href="http://a.org/other">', ""),
        ('<!-- <link rel="canonical" href="http://a.org/no"> -->', ""),
        ('<script>"<link rel=canonical href=http://a.org/no>"</script>', ""),
        (
            "<meta content='<link rel=canonical href=http://a.org/no>'><link rel=canonical href=http://a.org/>",
            "http://a.org/",
        ),
        ("", ""),
    ],
)
def test_the_url_that_a_page_says_it_has(head, url):
    assert said_urls(page().replace("<head>", f"<head>{head}").encode()).canonical == url


def test_files_that_are_no_pages_are_named_and_cost_nothing_else(tmp_path):
    (tmp_path / "a.html").write_text(page())
    (tmp_path / "b.html.gz").write_bytes(gzip.compress(page().encode())[:-10])
    (tmp_path / "c.html").write_bytes(b"%PDF-1.4 and so on")
    (tmp_path / "d.html").write_text(page("x" * 100_000))
    (tmp_path / "e.html").write_text(page())
    (tmp_path / "e.json").write_text("[]")
    files = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    summary = extract(files, tmp_path / "out", max_bytes=100_000)
    assert [row["outcome"] for row in outcomes_of(tmp_path / "out")] == [
        "ok", "unreadable", "not_html", "too_large", "unreadable"
    ]  # fmt: skip
    assert any("b.html.gz" in sentence and "cut off" in sentence for sentence in summary.tally.problems)


def test_many_small_files_are_few_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("webtext_prep.stages.extract.BYTES_PER_SHARD", 5_000)
    for n in range(30):
        (tmp_path / f"{n:02}.html").write_text(page(f"Page {n}. " * 5))
    extract(sorted(tmp_path.glob("*.html")), tmp_path / "out")
    assert 1 < len(list((tmp_path / "out").glob("part-*"))) < 10
    assert len(documents_of(tmp_path / "out")) == 30


# The command


def test_the_command_says_what_it_needs(webtext, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    said = webtext("extract", "--input", tmp_path / "a.txt", "--output", tmp_path / "out").sentence
    assert "web archives" in said and "HTML files" in said
    (tmp_path / "a.warc.gz").write_bytes(Archive().response("http://a.org/1").data)
    done = webtext("extract", "--input", tmp_path / "a.warc.gz", "--output", tmp_path / "out", "--json")
    assert done.json["out"] == 1
    said = webtext("extract", "--input", tmp_path / "out", "--output", tmp_path / "again").sentence
    assert "holds documents and no saved pages" in said and "--save-pages" in said


def test_an_archive_without_any_page_with_text_is_an_error(tmp_path):
    (tmp_path / "a.warc.gz").write_bytes(Archive().response("http://a.org/1", status="404 Not Found").data)
    with pytest.raises(WebtextError, match="none of the 1 pages was kept"):
        extract(tmp_path / "a.warc.gz", tmp_path / "out")


def test_an_output_of_an_earlier_version_asks_for_a_restart(tmp_path, webtext):
    """Other texts would stand beside those that are there."""
    (tmp_path / "page.html").write_text(
        f"<html><title>T</title><body><article><p>{TEXT * 5}</p></article></body></html>"
    )
    flags = ["--input", tmp_path / "page.html", "--output", tmp_path / "out"]
    assert webtext("extract", *flags).code == 0
    texts = documents_of(tmp_path / "out")
    for path in (tmp_path / "out" / ".state" / "job.json", tmp_path / "out" / "stage.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"version": Extract.oldest - 1}))
    refused = webtext("extract", *flags)
    assert refused.code == 2 and "was made by an earlier version of `webtext extract`" in refused.sentence
    assert "--restart" in refused.sentence and documents_of(tmp_path / "out") == texts
    assert webtext("extract", *flags, "--restart").code == 0
    assert webtext("extract", *flags).code == 0
