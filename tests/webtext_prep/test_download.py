"""`webtext download` against real servers on loopback: every way in which a page can fail, and every way to resume."""

import collections
import contextlib
import gzip
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aiodns
import brotli
import pytest
import zstandard
from jobs import job_of
from outputs import documents_of, outcomes_of, saved_pages
from pages_on_loopback import PATIENCE, SENTENCE, html, write_list

from command_kit import UsageError
from webtext_prep import cli
from webtext_prep.crawl.crawl import Crawl
from webtext_prep.crawl.database import CrawlDatabase
from webtext_prep.crawl.frontier import crawler
from webtext_prep.crawl.http import client, connections
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running.processes import run_until_done
from webtext_prep.stages.download import Download


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch):
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.01)


def download(inputs, output, *, restart=False, workers=1, **settings):
    values = {"extractor": "resiliparse", "allow_private_addresses": True, "delay": 0.0, **settings}
    inputs = [inputs] if isinstance(inputs, Path) else inputs
    return job_of(Download(**values), inputs, output, restart=restart, workers=workers).run()


def outcomes(output):
    return [row["outcome"] for row in outcomes_of(output)]


def fetch(tmp_path, urls, **settings):
    """Download `urls` into `out` and give back their outcomes, in order."""
    output = tmp_path / "out"
    with contextlib.suppress(WebtextError):  # nothing kept: the outcomes are there nevertheless
        download(write_list(tmp_path / "urls.jsonl.zst", urls), output, **settings)
    return outcomes(output)


@pytest.fixture
def hurry(monkeypatch) -> Callable[[str, float], None]:
    """`hurry("/slow", 0.2)`: requests for this path may take so many seconds, others what a busy machine needs."""

    def hurried(path, seconds):
        get = client.Client.get

        async def limited(self, url, **options):
            return await get(self, url, **options | ({"seconds": seconds} if url.endswith(path) else {}))

        monkeypatch.setattr(client.Client, "get", limited)

    return hurried


# What can happen to a URL


def endless(request):
    request.send_response(200)
    request.send_header("Content-Type", "text/html")
    request.end_headers()
    while True:
        request.wfile.write(b"<p>and on it goes</p>" * 1000)


def never_ends(request):
    """Sends a little and then says nothing more until the client hangs up."""
    request.send_response(200)
    request.send_header("Content-Type", "text/html")
    request.end_headers()
    request.wfile.write(b"<p>one moment")
    request.connection.recv(1)


def hangs_up(request):
    request.close_connection = True


def cut_short(request):
    request.answer(body=b"<p>half", Content_Length=1000)
    request.close_connection = True


