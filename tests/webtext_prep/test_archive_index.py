"""Keys of web archives, and how they are found in an index file that is read in pieces."""

import asyncio
import gzip
import json
import random

import pytest

from webtext_prep.crawl.archives import common_crawl
from webtext_prep.crawl.archives.cdx import nearest, surt, timestamp
from webtext_prep.crawl.archives.common_crawl import ClusterIndex, CommonCrawl, GzipMember, Kept
from webtext_prep.crawl.http.client import Reply
from webtext_prep.stages.rescue import Rescue


@pytest.mark.parametrize(
    ("url", "key"),
    [
        # What Common Crawl's own index and the Internet Archive's tests have for these.
        ("http://tokenmill.lt/", "lt,tokenmill)/"),
        ("http://www34.Archive.org/index.html?b=b&a=b", "org,archive)/index.html?a=b&b=b"),
        ("https://www.archive.org:443/big/", "org,archive)/big"),
        ("http://www.archive.org:443/", "org,archive:443)/"),
        ("http://archive.org/index.html?#part", "org,archive)/index.html"),
        ("http://host.com//twoslashes?more//slashes", "com,host)/twoslashes?more//slashes"),
        ("http://www.google.com/blah/..", "com,google)/"),
        ("http://host.com/%257Ea%2521b", "com,host)/~a!b"),
        ("http://host.com/%25%32%35", "com,host)/%25"),
        ("http://an.wikipedia.org/wiki/Escopete", "org,wikipedia,an)/wiki/escopete"),
        ("http://a.org/(S(4hqa0555fwsecu455xqckv45))/mileg.aspx", "org,a)/mileg.aspx"),
        # What surt 0.3.1 and pywb 2.10.0, which agree on 20,000 URLs of such forms, say of these.
        ("http://a.org/(S(4hqa0555fwsecu455xqckv45))/p.html", "org,a)/(s(4hqa0555fwsecu455xqckv45))/p.html"),
        ("http://a.org/(4hqa0555fwsecu455xqckv45)/b/p.ASPX", "org,a)/b/p.aspx"),
        (
            "http://a.org/b;jsessionid=0123456789ABCDEF0123456789abcdef?x=1",
            "org,a)/b;jsessionid=0123456789abcdef0123456789abcdef?x=1",
        ),
        ("http://a.org/?osid=9682993c8daa2c5497996114facdc805&x=y", "org,a)/?ox=y"),
        ("http://127.1/", "1,0,0,127)/"),
        ("http://10.1.2/a", "2,0,1,10)/a"),
        ("http://0177.0.0.1/", "1,0,0,127)/"),
        ("http://2130706433/", "1,0,0,127)/"),
        ("http://256.1.1.1/", "1,1,1,256)/"),
        ("http://a..org./", "org,a)/"),
        ("http://a.org/../b", "org,a)/../b"),
        ("http://a.org/?a-b=1&a=2&a", "org,a)/?a&a=2&a-b=1"),
        ("http://a.org/?sid=9682993c8daa2c5497996114facdc805&x=y", "org,a)/?x=y"),
        ("http://www2foo.com/", "com,www2foo)/"),
        ("http://B\u00fccher.ch:8080/\u00e9", "ch,xn--bcher-kva:8080)/%c3%a9"),
        ("http://192.0.2.7/a", "7,2,0,192)/a"),
        ("http://a.org:99999/", ""),
        ("mailto:a@example.org", ""),
        ("no address", ""),
    ],
)
def test_keys_are_those_of_the_archives(url, key):
    assert surt(url) == key


