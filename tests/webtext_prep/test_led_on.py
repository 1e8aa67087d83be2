"""Pages that lead on: by a refresh, a cookie, over several hosts; followed as browsers do, within the same limits."""

import sys

import pytest
from jobs import job_of
from outputs import documents_of, outcomes_of
from pages_on_loopback import Site, html, write_list

from webtext_prep.crawl.http.redirects import refresh_of, refreshed
from webtext_prep.stages.download import Download

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and further are hosts on Linux only")
ONE, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def site():
    site = Site((ONE, OTHER))
    yield site
    site.stop()


def rows(site, tmp_path, *urls, **settings):
    """The outcomes of some URLs: what became of each, and where it led."""
    values = {"extractor": "resiliparse", "allow_private_addresses": "loopback", "delay": 0.0, **settings}
    source = write_list(tmp_path / "urls.jsonl.zst", urls)
    job_of(Download(**values), [source], tmp_path / "out", restart=False, workers=1).run()
    return [(row["outcome"], row.get("final_url")) for row in outcomes_of(tmp_path / "out")]


def refresh(target, head="", seconds=0):
    tag = f'<meta http-equiv="Refresh" content="{seconds}; url={target}">'
    return html("Redirecting").replace(b"<title>", f"{head}{tag}<title>".encode())


# What a value says


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("0;url=/a", "/a"),
        ("0; URL = '/a b' ", "/a b"),
        ('5,url="/a";x', "/a"),
        ("0 /a", "/a"),
        ("0;/a", "/a"),
        (".5; url=/a", "/a"),
        ("1.9;url=/a", "/a"),
        ("  0  ;  url=/a?b=c;d", "/a?b=c;d"),
        ("0; url=", None),
        ("0", None),
        ("6; url=/a", None),
        ("300;url=/a", None),
        ("url=/a", None),
        ("-1;url=/a", None),
        ("0url=/a", None),
        ("", None),
    ],
)
def test_a_value_is_read_by_the_steps_of_the_living_standard(value, target):
    assert refresh_of(value) == target


def led(head, header=None, url="http://a.org/x/y"):
    return refreshed(url, header, f"<html><head>{head}</head><body>Words".encode(), None)


TAG = '<meta http-equiv=refresh content="0; url={}">'


@pytest.mark.parametrize(
    ("head", "target"),
    [
        (TAG.format("/a"), "http://a.org/a"),
        (TAG.format("z"), "http://a.org/x/z"),
        (TAG.format("/a").replace("ref", "r&#x65;f"), "http://a.org/a"),
        ("<base href='//b.org/c/'>" + TAG.format("z"), "http://b.org/c/z"),
        ("<!-- " + TAG.format("/a") + " -->", None),
        ("<script>'" + TAG.format("/a") + "'</script>", None),
        ("<noscript>" + TAG.format("/a") + "</noscript>", None),
        (TAG.format("y"), None),  # itself
        (TAG.format("#top"), None),
        (TAG.format("http://A.org:80/x/y"), None),
        (TAG.format("javascript:go()"), None),
        (TAG.format("mailto:me@a.org"), None),
        ("<meta name=refresh content='0; url=/a'>", None),
        (TAG.format("/ü"), "http://a.org/%C3%BC"),
        (TAG.format("/a?b=1&amp;c=2"), "http://a.org/a?b=1&c=2"),
        ("<title>" + "x" * 70_000 + "</title>" + TAG.format("/a"), "http://a.org/a"),
    ],
)
def test_a_page_leads_on_as_in_a_browser(head, target):
    assert led(head) == target


def test_a_header_leads_on_as_a_tag_does():
    assert led("", "0; url=/a") == "http://a.org/a"
    assert led("", "30; url=/a") is None


# Followed


def test_a_page_that_leads_on_at_once_is_the_page_behind_it(site, tmp_path):
    """It was a document "Redirecting"."""
    site.routes |= {
        "/tag": lambda r: r.answer(body=refresh("/page")),
        "/header": lambda r: r.answer(body=html("Redirecting"), Refresh="0; url=/page"),
        "/late": lambda r: r.answer(body=refresh("/page", seconds=60)),
        "/self": lambda r: r.answer(body=refresh("/self")),
    }
    urls = [site.url(path, ONE) for path in ("/tag", "/header", "/late", "/self")]
    page = site.url("/page", ONE)
    assert rows(site, tmp_path, *urls) == [("ok", page), ("ok", page), ("ok", None), ("ok", None)]
    assert [document.url for document in documents_of(tmp_path / "out")] == urls


def test_redirects_of_all_kinds_count_together(site, tmp_path):
    for number in range(8):
        there = f"/{number + 1}"
        answer = {"status": 302, "Location": there} if number % 2 else {"body": refresh(there)}
        site.routes[f"/{number}"] = lambda r, answer=answer: r.answer(**answer)
    found = rows(site, tmp_path, site.url("/0", ONE), site.url("/3", ONE))
    assert found == [("too_many_redirects", site.url("/5", ONE)), ("ok", site.url("/8", ONE))]


