"""What a URL is made of: the same for the same URL, an error for what is none, never a crash."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webtext_prep.crawl.http.client import host_and_origin, host_name, parse_url
from webtext_prep.crawl.http.connections import BlockedAddressError
from webtext_prep.crawl.http.redirects import next_url
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.url_lists import encode_url
from webtext_prep.urls import urls
from webtext_prep.urls.urls import (
    bucket_of,
    canonical_host,
    host_of,
    parts_by_rules,
    parts_of,
    registered_name,
    shards_for,
    url_key,
    without_any_credentials,
)

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
LETTERS = "aZ0-._~!$&'()*+,;=:@%[]|<\\^ \t\x7f\x85\xa0\u00a1\u00e9\u1680\u2003\u3000\u3001\ufffd\ud800\U0001f600"
web_address = st.tuples(
    st.sampled_from(["http://", "https://", "http:///", "Http://", "http:/"]),
    st.sampled_from(["a.org", "A.b.CO.uk.", "b\u00fccher.de", "h" * 250, "h" * 310, "[::1]", "u:p@a.org", "a..b"])
    | st.text(LETTERS, max_size=6),
    st.sampled_from(["", ":80", ":443", ":8080", ":x", ":"]),
    *(st.just("") | st.text(LETTERS, max_size=4).map(sign.__add__) for sign in ("/", "?", "#")),
    st.sampled_from(["", "?", "#", "/", "?#"]),
).map("".join)
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
        ("http://e\u00adx.de/", "ex.de"),
        # As ada-url 4.0.0 has them, the parser of URLs of Node.js; yarl 1.25.1 raises for U+200C and U+200D.
        ("http://\u0646\u0627\u0645\u0647\u200c\u0627\u06cc.com/", "xn--mgba3gch31f060k.com"),
        ("http://\u0915\u094d\u200d\u0937.com/", "xn--11b2ezcw70k.com"),
        ("http://fa\u00df.de/", "xn--fa-hia.de"),
        ("http://FA\u1e9e.de/", "xn--fa-hia.de"),
        ("http://\u039b\u039f\u0393\u039f\u03a3.gr/", "xn--oxapmbu.gr"),
        ("http://\u65e5\u672c\u3002jp/", "xn--wgv71a.jp"),
        ("http://\u2115.org:8080/", "n.org"),
        ("http://a\u200db.com/", "a\u200db.com"),  # a joiner that joins nothing: no name
        ("http://a\uff05b.com/", "a\uff05b.com"),
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
def test_what_is_no_web_address_has_no_host(url):
    assert host_of(url) == ""


@given(anything)
def test_any_text_is_a_url_with_a_host_or_none(url):
    host = host_of(url)
    assert host == host.lower()
    assert bool(registered_name(host)[1]) == bool(host)


@given(web_address | anything)
@example("http://./a?b")
@example("http://a.org?b//c#d?e")
def test_the_short_cut_for_usual_urls_gives_what_the_rules_give(url):
    host, path, key = parts_of(url)
    by_rules = parts_by_rules(url)
    assert (host, path, key) == by_rules
    assert (host_of(url), url_key(url)) == (host, key)


@pytest.mark.parametrize(
    "url",
    [
        "http://a.org",
        "https://www.A-b.co.uk:8080/x.html?y=z@1#f",
        "http://b\u00fccher.de/%C3%BC/\u65e5\u672c?q[]=1",
        "http://a.org/@me?",
    ],
)
def test_most_urls_are_usual(monkeypatch, url):
    """Each URL may go by the rules without an error, but not without a price."""
    assert host_of(url)  # as it is the first of its origin
    monkeypatch.setattr(urls, "parts_by_rules", None)
    assert parts_of(url)[0] == host_of(url) != ""


@given(st.lists((web_address | anything).filter(lambda url: "\n" not in url), max_size=6))
@example(["http://a.org", "http://a.org/b.c?d#e", "", "http://a..b/", "http://a.org/?", "http://-a_.b:80/", "x" * 9])
@example(["http://" + "h" * 253 + "/", "http://" + "h" * 254 + "/", "http://user@a.org/", "http://a.org/b%40c"])
def test_usual_lines_have_the_parts_of_their_urls_and_others_none(lines):
    lines = [line.encode("utf-8", "replace").decode() for line in lines]
    block = "".join(f"{line}\n" for line in lines)
    asked = [line for line in lines if line]
    hosts = [(line.decode(), host.decode()) for line, host in urls.hosts_of_lines(block.encode())]
    assert [line for line, _ in hosts] == [line for line, *_ in urls.urls_of_lines(block)] == asked
    assert all(host in ("", host_of(line)) for line, host in hosts)
    for line, key, host, path in urls.urls_of_lines(block):
        if host:
            assert (host, path, key if path else url_key(line)) == parts_of(line)
            assert (without_any_credentials(line), encode_url(Document(line))) == (line, line.encode())


def test_plain_addresses_are_usual():
    lines = b"http://a.org\nhttps://www.b-c.co.uk/d/e.html?f=1&g=[2]#h\nhttp://1.2.3.4/~i;j=k,l\n"
    assert [host for _, host in urls.hosts_of_lines(lines)] == [b"a.org", b"www.b-c.co.uk", b"1.2.3.4"]
    assert [host for _, _, host, _ in urls.urls_of_lines(lines.decode())] == ["a.org", "www.b-c.co.uk", "1.2.3.4"]


def test_no_usual_url_holds_what_a_url_may_not():
    for code in range(0x110000):
        usual = urls._USUAL(f"http://a/{chr(code)}")
        assert usual is None or not urls._FORBIDDEN.search(chr(code)), code


@given(
    st.lists(st.text("aü☃ß例א1-.。ｗ\u200d", min_size=1, max_size=9), min_size=1, max_size=3).map(".".join) | anything
)
def test_a_url_has_one_host_whoever_asks(name):
    """URLs of `münchen.de` lay in another bucket than the crawler looked in, by `xn--mnchen-3ya.de`: two functions."""
    for url in (name, f"http://{name}/a"):
        if host := host_of(url):
            assert canonical_host(host) == host
            # The crawler refuses what its client can't encode, and waits for no host then.
            assert host_name(url) in (host, "")
            if host_name(url):
                assert host_of(url_key(url)) == host


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


def test_a_name_is_one_host_in_its_script_and_in_punycode():
    """It had two keys, and the one in its script was never asked for."""
    persian, punycode = (
        f"http://{name}/a?b" for name in ("\u0646\u0627\u0645\u0647\u200c\u0627\u06cc.com", "xn--mgba3gch31f060k.com")
    )
    assert url_key(persian) == url_key(punycode) == punycode
    assert host_and_origin(persian) == host_and_origin(punycode)
    assert str(parse_url(persian.replace("http://", "http://u:p@"), "none")) == punycode
    escaped = "http://%D9%86%D8%A7%D9%85%D9%87%E2%80%8C%D8%A7%DB%8C.com/a?b"
    assert str(parse_url(escaped, "none")) == punycode and host_name(escaped) == "xn--mgba3gch31f060k.com"
    assert next_url("http://a.org/", persian) == next_url("http://a.org/", persian[5:]) == punycode
    assert next_url(persian, "/c") == "http://xn--mgba3gch31f060k.com/c"


@pytest.mark.parametrize("sign", ["\uff0f", "\uff1a", "\uff20", "\uff03", "\uff1f", "\uff05", "\uff3b"])
def test_no_sign_of_another_width_makes_another_host(sign):
    """They become `/`, `:` and `@` when a name is mapped."""
    for url in (f"http://127.0.0.1{sign}.a.org/", f"http://a.org{sign}127.0.0.1/"):
        assert not host_of(url).isascii() or not host_of(url)
        with pytest.raises((ValueError, BlockedAddressError)):
            parse_url(url, "none")
