"""Opt-outs from the server to the corpus: obeyed, recorded, ignored; killed, archived, changed afterwards."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from jobs import job_of
from outputs import documents_of, outcomes_of, saved_pages
from pages_on_loopback import PATIENCE, Site, html, write_list

from webtext_prep.cli import main
from webtext_prep.crawl.frontier import crawler, robots
from webtext_prep.errors import InputError
from webtext_prep.opt_outs.decisions import KEYS
from webtext_prep.opt_outs.hosts import Host, encode_host, origin_of
from webtext_prep.opt_outs.preferences import TRAINING_CRAWLERS, HostPreferences, Rule
from webtext_prep.opt_outs.signals import HOST_FILES
from webtext_prep.stages.download import Download
from webtext_prep.stages.extract import Extract

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and further are hosts on Linux only")

OPEN, *REFUSING = (f"127.0.0.{number}" for number in range(2, 9))
FILES = dict(
    zip(
        REFUSING,
        [
            {"/robots.txt": "User-agent: GPTBot\nDisallow: /1\n"},
            {"/robots.txt": "User-agent: *\nContent-Signal: search=yes, ai-train=no\n"},
            {"/robots.txt": "User-agent: *\nContent-Usage: train-ai=n\n"},
            {"/ai.txt": "User-agent: *\nDisallow: /\n"},
            {"/.well-known/tdmrep.json": '[{"location": "/", "tdm-reservation": 1}]'},
            {"/.well-known/tdmrep.json": "no JSON", "/robots.txt": "User-agent: *\nContent-Usage: NO\n"},
        ],
        strict=True,
    )
)
"""What each of some hosts says in its files; of the last one nothing can be read."""
HEADERS = {
    "/header": {"X_Robots_Tag": "noai"},
    "/usage": {"Content_Usage": "train-ai=n"},
    "/tdm": {"tdm_reservation": "1", "tdm_policy": "https://example.org/policy"},
    "/lifted": {"tdm_reservation": "0"},
}
TAGS = {"/tag": '<meta name="robots" content="noai">', "/tdm-tag": '<meta name="tdm-reservation" content="1">'}


class Owners(Site):
    """Hosts of which each says something else, `files`, and pages that say something themselves."""

    def __init__(self):
        super().__init__((OPEN, *REFUSING))
        self.files = dict(FILES)
        self.routes = dict.fromkeys(HOST_FILES, self.host_file)

    def host_file(self, request):
        text = self.files.get(request.headers["Host"].split(":")[0], {}).get(request.path)
        request.answer(404 if text is None else 200, (text or "").encode(), kind="text/plain")

    def page(self, request):
        body = html(f"Page {request.path}").replace(b"</head>", TAGS.get(request.path, "").encode() + b"</head>")
        request.answer(200, body, **HEADERS.get(request.path, {}))


@pytest.fixture
def site():
    site = Owners()
    yield site
    site.stop()


def refused(site):
    """URLs that are refused, each with the signal, and URLs that are not."""
    found = {
        site.url("/1", REFUSING[0]): "robots.txt",
        site.url("/1", REFUSING[1]): "content-signal",
        site.url("/1", REFUSING[2]): "content-usage",
        site.url("/1", REFUSING[3]): "ai.txt",
        site.url("/1", REFUSING[4]): "tdm-reservation",
        site.url("/header", OPEN): "noai",
        site.url("/usage", OPEN): "content-usage",
        site.url("/tdm", OPEN): "tdm-reservation",
        site.url("/tag", OPEN): "noai",
        site.url("/tdm-tag", OPEN): "tdm-reservation",
    }
    free = [
        site.url("/1", OPEN),
        site.url("/2", REFUSING[0]),
        site.url("/lifted", REFUSING[4]),
        site.url("/1", REFUSING[5]),
    ]
    return found, free


def run(stage, source, output):
    return job_of(stage, [source], output, restart=False, workers=1).run()


def download(source, output, **settings):
    values = {"extractor": "resiliparse", "allow_private_addresses": True, "delay": 0.0, **settings}
    return run(Download(**values), source, output)


def test_refused_pages_are_left_out_and_the_row_says_by_which_words(site, tmp_path):
    found, free = refused(site)
    source = write_list(tmp_path / "urls.jsonl.zst", [*found, *free])
    summary = download(source, tmp_path / "out", save_pages=True)
    assert [document.url for document in documents_of(tmp_path / "out")] == free
    assert [url for url, _ in saved_pages(tmp_path / "out")] == free
    assert summary.tally.dropped == {"opted_out": len(found)}
    rows = {row["url"]: row for row in outcomes_of(tmp_path / "out")}
    assert {url: rows[url]["opt_out"] for url in found} == found
    assert rows[site.url("/1", REFUSING[0])]["opt_out_words"] == "User-agent: GPTBot; Disallow: /1"
    assert rows[site.url("/1", REFUSING[3])]["opt_out_source"] == site.url("/ai.txt", REFUSING[3])
    policy = "tdm-reservation: 1; tdm-policy: https://example.org/policy"
    assert rows[site.url("/tdm", OPEN)]["opt_out_words"] == policy
    assert rows[site.url("/tdm", OPEN)]["opt_out_source"] == site.url("/tdm", OPEN)
    assert rows[free[-1]]["opt_outs_unreadable"] == ["content-usage", "tdm-reservation"]
    assert summary.tally.notes["opt_outs_unreadable"] == 1 and summary.tally.notes["opt_out_noai"] == 2


def test_hosts_are_asked_for_three_files_once_and_not_for_pages_that_they_refuse(site, tmp_path):
    found, free = refused(site)
    download(write_list(tmp_path / "urls.jsonl.zst", [*found, *free]), tmp_path / "out")
    asked = [(headers["Host"].split(":")[0], path) for path, headers, _ in site.asked]
    for host in (OPEN, *REFUSING):
        assert sorted(path for at, path in asked if at == host and path in HOST_FILES) == sorted(HOST_FILES)
    assert not any((host, "/1") in asked for host in REFUSING[:4])


RSL = '<rsl xmlns="https://rslstandard.org/rsl"><content url="{}"><license>{}</license></content></rsl>'
SEARCH, FREE = '<permits type="usage">search</permits>', '<permits type="usage">ai-all</permits>'


def test_the_licence_that_a_robots_txt_names_is_asked_for_once_also_at_another_host(site, tmp_path):
    shared, own = site.url("/shared.xml", REFUSING[1]), site.url("/own.xml", OPEN)
    lost = site.url("/lost.xml", REFUSING[2])
    site.files = {
        OPEN: {"/robots.txt": f"User-agent: *\nAllow: /\nLicense: {own}\n", "/own.xml": RSL.format("/1", SEARCH)},
        REFUSING[0]: {"/robots.txt": f"License: {shared}\n"},
        REFUSING[1]: {"/shared.xml": RSL.format("/", FREE)},
        REFUSING[2]: {"/robots.txt": f"License: {lost}\n"},
    }
    site.routes |= dict.fromkeys(["/own.xml", "/shared.xml", "/lost.xml"], site.host_file)
    urls = [site.url(path, host) for host in (OPEN, *REFUSING[:3]) for path in ("/1", "/2")]
    download(write_list(tmp_path / "urls.jsonl.zst", urls), tmp_path / "out")
    rows = {row["url"]: row for row in outcomes_of(tmp_path / "out")}
    refusal = {"opt_out": "rsl", "opt_out_words": '<permits type="usage">search</permits>', "opt_out_source": own}
    assert {key: rows[urls[0]][key] for key in KEYS} == refusal
    assert [row["outcome"] for row in rows.values()] == ["opted_out"] + ["ok"] * 7
    assert [url for url, row in rows.items() if "opt_outs_unreadable" in row] == urls[6:]
    assert sorted(path for path in site.paths if path.endswith(".xml")) == ["/lost.xml", "/own.xml", "/shared.xml"]


def test_what_robots_txt_forbids_is_not_asked_for_either(site, tmp_path):
    site.files = {OPEN: {"/robots.txt": "User-agent: *\nDisallow: /.well-known/\n"}}
    download(write_list(tmp_path / "urls.jsonl.zst", [site.url("/1", OPEN)]), tmp_path / "out")
    assert site.paths == ["/robots.txt", "/ai.txt", "/1"]


def test_recorded_pages_are_kept_with_the_same_words(site, tmp_path):
    found, free = refused(site)
    source = write_list(tmp_path / "urls.jsonl.zst", [*found, *free])
    download(source, tmp_path / "out", opt_outs="record", save_pages=True)
    documents = documents_of(tmp_path / "out")
    assert [document.url for document in documents] == [*found, *free]
    assert {document.url: document.metadata["opt_out"] for document in documents[: len(found)]} == found
    assert not any(KEYS[0] in document.metadata for document in documents[len(found) :])
    assert len(saved_pages(tmp_path / "out")) == len(documents)
    rows = outcomes_of(tmp_path / "out")
    assert {row["outcome"] for row in rows} == {"ok"}
    for row, document in zip(rows, documents, strict=True):
        assert {key: row[key] for key in KEYS if key in row} == {
            key: document.metadata[key] for key in KEYS if key in document.metadata
        }


def test_nothing_is_asked_for_or_said_where_preferences_are_ignored(site, tmp_path):
    found, free = refused(site)
    source = write_list(tmp_path / "urls.jsonl.zst", [*found, *free])
    download(source, tmp_path / "out", opt_outs="ignore")
    documents = documents_of(tmp_path / "out")
    assert [document.url for document in documents] == [*found, *free]
    assert not any(KEYS[0] in document.metadata for document in documents)
    assert not {"/ai.txt", "/.well-known/tdmrep.json"} & set(site.paths)


def redirected(site):
    """A page to which a host that refuses it leads, of one that doesn't; and the other way round."""
    site.files = {REFUSING[0]: {"/robots.txt": "User-agent: GPTBot\nDisallow: /\n"}}
    site.routes["/there"] = lambda request: request.answer(302, Location=site.url("/1", OPEN))
    site.routes["/back"] = lambda request: request.answer(302, Location=site.url("/2", REFUSING[0]))
    return [site.url("/there", REFUSING[0]), site.url("/back", OPEN)]


