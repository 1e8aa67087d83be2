"""Pages that are gone: what web archives have of them is recovered, politely, and nothing of the archives' own."""

import collections
import contextlib
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys

import pytest
from jobs import job_of
from outputs import documents_of, outcomes_of
from pages_on_loopback import write_list
from web_archives import FILES, INDEX, WAYBACK, Captured, WebArchives

from command_kit import UsageError
from webtext_prep import cli
from webtext_prep.crawl.archives import common_crawl
from webtext_prep.crawl.frontier import crawler
from webtext_prep.documents.document import Document
from webtext_prep.errors import WebtextError
from webtext_prep.stages import download as download_stage
from webtext_prep.stages.download import Download
from webtext_prep.stages.extract import Extract

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.21 is a host on Linux only")

BOTH = ("wayback", "common-crawl")
PAUSE = 0.01
WORDS = "This is a sentence of the page that was there, long enough for anybody to see that it is text. "


@pytest.fixture
def archives(monkeypatch):
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(crawler, "ARCHIVE_PAUSE", 0.05)
    monkeypatch.setattr(common_crawl, "PIECE_BYTES", 300)
    monkeypatch.setattr(common_crawl, "OVERLAP_BYTES", 200)
    found = WebArchives()
    yield found
    found.stop()


def html(title, text):
    return f"<html><head><title>{title}</title></head><body><article><p>{text}</p></article></body></html>".encode()


def old(name):
    return html(f"Old {name}", WORDS * 10)


def download(archives, inputs, output, *, workers=1, **settings):
    values = {"extractor": "resiliparse", "allow_private_addresses": "loopback", "delay": 0.0, "archive": BOTH}
    values |= {"archive_requests": int(3600 / PAUSE), "retries": 1, **archives.settings, **settings}
    inputs = inputs if isinstance(inputs, list) else [inputs]
    with contextlib.suppress(WebtextError):  # nothing kept: the outcomes are there nevertheless
        return job_of(Download(**values), inputs, output, workers=workers).run()


def check_limits(archives, pause=PAUSE):
    """No archive was asked for two things at once, nor, from the first request to the last, more than its budget."""
    assert set(archives.most_at_once.values()) == {1}
    for hosts in ((WAYBACK,), (FILES, INDEX)):
        times = [when for at, _, when in archives.asked if at in hosts]
        assert len(times) > 10 and times[-1] - times[0] > 0.9 * pause * (len(times) - 1)


def rows_of(tmp_path, archives, urls, **settings):
    """Download `urls`, which may be rows of a list, and give back the row of each."""
    output = tmp_path / "out"
    download(archives, write_list(tmp_path / "urls.jsonl.zst", urls), output, **settings)
    return {row["url"]: row for row in outcomes_of(output)}


def test_of_a_list_that_is_gone_all_that_is_archived_is_recovered_and_no_archive_is_asked_too_often(archives, tmp_path):
    sold = b"<html><head><title>Offer</title></head><body><script src='//sedoparking.com/x.js'></script></body></html>"
    for n in range(4):
        archives.live |= {f"/dropped/{n}": (410, b""), f"/sold/{n}": (200, sold)}
        archives.live[f"/soft/{n}"] = 200, html("Page not found | Site", "Sorry.")
    urls = [*map(archives.url, [*archives.live, *(f"/gone/{n}" for n in range(8))])]
    urls += [f"http://no-such-host-{n}.invalid/" for n in range(4)]
    archives.live |= {"/a": (200, old("a")), "/b": (200, old("b"))}
    archived = urls[::2]
    for number, url in enumerate(archived):
        if number % 2:
            archives.wayback[url] = [Captured(f"2019030{number % 9 + 1}120000", old(url))]
        else:
            archives.crawls.setdefault("CC-MAIN-2019-18", {})[url] = [Captured("20190422080000", old(url))]
    archives.write_crawls()
    live = [archives.url("/a"), archives.url("/b")]
    rows = rows_of(tmp_path, archives, [*urls, *live])
    assert {url for url, row in rows.items() if row["outcome"] == "archived"} == set(archived)
    assert [rows[url]["outcome"] for url in live] == ["ok", "ok"]
    left = {url: row["outcome"] for url, row in rows.items() if url in urls and url not in archived}
    assert set(left.values()) == {"http_404", "http_410", "soft_404", "parked", "dns"}
    none = {"wayback": "not_archived", "common-crawl": "not_archived"}
    assert all(rows[url]["archives"] == none for url in left)
    by_url = {document.url: document for document in documents_of(tmp_path / "out")}
    assert by_url.keys() == {*archived, *live}
    for number, url in enumerate(archived):
        name, day = ("wayback", f"0{number % 9 + 1}T12") if number % 2 else ("common-crawl", "22T08")
        capture = {"archive": name, "captured_at": f"2019-{'03' if number % 2 else '04'}-{day}:00:00Z"}
        assert capture.items() <= rows[url].items() and capture.items() <= by_url[url].metadata.items()
        assert by_url[url].text.startswith(WORDS.strip()) and by_url[url].metadata["title"] == f"Old {url}"
    assert not any("archive" in by_url[url].metadata for url in live)
    check_limits(archives)
    counts = collections.Counter(path for _, path, _ in archives.asked)
    assert counts.pop("/robots.txt") == 3
    assert set(counts.values()) == {1}  # no piece, block or record twice