def test_every_way_to_fail_ends_in_its_own_outcome_and_in_equals_out_plus_dropped(site, tmp_path, names, hurry):
    """Pitfall 9: nothing bounded a download: endless streams, huge bodies, redirect loops, one slow host."""
    bomb = gzip.compress(b"<p>x</p>" * 4_000_000)
    assert len(bomb) < 200_000
    names |= {"no-such-host.invalid": aiodns.error.ARES_ENOTFOUND, "no-answer.invalid": aiodns.error.ARES_ETIMEOUT}

    def redirect(target, status=302):
        return lambda request: request.answer(status, Location=target)

    site.routes |= {
        "/robots.txt": lambda r: r.answer(body=b"User-agent: *\nDisallow: /closed", kind="text/plain"),
        "/gone": lambda r: r.answer(404, html("Not found")),
        "/no-content": lambda r: r.answer(204, kind=None),
        "/picture": lambda r: r.answer(body=b"\x89PNG\r\n", kind="image/png"),
        "/huge": lambda r: r.answer(body=b"<p>", Content_Length=1 << 40),
        "/endless": endless,
        "/never-ends": never_ends,
        "/bomb": lambda r: r.answer(body=bomb, Content_Encoding="gzip"),
        "/gzip": lambda r: r.answer(body=gzip.compress(html("Packed")), Content_Encoding="gzip"),
        "/not-gzip": lambda r: r.answer(body=b"<p>plain", Content_Encoding="gzip"),
        "/brotli": lambda r: r.answer(body=brotli.compress(html("Unasked")), Content_Encoding="br"),
        "/zstandard": lambda r: r.answer(body=zstandard.compress(html("Unasked")), Content_Encoding="ZSTD"),
        "/no-coding": lambda r: r.answer(body=html("Of no coding"), Content_Encoding="utf-8"),
        "/codings": lambda r: r.answer(body=html("Many"), Content_Encoding="gzip, br"),
        "/cut-brotli": lambda r: r.answer(body=brotli.compress(html("Unasked"))[:-9], Content_Encoding="br"),
        "/brotli-bomb": lambda r: r.answer(
            body=brotli.compress(gzip.decompress(bomb), quality=1), Content_Encoding="br"
        ),
        "/loop": redirect("/loop"),
        "/mail": redirect("mailto:a@example.com"),
        "/to-closed": redirect("/closed/page"),
        "/hop6": redirect("/hop5", 301),
        "/hop5": redirect("/hop4", 303),
        "/hop4": redirect("/hop3", 307),
        "/hop3": redirect("hop2?a=b", 308),
        "/hop2?a=b": redirect(f"//127.0.0.1:{site.port}/hop1#part"),
        "/hop1": redirect("/end"),
        "/redirect-nowhere": lambda r: r.answer(302),
        "/empty": lambda r: r.answer(body=b"<html><body></body></html>"),
        "/no-bytes": lambda r: r.answer(body=b""),
        "/deep": lambda r: r.answer(body=b"<div>" * 50_000 + b"<p>deep</p>"),
        "/no-type": lambda r: r.answer(body=html("Untyped"), kind=None),
        "/no-type-binary": lambda r: r.answer(body=bytes(range(256)) * 10, kind=None),
        "/octets": lambda r: r.answer(body=b"\x7fELF\x02\x01\x01\0\0\0", kind="application/octet-stream"),
        "/pdf-as-html": lambda r: r.answer(body=b"%PDF-1.4 and so on"),
        "/plain": lambda r: r.answer(body=b"Some <plain> text.", kind="text/plain"),
        "/hangs-up": hangs_up,
        "/cut-short": cut_short,
        "/garbage": lambda r: r.wfile.write(b"\0\1\2 garbage\r\n\r\n") and hangs_up(r),
        "/trouble": lambda r: r.answer(503),
        "/forbidden": lambda r: r.answer(403),
    }
    expected = {
        "/": "ok", "/gone": "http_404", "/no-content": "http_204", "/picture": "not_html", "/huge": "too_large",
        "/endless": "too_large", "/never-ends": "timeout", "/bomb": "too_large", "/gzip": "ok",
        "/not-gzip": "malformed_response", "/brotli": "ok", "/zstandard": "ok", "/no-coding": "ok",
        "/codings": "malformed_response", "/cut-brotli": "malformed_response", "/brotli-bomb": "too_large",
        "/loop": "too_many_redirects",
        "/mail": "bad_redirect", "/to-closed": "robots", "/hop5": "ok", "/hop6": "too_many_redirects",
        "/redirect-nowhere": "http_302", "/closed": "robots", "/empty": "empty", "/no-bytes": "empty",
        "/deep": "too_deep", "/no-type": "ok", "/no-type-binary": "not_html", "/octets": "not_html", "/plain": "ok",
        "/pdf-as-html": "not_html",
        "/hangs-up": "connection", "/cut-short": "connection", "/garbage": "malformed_response",
        "/trouble": "http_503", "/forbidden": "http_403",
    }  # fmt: skip
    elsewhere = {
        "http://127.0.0.1:1/nobody-listens": "connection",
        "http://no-such-host.invalid/": "no_such_host",
        "http://no-answer.invalid/": "dns",
        f"https://127.0.0.1:{site.port}/no-tls": "tls",
        "this is no address": "malformed_url",
        "ftp://example.com/file": "malformed_url",
        "http://[broken/": "malformed_url",
        "http://999.999.999.999/": "malformed_url",
        "http://127.0.0.1:99999/": "malformed_url",
    }
    hurry("/never-ends", 0.2)
    wanted = {**{site.url(path): outcome for path, outcome in expected.items()}, **elsewhere}
    summary = download(
        write_list(tmp_path / "urls.jsonl.zst", wanted),
        tmp_path / "out",
        extractor="learned", max_bytes=1_000_000, retries=1, per_host=8,
    )  # fmt: skip
    rows = outcomes_of(tmp_path / "out")
    assert {row["url"]: row["outcome"] for row in rows} == wanted
    assert [row["url"] for row in rows] == list(wanted)
    assert summary.tally.read == len(wanted) == summary.tally.kept + summary.tally.dropped.total()
    assert dict(summary.tally.dropped) == {
        outcome: count for outcome, count in collections.Counter(wanted.values()).items() if outcome != "ok"
    }
    found = {document.url: document for document in documents_of(tmp_path / "out")}
    assert found[site.url("/gzip")].text.startswith(SENTENCE.strip())
    for path in ("/brotli", "/zstandard", "/no-coding"):
        assert found[site.url(path)].text == found[site.url("/gzip")].text
    assert found[site.url("/plain")].text == "Some <plain> text."
    metadata = found[site.url("/")].metadata
    assert 0 < metadata.pop("kind_probability") <= 1
    assert metadata == {"title": "Page /", "kind": "article", "text_share": 1.0, "domain": "127.0.0.1"}
    assert found[site.url("/hop5")].metadata["final_url"] == site.url("/end")
    counts = site.counts()
    assert counts["/trouble"] == 2 and counts["/gone"] == 1 and counts["/closed"] == counts["/closed/page"] == 0


def test_a_charset_in_the_header_is_believed(site, tmp_path):
    text = "Über den Bäumen, sagte der Müller, ist es schön. " * 5
    body = html("Bäume", text).decode().encode("latin-1")
    site.routes["/latin"] = lambda r: r.answer(body=body, kind="text/html; charset=ISO-8859-1")
    assert fetch(tmp_path, site.urls("/latin")) == ["ok"]
    (document,) = documents_of(tmp_path / "out")
    assert document.metadata["title"] == "Bäume" and text.strip() in document.text


