"""Archives that answer anything at all: a page costs at most its own outcome, and no more memory than is allowed."""

import asyncio
import gzip
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.crawl.archives import common_crawl
from webtext_prep.crawl.archives.cdx import MAX_KEYED, surt, timestamp
from webtext_prep.crawl.archives.common_crawl import ClusterIndex, CommonCrawl, Kept, captures_in, crawls_listed
from webtext_prep.crawl.archives.wayback import Wayback, index_rows, memento_time
from webtext_prep.crawl.frontier.robots import parse_rules
from webtext_prep.crawl.http.client import Reply
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.extraction.outcomes import PageOutcome

URL = "http://a.org/"
DATE = timestamp("2019-04")
OUTCOMES = {str(outcome) for outcome in PageOutcome} | {"http_404"}

odd = st.sampled_from([
    "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "Fri, 31 Feb 2019 25:61:61 GMT", "9" * 14,
    "2019041000000\u0661", "20190410 00000", "Infinity", "1e400", "-1", "0" * 5_000, URL, f"{URL}%25" + "25" * 50,
    "text/html", "200", "../../etc/passwd.warc.gz", "a.warc.gz\r\nX: y", "cdx-0.gz", "CC-MAIN-2019-18", "timestamp",
    "http://[]@", "\ud800", "bytes 0-9/10", "bytes 0-9/99999999999999999999", "bytes 0-9/*", "text/html; charset*0*=x",
])  # fmt: skip
values = st.one_of(
    odd,
    st.text(max_size=20),
    st.none() | st.booleans(),
    st.integers() | st.floats() | st.sampled_from([10**400, 1 << 63]),
    st.lists(st.integers(), max_size=2),
)
tables = st.lists(st.lists(values, max_size=3) | values, max_size=5)
entries = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("offset", "length", "filename", "status", "mime", "id", "from"), values)
)
usual = {"status": "200", "mime": "text/html", "filename": "a.warc.gz", "offset": "0", "length": "50"}
records = entries.map(lambda entry: usual | entry)
pieces = values.map(lambda value: str(value).encode("utf-8", "replace"))


def line_of(time: str, entry: object) -> bytes:
    return f"org,a)/ {time} {json.dumps(entry)}".encode("utf-8", "replace")


lines = st.builds(line_of, odd | st.just(DATE), records | values)
index_lines = st.lists(pieces, max_size=6).map(lambda fields: b"\t".join([b"org,a)/ 2019", *fields]))
bodies = st.one_of(
    (tables | st.lists(entries, max_size=4) | values).map(lambda value: json.dumps(value).encode()),
    st.lists(lines | index_lines, max_size=4).map(b"\n".join),
    st.lists(lines, max_size=4).map(lambda found: gzip.compress(b"\n".join(found), mtime=0)),
    st.binary(max_size=40),
)
headers = st.lists(
    st.tuples(st.sampled_from([b"Memento-Datetime", b"Content-Type", b"Content-Range", b"X-Archive-Orig-A"]), pieces),
    max_size=4,
).map(tuple)
moves = st.builds(
    lambda location: Reply("redirect", "http://w/web/20190401000000id_/http://a.org/", 302, location=location),
    odd | odd.map(lambda url: f"/web/20190401000000id_/{url}"),
)
anything = st.builds(lambda body, sent: Reply("ok", URL, 200, body=body, headers=sent), bodies, headers) | moves


@st.composite
def answers(draw, url: str) -> Reply:
    """An answer as its protocol says, but for one value in it."""
    value = draw(values)
    text, sent = str(value).encode("utf-8", "replace"), ()
    if "/cdx/" in url:
        body = json.dumps([["timestamp", "original"], draw(st.permutations([[DATE, URL], [value, URL]]))[0]]).encode()
    elif "/web/" in url:
        body, sent = b"<html>", ((b"Memento-Datetime", text), (b"Content-Type", b"text/html"))
    elif url.endswith("collinfo.json"):
        body = json.dumps([{"id": "CC-MAIN-2019-18", "from": value}]).encode()
    elif url.endswith("cluster.idx"):
        fields = [b"org,a)/ 2019", b"cdx-00000.gz", b"0", b"10", b"1"]
        fields[draw(st.integers(1, 8)) % 5] = draw(st.just(b"0") | st.just(text))
        body = b"\t".join(fields) + b"\n"
        sent = ((b"Content-Range", draw(st.just(text) | st.just(b"bytes 0-0/%d" % len(body)))),)
    else:
        name = draw(st.sampled_from(["status", "mime", "filename", "offset", "length"]))
        body = gzip.compress(line_of(DATE, usual | {name: value}), mtime=0)
    return Reply("ok", url, 200, body=body, headers=sent)


