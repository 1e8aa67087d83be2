"""Rows of Reddit dumps in every schema, which of them count, and when two URLs are one page."""

import json
from pathlib import Path
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.documents.records.base import Unreadable
from webtext_prep.errors import InputError
from webtext_prep.reddit import pages
from webtext_prep.reddit.pages import (
    Submitted,
    best_of,
    document_of,
    page_key,
    page_key_by_rules,
    page_of,
    without_repeats,
)
from webtext_prep.reddit.rows import Submission, is_dump, read_any_row, read_blocks, read_rows, unescaped, url_of
from webtext_prep.reddit.selection import Rules, subreddit_names, time_of

REAL = Path(__file__).parent / "submissions" / "RS_v2_2005-07.jsonl"

# As the published schemas of these months have them, with the fields that matter here.
OLD = {
    "author": "a", "created_utc": "1338508800", "domain": "example.org", "downs": 2, "id": "u1x2", "is_self": False,
    "name": "t3_u1x2", "num_comments": 3, "over_18": False, "score": 7, "selftext": "", "subreddit": "programming",
    "title": "A &amp; B", "ups": 9, "url": "http://example.org/?a=1&amp;b=2",
}  # fmt: skip
ARCTIC_SHIFT = {
    "_meta": {"retrieved_2nd_on": 1704240000}, "author": "a", "created_utc": 1704067200,
    "crosspost_parent": "t3_18vk8v", "crosspost_parent_list": [{"is_self": True, "over_18": True, "score": 0, "url": "https://b.org/"}],
    "id": "18vlab1", "is_self": False, "num_comments": 0, "over_18": False, "removed_by_category": None,
    "retrieved_on": 1704067216, "score": 12, "subreddit": "news", "title": "T", "ups": 12, "upvote_ratio": 0.9,
    "url": "https://example.org/news", "url_overridden_by_dest": "https://example.org/news",
}  # fmt: skip


def read(row) -> Submission:
    (found,) = read_rows(json.dumps(row).encode())
    assert isinstance(found, Submission)
    return found


def test_real_rows_are_read_as_json_reads_them():
    block = REAL.read_bytes()
    rows = [row for row in read_rows(block) if row is not None]
    expected = [json.loads(line) for line in block.splitlines()]
    assert len(rows) == 24
    for row, whole in zip(rows, expected, strict=True):
        for name in ("url", "score", "over_18", "is_self", "id", "title", "subreddit", "created_utc"):
            assert getattr(row, name) == whole[name]


def test_the_quick_decoder_and_the_lenient_one_agree():
    for line in REAL.read_bytes().splitlines():
        assert read_rows(line) == [read_any_row(line)]


def test_one_odd_row_leaves_its_neighbours_as_they_are():
    lines = REAL.read_bytes().splitlines(keepends=True)
    odd = json.dumps({**ARCTIC_SHIFT, "score": None}).encode() + b"\n"
    found = read_rows(b"".join([lines[0], b"\n", odd, b"{broken\n", lines[1]]))
    assert [type(row) for row in found] == [Submission, type(None), Submission, Unreadable, Submission]
    assert found[0] == read_rows(lines[0])[0]
    assert found[4] == read_rows(lines[1])[0]


def test_the_old_schema_has_its_time_as_text():
    row = read(OLD)
    assert (row.created, row.score, url_of(row)) == (1338508800, 7, "http://example.org/?a=1&b=2")


def test_what_lies_inside_a_crosspost_is_not_taken_for_its_own():
    row = read(ARCTIC_SHIFT)
    assert (row.is_self, row.over_18, row.score, row.url) == (False, False, 12, "https://example.org/news")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"score": None}, {"score": 7}),  # ups less downs
        ({"score": None, "ups": None}, {"score": -2}),
        ({"score": "12"}, {"score": 12}),
        ({"score": 12.0}, {"score": 12}),
        ({"created_utc": 1338508800.0}, {"created": 1338508800}),
        ({"created_utc": None}, {"created": 0}),
        ({"created_utc": "1338508800.0"}, {"created": 1338508800}),
        ({"created_utc": "yesterday"}, {"created": 0}),
        ({"over_18": "true"}, {"over_18": True}),
        ({"over_18": None}, {"over_18": False}),
        ({"is_self": None, "domain": "self.AskReddit"}, {"is_self": True}),
        ({"title": None}, {"title": ""}),
        ({"title": "half \ud83d a character"}, {"title": "half  a character"}),
        ({"subreddit": None, "promoted": True}, {"subreddit": "", "promoted": True}),
        ({"url": None}, {"url": ""}),
        ({"id": 17}, {"id": "17"}),
    ],
)
def test_odd_values_are_read(changed, expected):
    row = read({**OLD, **changed})
    assert {name: getattr(row, name) for name in expected} == expected