def test_the_text_is_kept_by_default_and_flags_can_be_switched_off(site, tmp_path):
    """Pitfall 7: the downloader's flags could not be switched off, and by default it kept none of the text."""
    site.routes["/robots.txt"] = lambda r: r.answer(body=b"User-agent: *\nDisallow: /", kind="text/plain")
    source = tmp_path / "urls.txt"
    source.write_text(f"# a comment\n\n{site.url('/a')}\n")
    command = ["download", "--input", str(source), "--allow-private-addresses"]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main([*command, "--output", str(tmp_path / "closed")]) == 1
        assert cli.main([*command, "--output", str(tmp_path / "open"), "--no-robots"]) == 0
        assert cli.main([*command, "--output", str(tmp_path / "private"), "--no-allow-private-addresses"]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcomes(tmp_path / "closed") == ["robots"]
    assert outcomes(tmp_path / "private") == ["blocked_address"]
    (document,) = documents_of(tmp_path / "open")
    assert SENTENCE.strip() in document.text
    assert site.counts() == {"/robots.txt": 1, "/a": 1}


# Addresses


def test_addresses_that_are_not_public_are_refused_and_nothing_is_sent(site, tmp_path):
    hosts = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1", "１２７.0.0.1"]
    urls = [site.url("/", host) for host in hosts] + ["http://169.254.169.254/latest/meta-data/"]
    assert set(fetch(tmp_path, urls, allow_private_addresses=False)) == {"blocked_address"}
    assert site.asked == []


@pytest.fixture
def loopback_is_public(monkeypatch):
    """127.0.0.1 plays the internet, every other address keeps its meaning."""
    real = connections.is_public
    monkeypatch.setattr(connections, "is_public", lambda address: address == "127.0.0.1" or real(address))
    connections.is_allowed.cache_clear()
    yield
    connections.is_allowed.cache_clear()


def redirects(site, targets):
    """URLs that lead to each of `targets`."""
    for number, target in enumerate(targets):
        site.routes[f"/{number}"] = lambda r, target=target: r.answer(302, Location=target)
    return site.urls(*(f"/{number}" for number in range(len(targets))))


def test_a_redirect_to_a_private_address_is_refused(site, tmp_path, loopback_is_public):
    urls = redirects(site, ["http://169.254.169.254/", "http://10.0.0.1/", "http://[::1]/", "http://127.2/"])
    assert fetch(tmp_path, urls, allow_private_addresses=False) == ["blocked_address"] * 4
    assert site.counts() == {"/robots.txt": 1, "/0": 1, "/1": 1, "/2": 1, "/3": 1}


def test_a_name_is_resolved_once_and_connected_to_where_it_was_checked(site, tmp_path, loopback_is_public, monkeypatch):
    answers = []

    async def resolve(self, host, port=0, family=0):
        # The first answer is public, as at a rebinding attack; a second one would not be.
        answers.append(host)
        address = "127.0.0.1" if len(answers) == 1 else "10.0.0.1"
        return [{"hostname": host, "host": address, "port": port, "family": 2, "proto": 0, "flags": 0}]

    monkeypatch.setattr(connections.AsyncResolver, "resolve", resolve)
    urls = [site.url(path, "rebinding.example") for path in ("/a", "/b", "/c")]
    assert fetch(tmp_path, urls, allow_private_addresses=False) == ["ok"] * 3
    assert answers == ["rebinding.example"]


def test_loopback_as_a_value_opens_this_machine_and_nothing_else(site, tmp_path, webtext):
    """What a site on this machine needs also opened the metadata service of clouds and the whole private network."""
    source = tmp_path / "urls.txt"
    source.write_text(f"{site.url('/a')}\n{site.url('/b', 'localhost')}\nhttp://169.254.169.254/\nhttp://10.0.0.1/\n")
    flags = ["--input", source, "--output", tmp_path / "out", "--extractor", "resiliparse"]
    assert webtext("download", *flags, "--allow-private-addresses", "loopback").code == 0
    assert outcomes(tmp_path / "out") == ["ok", "ok", "blocked_address", "blocked_address"]
    changed = webtext("download", *flags, "--allow-private-addresses")
    assert "allow_private_addresses was 'loopback', now True" in changed.sentence


INSIDE = ["http://169.254.169.254/", "http://10.0.0.1/", "http://0.0.0.0/", "http://[fe80::1]/", "http://0xa9fea9fe/"]


def test_loopback_opens_nothing_else_through_redirects(site, tmp_path):
    urls = redirects(site, [*INSIDE, site.url("/a", "127.3.2.1")])
    *found, near = fetch(tmp_path, urls, allow_private_addresses="loopback", robots=False, retries=0)
    assert found == ["blocked_address"] * len(INSIDE)
    assert near != "blocked_address"


@pytest.mark.parametrize(
    ("found", "outcome"), [(["169.254.169.254"], "blocked_address"), (["10.0.0.1", "127.0.0.1"], "ok")]
)
def test_loopback_opens_nothing_else_through_names(site, tmp_path, monkeypatch, found, outcome):
    async def resolve(self, host, port=0, family=0):
        entry = {"hostname": host, "port": port, "family": 2, "proto": 0, "flags": 0}
        return [{**entry, "host": address} for address in found]

    monkeypatch.setattr(connections.AsyncResolver, "resolve", resolve)
    urls = [site.url("/a", "inside.example")]
    assert fetch(tmp_path, urls, allow_private_addresses="loopback") == [outcome]


def test_all_and_none_are_the_same_settings_as_the_bare_flags():
    assert Download(allow_private_addresses="all") == Download(allow_private_addresses=True)
    assert Download(allow_private_addresses="none") == Download(allow_private_addresses=False) == Download()
    assert Download(allow_private_addresses="loopback").private_addresses == "loopback"


SECRET = "hunter2"


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_credentials_in_urls_reach_no_server_and_no_file(site, tmp_path, webtext, suffix):
    """`http://user:password@host/` was kept whole in documents and outcomes."""
    with_secret = f"http://user:{SECRET}@127.0.0.1:{site.port}"
    site.routes |= {
        "/gone": lambda r: r.answer(404),
        "/moved": lambda r: r.answer(302, Location=f"{with_secret}/target"),
    }
    urls = [f"{with_secret}{path}" for path in ("/a", "/gone", "/moved")] + [f"ftp://user:{SECRET}@a.org/", "http:x"]
    source = tmp_path / f"urls{suffix}"
    source.write_text(
        "".join((url if suffix == ".txt" else json.dumps({"url": url, "score": 1})) + "\n" for url in urls)
    )
    lists, out = tmp_path / "lists", tmp_path / "out"
    assert webtext("blacklist", "--input", source, "--output", lists).code == 0
    flags = ["--extractor", "resiliparse", "--allow-private-addresses", "--user-agent", "t/1"]
    for inputs, output in ((lists, out), (source, tmp_path / "direct")):
        site.asked.clear()
        shown = webtext("download", "--input", inputs, "--output", output, *flags)
        assert shown.code == 0 and SECRET not in shown.err
        assert sorted(path for path, _, _ in site.asked) == ["/a", "/gone", "/moved", "/robots.txt", "/target"]
        assert not any("Authorization" in headers or SECRET in str(headers) for _, headers, _ in site.asked)
    assert outcomes(out) == ["ok", "http_404", "ok"]
    assert [document.url for document in documents_of(out)] == site.urls("/a", "/moved")
    for folder in (lists, out, tmp_path / "direct"):
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                if path.name.endswith(".zst"):
                    data = zstandard.ZstdDecompressor().stream_reader(data).read()
                assert SECRET.encode() not in data, path


# Politeness


def test_robots_txt_is_asked_for_once_and_obeyed_for_our_name(site, tmp_path):
    rules = b"User-agent: webtext\nDisallow: /private\nAllow: /private/open\n\nUser-agent: *\nDisallow: /"
    site.routes["/robots.txt"] = lambda r: r.answer(body=rules, kind="text/plain")
    paths = ["/a", "/private/x", "/private/open/y", "/b"]
    assert fetch(tmp_path, site.urls(*paths)) == ["ok", "robots", "ok", "ok"]
    assert site.counts() == {"/robots.txt": 1, "/a": 1, "/private/open/y": 1, "/b": 1}
    assert all(headers["User-Agent"] == "webtext/0.1" for _, headers, _ in site.asked)


def test_without_a_robots_txt_all_is_allowed_and_with_a_broken_server_nothing(site, tmp_path):
    assert fetch(tmp_path / "a", site.urls("/x")) == ["ok"]
    site.routes["/robots.txt"] = lambda r: r.answer(500)
    assert fetch(tmp_path / "b", site.urls("/x", "/y")) == ["robots_unreachable"] * 2
    assert site.counts()["/x"] == 1


def test_a_crawl_delay_is_honoured(site, tmp_path):
    site.routes["/robots.txt"] = lambda r: r.answer(body=b"User-agent: *\nCrawl-delay: 0.3", kind="text/plain")
    assert fetch(tmp_path, site.urls("/a", "/b", "/c"), per_host=8) == ["ok"] * 3
    times = sorted(when for _, _, when in site.asked)
    # A busy machine may see one late, and the next one in time.
    assert all(when - times[0] >= 0.3 * number for number, when in enumerate(times))


def test_a_delay_between_requests_to_one_host_is_kept(site, tmp_path, monkeypatch):
    begun, plain = [], Crawl.fetch
    monkeypatch.setattr(Crawl, "fetch", lambda *arguments: begun.append(time.monotonic()) or plain(*arguments))
    assert fetch(tmp_path, site.urls("/a", "/b", "/c"), delay=0.3, robots=False, per_host=8) == ["ok"] * 3
    times = sorted(when for _, _, when in site.asked)
    assert all(when - begun[0] >= 0.3 * number for number, when in enumerate(times))


def test_no_more_requests_than_asked_for_are_at_one_host_at_once(site, tmp_path):
    together = threading.Barrier(2)  # a page comes only when two are asked for
    lock, running, most = threading.Lock(), 0, 0

    def paired(request):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE)
        with lock:
            running -= 1
        site.page(request)

    site.routes |= {f"/{n}": paired for n in range(8)}
    assert fetch(tmp_path, site.urls(*(f"/{n}" for n in range(8))), per_host=2, robots=False) == ["ok"] * 8
    assert most == 2


