"""What a URL is made of: the same for the same URL, an error for what is none, never a crash."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.documents.urls import bucket_of, canonical_host, host_of, registered_name, shards_for, url_key
from webtext_prep.web.fetcher import host_and_origin
from webtext_prep.web.queues import host_name

PIECES = ["http://", "https://", "HTTP://", "ftp://", "//", "/", "a.org", "EXAMPLE.com", "bücher.de", "..", ".", ":80"]
PIECES += [
    ":x",
    ":99999",
    "@",
    "user:pw@",
    "[::1]",
    "[",
    "]",
    "?q=1",
    "#top",
    "%41",
    "%",
    " ",
    "\t",
    "\x00",
    "\u2100",
    "1.2.3.4",
]
anything = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.COM/a", "example.com"),
        ("https://user:pw@example.com:8443/?q#f", "example.com"),
        ("http://example.com./", "example.com"),
        ("http://[::1]:80/", "::1"),
        ("http://192.168.0.1/a", "192.168.0.1"),
        ("http://bücher.de/", "xn--bcher-kva.de"),
        ("http://XN--BCHER-KVA.de/", "xn--bcher-kva.de"),
        ("http://ｅｘａｍｐｌｅ.com/", "example.com"),
        ("http://☃.example./", "xn--n3h.example"),
        ("http://[0:0::0:1]/", "::1"),
        ("http://xn--a.de/", "xn--a.de"),
        ("http://e\u00adx.de/", "e\u00adx.de"),
    ],
)
def test_the_host_of_a_url(url, host):
    assert host_of(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/a",
        "ftp://example.com/",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://a b.com/",
        "http://a.com/b c",
        "http://a..b/",
        "http://.a.com/",
        "http://a.com:port/",
        "http://a.com:99999/",
        "http://[::1/",
        "http://a%2Eb/",
        "http://a.com/<x>",
        "http://a.com/\x00",
        "http://" + "a" * 254 + "/",
    ],
)
def test_what_is_no_web_address_is_refused(url):
    with pytest.raises(ValueError):
        host_of(url)


@given(anything)
def test_any_text_is_a_url_with_a_host_or_refused(url):
    try:
        host = host_of(url)
    except ValueError:
        return
    assert host
    assert host == host.lower()
    assert registered_name(host)[1]


@given(
    st.lists(st.text("aü☃ß例א1-.。ｗ\u200d", min_size=1, max_size=9), min_size=1, max_size=3).map(".".join) | anything
)
def test_a_url_has_one_host_whoever_asks(name):
    """URLs of `münchen.de` lay in another bucket than the crawler looked in, by `xn--mnchen-3ya.de`: two functions."""
    for url in (name, f"http://{name}/a"):
        with contextlib.suppress(ValueError):
            host = host_of(url)
            assert canonical_host(host) == host
            with contextlib.suppress(ValueError):
                # The crawler refuses what its client can't encode, and waits for no host then.
                assert host_and_origin(url)[0] == host
                assert host_name(url) == host_of(url_key(url)) == host


@given(anything)
def test_the_key_of_any_text_is_its_own_key(url):
    key = url_key(url)
    if key.startswith(("http://", "https://")):
        assert url_key(key) == key


def test_a_site_is_its_name_and_its_public_suffix():
    assert registered_name("news.bbc.co.uk") == ("bbc", "bbc.co.uk")
    assert registered_name("a.b.example.com") == ("example", "example.com")
    assert registered_name("192.168.0.1") == ("192.168.0.1", "192.168.0.1")
    assert registered_name("localhost") == ("localhost", "localhost")


def test_urls_that_name_one_page_share_a_key():
    """Pitfall 13: two records with the same URL both survived."""
    pages = [
        "http://example.com/",
        "http://example.com",
        "HTTP://EXAMPLE.com:80/",
        "http://example.com/#top",
        "http://example.com./",
    ]
    assert {url_key(url) for url in pages} == {"http://example.com/"}


@pytest.mark.parametrize(
    "other",
    [
        "https://example.com/a?b",
        "http://example.com:8080/a?b",
        "http://example.com/A?b",
        "http://example.com/a?B",
        "http://example.com/a",
        "http://www.example.com/a?b",
    ],
)
def test_urls_that_may_name_different_pages_do_not(other):
    assert url_key("http://example.com/a?b") != url_key(other)


@given(name=st.text(), buckets=st.integers(1, 2048))
def test_twice_the_buckets_only_split_each_one(name, buckets):
    bucket = bucket_of(name, buckets)
    assert 0 <= bucket < buckets
    assert bucket_of(name, 2 * buckets) in (bucket, bucket + buckets)


def test_buckets_are_the_same_on_every_machine():
    assert [bucket_of(name, 1000) for name in ("", "example.com", "bücher.de")] == [138, 347, 468]


@pytest.mark.parametrize(
    ("size", "shards"), [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 4), (401, 8), (10**9, 4096)]
)
def test_a_larger_input_makes_more_shards_by_doubling(size, shards):
    assert shards_for(size, 100) == shards