def test_the_nearest_is_first_and_the_newest_without_a_date():
    times = [("20120101000000", 1), ("20150101000000", 2), ("20180101000000", 3), ("2018", 4), ("20189901000000", 5)]
    assert [value for _, value in nearest(times, timestamp("2014-12-30"))] == [2, 1, 3]
    assert [value for _, value in nearest(times, "")] == [3, 2, 1]
    dated = Rescue()._date_of
    assert [dated({"created_utc": date}) for date in (1551441600, 1551441600.0, "1551441600", "2019-03", None)] == [
        *["20190301120000"] * 3, "20190301000000", ""
    ]  # fmt: skip
    assert dated({"date": "2019", "reddit_first_submitted": "2014-02-02T10:00:00Z"}) == "20140202100000"
    times = {
        "2019": "20190101000000", "2019-04": "20190401000000", "20190430": "20190430000000",
        "2019-04-30 01:02": "20190430010200", "2019-04-30T01:02:03.5+02:00": "20190429230203",
        "20190430T010203Z": "20190430010203", "0001-01-01T00:00:00+05:00": "00010101000000",
    }  # fmt: skip
    assert {date: timestamp(date) for date in times} == times


def answer(data: bytes, url: str, span: tuple[int, int]) -> Reply:
    begin, length = span
    if begin >= len(data):
        return Reply("http_416", url, 416)
    part = data[begin : begin + length]
    place = f"bytes {begin}-{begin + len(part) - 1}/{len(data)}".encode()
    return Reply("ok", url, 206, body=part, headers=((b"Content-Range", place),))


def looked_up(index: ClusterIndex, data: bytes, key: bytes) -> tuple[list[GzipMember], int]:
    """What an index says of a key, and how many requests that took."""
    requests = 0

    async def get(url: str, most: int, span: tuple[int, int]) -> Reply:
        nonlocal requests
        requests += 1
        assert most == span[1] <= common_crawl.PIECE_BYTES + common_crawl.OVERLAP_BYTES + 1
        return answer(data, url, span)

    found, failure = asyncio.run(index.find(key, get))
    assert not failure
    return found, requests


@pytest.mark.parametrize("piece", [150, 151, 160, 1 << 20])
def test_every_key_is_found_in_its_block_however_the_file_is_cut(monkeypatch, piece):
    """Against all lines at once; several blocks that begin with one URL, keys before the first and after the last."""
    monkeypatch.setattr(common_crawl, "PIECE_BYTES", piece)
    monkeypatch.setattr(common_crawl, "OVERLAP_BYTES", 140)
    draw = random.Random(1)
    names = sorted({f"org,{draw.choice('abc')}{draw.randrange(300)})/{'x' * draw.randrange(20)}" for _ in range(120)})
    keys = sorted([f"{name} 2019" for name in names[::2]] + [f"{names[10]} 20{n}" for n in (20, 21)])
    rows = [f"{key}\tcdx-00000.gz\t{n * 100}\t100\t{n}\n".encode() for n, key in enumerate(keys)]
    data, index = b"".join(rows), ClusterIndex("http://x/cluster.idx", Kept(3))
    most = 0
    for name in ["aaa)/", *names, "zzz)/"]:
        key = f"{name} ".encode()
        before = [n for n, line in enumerate(rows) if line < key][-1:]
        expected = [*before, *(n for n, line in enumerate(rows) if line.startswith(key))]
        found, requests = looked_up(index, data, key)
        assert found == [GzipMember("cdx-00000.gz", n * 100, 100) for n in expected[: common_crawl.MOST_BLOCKS]]
        most = max(most, requests)
    assert most <= 8
    assert looked_up(index, data, b"org,") and looked_up(index, data, b"aaa")[1] <= 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"org,a)/ 2019\t../../etc/passwd\t0\t10\t1\n", []),
        (b"org,a)/ 2019\tcdx-00000.gz\t-5\t10\t1\n", []),
        (b"org,a)/ 2019\tcdx-00000.gz\t0\t99999999999\t1\n", []),
        (b"org,a)/ 2019\tcdx-00000.gz\n", []),
        (b"\xff\xfe no such thing\n", []),
        (b"org,a)/ 2019\tcdx-00000.gz\t0\t10\t1", [GzipMember("cdx-00000.gz", 0, 10)]),
    ],
)
def test_an_index_that_is_empty_or_nonsense_says_nothing(data, expected):
    assert looked_up(ClusterIndex("http://x/cluster.idx", Kept(3)), data, b"org,a)/ ")[0] == expected