def test_a_page_is_refused_by_the_host_that_it_is_of_and_by_one_on_the_way_to_it(site, tmp_path):
    """In a crawl, in saved pages, and in a corpus afterwards."""
    urls = redirected(site)
    source = write_list(tmp_path / "urls.jsonl.zst", [*urls, site.url("/free", OPEN)])
    for name in ("obey", "record", "ignore"):
        download(source, tmp_path / name, opt_outs=name, save_pages=True)
    hosts = tmp_path / "hosts.jsonl"
    assert ask(tmp_path / "ignore", hosts, "--takedown", tmp_path / "refused.txt") == 0
    assert (tmp_path / "refused.txt").read_text().split() == urls
    run(Extract(extractor="resiliparse", opt_outs_from=str(hosts)), tmp_path / "ignore", tmp_path / "extracted")
    words = "User-agent: GPTBot; Disallow: /"
    for name, outcome in (("obey", "opted_out"), ("record", "ok"), ("extracted", "opted_out")):
        rows = [(row["url"], row["outcome"], row.get("opt_out_words")) for row in outcomes_of(tmp_path / name)]
        assert rows[:2] == [(url, outcome, words) for url in urls]


TDM = "/.well-known/tdmrep.json"


def test_a_file_of_a_host_that_fails_can_not_be_read_and_a_redirect_of_ai_txt_says_nothing(site, tmp_path):
    site.routes["/ai.txt"] = lambda request: request.answer(302, Location=site.url("/refusal", OPEN))
    site.routes[TDM] = lambda request: request.answer(503)
    download(write_list(tmp_path / "urls.jsonl.zst", [site.url("/1", OPEN)]), tmp_path / "out")
    (row,) = outcomes_of(tmp_path / "out")
    assert (row["outcome"], row["opt_outs_unreadable"]) == ("ok", ["tdm-reservation"])
    assert "/refusal" not in site.paths and site.counts()[TDM] == 1


