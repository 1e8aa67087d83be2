"""URLs by the block: compiled code says of each line what the functions for one URL say."""

import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webtext_prep.compiled import compiled
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.url_lists import read_url
from webtext_prep.documents.urls import bucket_of, host_of, registered_name, suffix_list, url_key
from webtext_prep.errors import WebtextError
from webtext_prep.running.tally import with_reason
from webtext_prep.stages.blacklist import Blacklist
from webtext_prep.url_batches import batches as url_batches
from webtext_prep.url_batches import judging, suffixes
from webtext_prep.url_batches.batches import Judge, split_lines
from webtext_prep.url_batches.judged import Judged, PlainJudge, batches
from webtext_prep.url_batches.parsing import parse

STAGE = Blacklist(max_length=60)
SHARDS = 7

HOSTS = ["a.org", "www.youtube.com", "YouTube.co.uk", "x.com", "b.kobe.jp", "city.kobe.jp", "co.uk", "com", "localhost"]
HOSTS += [
    "1.2.3.4",
    "1.2.3",
    "xn--bcher-kva.example",
    "a.xn--p1ai",
    "b\u00fccher.de",
    "-a_b.com",
    "a..b",
    ".a",
    "a.",
    "a:80",
]
HOSTS += ["a:443", "a:x", "u:p@a.org", "[::1]", "[", "a%2Eb", "a,b", "h" * 50 + ".org", "medium.com", "blogspot.com"]
PATHS = [
    "",
    "/",
    "/a.PDF",
    "/a.tar.gz",
    "/a%2epdf",
    "/a.p%64f",
    "/x%2fa.jpg",
    "/a.pdf/b",
    "/%e2%84%aa.pdf",
    "/.\u212ap3",
]
PATHS += [
    "/%C3%BC/a.jpg",
    "/a.%4",
    "/a.%zz",
    "/@b",
    "/a%",
    "/a.",
    "//",
    "/a;b.pdf",
    "/a:b@c",
    "/<",
    "/\\",
    "/a b",
    "/a'b\"",
    "/{x}",
]
ENDS = [
    "",
    "?",
    "?q=a.pdf",
    "?q#f",
    "#",
    "#f.pdf",
    "#f?q",
    "??",
    "?a/b.pdf",
    "\r",
    "\t",
    " ",
    "\x0b",
    "\x1c",
    "\x00",
    "\u2028",
]
SCHEMES = [
    "http://",
    "https://",
    "HTTP://",
    "httpS://",
    "http:",
    "http:/",
    "ftp://",
    "//",
    "",
    "http:///",
    " http://",
    "#",
    "{",
]
JSON = [
    '{"url": "http://a.org/1", "n": 1}',
    '{"url": "http://u:p@a.org/"}',
    '{"url": 5}',
    '{"url": "http://a.org/\\u00e9"}',
    "{",
]

url = st.tuples(*map(st.sampled_from, (SCHEMES, HOSTS, PATHS, ENDS))).map("".join)
usual = st.tuples(*map(st.sampled_from, (SCHEMES[:2], HOSTS[:9], PATHS[:6], ENDS[:5]))).map("".join)
line = st.one_of(usual, url, st.sampled_from(JSON), st.text(max_size=12)).map(
    lambda text: text.encode("utf-8", "surrogatepass").replace(b"\n", b"")
) | st.binary(max_size=10).map(lambda data: data.replace(b"\n", b""))
block = st.lists(line, max_size=40).map(lambda lines: b"".join(text + b"\n" for text in lines))


def host_key(url: str) -> str:
    try:
        return host_of(url)
    except ValueError:
        return url


def rows_of(block: bytes) -> list[Document]:
    return [row for text in block.split(b"\n") if (row := read_url(text)) is not None]


def judged_one_by_one(rows: Iterable[Document]) -> tuple[bytes, bytes, Counter[str]]:
    """What defines the stage: the rows to keep, those to drop, and the reasons."""
    kept, dropped, reasons, seen = b"", b"", Counter(), set()
    for row in rows:
        reason = STAGE.judge(row.url)
        if reason is None:
            reason = "duplicate" if url_key(row.url) in seen else None
            seen.add(url_key(row.url))
        if reason is None:
            kept += encode_document(row) + b"\n"
        else:
            dropped += encode_document(with_reason(row, reason)) + b"\n"
            reasons[reason] += 1
    return kept, dropped, reasons


def other(text: bytes) -> tuple[int, bytes]:
    row = read_url(text)
    return bucket_of(host_key(row.url), SHARDS), encode_document(row)


def judged(blocks: Iterable[bytes], keep_dropped: bool = True) -> list[Judged]:
    judge = Judge(STAGE.judge, read_url, *STAGE.rules, STAGE.max_length, keep_dropped=keep_dropped)
    return [judge.judge(block) for block in blocks]


@given(st.lists(block, max_size=3))
def test_blocks_are_split_and_judged_as_line_by_line(blocks):
    split = [split_lines(block, SHARDS, other) for block in blocks]
    rows = [row for block in blocks for row in rows_of(block)]
    assert sum(count for count, _ in split) == len(rows)
    for bucket in range(SHARDS):
        expected = [row for row in rows if bucket_of(host_key(row.url), SHARDS) == bucket]
        lines = [bytes(parts[bucket]) for _, parts in split]
        assert [row for part in lines for row in rows_of(part)] == expected
        found = judged(part for part in lines if part)
        kept, dropped = (b"".join(bytes(getattr(part, name)) for part in found) for name in ("kept", "dropped"))
        reasons = sum((part.reasons for part in found), Counter())
        assert (kept, dropped, reasons) == judged_one_by_one(expected)
        plain = PlainJudge(STAGE.judge, read_url, keep_dropped=True)
        assert [plain.judge(part) for part in lines if part] == found
        assert sum(part.kept_count for part in found) == kept.count(b"\n")
        assert sum(part.read for part in found) == len(expected)


