"""A download by several tasks: limits for a host hold for all of them together, and nothing depends on who fetched."""

import collections
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from added_engines.nodes import Nodes
from jobs import job_of
from pages_on_loopback import PATIENCE, Site, html
from processes import until

from webtext_prep.crawl.frontier import rounds
from webtext_prep.crawl.state.database import Entry, Journal
from webtext_prep.crawl.state.page_cache import PageReader, entries_of, segments_in
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running import staging
from webtext_prep.running.job import Job
from webtext_prep.stages.download import Download
from webtext_prep.urls.urls import bucket_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and further are hosts on Linux only")

LISTS = 3
HOSTS = [f"127.0.0.{number}" for number in range(1, 10)]
TEXT = "This is a sentence of the page, long enough for anybody to see that it is text. " * 5


class Web(Site):
    """Several hosts with one port. `own`: (host, path) to a status, a body, and more of its answer."""

    def __init__(self):
        super().__init__(HOSTS)
        self.routes.clear()
        self.own, self.waits = {}, {}
        self.at_once, self.most_at_once = collections.Counter(), collections.Counter()

    def page(self, request):
        host = host_of(request.headers)
        with self.condition:
            self.at_once[host] += 1
            self.most_at_once[host] = max(self.most_at_once[host], self.at_once[host])
        if wait := self.waits.get((host, request.path)):
            wait()
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
    """Lists as `webtext blacklist` splits them."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"part-{number:05}.txt" for number in range(LISTS)]
    for number, path in enumerate(paths):
        own = [url for url in urls if bucket_of(url.split("/")[2].partition(":")[0], LISTS) == number]
        path.write_text("".join(f"{url}\n" for url in own))
        assert own
    return paths


def download_of(lists, output, *, workers=1, engine=None, shared="", **settings):
    values = {"extractor": "resiliparse", "allow_private_addresses": "loopback", "delay": 0.0, "per_host": 1}
    return job_of(
        Download(**values, **settings), lists, output, workers=workers, engine=engine, shared_scratch=str(shared)
    )


def made(output):
    """The documents as they are, and the outcomes but for their times."""
    shards = {path.name: path.read_bytes() for path in sorted(output.glob("part-*"))}
    rows = [
        {"url": row.url, **row.metadata, "fetched_at": ""}
        for path in sorted((output / OUTCOMES).glob("part-*"))
        for row in read_documents(path)
    ]
    return shards, [{**row, "page": None} for row in rows]


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
    web.own[HOSTS[4], "/robots.txt"] = 200, rules + b"Crawl-delay: 0.05\n", {"kind": "text/plain"}
    return [web.url(*path) for path in paths]


@pytest.mark.exhaustive
def test_the_same_bytes_whoever_fetches_and_however_much_is_handed_on(web, tmp_path, monkeypatch):
    lists = write_lists(tmp_path / "lists", busy_web(web))
    download_of(lists, tmp_path / "one").run()
    expected, counts = made(tmp_path / "one"), web.counts()
    outcomes = collections.Counter(row["outcome"] for row in expected[1])
    assert outcomes == {"ok": 5 * len(HOSTS) + 1, "too_many_redirects": 1, "robots": 2}
    lists_and_rounds = []
    map_tasks = Job.map
    monkeypatch.setattr(
        Job,
        "map",
        lambda self, phase, call, tasks, **options: (
            lists_and_rounds.append((phase, len(tasks))) or map_tasks(self, phase, call, tasks, **options)
        ),
    )
    for name, few, shared in (("few", 10_000, ""), ("parts", 0, ""), ("storage", 0, str(tmp_path / "shared"))):
        lists_and_rounds.clear()
        web.asked.clear()
        monkeypatch.setattr(rounds, "FEW", few)
        monkeypatch.setattr(staging, "_known", set())
        download_of(lists, tmp_path / name, engine=Nodes(1), shared=shared, save_pages=bool(shared)).run()
        assert made(tmp_path / name) == expected, name
        later = [("redirects", 1)] if few else [("redirects", LISTS)] * 2 + [("redirects", 1)]
        assert lists_and_rounds == [("pages", LISTS), *later, ("shards", LISTS)]
        pages = {key: count for key, count in web.counts().items() if "robots" not in key[1] and key[1] != "/rules"}
        assert pages == {key: count for key, count in counts.items() if "robots" not in key[1] and key[1] != "/rules"}
    for file in (tmp_path / "storage" / "pages").iterdir():  # those that other tasks have fetched, too
        with PageReader(file) as reader:
            rows = read_documents(tmp_path / "storage" / OUTCOMES / f"{file.name.partition('.')[0]}.jsonl.zst")
            assert all(reader.read(row.metadata) for row in rows if row.metadata["outcome"] == "ok")


def test_what_was_handed_on_and_failed_is_tried_again_by_the_next_run_and_nothing_else(web, tmp_path):
    trouble, reached = (HOSTS[1], "/trouble"), [(host, "/a") for host in HOSTS]
    web.redirect(HOSTS[0], "/to", *trouble)
    web.own[trouble] = 503, b"", {}
    lists = write_lists(tmp_path / "lists", [web.url(*place) for place in [(HOSTS[0], "/to"), *reached]])

    def run():
        web.asked.clear()
        download_of(lists, tmp_path / "out", engine=Nodes(1), robots=False, retries=0).run()
        (row,) = (row for row in made(tmp_path / "out")[1] if row["url"].endswith("/to"))
        return row["outcome"], row["rounds"], row["attempts"], row["final_url"]

    assert run() == ("http_503", 1, 2, web.url(*trouble))
    assert run() == ("http_503", 2, 4, web.url(*trouble))
    assert web.counts() == {(HOSTS[0], "/to"): 1, trouble: 1}
    del web.own[trouble]
    assert run() == ("ok", 3, 6, web.url(*trouble))
    assert len(web.asked) == 2
    assert run() and not web.asked


@pytest.mark.exhaustive
def test_limits_and_pauses_of_a_host_hold_for_all_processes_together(web, tmp_path):
    """Each process had queues of its own for the hosts that redirects led it to."""
    lists = write_lists(tmp_path / "lists", busy_web(web))
    owner = {host: bucket_of(host, LISTS) for host in HOSTS}
    slow, strict = HOSTS[0], HOSTS[4]
    other = next(host for host in HOSTS if owner[host] != owner[slow])
    web.redirect(other, "/a", slow, "/from-elsewhere")
    web.own[strict, "/robots.txt"] = 200, b"User-agent: *\nCrawl-delay: 0.4\n", {"kind": "text/plain"}
    seen_early = []

    def wait():
        """The redirect to this host is out; whoever follows it now asks a second time at once."""
        with web.condition:
            assert web.condition.wait_for(lambda: web.counts()[other, "/a"], PATIENCE)
            seen_early.append(web.condition.wait_for(lambda: (slow, "/from-elsewhere") in web.counts(), 0.5))

    web.waits[slow, "/a"] = wait
    download_of(lists, tmp_path / "out", workers=LISTS).run()
    assert seen_early == [False]
    assert web.counts()[slow, "/from-elsewhere"] == 1
    assert set(web.most_at_once.values()) == {1}
    times = [when for path, headers, when in web.asked if host_of(headers) == strict and path != "/robots.txt"]
    assert len(times) >= 6
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.2


@pytest.mark.parametrize(
    "shared",
    [
        pytest.param(False, id="a shared state folder", marks=pytest.mark.exhaustive),
        pytest.param(True, id="shared storage"),
    ],
)
def test_a_node_that_is_killed_leaves_what_it_had_fetched_to_another_one(web, tmp_path, shared):
    """The journal was on the node's disk, or as an SQLite file on a shared file system, whose locks do not hold."""
    urls = [web.url(host, f"/{number}") for number in range(6) for host in HOSTS]
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    (tmp_path / "shared").mkdir()
    flags = ["--input", tmp_path / "urls.txt", "--output", tmp_path / "out", "--engine", "nodes", "--workers", 1]
    flags += ["--allow-private-addresses", "loopback", "--extractor", "resiliparse", "--delay", 0, "--no-robots"]
    flags += ["--save-pages", *(["--shared-scratch", tmp_path / "shared"] if shared else [])]
    command = [sys.executable, Path(__file__).parent / "support" / "webtext_on_nodes.py", "download", *flags]

    def kept():
        folders = tmp_path.glob("shared/*/journals/*") if shared else tmp_path.glob("out/.state/scratch/journals/*")
        return {entry.row["url"] for folder in folders for file in segments_in(folder) for entry in entries_of(file)}

    def on_node(name):
        (tmp_path / name).mkdir()
        return {"args": list(map(str, command)), "env": {**os.environ, "TMPDIR": str(tmp_path / name)}}

    web.answers = 20
    with subprocess.Popen(**on_node("node1"), stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            until(lambda: len(kept()) >= 10 or process.poll() is not None, "pages that are kept")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    saved = kept()
    assert 10 <= len(saved) <= 20 and not list((tmp_path / "out").rglob("*.sqlite"))
    web.answers = None
    web.asked.clear()
    if shared:  # the list may have changed, too
        urls.reverse()
        (tmp_path / "urls.txt").write_text("\n".join(urls))
    done = subprocess.run(**on_node("node2"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {web.url(host, path) for host, path in web.counts()} == set(urls) - saved
    rows = made(tmp_path / "out")[1]
    assert [(row["url"], row["outcome"]) for row in rows] == [(url, "ok") for url in urls]
    (outcomes,), (pages,) = (list((tmp_path / "out" / folder).iterdir()) for folder in (OUTCOMES, "pages"))
    with PageReader(pages) as reader:
        assert all(reader.read(row.metadata) for row in read_documents(outcomes))


def test_the_journals_of_a_run_on_one_machine_go_to_the_nodes_that_go_on(web, tmp_path):
    urls = [web.url(HOSTS[0], f"/{name}") for name in "abc"]
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    journal = tmp_path / "out" / ".state" / "scratch" / "journals" / "part-00000.sqlite"
    with Journal(journal) as written:
        row = {"outcome": "ok", "status": 200, "bytes": 9, "attempts": 1, "rounds": 1, "fetched_at": ""}
        written.add_many([Entry({"url": urls[1], **row}, Document(urls[1], TEXT), 1)])
        left = {"attempts": 1, "retries": 0, "redirects": 1, "seconds": 0.1, "earlier_attempts": 0, "earlier_rounds": 0}
        written.add_many(
            [Entry({"url": urls[2], "outcome": "redirect", "next": urls[0], "all": False, **left}, None, 1)]
        )
    download_of([tmp_path / "urls.txt"], tmp_path / "out", engine=Nodes(1), robots=False).run()
    assert web.counts() == {(HOSTS[0], "/a"): 1, (HOSTS[0], "/c"): 1}
    assert [row["outcome"] for row in made(tmp_path / "out")[1]] == ["ok"] * 3