@pytest.mark.parametrize("absent", ["score", "over_18", "is_self", "title", "subreddit", "created_utc", "id"])
def test_a_field_may_be_absent(absent):
    assert isinstance(read({name: value for name, value in OLD.items() if name != absent}), Submission)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not valid JSON"),
        (b'{"url": "http://a/", "score": 3', "not valid JSON"),
        (b"\x00\x00\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'"text"', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"body": "a comment", "score": 3, "link_id": "t3_1", "subreddit": "news"}', "not a submission"),
        (b'{"url": "http://a/", "text": "a document"}', "not a submission"),
    ],
)
def test_what_is_no_submission_is_said(line, reason):
    (found,) = read_rows(line)
    assert isinstance(found, Unreadable)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("http://a.org/?b=1&amp;c=2", "http://a.org/?b=1&c=2"),
        ("&lt;b&gt; &amp;lt; &quot;", "<b> &lt; &quot;"),
        ("drivers&amp;#146; speed", "drivers&#146; speed"),
        ("a & b", "a & b"),
    ],
)
def test_texts_are_unescaped_once_and_as_reddit_escapes_them(escaped, text):
    assert unescaped(escaped) == text


@given(st.text(alphabet="&<>;amplgt#", max_size=30))
def test_unescaping_undoes_what_reddit_does(text):
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert unescaped(escaped) == text


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"url": " http://example.org/a\n"}, "http://example.org/a"),
        ({"url": "/r/news/comments/1/a/"}, "https://www.reddit.com/r/news/comments/1/a/"),
        ({"url": "/r/a/", "url_overridden_by_dest": "https://a.org/"}, "https://a.org/"),
        ({"url": "/r/a/", "url_overridden_by_dest": "/r/a/"}, "https://www.reddit.com/r/a/"),
        ({"url": "http://user:secret@example.org/"}, "http://example.org/"),
        ({"url": "//example.org/a"}, "//example.org/a"),
        ({"url": "ftp://example.org/a"}, "ftp://example.org/a"),
    ],
)
def test_the_url_is_the_submitted_one_without_what_does_not_belong_to_it(fields, url):
    assert url_of(read({**OLD, **fields})) == url


# Which submissions count


@pytest.mark.parametrize(
    ("fields", "rules", "reason"),
    [
        ({}, {}, None),
        ({"score": 3}, {}, None),
        ({"score": 2}, {}, "low_score"),
        ({"score": -9}, {"min_score": None}, None),
        ({"is_self": True, "over_18": True}, {}, "self_post"),
        ({"over_18": True}, {}, "over_18"),
        ({"over_18": True}, {"over_18": True}, None),
        ({"promoted": True}, {}, "advertisement"),
        ({"promoted": False}, {}, None),
        ({"removed_by_category": "moderator"}, {}, None),
        ({"removed_by_category": "moderator"}, {"removed": False}, "removed"),
        ({"url": None}, {}, "no_url"),
        ({"url": " "}, {}, "no_url"),
        ({}, {"only": {"news"}}, "other_subreddit"),
        ({"subreddit": "Programming"}, {"only": {"programming"}}, None),
        ({}, {"never": {"programming"}}, "other_subreddit"),
        ({}, {"only": {"programming"}, "never": {"programming"}}, "other_subreddit"),
        ({}, {"after": 1338508800}, None),
        ({}, {"after": 1338508801}, "other_time"),
        ({}, {"before": 1338508800}, "other_time"),
        ({}, {"before": 1338508801}, None),
        ({"created_utc": None}, {"after": 1}, "other_time"),
    ],
)
def test_each_rule_drops_for_its_own_reason(fields, rules, reason):
    assert Rules(**rules).reason(read({**OLD, **fields})) == reason


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", None),
        ("1970", 0),
        ("1970-02", 31 * 86400),
        ("1970-01-02", 86400),
        ("1970-01-01T01:00", 3600),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-01T00:00:05Z", 5),
    ],
)
def test_times_are_utc(text, time):
    assert time_of(text, "--after") == time


@pytest.mark.parametrize("text", ["yesterday", "2015-13", "2015-02-30", "15", "01.02.2015"])
def test_what_is_no_date_is_said_with_its_flag(text):
    with pytest.raises(InputError, match=f"--before {text} is not a date: give one such as"):
        time_of(text, "--before")


def test_subreddits_are_named_in_several_ways(tmp_path):
    (tmp_path / "mine.txt").write_text("# mine\nScience\n\n/r/AskScience/\nreddit.com\n")
    names = subreddit_names(["News", "r/WorldNews", str(tmp_path / "mine.txt")])
    assert names == {"news", "worldnews", "science", "askscience", "reddit.com"}