def test_every_combination_of_parts():
    texts = map("".join, itertools.product(("http://", "HTTPS://"), HOSTS, PATHS, ENDS))
    block = b"".join(text.encode() + b"\n" for text in texts)
    rows = rows_of(block)
    (found,) = judged([b"".join(map(bytes, split_lines(block, 1, lambda text: (0, other(text)[1]))[1]))])
    kept, dropped, reasons = judged_one_by_one(rows)
    assert bytes(found.kept).splitlines() == kept.splitlines()
    assert bytes(found.dropped).splitlines() == dropped.splitlines()
    assert found.reasons == reasons
    assert set(reasons) == set(judging.REASONS[1:]) - {"not_utf8"}


def test_most_urls_are_plain():
    """Each line may go to the code for single URLs without an error, but not without a price."""
    for plain in (
        "http://a.org",
        "HTTPS://www.A-b.co.uk/x.html?y=z@1#f",
        "http://a.org/%C3%BC?q[]=1",
        "http://a.org/@me",
    ):
        data = np.frombuffer(plain.encode(), np.uint8)
        assert parse(data, 0, len(data))[0] > 0, plain


@compiled
def _places(tree, data):
    return suffixes.registered_name(tree, data, 0, len(data))


def compiled_name(host: str) -> tuple[str, str] | None:
    data = np.frombuffer(host.encode(), np.uint8)
    name, suffix = _places(suffixes.suffixes(), data)
    return None if name == suffixes.NOT_KNOWN else (host[name : suffix - (suffix < len(host))], host[name:])


def hosts_of_suffixes() -> set[str]:
    hosts = set()
    for suffix in suffix_list().tlds:
        bare = suffix.replace("*.", "wild.").lstrip("!")
        if bare.isascii():
            hosts |= {bare, f"a.{bare}", f"b.a-1.{bare}", f"c.b.a.{bare}", f"x{bare}", bare.partition(".")[2] or "y"}
    return hosts


def test_registered_names_are_those_of_tldextract_under_every_suffix():
    hosts = hosts_of_suffixes()
    assert len(hosts) > 20_000
    found = {host: compiled_name(host) for host in hosts}
    wrong = {host: name for host, name in found.items() if name not in (None, registered_name(host))}
    assert wrong == {}
    # Bare suffixes are left to tldextract, and names in Punycode.
    asked = [host for host, name in found.items() if name is None and "xn--" not in host and registered_name(host)[0]]
    assert asked == []


label = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=8)
known_label = st.sampled_from(
    ["com", "co", "uk", "jp", "kobe", "city", "ck", "www", "kawasaki", "xn--p1ai", "1", "255"]
)


@given(st.lists(label | known_label, min_size=1, max_size=5).map(".".join))
@example("1.2.3.4")
@example("www.ck")
@example("a.www.ck")
def test_registered_names_are_those_of_tldextract(host):
    assert compiled_name(host) in (None, registered_name(host))


@given(st.lists(st.binary(max_size=20), max_size=60), st.integers(1, 40))
def test_known_keys_are_the_ones_that_came_before(keys, step):
    known, seen = judging.KeySet(), set()
    for start in range(0, len(keys), step):
        part = keys[start : start + step]
        ends = np.cumsum([len(key) for key in part]).astype(np.int64)
        verdicts = np.zeros(len(part), np.int8)
        data = np.frombuffer(b"".join(part) + b"\0", np.uint8)
        known.mark(data, np.concatenate(([0], ends[:-1])), ends, verdicts)
        for key, verdict in zip(part, verdicts, strict=True):
            assert (verdict == judging.DUPLICATE) == (key in seen)
            seen.add(key)


def test_a_set_of_keys_grows():
    known, repeated = judging.KeySet(), []
    for start in (0, 0, 50_000):
        part = [b"http://example.org/%d" % number for number in range(start, start + 100_000)]
        ends = np.cumsum([len(key) for key in part]).astype(np.int64)
        verdicts = np.zeros(len(part), np.int8)
        known.mark(np.frombuffer(b"".join(part), np.uint8), np.concatenate(([0], ends[:-1])), ends, verdicts)
        repeated.append(int((verdicts == judging.DUPLICATE).sum()))
    assert repeated == [0, 100_000, 50_000]


@given(st.lists(block.filter(bool), max_size=6), st.integers(1, 300))
def test_batches_are_the_same_lines(blocks, size):
    found = list(batches(iter(blocks), size))
    assert b"".join(found) == b"".join(blocks)
    assert all(part.endswith(b"\n") for part in found)
    assert all(len(part) <= 2 * size or b"\n" not in part[size:-1] for part in found)


def test_compiled_code_that_is_wrong_stops_the_run(monkeypatch):
    """tldextract is the judge, on a sample of each run's own hosts."""
    tree = suffixes.suffixes()
    monkeypatch.setattr(url_batches, "suffixes", lambda: tree._replace(ends=np.zeros_like(tree.ends)))
    with pytest.raises(
        WebtextError, match=r"internal error: compiled code and plain code differ over http://www\.youtube\.com/"
    ):
        judged([b"http://www.youtube.com/\n"])