def test_archives_are_never_asked_by_default_and_later_only_for_what_is_gone(archives, tmp_path):
    gone, live = archives.url("/gone"), archives.url("/live")
    archives.live["/live"] = 200, old("live")
    archives.wayback[gone] = [Captured("20190301120000", old(gone))]
    assert rows_of(tmp_path, archives, [gone, live], archive=())[gone]["outcome"] == "http_404"
    assert not archives.asked
    archives.asked_live.clear()
    row = rows_of(tmp_path, archives, [gone, live])[gone]
    assert (row["outcome"], row["gone"], row["passes"], row["attempts"]) == ("archived", "http_404", 2, 3)
    assert not archives.asked_live and archives.asked
    archives.asked.clear()
    assert rows_of(tmp_path, archives, [gone, live])[gone] == row
    assert not archives.asked_live and not archives.asked


def replays(archives, url, first):
    """The Wayback Machine has a bad capture of a URL, the nearest to 2019, and a good one."""
    archives.wayback[url] = [first, Captured("20150101000000", old(url))]


def test_no_page_of_the_archive_itself_and_no_broken_capture_is_taken_for_the_page(archives, tmp_path):
    """Each has a good capture too, further away: whatever is wrong with the nearest one must lead there."""
    near = "20190101000000"
    packed = gzip.compress(old("packed"))
    replays(archives, archives.url("/own"), Captured(near, html("Hrm.", WORDS * 9), is_own=True))
    replays(archives, archives.url("/not-found"), Captured(near, html("Not Found", WORDS * 9), 404))
    replays(archives, archives.url("/soft"), Captured(near, html("404 Not Found", "Go home.")))
    replays(archives, archives.url("/parked"), Captured(near, html("example.com is for sale", "Buy it.")))
    replays(archives, archives.url("/empty"), Captured(near, b"<html></html>"))
    replays(archives, archives.url("/image"), Captured(near, b"\x89PNG", kind="image/png"))
    replays(archives, archives.url("/broken-gzip"), Captured(near, packed[:-20]))
    moved = {"Location": f"/web/20190202000000id_/{archives.url('/elsewhere')}"}
    replays(archives, archives.url("/redirect"), Captured(near, b"", 302, headers=moved))
    outside = {"Location": archives.url("/live")}
    replays(archives, archives.url("/outside"), Captured(near, b"", 302, headers=outside))
    round_and_round = {"Location": f"/web/{near}id_/{archives.url('/loop')}"}
    replays(archives, archives.url("/loop"), Captured(near, b"", 302, headers=round_and_round))
    bad = list(archives.wayback)
    archives.live["/live"] = 200, old("live")
    archives.wayback[archives.url("/elsewhere")] = [Captured("20190202000000", old("elsewhere"))]
    archives.wayback[archives.url("/packed")] = [Captured(near, packed)]
    other_time = {"Location": f"/web/20190202000000id_/{archives.url('/other-time')}"}
    archives.wayback[archives.url("/other-time")] = [
        Captured(near, b"", 302, headers=other_time), Captured("20190202000000", old("other-time"))
    ]  # fmt: skip
    good = [archives.url("/packed"), archives.url("/other-time")]
    rows = rows_of(tmp_path, archives, [*bad, *good], archive=("wayback",), archive_date="2019")
    assert {url: row.get("captured_at") for url, row in rows.items()} == {
        **dict.fromkeys(bad, "2015-01-01T00:00:00Z"),
        good[0]: "2019-01-01T00:00:00Z",
        good[1]: "2019-02-02T00:00:00Z",
    }
    assert "/live" not in archives.asked_live
    assert {document.url for document in documents_of(tmp_path / "out")} == {*bad, *good}