def test_a_list_without_names_is_an_error(tmp_path):
    (tmp_path / "none.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match="no subreddit in"):
        subreddit_names([str(tmp_path / "none.txt")])
    with pytest.raises(InputError, match="no subreddit in"):
        subreddit_names([""])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("RS_2015-01.zst", True),
        ("RS_v2_2005-06.xz", True),
        ("RS_2011-01.bz2", True),
        ("RS_2008-01", True),
        ("RS_2008-01.gz", True),
        ("news_submissions.zst", True),
        ("r_news_posts.jsonl", True),
        ("RS_2015-01.ndjson.ZST", True),
        ("RC_2015-01.zst", False),
        ("news_comments.zst", False),
        ("r_news_comments.jsonl", False),
        ("README", False),
        ("sha256sums.txt", False),
        ("page.html.gz", False),
    ],
)
def test_dumps_are_known_by_their_names(name, is_one):
    assert is_dump(Path(name)) == is_one


def test_blocks_go_on_where_others_stopped():
    whole = b"".join(block for block, _ in read_blocks(REAL, None, 0))
    assert whole == REAL.read_bytes()
    assert b"".join(block for block, _ in read_blocks(REAL, None, 5000)) == whole[5000:]
    half = len(whole) // 2
    parts = [b"".join(block for block, _ in read_blocks(REAL, span, 0)) for span in ((0, half), (half, len(whole)))]
    assert b"".join(parts) == whole
    assert all(parts)


# Pages


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.org", "http://example.org/"),
        ("https://example.org/", "http://example.org/"),
        ("HTTP://Example.ORG:80/A", "http://example.org/A"),
        ("https://example.org:443/", "http://example.org/"),
        ("http://example.org:8080/", "http://example.org:8080/"),
        ("http://example.org./a", "http://example.org/a"),
        ("http://www.example.org/a", "http://example.org/a"),
        ("http://m.example.org/a", "http://example.org/a"),
        ("http://mobile.example.co.uk/a", "http://example.co.uk/a"),
        ("http://amp.example.org/a", "http://example.org/a"),
        ("http://www.m.example.org/a", "http://example.org/a"),
        ("http://m.news.example.org/a", "http://news.example.org/a"),
        ("https://en.m.wikipedia.org/wiki/A", "http://en.wikipedia.org/wiki/A"),
        ("http://m.org/a", "http://m.org/a"),
        ("http://m.co.uk/a", "http://m.co.uk/a"),
        ("http://www.com/a", "http://www.com/a"),
        ("http://m.blogspot.com/a", "http://m.blogspot.com/a"),
        ("http://m.user.blogspot.com/a", "http://user.blogspot.com/a"),
        ("http://m.127.0.0.1/a", "http://m.127.0.0.1/a"),
        ("http://127.0.0.1:8000/a", "http://127.0.0.1:8000/a"),
        ("http://[::1]:8000/a", "http://[::1]:8000/a"),
        ("http://example.org/a#top", "http://example.org/a"),
        ("http://example.org/#!/a?b=1", "http://example.org/"),
        ("http://example.org/a?utm_source=x&utm_medium=y", "http://example.org/a"),
        ("http://example.org/a?UTM_Source=x&id=1&fbclid=z", "http://example.org/a?id=1"),
        ("http://example.org/a?utm%5Fsource=x&id=1", "http://example.org/a?id=1"),
        ("http://example.org/a?gclid", "http://example.org/a"),
        ("http://example.org/a?gclids=1&xgclid=1", "http://example.org/a?gclids=1&xgclid=1"),
        ("http://example.org/a?ref=b&source=c", "http://example.org/a?ref=b&source=c"),
        ("http://example.org/a?u=http://b.org/?utm_source=x", "http://example.org/a?u=http://b.org/?utm_source=x"),
        ("http://example.org/a?b=2&a=1&b=1", "http://example.org/a?a=1&b=2&b=1"),
        ("http://example.org/a?b=2&&a=1&", "http://example.org/a?a=1&b=2"),
        ("http://example.org/a?", "http://example.org/a"),
        ("http://example.org/a?12345", "http://example.org/a?12345"),
        ("http://example.org/a?b=1;a=2", "http://example.org/a?b=1;a=2"),
        ("http://example.org/%7ejane/%c3%9f", "http://example.org/~jane/%C3%9F"),
        ("http://example.org/straße", "http://example.org/stra%C3%9Fe"),
        ("http://example.org/a b", "http://example.org/a%20b"),
        ("http://example.org/100%", "http://example.org/100%25"),
        ("http://example.org/%2541", "http://example.org/%2541"),
        ("http://example.org/a/", "http://example.org/a/"),
        ("http://example.org/a/../b", "http://example.org/a/../b"),
        ("http://example.org/INDEX.html", "http://example.org/INDEX.html"),
        ("http://user:secret@example.org/", "http://example.org/"),
        ("ftp://example.org/a#b", "ftp://example.org/a#b"),
        ("http://[broken", "http://[broken"),
        ("http://example.org:port/", "http://example.org:port/"),
        ("not a url", "not a url"),
        ("http://", "http://"),
        ("", ""),
    ],
)
def test_each_rule_of_the_key(url, key):
    assert page_key(url) == page_key_by_rules(url) == page_key(key) == key