def test_a_redirected_tdmrep_json_is_the_one_behind_it(site, tmp_path):
    """It counted as none: TDMRep, "TDM File on the Origin Server", lets it be elsewhere by a redirect."""
    there = {
        OPEN: site.url("/rules.json", REFUSING[0]),
        REFUSING[1]: site.url(TDM, REFUSING[1]),  # itself
        REFUSING[2]: "http://10.0.0.1/tdmrep.json",
        REFUSING[3]: site.url("/private/rules.json", REFUSING[3]),
    }
    rules = b'[{"location": "/1", "tdm-reservation": 1}]'
    site.files = {REFUSING[3]: {"/robots.txt": "User-agent: *\nDisallow: /private/"}}

    def answer(request):
        target = there.get(request.headers["Host"].split(":")[0])
        request.answer(404 if target is None else 302, **({} if target is None else {"Location": target}))

    site.routes |= {
        TDM: answer,
        "/rules.json": lambda request: request.answer(body=rules, kind="application/json"),
        "/private/rules.json": lambda request: request.answer(body=rules, kind="application/json"),
    }
    urls = [site.url("/1", OPEN), site.url("/2", OPEN), *(site.url("/1", host) for host in REFUSING[1:4])]
    download(write_list(tmp_path / "urls.jsonl.zst", urls), tmp_path / "out", allow_private_addresses="loopback")
    rows = outcomes_of(tmp_path / "out")
    assert [row.get("opt_out") for row in rows] == ["tdm-reservation", None, None, None, None]
    assert [row.get("opt_outs_unreadable") for row in rows[2:]] == [["tdm-reservation"]] * 3
    assert "/private/rules.json" not in site.paths