def test_a_slow_host_does_not_hold_up_the_others_and_the_order_stays(site, tmp_path):
    """Pitfall 9: one slow host held up everything."""
    fast = [f"/fast{n}" for n in range(12)]

    def slow(request):  # answers only when all pages of the other host are out
        site.wait_for(lambda counts: all(counts[path] for path in fast))
        site.page(request)

    site.routes |= {f"/slow{n}": slow for n in range(6)}
    urls = [site.url(f"/slow{n}", "localhost") for n in range(6)] + site.urls(*fast)
    assert fetch(tmp_path, urls, concurrency=3, per_host=2, robots=False) == ["ok"] * 18
    assert [document.url for document in documents_of(tmp_path / "out")] == urls


def test_retry_after_is_honoured_and_the_page_got(site, tmp_path):
    answers = iter([429, 503])

    def busy(request):
        status = next(answers, None)
        if status is None:
            site.page(request)
        else:
            request.answer(status, Retry_After="1")

    site.routes["/busy"] = busy
    assert fetch(tmp_path, site.urls("/busy")) == ["ok"]
    times = site.times("/busy")
    assert len(times) == 3 and min(times[1] - times[0], times[2] - times[1]) > 0.9
    assert outcomes_of(tmp_path / "out")[0]["attempts"] == 3