def test_a_capture_of_another_page_is_none_whatever_the_index_says(archives, tmp_path):
    star, weird = archives.url("/wiki*"), archives.url("/weird")
    elsewhere = f"http://127.0.0.25:{archives.port}/secret"
    for url in (archives.url("/wiki_other_page"), weird, elsewhere):
        archives.wayback[url] = [Captured("20190301120000", old(url))]
    archives.listed_as[weird] = elsewhere
    rows = rows_of(tmp_path, archives, [star, weird], archive=("wayback",))
    assert {row["archives"]["wayback"] for row in rows.values()} == {"not_archived"}
    assert {path.partition("?")[0] for _, path, _ in archives.pages()} == {"/cdx/search/cdx"}


def test_a_capture_of_a_time_that_never_was_costs_itself_alone(archives, tmp_path):
    good, late = archives.url("/good"), archives.url("/late")
    archives.wayback[good] = [Captured("20190301120000", old(good))]
    never = {"Memento_Datetime": "Fri, 31 Dec 9999 23:59:59 -2359"}
    archives.wayback[late] = [Captured("20190301120000", old(late), headers=never)]
    rows = rows_of(tmp_path, archives, [late, good], archive=("wayback",))
    assert rows[good]["outcome"] == "archived" and rows[late]["archives"] == {"wayback": "malformed_response"}


def test_answers_of_an_archive_that_are_no_answers_leave_the_url_as_it_was(archives, tmp_path):
    urls = {name: archives.url(f"/{name}") for name in ("words", "list", "empty", "forbidden", "cut")}
    broken = {"words": b"{", "list": b'[["timestamp", "original"], 7]', "empty": b"", "cut": b'[["times'}

    def trouble(request):
        name = next((name for name in urls if f"/{name}&" in request.path), "")
        if name == "forbidden":
            request.answer(403, b"Blocked Site Error")
        elif name:
            request.answer(200, broken[name])
        return bool(name)

    archives.trouble = trouble
    rows = rows_of(tmp_path, archives, urls.values(), archive=("wayback",))
    assert {name: (rows[url]["outcome"], rows[url]["archives"]["wayback"]) for name, url in urls.items()} == {
        "words": ("http_404", "malformed_response"), "list": ("http_404", "malformed_response"),
        "empty": ("http_404", "not_archived"), "forbidden": ("http_404", "http_403"),
        "cut": ("http_404", "malformed_response"),
    }  # fmt: skip


def test_broken_files_of_common_crawl_cost_a_capture_and_never_give_another_page(archives, tmp_path):
    """What is wrong: a record cut off, damaged, truncated by the crawler, of another page; an index that is empty."""
    names = ("cut", "damaged", "truncated", "other", "soft")
    urls = {name: archives.url(f"/{name}") for name in names}
    near, far = "CC-MAIN-2019-04", "CC-MAIN-2018-05"
    archives.crawls = {
        near: {url: [Captured("20190120000000", old(url))] for url in urls.values()},
        far: {url: [Captured("20180120000000", old(url))] for url in urls.values()},
        "CC-MAIN-2018-51": {},
    }
    archives.crawls[near][urls["soft"]] = [Captured("20190120000000", html("Page not found", "Go home."))]
    archives.truncated = {(near, urls["truncated"])}
    archives.write_crawls()
    archives.files["/cc-index/collections/CC-MAIN-2018-51/indexes/cluster.idx"] = b""
    place = f"/crawl-data/{near}/0.warc.gz"
    entries = {entry["url"]: entry for entry in archives.entries[near]}
    damaged, offset = bytearray(archives.files[place]), int(entries[urls["damaged"]]["offset"])
    damaged[offset + 200 : offset + 240] = bytes(40)
    archives.files[place] = bytes(damaged)
    other = entries[urls["damaged"]] | entries[urls["soft"]]
    archives.moved = {(place, int(entries[urls["other"]]["offset"])): (int(other["offset"]), int(other["length"]))}
    archives.shortened = {(place, int(entries[urls["cut"]]["offset"]))}
    rows = rows_of(tmp_path, archives, urls.values(), archive=("common-crawl",), archive_date="2019-02")
    assert {url: row.get("captured_at") for url, row in rows.items()} == dict.fromkeys(
        urls.values(), "2018-01-20T00:00:00Z"
    )
    assert all(document.text.startswith(WORDS.strip()) for document in documents_of(tmp_path / "out"))