HOSTS = ["example.org", "www.example.org", "m.example.org", "WWW.Example.Org", "news.example.org", "example.org.",
         "en.m.wikipedia.org", "amp.co.uk", "www.www.example.org", "m.m.example.org", "127.0.0.1", "[::1]",
         "bücher.example", "m.tumblr.com", "a-b.example.co.uk"]  # fmt: skip
PIECES = ["a", "A", "/", "//", "%7E", "%41", "%", "%2", "%25", "%c3%9f", "ß", " ", "+", "?", "&", "=", ";", "@", ":",
          "utm_source=x", "fbclid", "id=1", "b=2", "&amp;", "#", "\ud800", "|", "~", ".", "..", "'", "["]  # fmt: skip
URLS = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["http://", "https://", "HTTP://", "ftp://", ""]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":80", ":443", ":8080", ":x"]),
    st.sampled_from(["", "/", "/a", "?", "#"]),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
)


@given(URLS)
def test_the_key_of_a_key_is_itself(url):
    assert page_key(page_key(url)) == page_key(url)


@given(URLS)
def test_the_short_cut_gives_what_the_rules_give(url):
    assert page_key(url) == page_key_by_rules(url)


@given(st.text(max_size=40))
def test_any_text_has_a_key(text):
    assert page_key(page_key(text)) == page_key(text) == page_key_by_rules(text)


def meaning(url: str) -> object:
    """What a server is asked for by a URL, as far as the rules of the key leave it: the definition in other words."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return url
    if parts.scheme not in ("http", "https") or not host:
        return url
    labels = [label for label in host.encode("idna").decode().split(".") if label not in ("www", "m", "mobile", "amp")]
    raw = parts.query.encode("utf-8", "surrogatepass").decode("latin-1")
    query = parse_qsl(raw, keep_blank_values=True, encoding="latin-1")
    kept = sorted((name for name, _ in query if not name.lower().startswith(("utm_", "fbclid"))))
    path = unquote_to_bytes(parts.path.encode("utf-8", "surrogatepass"))
    return labels, port not in (None, 80, 443) and port, path or b"/", kept


@given(URLS, URLS)
def test_urls_with_one_key_ask_for_one_page(one, other):
    if page_key(one) == page_key(other):
        assert meaning(one) == meaning(other)


@given(URLS)
def test_a_key_asks_for_the_same_as_its_url(url):
    assert meaning(page_key(url)) == meaning(url)


def test_names_of_tracking_parameters_are_none_that_pages_are_chosen_by():
    for name in ("id", "p", "page", "q", "ref", "source", "src", "s", "v", "sid", "article", "u", "lang", "amp"):
        assert not pages._TRACKED.search(f"{name}=1"), name


def link(url="http://a.org/", score=1, subreddit="news", title="t", id="", created=0) -> Submitted:
    return Submitted("", url, score, subreddit, title, id, created)


def test_the_best_submission_stands_for_a_page():
    links = [
        link("http://a.org/?utm_source=x", 3, "news", "third", "c", 300),
        link("http://a.org/#top", 9, "science", "best", "b", 200),
        link("http://a.org/", 9, "news", "later", "d", 400),
        link("http://a.org/", 1, "pics", "first", "a", 100),
    ]
    for order in (links, links[::-1]):
        row = document_of(page_of(best_of(order), order))
        assert row.url == "http://a.org/#top"
        assert row.metadata == {
            "reddit_score": 22,
            "reddit_submissions": 4,
            "reddit_title": "best",
            "reddit_subreddits": ["news", "science", "pics"],
            "reddit_id": "b",
            "reddit_first_submitted": "1970-01-01T00:01:40Z",
        }


def test_what_is_not_known_is_left_out():
    only = link(subreddit="", title="")
    assert document_of(page_of(only, [only])).metadata == {"reddit_score": 1, "reddit_submissions": 1}


def test_a_time_that_no_calendar_has_is_left_out():
    only = link(created=10**18)
    assert "reddit_first_submitted" not in document_of(page_of(only, [only])).metadata


def test_a_submission_counts_once_with_its_highest_score():
    links = [link(score=5, id="a"), link(score=8, id="a"), link(score=8, id="a"), link(score=1), link(score=1)]
    kept, repeated = without_repeats(links)
    assert [entry.score for entry in kept] == [8, 1, 1]
    assert [entry.score for entry in repeated] == [5, 8]