def test_a_server_that_asks_for_an_hour_is_left_for_a_later_run(site, tmp_path):
    site.routes["/busy"] = lambda r: r.answer(429, Retry_After="3600")
    assert fetch(tmp_path, site.urls("/busy", "/page")) == ["http_429", "ok"]
    assert site.counts()["/busy"] == 1


def test_a_dead_host_costs_a_few_attempts_not_one_for_each_of_its_urls(site, tmp_path, monkeypatch):
    monkeypatch.setattr(crawler, "GIVE_UP_HOST_AFTER", 3)
    site.routes |= {f"/{n}": hangs_up for n in range(20)}
    found = fetch(tmp_path, site.urls(*(f"/{n}" for n in range(20))), robots=False, retries=0, per_host=1)
    assert collections.Counter(found) == {"connection": 3, "host_down": 17}


def test_cookies_are_not_kept(site, tmp_path):
    site.routes["/a"] = lambda r: r.answer(body=html("a"), Set_Cookie="who=you; Path=/")
    assert fetch(tmp_path, site.urls("/a", "/b", "/c"), per_host=1) == ["ok"] * 3
    assert not any("Cookie" in headers for _, headers, _ in site.asked)


# Resuming


def test_a_second_run_asks_only_for_what_is_retryable(site, tmp_path, hurry):
    """Pitfall 8: a timeout lost the URL for good while the checkpoint moved on."""
    source = write_list(tmp_path / "urls.jsonl.zst", site.urls("/good", "/trouble", "/gone", "/slow"))
    site.routes |= {
        "/trouble": lambda r: r.answer(503),
        "/gone": lambda r: r.answer(404),
        "/slow": never_ends,
    }
    hurry("/slow", 1.0)
    settings = {"retries": 0}
    first = download(source, tmp_path / "out", **settings)
    assert outcomes(tmp_path / "out") == ["ok", "http_503", "http_404", "timeout"]
    assert first.facts["retryable"] == 2
    shard = tmp_path / "out" / "part-00000.jsonl.zst"
    untouched = shard.stat().st_mtime_ns
    download(source, tmp_path / "out", **settings)
    assert shard.stat().st_mtime_ns == untouched, "no page came, so that later stages need not run again"
    del site.routes["/slow"], site.routes["/trouble"]
    third = download(source, tmp_path / "out", **settings)
    assert outcomes(tmp_path / "out") == ["ok", "ok", "http_404", "ok"]
    assert [document.url for document in documents_of(tmp_path / "out")] == site.urls("/good", "/trouble", "/slow")
    assert third.facts["retryable"] == 0
    assert download(source, tmp_path / "out", **settings).resumed
    assert site.counts() == {"/robots.txt": 1, "/good": 1, "/trouble": 3, "/gone": 1, "/slow": 3}


def test_trying_again_comes_to_an_end_and_can_be_prolonged(site, tmp_path):
    """More passes after fewer said "already done": it had been counted under the old number."""
    site.routes["/trouble"] = lambda r: r.answer(503)
    source = write_list(tmp_path / "urls.jsonl.zst", site.urls("/good", "/trouble"))

    def run(retry_passes):
        return download(source, tmp_path / "out", retry_passes=retry_passes, retries=1)

    assert [run(1).resumed for _ in range(3)] == [False, False, True]
    row = outcomes_of(tmp_path / "out")[1]
    assert (row["attempts"], row["passes"]) == (4, 2)
    more = run(3)
    assert (more.resumed, more.facts["retryable"]) == (False, 1)
    assert outcomes_of(tmp_path / "out")[1]["passes"] == 3
    assert run(2).resumed  # fewer again: tried often enough
    assert [run(3).resumed for _ in range(2)] == [False, True]
    assert site.counts() == {"/robots.txt": 1, "/good": 1, "/trouble": 8}


def test_a_list_that_was_reordered_and_has_grown_fetches_only_what_is_new(site, tmp_path):
    """Pitfall 8: resume counted line numbers, so that reordering or growing the list corrupted it."""
    old = site.urls("/a", "/b", "/c", "/gone")
    site.routes["/gone"] = lambda r: r.answer(404)
    source = write_list(tmp_path / "urls.jsonl.zst", old)
    download(source, tmp_path / "out")
    before = {document.url: document.text for document in documents_of(tmp_path / "out")}
    new = [site.url("/d"), *reversed(old), site.url("/e")]
    write_list(source, [Document(url, metadata={"score": 7}) for url in new])
    download(source, tmp_path / "out")
    assert outcomes(tmp_path / "out") == ["ok", "http_404", "ok", "ok", "ok", "ok"]
    found = documents_of(tmp_path / "out")
    assert [document.url for document in found] == [url for url in new if not url.endswith("gone")]
    assert before.items() <= {document.url: document.text for document in found}.items()
    assert all(document.metadata["score"] == 7 for document in found)
    assert all(count == 1 for path, count in site.counts().items() if path != "/robots.txt")
    fresh = tmp_path / "fresh"
    download(source, fresh)
    shard = "part-00000.jsonl.zst"
    assert (fresh / shard).read_bytes() == (tmp_path / "out" / shard).read_bytes()