def test_a_storm_of_503_is_waited_out_by_all(archives, tmp_path):
    urls = [archives.url(f"/{name}") for name in "abcd"]
    for url in urls:
        archives.wayback[url] = [Captured("20190301120000", old(url))]
    left = ["1", None]  # what the storm's answers ask for

    def storm(request):
        if request.host == WAYBACK and request.path != "/robots.txt" and left:
            asked = left.pop(0)
            request.answer(503, b"Slow Down", **({} if asked is None else {"Retry_After": asked}))
            return True
        return False

    archives.trouble = storm
    rows = rows_of(tmp_path, archives, urls, archive=("wayback",), retries=2)
    times = [when for _, _, when in archives.pages(WAYBACK)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] >= 1.0 and gaps[1] >= 0.05 * 2
    assert {row["outcome"] for row in rows.values()} == {"archived"}


def test_an_archive_that_wants_to_be_left_alone_is_and_the_next_run_asks_it_for_what_is_left(archives, tmp_path):
    urls = [archives.url(f"/{number}") for number in range(4)]
    for url in urls:
        archives.wayback[url] = [Captured("20190301120000", old(url))]
    asked = []

    def trouble(request):
        asked.append(request.path)
        if len(asked) == 4:  # robots.txt, and the first page
            request.answer(429, Retry_After="7200")
        return len(asked) == 4

    archives.trouble = trouble
    rows = rows_of(tmp_path, archives, urls, archive=("wayback",))
    assert len(asked) == 4
    found = collections.Counter((row["outcome"], row.get("archives", {}).get("wayback")) for row in rows.values())
    assert found == {("archived", None): 1, ("http_404", "http_429"): 1, ("http_404", "host_down"): 2}
    archives.asked_live.clear()
    rows = rows_of(tmp_path, archives, urls, archive=("wayback",))
    assert {row["outcome"] for row in rows.values()} == {"archived"}
    assert len(asked) == 4 + 3 * 2 and not archives.asked_live  # robots.txt is kept for a day


def test_an_archive_that_only_refuses_is_given_up_for_this_run(archives, tmp_path, monkeypatch):
    monkeypatch.setattr(crawler, "ARCHIVE_PAUSE", 0.001)
    urls = [archives.url(f"/{number}") for number in range(30)]
    archives.trouble = lambda request: request.path != "/robots.txt" and (request.answer(429) or True)
    rows = rows_of(tmp_path, archives, urls, archive=("wayback",), retries=2)
    assert len(archives.pages()) == crawler.GIVE_UP_HOST_AFTER
    assert {row["archives"]["wayback"] for row in rows.values()} <= {"http_429", "host_down"}
    times = [when for _, _, when in archives.pages()]
    assert times[-1] - times[-2] > 0.001 * 2**8


def test_pages_of_the_list_that_lie_at_an_archive_are_asked_for_at_its_pace_too(archives, tmp_path):
    gone, urls = archives.url("/gone"), [f"http://{WAYBACK}:{archives.port}/live/{number}" for number in range(12)]
    archives.wayback[gone] = [Captured("20190301120000", old(gone))]

    def live(request):
        if request.path.startswith("/live/"):
            request.answer(200, old(request.path), "text/html")
        return request.path.startswith("/live/")

    archives.trouble = live
    rows = rows_of(tmp_path, archives, [*urls, gone], archive=("wayback",), per_host=8)
    assert [row["outcome"] for row in rows.values()] == ["ok"] * 12 + ["archived"]
    times = [when for _, _, when in archives.asked]
    assert len(times) == 15  # robots.txt once for all of them
    assert times[-1] - times[0] > 0.9 * PAUSE * 14 and archives.most_at_once == {WAYBACK: 1}