def test_the_files_of_a_host_are_asked_for_once_a_day_however_many_hosts_there_are(site, tmp_path, monkeypatch):
    """With more hosts than memory holds they were asked for again and again: they are on disk, also over a resume."""
    monkeypatch.setattr(robots, "KEPT_ORIGINS", 1)
    site.files = {REFUSING[0]: FILES[REFUSING[0]]}
    hosts = (OPEN, *REFUSING)
    source = tmp_path / "urls.jsonl.zst"

    def run(numbers, **settings):
        urls = [site.url(f"/{number}", host) for number in range(numbers) for host in hosts]
        download(write_list(source, urls), tmp_path / "out", concurrency=2, **settings)
        return {(row["url"], row.get("opt_out")) for row in outcomes_of(tmp_path / "out")}

    refused = {(site.url("/1", REFUSING[0]), "robots.txt")}
    assert refused < run(3)
    files = [path for path in site.paths if path in HOST_FILES]
    assert len(files) == 3 * len(hosts)
    assert refused < run(4)
    assert [path for path in site.paths if path in HOST_FILES] == files
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + robots.KEPT_SECONDS + 1)
    run(5)
    assert len([path for path in site.paths if path in HOST_FILES]) == 2 * len(files)


def test_what_hosts_say_goes_with_a_page_that_is_taken_out_of_a_list(site, tmp_path):
    source = tmp_path / "urls.jsonl.zst"
    download(write_list(source, [site.url("/1", OPEN), site.url("/1", REFUSING[5])]), tmp_path / "out")
    download(write_list(source, [site.url("/1", OPEN)]), tmp_path / "out")
    (database,) = (tmp_path / "out").rglob("crawl.sqlite")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM hosts").fetchone() == (0,)


def command(*words):
    return [
        sys.executable,
        "-m",
        "webtext_prep",
        *map(str, words),
        "--allow-private-addresses",
        "loopback",
        "--delay",
        "0",
    ]


def kill_after(site, words, requests):
    """Run a command, and kill it once a site has had so many requests, of which it answers no more."""
    site.answers = requests
    process = subprocess.Popen(command(*words), stderr=subprocess.DEVNULL)
    with site.condition:
        assert site.condition.wait_for(lambda: len(site.asked) >= requests, PATIENCE)
    return process