@pytest.mark.parametrize(("before", "after"), [(1, 3), pytest.param(18, 17, marks=pytest.mark.exhaustive)])
def test_another_number_of_shards_fetches_nothing_again(site, tmp_path, before, after):
    """Going from 24 to 32 fetched all again, and what had gone from the web was lost."""
    paths = [f"/{n}" for n in range(40)]
    # Few pages, since each shard that has one starts an extractor.
    site.routes |= {path: lambda r: r.answer(404) for path in paths if path not in ("/7", "/8", "/31")}

    def lists(count):
        return [
            write_list(tmp_path / f"lists{count}" / f"part-{n:05}.jsonl.zst", site.urls(*paths[n::count]))
            for n in range(count)
        ]

    download(lists(before), tmp_path / "out", per_host=8)
    texts = {document.url: document.text for document in documents_of(tmp_path / "out")}
    site.asked.clear()
    site.routes |= {path: lambda r: r.answer(410) for path in paths}
    summary = download(lists(after), tmp_path / "out", per_host=8)
    assert site.asked == []
    assert (summary.tally.read, summary.tally.kept) == (40, 3)
    assert {document.url: document.text for document in documents_of(tmp_path / "out")} == texts
    assert len(list((tmp_path / "out" / OUTCOMES).glob("part-*"))) == after


def test_lists_that_shrink_grow_and_change_their_order_never_lose_a_page(site, tmp_path):
    paths = [f"/{n}" for n in range(30)]
    source = [tmp_path / f"{name}.txt" for name in "abc"]

    def run(*parts):
        for path, part in zip(source, parts, strict=True):
            path.write_text("".join(url + "\n" for url in site.urls(*part)))
        site.asked.clear()
        download(source, tmp_path / "out", per_host=8)
        assert [document.url for document in documents_of(tmp_path / "out")] == site.urls(
            *(p for part in parts for p in part)
        )
        return {path for path, _, _ in site.asked} - {"/robots.txt"}

    assert run(paths[:5], paths[5:10], paths[10:20]) == set(paths[:20])
    assert run(paths[19:9:-1], paths[:5], paths[5:10]) == set()  # another order
    assert run(paths[:2], paths[4:6], paths[8:9]) == set()  # fewer
    # What is not in the lists any more is gone from the output, and fetched again when it comes back.
    assert run(paths[:9], paths[20:], paths[9:20]) == set(paths) - {*paths[:2], *paths[4:6], paths[8]}


def test_what_the_lists_name_no_more_leaves_no_trace(site, tmp_path):
    """A page that was taken out of the lists stays nowhere, also where nothing was fetched after that."""
    site.routes["/secret"] = lambda r: r.answer(body=html("Secret", f"{SECRET} " * 200))
    lists = [write_list(tmp_path / f"list{n}.jsonl.zst", site.urls(path)) for n, path in enumerate(("/a", "/b"))]
    for settings in ({}, {"save_pages": True}):
        output = tmp_path / f"out{len(settings)}"
        write_list(lists[1], site.urls("/b", "/secret"))
        download(lists, output, **settings)
        with CrawlDatabase(database_of(output)) as database:
            assert len(database) == 3
        write_list(lists[1], site.urls("/b"))
        site.asked.clear()
        download(lists, output, **settings)
        assert not site.asked
        with CrawlDatabase(database_of(output)) as database:
            assert {row["url"] for row in database.rows()} == set(site.urls("/a", "/b"))
        assert site.url("/secret").encode() not in database_of(output).read_bytes()


def database_of(output):
    return output / ".state" / "kept" / "crawl.sqlite"


def fetched_in(output, retry_pass):
    """How many URLs the database of a run at work holds that it has fetched itself."""
    path = database_of(output)
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection,
    ):
        return connection.execute("SELECT count(*) FROM pages WHERE pass = ?", (retry_pass,)).fetchone()[0]
    return 0


def run_and_kill(site, command, output, *, answers, retry_pass=1):
    """Start the real command against a site that answers some requests and then no more; kill it, workers and all,
    when it has finished a few of them."""
    site.answers = answers
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + PATIENCE
        while fetched_in(output, retry_pass) < 5:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"the command finished nothing: {process.communicate()[1]}")
            time.sleep(0.01)
        process.kill()
        process.wait()
    site.answers = None


def command_for(source, output, *more):
    return [
        sys.executable, "-m", "webtext_prep", "download", "--input", str(source), "--output", str(output),
        "--allow-private-addresses", "--extractor", "resiliparse", "--delay", "0", "--no-robots", *more,
    ]  # fmt: skip