def test_the_capture_is_the_nearest_to_the_submission_or_to_a_date_or_the_newest(archives, tmp_path):
    dated = {"reddit_first_submitted": "2014-02-02T10:00:00Z", "reddit_score": 5}
    for name in ("a", "b"):
        url = archives.url(f"/{name}")
        times = ["20120101000000", "20140101000000", "20180101000000"]
        archives.wayback[url] = [Captured(time, old(f"{name} {time}")) for time in times if name == "a"]
        for time in times:
            crawl = f"CC-MAIN-{time[:4]}-01"
            archives.crawls.setdefault(crawl, {})
            if name == "b":
                archives.crawls[crawl][url] = [Captured(time, old(f"{name} {time}"))]
    archives.write_crawls()
    list_of = [Document(archives.url("/a"), "", dated), Document(archives.url("/b"), "", dated)]

    def years(name, **settings):
        rows = rows_of(tmp_path / name, archives, list_of, **settings)
        return [rows[row.url]["captured_at"][:4] for row in list_of]

    assert years("own") == ["2014", "2014"]
    assert years("given", archive_date="2012-06") == ["2012", "2012"]
    assert years("newest", archive_date="newest") == ["2018", "2018"]
    assert documents_of(tmp_path / "own" / "out")[0].metadata.items() >= dated.items()


def test_what_an_archive_forbids_by_its_robots_txt_is_not_asked_for(archives, tmp_path):
    url = archives.url("/gone")
    archives.wayback[url] = [Captured("20190301120000", old(url))]
    archives.robots = b"User-agent: *\nDisallow: /web/\n"
    rows = rows_of(tmp_path, archives, [url], archive=("wayback",))
    assert (rows[url]["outcome"], rows[url]["archives"]) == ("http_404", {"wayback": "robots"})
    assert [path.partition("?")[0] for _, path, _ in archives.pages()] == ["/cdx/search/cdx"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"archive": ("waybck",)}, "--archive waybck is not known"),
        ({"archive_date": "soon"}, "--archive-date soon is no date"),
        ({"wayback_address": "archive"}, "--wayback-address archive is no web address"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        Download(**settings)


def archived_web(archives, hosts=4, pages=6):
    """URLs of a site that are gone, half of them archived; `/live` pages between them."""
    urls = []
    for number in range(hosts * pages):
        url = archives.url(f"/{number}")
        urls.append(url)
        if number % 4 == 0:
            archives.wayback[url] = [Captured("20190301120000", old(url))]
        elif number % 4 == 1:
            archives.crawls.setdefault("CC-MAIN-2019-18", {})[url] = [Captured("20190422080000", old(url))]
        elif number % 4 == 2:
            archives.live[f"/{number}"] = 200, old(url)
    archives.write_crawls()
    return urls


def bytes_of(output):
    """The documents as they are, and the outcomes but for times and the number of attempts."""
    shards = {path.name: path.read_bytes() for path in sorted(output.glob("part-*"))}
    return shards, [{**row, "fetched_at": "", "attempts": 0, "page": None} for row in outcomes_of(output)]


@pytest.mark.exhaustive
def test_the_same_bytes_whoever_asks_and_however_often_it_is_killed(archives, tmp_path):
    """kill -9 at several moments, as one process and as two: nothing lost, and never more than the limit."""
    urls = archived_web(archives)
    one = write_list(tmp_path / "one.jsonl.zst", urls)
    download(archives, one, tmp_path / "expected")
    expected = bytes_of(tmp_path / "expected")
    assert collections.Counter(row["outcome"] for row in expected[1]) == {"archived": 12, "ok": 6, "http_404": 6}
    in_all = len(archives.asked)
    flags = {
        "input": one,
        "output": tmp_path / "out",
        "archive": ",".join(BOTH),
        "delay": 0,
        "extractor": "resiliparse",
    }
    flags |= {"allow_private_addresses": "loopback", "archive_requests": 72_000, **archives.settings}
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "webtext_prep", "download", *words]
    archives.asked.clear()
    archives.asked_live.clear()
    for more in (5, 12):
        archives.answers = len(archives.asked) + more
        with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
            with archives.condition:
                assert archives.condition.wait_for(lambda: len(archives.asked) > archives.answers, 60)
            os.killpg(process.pid, signal.SIGKILL)
    archives.answers = None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "out") == expected
    of_the_host = {"/robots.txt", "/.well-known/tdmrep.json", "/ai.txt"}
    assert len([path for path in archives.asked_live if path not in of_the_host]) == len(urls)
    assert (
        len(archives.asked) <= in_all + 2 * 20
    )  # a search that was cut short begins anew, and the index is read again
    check_limits(archives, 0.05)