@pytest.mark.exhaustive
def test_a_killed_download_goes_on_to_the_bytes_of_one_that_was_not(site, tmp_path):
    found, free = refused(site)
    more = [site.url(f"/{number}", host) for number in range(10, 20) for host in (OPEN, *REFUSING)]
    source = write_list(tmp_path / "urls.jsonl.zst", [*found, *free, *more])
    words = ["download", "--input", source, "--extractor", "resiliparse", "--per-host", 1]
    process = kill_after(site, [*words, "--output", tmp_path / "out"], 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    site.answers = None
    for name in ("out", "reference"):
        subprocess.run(command(*words, "--output", tmp_path / name), check=True, stderr=subprocess.DEVNULL)
    names = ("part-00000.jsonl.zst", "stage.json")
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == [
        (tmp_path / "reference" / name).read_bytes() for name in names
    ]
    rows = [[{**row, "fetched_at": None} for row in outcomes_of(tmp_path / name)] for name in ("out", "reference")]
    assert rows[0] == rows[1]


# Archives and saved pages


def test_saved_pages_are_extracted_as_they_were_fetched(site, tmp_path):
    """What the owner of a page said when it was fetched holds for the page as it was saved."""
    found, free = refused(site)
    source = write_list(tmp_path / "urls.jsonl.zst", [*found, *free])
    download(source, tmp_path / "record", opt_outs="record", save_pages=True)
    run(Extract(extractor="resiliparse", opt_outs="record"), tmp_path / "record", tmp_path / "again")
    for shard in sorted((tmp_path / "record").glob("part-*")):
        assert (tmp_path / "again" / shard.name).read_bytes() == shard.read_bytes()
    summary = run(Extract(extractor="resiliparse"), tmp_path / "record", tmp_path / "obeyed")
    assert [document.url for document in documents_of(tmp_path / "obeyed")] == free
    assert {row["url"]: row["opt_out"] for row in outcomes_of(tmp_path / "obeyed") if "opt_out" in row} == found
    assert summary.tally.dropped == {"opted_out": len(found)}


def warc(path, answers):
    """An archive of answers: URL, type, body, more headers, and the date."""
    records = b""
    for url, kind, body, more, date in answers:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode()
        records += (
            (
                f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: {date}\r\n"
                f"WARC-Record-ID: <urn:uuid:{len(records):032}>\r\nContent-Type: application/http; msgtype=response\r\n"
                f"Content-Length: {len(head + body)}\r\n\r\n"
            ).encode()
            + head
            + body
            + b"\r\n\r\n"
        )
    path.write_bytes(records)
    return path


def test_files_of_hosts_in_an_archive_decide_wherever_they_lie(tmp_path):
    """In this archive or the next, before the page or after it; of several of a host the newest."""
    (tmp_path / "in").mkdir()
    page, day, later = html("A page"), "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    no, yes = b"User-agent: CCBot\nDisallow: /", b"User-agent: CCBot\nDisallow:"
    warc(
        tmp_path / "in" / "a.warc",
        [
            ("https://a.org/1", "text/html", page, "", day),
            ("https://b.org/1", "text/html", page, "X-Robots-Tag: noai\r\n", day),
            ("https://c.org/1", "text/html", page, "", day),
            ("https://c.org/robots.txt", "text/plain", no, "", day),
            ("https://d.org/1", "text/html", page, "", day),
        ],
    )
    warc(
        tmp_path / "in" / "b.warc",
        [
            ("https://a.org/robots.txt", "text/plain", no, "", day),
            ("https://c.org/robots.txt", "text/plain", yes, "", later),
            ("https://d.org/.well-known/tdmrep.json", "application/json",
             b'[{"location": "/", "tdm-reservation": 1}]', "", day),
        ],
    )  # fmt: skip
    run(Extract(extractor="resiliparse"), tmp_path / "in", tmp_path / "out")
    rows = {row["url"]: row.get("opt_out", row["outcome"]) for row in outcomes_of(tmp_path / "out")}
    assert {url: rows[url] for url in rows if url.endswith("/1")} == {
        "https://a.org/1": "robots.txt",
        "https://b.org/1": "noai",
        "https://c.org/1": "ok",
        "https://d.org/1": "tdm-reservation",
    }
    run(Extract(extractor="resiliparse", opt_outs="ignore"), tmp_path / "in", tmp_path / "all")
    assert len(documents_of(tmp_path / "all")) == 4


def test_an_extraction_is_made_again_when_hosts_say_something_else(tmp_path):
    hosts, pages = tmp_path / "hosts.jsonl", tmp_path / "in"
    pages.mkdir()
    warc(pages / "a.warc", [(f"https://{name}.org/1", "text/html", html("A page"), "", "2026") for name in "ab"])
    stage = Extract(extractor="resiliparse", opt_outs_from=str(hosts))
    with pytest.raises(InputError, match=r"--opt-outs-from .*hosts.jsonl is no file"):
        run(stage, pages, tmp_path / "out")
    hosts.write_text("")
    assert run(stage, pages, tmp_path / "out").tally.kept == 2
    said = HostPreferences.of(TRAINING_CRAWLERS, "https://a.org/robots.txt", [Rule("/", False, "Disallow: /")])
    hosts.write_bytes(encode_host(Host("https://a.org", rules=said.rules)) + b"\n")
    assert run(stage, pages, tmp_path / "out").tally.dropped == {"opted_out": 1}


# Later


def ask(source, output, *more):
    return main(command("opt-outs", source, "--output", output, *more)[3:])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_hosts_say_is_found_without_asking_for_pages_and_extract_reads_it(site, tmp_path, capsys):
    found, free = refused(site)
    source = write_list(tmp_path / "urls.jsonl.zst", [*found, *free])
    download(source, tmp_path / "saved", opt_outs="ignore", save_pages=True)
    site.asked.clear()
    hosts = tmp_path / "hosts.jsonl"
    assert ask(source, hosts, "--takedown", tmp_path / "refused.txt", "--json") == 0
    assert set(site.paths) == set(HOST_FILES)
    told = json.loads(capsys.readouterr().out)
    by_host = {url: signal for url, signal in found.items() if OPEN + ":" not in url}
    assert told["hosts"] == len(REFUSING) + 1 and told["refused"] == len(by_host) + 1  # and what a header lifts
    assert [line["host"] for line in lines_of(hosts)] == sorted({origin_of(url) for url in [*found, *free]})
    assert (tmp_path / "refused.txt").read_text().split()[: len(by_host)] == list(by_host)
    stage, said = Extract(extractor="resiliparse", opt_outs_from=str(hosts)), hosts.read_text()
    hosts.write_text("")
    run(stage, tmp_path / "saved", tmp_path / "out")
    hosts.write_text(said)  # asked again: the finished output follows
    run(stage, tmp_path / "saved", tmp_path / "out")
    assert {row["url"]: row["opt_out"] for row in outcomes_of(tmp_path / "out") if "opt_out" in row} == found


def test_a_host_whose_edge_refuses_or_whose_licence_does_has_its_pages_taken_down(site, tmp_path, capsys):
    licence = '<rsl xmlns="https://rslstandard.org/rsl"><content url="/"><license><prohibits type="usage">ai-train'
    site.files = {REFUSING[0]: {"/robots.txt": f"License: {site.url('/licence.xml', OPEN)}\n"}}
    site.routes["/licence.xml"] = lambda request: request.answer(
        200, f"{licence}</prohibits></license></content></rsl>".encode(), kind="application/rsl+xml"
    )
    answers = {REFUSING[1]: (402, {"crawler_price": "USD 0.01"}), REFUSING[2]: (403, {"cf_mitigated": "challenge"})}
    answers |= {REFUSING[3]: (403, {}), REFUSING[4]: (503, {})}

    def robots_txt(request):
        status, headers = answers.get(request.headers["Host"].split(":")[0], (0, {}))
        if status:
            request.answer(status, b"no", **headers)
        else:
            site.host_file(request)

    site.routes["/robots.txt"] = robots_txt
    urls = [site.url("/1", host) for host in (OPEN, *REFUSING[:5])]
    source, hosts = write_list(tmp_path / "urls.jsonl.zst", urls), tmp_path / "hosts.jsonl"
    for _ in range(2):  # what was said before stays the only word of it
        assert ask(source, hosts, "--takedown", tmp_path / "refused.txt", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["by_signal"] == {"rsl": 1, "payment_required": 1, "refused_by_edge": 1}
        assert (tmp_path / "refused.txt").read_text().split() == urls[1:4]
        assert [len(line.get("rules", [])) for line in lines_of(hosts)] == [0, 1, 1, 1, 0, 0]


def test_a_file_that_holds_no_hosts_is_named(site, tmp_path, capsys):
    (tmp_path / "hosts.jsonl").write_text('{"host": "http://a.org"}\n{"outcome": 7}\n')
    (tmp_path / "urls.txt").write_text(site.url("/1", OPEN))
    assert ask(tmp_path / "urls.txt", tmp_path / "hosts.jsonl") == 2
    assert "hosts.jsonl, line 2, is not what a host says" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["same.jsonl", "--takedown", "same.jsonl"], ["s3://bucket/hosts.jsonl"]])