def test_a_killed_run_goes_on_where_it_was_and_ends_with_the_same_bytes(site, tmp_path):
    """Pitfall 8: resume lost or repeated URLs, and growing the list after an interruption corrupted it."""
    paths = [f"/{n}" for n in range(60)]
    lists = [tmp_path / "lists" / f"part-{n:05}.jsonl.zst" for n in range(2)]
    for path, part in zip(lists, (paths[:30], paths[30:50]), strict=True):
        write_list(path, site.urls(*part))
    out, flags = tmp_path / "out", ("--workers", "2", "--per-host", "1", "--save-pages")
    run_and_kill(site, command_for(tmp_path / "lists", out, *flags), out, answers=25)
    with CrawlDatabase(database_of(out)) as database:
        finished = {row["url"] for row in database.rows()}
    assert 5 <= len(finished) < 50
    assert not list(out.glob("part-*")) and not list(out.glob("pages/*"))
    with pytest.raises(InputError, match="not finished"):  # half a download is nobody's input
        find_inputs([str(out)], accepts=Download.reads.accepts, kinds="document shards")
    for path, part in zip(lists, (paths[::2], paths[1::2]), strict=True):
        write_list(path, site.urls(*part))
    settings = {"robots": False, "save_pages": True, "allow_private_addresses": "all"}
    download(lists, out, **settings)
    counts = site.counts()
    assert {url for url in finished if counts[url.removeprefix(site.url(""))] > 1} == set()
    assert set(counts) == set(paths)
    reference = tmp_path / "reference"
    download(lists, reference, **settings)
    for name in ("part-00000.jsonl.zst", "part-00001.jsonl.zst", "stage.json"):
        assert (reference / name).read_bytes() == (out / name).read_bytes()
    assert [row["url"] for row in outcomes_of(out)] == [row["url"] for row in outcomes_of(reference)]
    assert [url for url, _ in saved_pages(out)] == site.urls(*paths[::2], *paths[1::2])
    assert saved_pages(out) == saved_pages(reference)


def test_an_interrupt_ends_at_once_and_keeps_what_was_fetched(site, tmp_path):
    def stuck(request):
        request.connection.recv(1)

    site.routes["/stuck"] = stuck
    source = write_list(tmp_path / "lists" / "part-00000.jsonl.zst", site.urls("/a", "/stuck"))
    command = command_for(source, tmp_path / "out", "--timeout", "600")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        site.wait_for(lambda counts: counts["/stuck"])
        process.send_signal(signal.SIGTERM)
        message = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert "interrupted" in message and "Traceback" not in message
    del site.routes["/stuck"]
    download(source, tmp_path / "out", robots=False)
    assert outcomes(tmp_path / "out") == ["ok", "ok"]


INTERRUPTED_IN_C = """
import asyncio, ctypes, os, signal
from webtext_prep.running import processes
signal.signal(signal.SIGTERM, signal.default_int_handler)
call = ctypes.CFUNCTYPE(None)(lambda: [os.kill(os.getpid(), signal.SIGTERM), sum(range(100_000))])
async def main():
    call()
    await asyncio.sleep(20)
    print("lost")
try:
    processes.run_until_done(main())
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGTERM) is signal.default_int_handler)
"""


def test_an_interrupt_inside_a_callback_of_c_is_not_lost():
    """An exception there is printed and forgotten: the download went on after SIGTERM, and for good."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IN_C], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["interrupted", "True"]
    assert done.stderr == ""


def test_an_interrupt_when_nothing_is_left_to_wait_for_is_not_lost():
    """A shard that was being closed was closed, and the stage went on with the next one."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)

    async def main() -> None:
        signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_until_done(main())
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.exhaustive
def test_a_retry_pass_that_is_killed_keeps_what_it_got(site, tmp_path):
    paths = [f"/{n}" for n in range(40)]
    site.routes |= {path: lambda r: r.answer(503) for path in paths}
    source = write_list(tmp_path / "lists" / "part-00000.jsonl.zst", site.urls("/good", *paths))
    command = command_for(source, tmp_path / "out", "--per-host", "1", "--retries", "0")
    subprocess.run(command, check=True, capture_output=True)
    for path in paths:
        del site.routes[path]
    site.asked.clear()
    run_and_kill(site, command, tmp_path / "out", answers=15, retry_pass=2)
    with CrawlDatabase(database_of(tmp_path / "out")) as database:
        fetched = [row["url"] for row in database.rows() if database.outcome(row["url"]).retry_pass == 2]
        assert len(fetched) >= 3
    subprocess.run(command, check=True, capture_output=True)
    counts = site.counts()
    assert counts["/good"] == 0
    assert {url for url in fetched if counts[url.removeprefix(site.url(""))] > 1} == set()
    assert outcomes(tmp_path / "out") == ["ok"] * 41