def test_limits_of_an_archive_hold_for_all_lists_together(archives, tmp_path):
    urls = archived_web(archives)
    download(archives, write_list(tmp_path / "one.jsonl.zst", urls), tmp_path / "expected")
    expected = {document.url: (document.text, document.metadata) for document in documents_of(tmp_path / "expected")}
    lists = [write_list(tmp_path / f"list{number}.jsonl.zst", urls[number::3]) for number in range(3)]
    archives.asked.clear()
    archives.most_at_once.clear()
    download(archives, lists, tmp_path / "out", workers=3)
    found = {document.url: (document.text, document.metadata) for document in documents_of(tmp_path / "out")}
    assert found == expected
    check_limits(archives)


class Killed(Exception):
    """In the place of a kill."""


def kill(*_):
    raise Killed


def test_what_waited_for_an_archive_ends_without_it_where_that_is_asked_no_more(archives, tmp_path, monkeypatch):
    """A run with --archive was stopped, and its command is given again without."""
    urls = archived_web(archives)
    lists = write_list(tmp_path / "urls.jsonl.zst", urls)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Download, "ask_archives", kill)
        download(archives, lists, tmp_path / "out")
    archives.asked_live.clear()
    download(archives, lists, tmp_path / "out", archive=())
    found = collections.Counter(row["outcome"] for row in outcomes_of(tmp_path / "out"))
    assert found == {"ok": 6, "http_404": 18} and not archives.asked and not archives.asked_live


def test_shards_that_a_killed_run_has_written_are_written_again_where_another_archive_knows_more(
    archives, tmp_path, monkeypatch
):
    """Within one pass over the lists: the first archive was asked, a shard written, and the run killed."""
    url = archives.url("/gone")
    archives.crawls = {"CC-MAIN-2019-18": {url: [Captured("20190422080000", old(url))]}}
    archives.write_crawls()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(download_stage, "_sums", kill)
        rows_of(tmp_path, archives, [url], archive=("wayback",))
    assert outcomes_of(tmp_path / "out")[0]["outcome"] == "http_404"
    assert rows_of(tmp_path, archives, [url])[url]["outcome"] == "archived"


def test_what_an_archive_has_said_is_not_asked_again_after_a_kill(archives, tmp_path, monkeypatch):
    """Its answer is in the database before the next archive is asked."""
    url = archives.url("/gone")
    archives.crawls = {"CC-MAIN-2019-18": {url: [Captured("20190422080000", old(url))]}}
    archives.write_crawls()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(common_crawl.CommonCrawl, "find", kill)
        rows_of(tmp_path, archives, [url])
    assert archives.pages(WAYBACK)
    archives.asked.clear()
    assert rows_of(tmp_path, archives, [url])[url]["outcome"] == "archived"
    assert not archives.pages(WAYBACK)


def test_saved_captures_give_the_same_documents_without_fetching(archives, tmp_path):
    urls = archived_web(archives)
    latin = archives.url("/latin")
    page = "<html><head><title>caf\u00e9</title></head><body><p>" + "Le caf\u00e9 est ouvert. " * 20
    archives.wayback[latin] = [Captured("20190301120000", page.encode("latin-1"), kind="text/html; charset=latin-1")]
    rows = [Document(url, "", {"reddit_score": number}) for number, url in enumerate([*urls, latin])]
    download(archives, write_list(tmp_path / "urls.jsonl.zst", rows), tmp_path / "out", save_pages=True)
    archives.asked.clear()
    found = documents_of(tmp_path / "out")
    job_of(Extract(extractor="resiliparse"), [*(tmp_path / "out" / "pages").iterdir()], tmp_path / "again").run()
    again = documents_of(tmp_path / "again")
    assert sorted((d.url, d.text, sorted(d.metadata.items())) for d in again) == sorted(
        (d.url, d.text, sorted(d.metadata.items())) for d in found
    )
    assert len(found) == 19 and any("caf\u00e9" in document.text for document in found)
    saved = (tmp_path / "out" / "pages" / "part-00000.warc.gz").read_bytes()
    assert b"server: old" in b"".join(gzip.decompress(saved).lower().splitlines(keepends=True))