def test_files_that_can_not_be_written_are_refused_before_anybody_is_asked(site, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "urls.txt").write_text(site.url("/1", OPEN))
    assert ask("urls.txt", *words) == 2
    assert "must be two files on this machine" in capsys.readouterr().err
    assert not site.asked and [path.name for path in tmp_path.iterdir()] == ["urls.txt"]


def test_killed_while_it_asks_it_goes_on_with_the_hosts_that_are_left(site, tmp_path):
    source = write_list(tmp_path / "urls.jsonl.zst", [site.url("/1", host) for host in (OPEN, *REFUSING)])
    process = kill_after(site, ["opt-outs", source, "--output", tmp_path / "hosts.jsonl"], 18)
    part, deadline = tmp_path / "hosts.jsonl.part", time.monotonic() + PATIENCE
    while not part.exists() or not part.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    known = {line["host"] for line in lines_of(part)}
    assert known
    part.write_bytes(part.read_bytes() + b'{"host": "http://half')
    site.answers = None
    site.asked.clear()
    assert ask(source, tmp_path / "hosts.jsonl") == 0
    assert not {f"http://{headers['Host']}" for _, headers, _ in site.asked} & known
    assert len(lines_of(tmp_path / "hosts.jsonl")) == len(REFUSING) + 1 and not part.exists()