def test_a_server_that_sends_another_part_or_no_size_is_not_believed():
    for headers, body in [((), b"a"), (((b"Content-Range", b"bytes 0-0/900"),), b"a")]:
        sent = Reply("ok", "", 206, body=body, headers=headers)

        async def get(url: str, most: int, span: tuple[int, int], sent: Reply = sent) -> Reply:
            return sent

        index = ClusterIndex("http://x/cluster.idx", Kept(3))
        assert asyncio.run(index.find(b"org,a)/ ", get)) == ([], "malformed_response")


class Replies:
    """In the place of one that sends requests."""

    def __init__(self, replies: list[Reply]) -> None:
        self._left = iter(replies)

    async def get(self, url: str, most: int, span: tuple[int, int] | None = None) -> Reply:
        return next(self._left)


def searched(replies: list[Reply], date: str = "") -> str:
    """How the only capture in Common Crawl ends that gets these replies."""
    crawl = CommonCrawl(Replies(replies), "http://f", "http://i", 1000)

    async def all_of() -> list[str]:
        return [str(capture.reply.outcome) async for capture in crawl.captures("http://a.org/", date)]

    (found,) = asyncio.run(all_of()) or ["not_archived"]
    return found


@pytest.mark.parametrize("body", [b"", b"7", b"[]", b"[7]", b"{}", b'[{"id": "CC-MAIN-0000-99"}]', b"[" * 100_000])
def test_a_list_of_crawls_that_is_none_is_an_answer_that_makes_no_sense(body):
    assert searched([Reply("ok", "http://i", 200, body=body)]) == "malformed_response"


def test_lines_and_records_of_an_index_may_hold_anything():
    crawls = Reply("ok", "http://i", 200, body=b'[{"id": "CC-MAIN-2019-18"}]')
    table = b"org,a)/ 2019\tcdx-00000.gz\t0\t10\t1\n"
    size = ((b"Content-Range", b"bytes 0-%d/%d" % (len(table) - 1, len(table))),)
    index = Reply("ok", "http://f", 206, body=table, headers=size)

    def line(**values: object) -> bytes:
        usual = {"status": "200", "mime": "text/html", "filename": "a.warc.gz", "offset": "0", "length": "50"}
        return b"org,a)/ 20190401000000 " + json.dumps(usual | values).encode() + b"\n"

    def block(*lines: bytes) -> Reply:
        return Reply("ok", "http://f", 206, body=gzip.compress(b"".join(lines)))

    others = [line(status="404"), line(mime="image/png"), b"org,a)/ soon {}\n"]
    assert searched([crawls, index, block(*others)]) == "not_archived"
    wrong = [line(offset="-1"), line(length="x"), line(filename="a.exe"), line(length=0), b"org,a)/ 2019\n"]
    wrong += [b"org,a)/ 20190401000000 [7]\n", line()[:60]]
    for each in wrong:
        assert searched([crawls, index, block(*others, each)]) == "malformed_response"
    assert searched([crawls, index, Reply("ok", "http://f", 206, body=b"no gzip")]) == "malformed_response"
    assert searched([crawls, index, Reply("ok", "http://f", 206, body=gzip.compress(bytes(10 << 20)))]) == (
        "malformed_response"
    )
    good = Reply("ok", "http://f", 206, body=gzip.compress(line()))
    for body, says in [
        (b"x" * 50, "damaged"),
        (gzip.compress(b"WARC/1.0\r\n" + b"x" * 30)[:50].ljust(50, b"\0"), "damaged"),
        (b"x" * 49, "damaged"),
    ]:
        assert searched([crawls, index, good, Reply("ok", "http://f", 206, body=body)]) == says
    bomb = gzip.compress(bytes(3 << 20))
    large = Reply("ok", "http://f", 206, body=gzip.compress(line(length=len(bomb))))
    assert searched([crawls, index, large]) == "too_large"