def test_captures_are_told_of_by_why_report_and_the_card_of_an_export(archives, tmp_path, capsys):
    urls = archived_web(archives)
    archives.live["/23"] = 200, html("Page not found", "Sorry.")
    out = tmp_path / "out"
    summary = download(archives, write_list(tmp_path / "urls.jsonl.zst", urls), out)
    assert summary.facts["archived"] == "6 from common-crawl, 6 from wayback"
    assert summary.tally.dropped == {"http_404": 5, "soft_404": 1}

    def said(*words):
        assert cli.main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    story = said("why", urls[1], out)
    for line in ("outcome: archived", "archive: common-crawl", "captured at: 2019-04-22T08:00:00Z", "gone: http_404"):
        assert line in story
    assert "archives: wayback not_archived" in story
    assert "dropped: soft_404" in (story := said("why", urls[23], out))
    assert "archives: wayback not_archived, common-crawl not_archived" in story
    said("report", out, "--output", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "18 of 24 URLs (75%) gave a page with text, 12 of them as web archives have it." in page
    assert "soft_404" in page and "page with text of a web archive" in page
    said("export", "--input", out, "--output", tmp_path / "dataset", "--state", tmp_path / "state")
    card = (tmp_path / "dataset" / "README.md").read_text()
    assert "12 documents were gone when they were asked for, and came from web archives" in card
    assert "`captured_at`" in card and "| `archive` | string | 66.7% |" in card


def test_a_plan_asks_no_archive_and_says_so(archives, tmp_path):
    urls = [archives.url(f"/{number}") for number in range(40)]
    archives.live |= {f"/{number}": (200, old(number)) for number in range(0, 40, 2)}
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    settings = {"allow_private_addresses": "loopback", "delay": 0, "extractor": "resiliparse", "archive": ["wayback"]}
    settings |= {"archive_requests": 60, "robots": False, **archives.settings}
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / "pipeline.toml").write_text(f"[download]\n{table}")
    words = ["--input", tmp_path / "urls.txt", "--config", tmp_path / "pipeline.toml", "--output", tmp_path / "plan"]
    assert cli.main(["plan", *map(str, words), "--at-least", "20", "--workers", "1"]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_bytes())
    (stage,) = plan["stages"]
    gone = stage["read"] - stage["kept"]
    assert plan["sampled"] < 40 and gone and not archives.asked
    assert "archives, come on top" in " ".join(plan["notes"])


NO = b'<meta name="robots" content="noai">'


def test_a_page_that_is_gone_is_not_taken_from_an_archive_against_a_wish(archives, tmp_path):
    """Neither one of another time or archive in place of a capture that refuses, nor one that its host refuses."""
    refusing, reserved = archives.url("/refusing"), archives.url("/reserved/1")
    archives.live["/.well-known/tdmrep.json"] = 200, b'[{"location": "/reserved/", "tdm-reservation": 1}]'
    archives.wayback[refusing] = [
        Captured("20190301120000", old(refusing).replace(b"</head>", NO + b"</head>")),
        Captured("20150101000000", old(refusing)),
    ]
    archives.wayback[reserved] = [Captured("20190301120000", old(reserved))]
    archives.crawls["CC-MAIN-2019-18"] = {url: [Captured("20190422080000", old(url))] for url in (refusing, reserved)}
    archives.write_crawls()
    rows = rows_of(tmp_path, archives, [refusing, reserved], archive_date="2019-03")
    assert [(rows[url]["outcome"], rows[url]["opt_out"]) for url in (refusing, reserved)] == [
        ("opted_out", "noai"),
        ("opted_out", "tdm-reservation"),
    ]
    assert rows[refusing]["archives"] == {"wayback": "opted_out"}
    assert documents_of(tmp_path / "out") == []
    download(archives, tmp_path / "urls.jsonl.zst", tmp_path / "marked", opt_outs="record", archive_date="2019-03")
    marks = [document.metadata["opt_out"] for document in documents_of(tmp_path / "marked")]
    assert marks == ["noai", "tdm-reservation"]