def test_what_a_host_said_holds_while_it_can_not_be_asked(site, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.0)
    (tmp_path / "urls.txt").write_text(site.url("/1", REFUSING[0]) + "\n")
    assert ask(tmp_path / "urls.txt", tmp_path / "hosts.jsonl") == 0
    site.routes["/robots.txt"] = lambda request: request.answer(503)
    capsys.readouterr()
    assert ask(tmp_path / "urls.txt", tmp_path / "hosts.jsonl", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["asked_in_vain"], told["refused"], told["refuse_no_more"]) == (1, 1, [])
    (line,) = lines_of(tmp_path / "hosts.jsonl")
    assert line["outcome"] == "robots_unreachable" and line["rules"][0]["signal"] == "robots.txt"


def test_a_comparison_that_ends_in_an_error_is_made_by_the_same_command_again(site, tmp_path, capsys):
    site.files, urls = {}, tmp_path / "urls.txt"
    urls.write_text(site.url("/1", REFUSING[0]) + "\n")
    assert ask(urls, tmp_path / "hosts.jsonl") == 0
    site.files = FILES
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert ask(urls, tmp_path / "hosts.jsonl", "--takedown", blocked / "refused.txt") != 0
    capsys.readouterr()
    assert ask(urls, tmp_path / "hosts.jsonl", "--takedown", tmp_path / "refused.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["refuse_now"] == [origin_of(site.url("/1", REFUSING[0]))]


def test_hosts_that_say_no_after_the_crawl_leave_a_corpus_as_if_they_always_had(site, tmp_path, capsys):
    """opt-outs, takedown, and every document is that of a fresh run, byte for byte."""
    site.files = {}
    urls = [site.url(f"/{number}", host) for number in range(3) for host in (OPEN, *REFUSING[:3])]
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "urls.txt").write_text("\n".join(urls) + "\n")

    def make(name):
        words = ["--allow-private-addresses", "loopback", "--delay", "0", "--extractor", "resiliparse"]
        assert main(["download", str(lists), "--output", str(tmp_path / name / "pages"), "--workers", "1", *words]) == 0
        merge = ["merge", str(tmp_path / name / "pages"), "--output", str(tmp_path / name / "merged"), "--workers", "1"]
        assert main(merge) == 0

    make("work")
    corpus, hosts, refused_file = tmp_path / "work" / "merged", tmp_path / "hosts.jsonl", tmp_path / "refused.txt"
    assert ask(corpus, hosts) == 0
    site.files = {host: FILES[host] for host in REFUSING[:2]}
    capsys.readouterr()
    assert ask(corpus, hosts, "--takedown", refused_file, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(told["refuse_now"]) == sorted(origin_of(site.url("/", host)) for host in REFUSING[:2])
    assert told["refuse_no_more"] == []
    gone = refused_file.read_text().split()
    assert gone and set(gone) < set(urls)
    (lists / "urls.txt").write_text("\n".join(url for url in urls if url not in gone) + "\n")
    assert main(["takedown", str(corpus), "--urls", str(refused_file), "--apply", "--workers", "1"]) == 0
    (lists / "urls.txt").write_text("\n".join(urls) + "\n")
    make("fresh")
    assert not {document.url for document in documents_of(tmp_path / "work" / "merged")} & set(gone)
    for folder in ("pages", "merged"):
        for shard in sorted((tmp_path / "fresh" / folder).glob("part-*")):
            assert (tmp_path / "work" / folder / shard.name).read_bytes() == shard.read_bytes()