def test_a_refresh_asks_the_host_that_it_leads_to(site, tmp_path):
    """Its robots.txt holds, and no private address is reached."""
    site.routes |= {
        "/there": lambda r: r.answer(body=refresh(site.url("/private", OTHER))),
        "/inside": lambda r: r.answer(body=refresh("http://10.0.0.1/")),
        "/robots.txt": lambda r: r.answer(
            body=b"User-agent: *\nDisallow: /private" if OTHER in r.headers["Host"] else b"", kind="text/plain"
        ),
    }
    found = rows(site, tmp_path, *(site.url(path, ONE) for path in ("/there", "/inside", "/page")))
    assert [outcome for outcome, _ in found] == ["robots", "blocked_address", "ok"]
    assert "/private" not in site.paths


# Cookies


def sent(site, path):
    return [headers.get("Cookie") for asked, headers, _ in site.asked if asked == path]


def needs_cookie(name):
    def answer(request):
        if f"{name}=1" in (request.headers.get("Cookie") or ""):
            request.answer(body=html("A page"))
        else:
            request.answer(302, Location=request.path, Set_Cookie=f"{name}=1; Path=/; HttpOnly")

    return answer


def test_a_redirect_that_needs_the_cookie_it_sets_gets_it_back(site, tmp_path):
    """It ended as `too_many_redirects`; requests 2, wget 1.21 and Scrapy 2 keep cookies along redirects."""
    site.routes |= {"/a": needs_cookie("a"), "/b": needs_cookie("b")}
    urls = [site.url(path, ONE) for path in ("/a", "/b", "/c")]
    assert [outcome for outcome, _ in rows(site, tmp_path, *urls, concurrency=1)] == ["ok"] * 3
    assert [sent(site, path) for path in ("/a", "/b", "/c")] == [[None, "a=1"], [None, "b=1"], [None]]


@pytest.mark.parametrize("cookie", ['{"a":1,"b":[2]}', '"a b"', "a b", "a%20b=="])
def test_a_cookie_comes_back_as_it_was_sent(site, tmp_path, cookie):
    site.routes["/a"] = lambda r: r.answer(302, Location="/b", Set_Cookie=f"n={cookie}; Path=/")
    assert rows(site, tmp_path, site.url("/a", ONE)) == [("ok", site.url("/b", ONE))]
    assert sent(site, "/b") == [f"n={cookie}"]


@pytest.mark.parametrize(
    ("cookie", "header"),
    [
        ("=a b; Path=/", "a b"),
        ("a", "a"),
        ("==a; Domain=127.0.0.2; SameParty", "=a"),
        ("a; Domain; Secure=x; Path=/a", None),
        ("a; Domain; Path", "a"),
        ("a; Secure", None),
        (" = ", None),
        ("=__Host-a=b", None),
        ("=a\x07", None),
    ],
)
def test_a_cookie_without_a_name_comes_back_without_one(site, tmp_path, cookie, header):
    """RFC 6265bis, 5.6 and 5.8.3, as browsers do; of the value of a name, `__Host-`, it may say nothing."""
    site.routes["/a"] = lambda r: r.answer(302, Location="/b", Set_Cookie=cookie)
    assert rows(site, tmp_path, site.url("/a", ONE)) == [("ok", site.url("/b", ONE))]
    assert sent(site, "/b") == [header]


def test_a_page_that_loads_itself_again_with_its_cookie_is_what_comes_then(site, tmp_path):
    """It was a document "Redirecting"; one that sets a cookie each time is read at the second."""

    def answer(request):
        brings = "a=1" in (request.headers.get("Cookie") or "")
        request.answer(body=html("A page") if brings else refresh("/a"), **({} if brings else {"Set_Cookie": "a=1"}))

    site.routes["/a"] = answer
    site.routes["/b"] = lambda r: r.answer(body=refresh("/b"), Set_Cookie="b=1; Secure")
    urls = [site.url(path, ONE) for path in ("/a", "/b")]
    assert rows(site, tmp_path, *urls) == [("ok", url) for url in urls]
    assert [sent(site, path) for path in ("/a", "/b")] == [[None, "a=1"], [None, None]]


def test_a_cookie_goes_to_no_host_that_it_is_not_for(site, tmp_path):
    site.routes |= {
        "/away": lambda r: r.answer(302, Location=site.url("/other", OTHER), Set_Cookie="a=1"),
        "/other": lambda r: r.answer(302, Location=site.url("/home", ONE), Set_Cookie=f"b=1; Domain={ONE}"),
        "/deep": lambda r: r.answer(302, Location="/home2", Set_Cookie="c=1; Path=/deep"),
        "/safe": lambda r: r.answer(302, Location="/home3", Set_Cookie="d=1; Secure"),
    }
    urls = [site.url(path, ONE) for path in ("/away", "/deep", "/safe")]
    assert [outcome for outcome, _ in rows(site, tmp_path, *urls)] == ["ok"] * 3
    paths = ("/other", "/home", "/home2", "/home3")
    assert [sent(site, path) for path in paths] == [[None], ["a=1"], [None], [None]]