class Asker:
    """In the place of one that sends requests: answers with what `reply_to` gives, `most` times."""

    def __init__(self, reply_to, most: int) -> None:
        self._reply_to, self._left = reply_to, iter(range(most))

    async def get(self, url: str, most: int, span: tuple[int, int] | None = None) -> Reply:
        assert next(self._left, None) is not None, "it goes on"
        return self._reply_to(url, span)


def outcomes_of(archive, date: str) -> list[str]:
    """How the captures of the page end that an archive has."""

    async def all_of() -> list[str]:
        return [str(capture.reply.outcome) async for capture in archive.captures(URL, date)]

    return asyncio.run(all_of())


@given(st.data(), st.sampled_from(["", DATE]), st.booleans())
def test_whatever_an_archive_answers_a_search_ends_with_outcomes(data, date, is_wayback):
    def reply_to(url, span):
        return data.draw(answers(url) | answers(url) | anything)

    asker = Asker(reply_to, 99)
    archive = Wayback(asker, "http://w", 1_000) if is_wayback else CommonCrawl(asker, "http://f", "http://i", 1_000)
    assert {*outcomes_of(archive, date)} <= OUTCOMES


@given(st.lists(lines, max_size=5), entries, tables, headers)
def test_the_parts_of_an_answer_are_sound_or_the_answer_makes_no_sense(found, entry, rows, sent):
    for parse in (
        lambda: captures_in(found),
        lambda: crawls_listed(json.dumps([entry]).encode()),
        lambda: index_rows(json.dumps(rows).encode(), 10),
        lambda: memento_time({name.lower(): value for name, value in sent}),
    ):
        try:
            parse()
        except ValueError as error:
            assert type(error).__name__ == "MalformedAnswerError"


@pytest.mark.parametrize("said", [{"offset": 1e400}, {"offset": 10**400}, {"length": -1}, {"filename": ["a.warc.gz"]}])
def test_a_row_of_an_index_that_names_no_place_costs_that_page(said):
    table = b"org,a)/ 2019\tcdx-00000.gz\t0\t10\t1\n"
    said_by = {
        "collinfo.json": Reply("ok", "", 200, body=b'[{"id": "CC-MAIN-2019-18"}]'),
        "cluster.idx": Reply("ok", "", 206, body=table, headers=((b"Content-Range", b"bytes 0-0/%d" % len(table)),)),
        "cdx-00000.gz": Reply("ok", "", 206, body=gzip.compress(line_of(DATE, usual | said))),
    }
    crawl = CommonCrawl(Asker(lambda url, span: said_by[url.rpartition("/")[2]], 9), "http://f", "http://i", 1_000)
    assert outcomes_of(crawl, "") == ["malformed_response"]


@pytest.mark.exhaustive
def test_what_is_kept_of_an_index_of_short_lines_has_the_bytes_that_were_sent(monkeypatch):
    piece, kept = 1 << 17, 4
    monkeypatch.setattr(common_crawl, "PIECE_BYTES", piece)
    size = 12 * piece
    index = ClusterIndex("http://f/cluster.idx", Kept(kept))

    def short_lines(url, span):
        begin, length = span
        length = min(length, size - begin)
        body = (b"%04x\n" % (begin // piece) * (1 + length // 5))[:length]
        place = b"bytes %d-%d/%d" % (begin, begin + length - 1, size)
        return Reply("ok", "", 206, body=body, headers=((b"Content-Range", place),))

    tracemalloc.start()
    try:
        for number in range(12):
            assert asyncio.run(index.find(b"%04x" % number, Asker(short_lines, 9).get)) == ([], "")
        assert tracemalloc.get_traced_memory()[0] < 2 * kept * piece
    finally:
        tracemalloc.stop()


def test_no_place_of_a_redirect_and_no_address_ends_the_crawl():
    assert [next_url(URL, place) for place in ("http://[]@", "//][@", "http://]", "http://[")] == [None] * 4
    rules = parse_rules(b"User-agent: *\nDisallow: /private*\n", "webtext")
    assert [rules.refusal(url) for url in (f"{URL}\ud800", f"{URL}private")] == [None, "robots"]


def test_an_address_that_was_escaped_without_end_has_no_key():
    assert surt(f"{URL}%{'25' * MAX_KEYED}") == ""
    assert surt(f"{URL}%{'25' * 1000}41") == "org,a)/a"