def test_a_damaged_output_is_written_again_not_believed(site, tmp_path):
    source = write_list(tmp_path / "urls.jsonl.zst", site.urls("/a", "/b"))
    download(source, tmp_path / "out", save_pages=True)
    site.asked.clear()
    for name in ("part-00000.jsonl.zst", "pages/part-00000.warc.gz"):
        file = tmp_path / "out" / name
        good = file.read_bytes()
        file.write_bytes(good[: len(good) // 2])
        download(source, tmp_path / "out", save_pages=True)
        assert file.read_bytes() == good and not site.asked


# Lists and settings


def test_only_the_first_urls_of_all_lists_are_fetched_with_max_urls(site, tmp_path):
    lists = []
    for name in "abcd":
        lists.append(tmp_path / f"{name}.txt")
        lists[-1].write_text("".join(site.url(f"/{name}{n}") + "\n" for n in range(3)))
    lists.insert(1, tmp_path / "aa.txt")
    lists[1].write_text("")  # an empty list is no end
    summary = download(lists, tmp_path / "out", max_urls=4)
    assert summary.tally.read == summary.tally.kept == 4
    assert sorted(path for path in site.counts() if path != "/robots.txt") == ["/a0", "/a1", "/a2", "/b0"]


def test_a_url_that_is_listed_twice_is_fetched_once_and_counted_twice(site, tmp_path):
    assert fetch(tmp_path, site.urls("/a", "/b", "/a")) == ["ok", "ok", "duplicate"]
    assert site.counts()["/a"] == 1


def test_metadata_of_the_list_stays_with_its_page_and_the_page_names_its_own_title(site, tmp_path):
    rows = [Document(site.url("/a"), metadata={"title": "As somebody called it", "score": 12})]
    fetch(tmp_path, rows)
    (document,) = documents_of(tmp_path / "out")
    assert document.metadata == {"title": "Page /a", "score": 12, "domain": "127.0.0.1"}


def test_a_list_longer_than_the_window_is_fetched_whole(site, tmp_path, monkeypatch):
    monkeypatch.setattr(crawler, "WINDOW", 3)
    paths = [f"/{n}" for n in range(20)]
    urls = [site.url(path, host) for path in paths for host in ("127.0.0.1", "localhost")]
    assert fetch(tmp_path, urls) == ["ok"] * 40
    assert [document.url for document in documents_of(tmp_path / "out")] == urls


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"concurrency": 0}, "--concurrency"),
        ({"per_host": 0}, "--per-host"),
        ({"delay": -1.0}, "--delay"),
        ({"timeout": 0.0}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
        ({"max_bytes": 0}, "--max-bytes"),
        ({"extract_memory": 1}, "--extract-memory"),
        ({"extract_timeout": 0.0}, "--extract-timeout"),
        ({"max_urls": -1}, "--max-urls"),
        ({"retries": -1}, "--retries"),
        ({"retry_passes": -1}, "--retry-passes"),
        ({"user_agent": "a\r\nCookie: b"}, "--user-agent"),
        ({"user_agent": " "}, "--user-agent"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, flag):
    with pytest.raises(UsageError, match=flag):
        Download(**settings)


def test_the_pace_may_change_between_runs_and_what_decides_the_result_may_not(site, tmp_path):
    source = write_list(tmp_path / "urls.jsonl.zst", site.urls("/a"))
    download(source, tmp_path / "out")
    assert download(source, tmp_path / "out", concurrency=3, per_host=1, delay=1.0, timeout=9.0).resumed
    with pytest.raises(InputError, match="extractor"):
        download(source, tmp_path / "out", extractor="newspaper")
    download(source, tmp_path / "out", extractor="newspaper", restart=True)
    assert json.loads((tmp_path / "out" / "stage.json").read_text())["settings"]["extractor"] == "newspaper"
    assert site.counts()["/a"] == 2


def test_an_output_of_an_earlier_version_asks_for_a_restart_and_stays_as_it_is(site, tmp_path, webtext):
    """Its pages were in journals and shards, which are not read any more."""
    (tmp_path / "urls.txt").write_text(site.url("/a"))
    flags = ["--input", tmp_path / "urls.txt", "--output", tmp_path / "out", "--allow-private-addresses", "loopback"]
    assert webtext("download", *flags).code == 0
    claim, record = tmp_path / "out" / ".state" / "job.json", tmp_path / "out" / "stage.json"
    for path in (claim, record):
        values = json.loads(path.read_text())
        values.pop("version")
        path.write_text(json.dumps(values | ({"version": 2} if path == record else {})))
    for _ in range(2):
        refused = webtext("download", *flags)
        assert refused.code == 2 and "was made by an earlier version of `webtext download`" in refused.sentence
        assert "--restart" in refused.sentence
        record.unlink(missing_ok=True)  # as an interrupted one has none
    assert webtext("download", *flags, "--restart").code == 0
    assert webtext("download", *flags).code == 0


@pytest.mark.exhaustive
def test_shards_and_pages_go_to_object_storage(site, bucket, tmp_path, webtext, contents):
    (tmp_path / "urls.txt").write_text("\n".join(site.urls("/1", "/2", "/3")) + "\n")

    def download(output, *options) -> dict:
        flags = ["--input", tmp_path / "urls.txt", "--output", output, "--allow-private-addresses", "loopback"]
        result = webtext("download", *flags, "--save-pages", "--workers", 1, *options, "--json")
        assert result.json["out"] == 3
        return {name: data for name, data in contents(output).items() if not name.startswith(("pages/", "outcomes/"))}

    expected = download(tmp_path / "here")
    assert download(bucket / "there", "--state", tmp_path / "state") == expected
    assert any(name.endswith(".warc.gz") for name in contents(bucket / "there" / "pages"))
    assert download(bucket / "there", "--state", tmp_path / "state") == expected
    assert sum(site.counts().values()) == 2 * 4  # three pages and robots.txt, here and there, and none of them again
