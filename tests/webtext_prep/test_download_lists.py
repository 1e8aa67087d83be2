"""A download of several lists: one crawl, so that limits of a host hold for all, and the same bytes for any workers."""

import collections
import sys

import pytest
from jobs import job_of
from outputs import documents_of, outcomes_of
from pages_on_loopback import Site, html

from webtext_prep.stages.download import Download

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and further are hosts on Linux only")

LISTS = 3
HOSTS = [f"127.0.0.{number}" for number in range(1, 10)]
TEXT = "This is a sentence of the page, long enough for anybody to see that it is text. " * 5


class Web(Site):
    """Several hosts with one port. `own`: (host, path) to a status, a body, and more of its answer."""

    def __init__(self):
        super().__init__(HOSTS)
        self.routes.clear()
        self.own = {}
        self.at_once, self.most_at_once = collections.Counter(), collections.Counter()

    def page(self, request):
        host = host_of(request.headers)
        with self.condition:
            self.at_once[host] += 1
            self.most_at_once[host] = max(self.most_at_once[host], self.at_once[host])
        usual = (404, b"", {}) if request.path == "/robots.txt" else (200, html(host + request.path, TEXT), {})
        status, body, more = self.own.get((host, request.path), usual)
        with self.condition:
            self.at_once[host] -= 1
        request.answer(status, body, **more)

    def url(self, host, path):
        return super().url(path, host)

    def redirect(self, host, path, to_host, to_path):
        self.own[host, path] = 302, b"", {"Location": self.url(to_host, to_path)}

    def counts(self):
        return collections.Counter((host_of(headers), path) for path, headers, _ in self.asked)


def host_of(headers):
    """The host that was asked."""
    return headers["Host"].partition(":")[0]


@pytest.fixture
def web():
    found = Web()
    yield found
    found.stop()


def write_lists(folder, urls):
    folder.mkdir(exist_ok=True)
    paths = [folder / f"part-{number:05}.txt" for number in range(LISTS)]
    for number, path in enumerate(paths):
        path.write_text("".join(f"{url}\n" for url in urls[number::LISTS]))
    return paths


def download(lists, output, *, workers=1, **settings):
    values = {"extractor": "resiliparse", "allow_private_addresses": "loopback", "delay": 0.0, "per_host": 1}
    job_of(Download(**values, **settings), lists, output, workers=workers).run()


def made(output):
    """The documents as they are, and the outcomes but for their times."""
    shards = {path.name: path.read_bytes() for path in sorted(output.glob("part-*"))}
    return shards, [{**row, "fetched_at": ""} for row in outcomes_of(output)]


def busy_web(web):
    """Pages, redirects among all hosts, chains of them and a robots.txt elsewhere; gives the URLs."""
    paths = []
    for number, host in enumerate(HOSTS):
        paths += [(host, "/a"), (host, "/b")]
        for step in (1, 2, 4):
            web.redirect(host, f"/to{step}", HOSTS[(number + step) % len(HOSTS)], f"/from{number}")
            paths.append((host, f"/to{step}"))
    for step in range(4):  # a chain through five hosts, and one without an end
        web.redirect(HOSTS[step], "/chain", HOSTS[step + 1], "/chain")
    for number, host in enumerate(HOSTS):
        web.redirect(host, "/round", HOSTS[(number + 1) % len(HOSTS)], "/round")
    paths += [(HOSTS[0], "/chain"), (HOSTS[0], "/round"), (HOSTS[3], "/private"), (HOSTS[4], "/private")]
    web.redirect(HOSTS[3], "/robots.txt", HOSTS[5], "/rules")
    rules = b"User-agent: *\nDisallow: /private\n"
    web.own[HOSTS[5], "/rules"] = 200, rules, {"kind": "text/plain"}
    web.own[HOSTS[4], "/robots.txt"] = 200, rules + b"Crawl-delay: 0.2\n", {"kind": "text/plain"}
    return [web.url(*path) for path in paths]


def test_limits_and_pauses_of_a_host_hold_for_all_lists_and_bytes_do_not_depend_on_workers(web, tmp_path):
    lists = write_lists(tmp_path / "lists", busy_web(web))
    download(lists, tmp_path / "out", workers=LISTS)
    outcomes = collections.Counter(row["outcome"] for row in made(tmp_path / "out")[1])
    assert outcomes == {"ok": 5 * len(HOSTS) + 1, "too_many_redirects": 1, "robots": 2}
    assert set(web.most_at_once.values()) == {1}
    times = sorted(when for _, headers, when in web.asked if host_of(headers) == HOSTS[4])
    # From its robots.txt on: a busy machine may see one request late, and the next one in time.
    assert len(times) >= 7 and all(when - times[0] >= 0.2 * number for number, when in enumerate(times))
    assert {count for (_, path), count in web.counts().items() if path == "/robots.txt"} == {1}
    download(lists, tmp_path / "one")
    assert made(tmp_path / "one") == made(tmp_path / "out")


def test_a_url_in_two_lists_is_fetched_once_and_stands_in_both_shards(web, tmp_path):
    urls = [web.url(HOSTS[0], f"/{name}") for name in "abc"]
    lists = write_lists(tmp_path / "lists", [*urls, urls[1], urls[2], urls[0]])
    download(lists, tmp_path / "out", robots=False)
    assert set(web.counts().values()) == {1} and len(web.asked) == 3
    shards, rows = made(tmp_path / "out")
    assert len(shards) == 3 and [row["outcome"] for row in rows] == ["ok"] * 6


def test_columns_that_only_the_folders_of_a_list_tell_are_metadata(web, tmp_path):
    lists = write_lists(tmp_path / "language=en", [web.url(HOSTS[0], f"/{name}") for name in "abc"])
    download(lists, tmp_path / "out", robots=False)
    assert [document.metadata["language"] for document in documents_of(tmp_path / "out")] == ["en"] * 3


def test_what_failed_behind_a_redirect_is_tried_again_by_the_next_run_and_nothing_else(web, tmp_path):
    trouble, reached = (HOSTS[1], "/trouble"), [(host, "/a") for host in HOSTS]
    web.redirect(HOSTS[0], "/to", *trouble)
    web.own[trouble] = 503, b"", {}
    lists = write_lists(tmp_path / "lists", [web.url(*place) for place in [(HOSTS[0], "/to"), *reached]])

    def run():
        web.asked.clear()
        download(lists, tmp_path / "out", robots=False, retries=0)
        (row,) = (row for row in made(tmp_path / "out")[1] if row["url"].endswith("/to"))
        return row["outcome"], row["passes"], row["attempts"], row["final_url"]

    assert run() == ("http_503", 1, 2, web.url(*trouble))
    assert run() == ("http_503", 2, 4, web.url(*trouble))
    assert web.counts() == {(HOSTS[0], "/to"): 1, trouble: 1}
    del web.own[trouble]
    assert run() == ("ok", 3, 6, web.url(*trouble))
    assert len(web.asked) == 2
    assert run() and not web.asked
