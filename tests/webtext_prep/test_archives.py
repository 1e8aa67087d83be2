"""Pages that are gone: what web archives have of them is recovered, politely, and nothing of the archives' own."""

import collections
import contextlib
import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import aiodns
import pytest
from jobs import job_of
from outputs import documents_of, outcomes_of, saved_pages
from pages_on_loopback import write_list
from web_archives import FILES, INDEX, WAYBACK, Captured, WebArchives

from command_kit import UsageError
from webtext_prep import cli
from webtext_prep.crawl.archives import captures, common_crawl
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.stages import rescue as rescue_stage
from webtext_prep.stages.download import Download
from webtext_prep.stages.extract import Extract
from webtext_prep.stages.rescue import Rescue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.21 is a host on Linux only")

PAUSE = 0.01
WORDS = "This is a sentence of the page that was there, long enough for anybody to see that it is text. "


@pytest.fixture
def archives(monkeypatch):
    monkeypatch.setattr(captures, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(captures, "PAUSE", 0.05)
    monkeypatch.setattr(common_crawl, "PIECE_BYTES", 300)
    monkeypatch.setattr(common_crawl, "OVERLAP_BYTES", 200)
    found = WebArchives()
    yield found
    found.stop()


def html(title, text):
    return f"<html><head><title>{title}</title></head><body><article><p>{text}</p></article></body></html>".encode()


def old(name):
    return html(f"Old {name}", WORDS * 10)


LOOPBACK = {"extractor": "resiliparse", "allow_private_addresses": "loopback"}


def rescue(archives, inputs, output, **settings):
    values = {**LOOPBACK, "requests": int(3600 / PAUSE), "retries": 1, **archives.settings, **settings}
    return job_of(Rescue(**values), inputs if isinstance(inputs, list) else [inputs], output).run()


def download(inputs, output, **settings):
    with contextlib.suppress(WebtextError):  # nothing kept: the outcomes are there nevertheless
        return job_of(Download(**{**LOOPBACK, "delay": 0.0, "retries": 0, **settings}), [inputs], output).run()


def extract(output, again):
    job_of(Extract(extractor="resiliparse"), [output], again).run()
    return documents_of(again)


def check_limits(archives, pause=PAUSE):
    """No archive was asked for two things at once, nor, from the first request to the last, more than its budget."""
    assert set(archives.most_at_once.values()) == {1}
    for hosts in ((WAYBACK,), (FILES, INDEX)):
        times = [when for at, _, when in archives.asked if at in hosts]
        assert len(times) > 10 and times[-1] - times[0] > 0.9 * pause * (len(times) - 1)


def rows_of(tmp_path, archives, urls, **settings):
    """Rescue `urls`, which may be rows of a list, and give back the row of each."""
    output = tmp_path / "out"
    rescue(archives, write_list(tmp_path / "urls.jsonl.zst", urls), output, **settings)
    return {row["url"]: row for row in outcomes_of(output)}


def test_of_a_list_that_is_gone_all_that_is_archived_is_recovered_and_no_archive_is_asked_too_often(archives, tmp_path):
    sold = b"<html><head><title>Offer</title></head><body><script src='//sedoparking.com/x.js'></script></body></html>"
    for n in range(4):
        archives.live |= {f"/dropped/{n}": (410, b""), f"/sold/{n}": (200, sold)}
        archives.live[f"/soft/{n}"] = 200, html("Page not found | Site", "Sorry.")
    urls = [*map(archives.url, [*archives.live, *(f"/gone/{n}" for n in range(8))])]
    urls += [f"http://127.0.0.1:1/{n}" for n in range(4)]
    archives.live |= {"/a": (200, old("a")), "/b": (200, old("b")), "/forbidden": (403, b"")}
    archived = urls[::2]
    for number, url in enumerate(archived):
        if number % 2:
            archives.wayback[url] = [Captured(f"2019030{number % 9 + 1}120000", old(url))]
        else:
            archives.crawls.setdefault("CC-MAIN-2019-18", {})[url] = [Captured("20190422080000", old(url))]
    archives.write_crawls()
    live = [archives.url(path) for path in ("/a", "/b", "/forbidden")]
    of_list = [Document(url, "", {"reddit_score": number}) for number, url in enumerate([*urls, *live])]
    download(write_list(tmp_path / "urls.jsonl.zst", of_list), tmp_path / "live", retry_passes=0)
    summary = rescue(archives, tmp_path / "live", tmp_path / "out")
    rows = {row["url"]: row for row in outcomes_of(tmp_path / "out")}
    assert rows.keys() == {*urls} and summary.facts["archived"] == "6 from common-crawl, 6 from wayback"
    assert {url for url, row in rows.items() if row["outcome"] == "archived"} == set(archived)
    left = [row for url, row in rows.items() if url not in archived]
    assert {row["gone"] for row in left} == {"http_404", "http_410", "soft_404", "parked", "connection"}
    none = {"wayback": "not_archived", "common-crawl": "not_archived"}
    assert all(row["outcome"] == "not_archived" and row["archives"] == none for row in left)
    by_url = {document.url: document for document in extract(tmp_path / "out", tmp_path / "again")}
    assert by_url.keys() == {*archived}
    for number, url in enumerate(archived):
        name, day = ("wayback", f"0{number % 9 + 1}T12") if number % 2 else ("common-crawl", "22T08")
        capture = {"archive": name, "captured_at": f"2019-{'03' if number % 2 else '04'}-{day}:00:00Z"}
        assert capture.items() <= rows[url].items() and capture.items() <= by_url[url].metadata.items()
        assert by_url[url].text.startswith(WORDS.strip())
        assert by_url[url].metadata.items() >= {"title": f"Old {url}", "reddit_score": urls.index(url)}.items()
    assert {row["outcome"] for row in outcomes_of(tmp_path / "again")} == {"archived"}
    check_limits(archives)
    counts = collections.Counter(path for _, path, _ in archives.asked)
    assert counts.pop("/robots.txt") == 3
    assert set(counts.values()) == {1}  # no piece, block or record twice


def test_a_run_that_finds_no_archive_says_so_and_does_not_count(archives, tmp_path, names):
    """It ended well, and said nothing of having asked nobody."""
    names["archive.example"] = aiodns.error.ARES_ESERVFAIL
    urls = [archives.url(f"/gone/{number}") for number in range(3)]
    archives.wayback[urls[0]] = [Captured("20190301120000", old(urls[0]))]
    for _ in range(4):
        with pytest.raises(WebtextError, match=r"no name server knows their hosts \(wayback\): check the network"):
            rows_of(tmp_path, archives, urls, archive=("wayback",), wayback_address="http://archive.example")
    outcomes = [row["outcome"] for row in rows_of(tmp_path, archives, urls, archive=("wayback",)).values()]
    assert outcomes == ["archived", "not_archived", "not_archived"]


@pytest.mark.parametrize("code", [aiodns.error.ARES_ETIMEOUT, aiodns.error.ARES_ESERVFAIL, aiodns.error.ARES_ENOTFOUND])
def test_a_name_server_that_is_out_makes_no_page_gone(archives, tmp_path, names, code):
    """A short outage sent every URL of a list to archives, for good."""
    names["site.example"] = code
    urls = [f"http://site.example/{number}" for number in range(3)]
    archives.wayback |= {url: [Captured("20190301120000", old(url))] for url in urls}
    lists = write_list(tmp_path / "urls.jsonl.zst", urls)
    for _ in range(2):
        download(lists, tmp_path / "live")
        assert not rescue(archives, tmp_path / "live", tmp_path / "out").tally.read
    assert not archives.asked
    assert extract(tmp_path / "out", tmp_path / "again") == []
    # After the last pass a name without an address is one, where a name server says so.
    download(lists, tmp_path / "live")
    is_gone = code == aiodns.error.ARES_ENOTFOUND
    assert rescue(archives, tmp_path / "live", tmp_path / "out").tally.kept == (3 if is_gone else 0)


def test_a_download_that_is_continued_changes_what_is_rescued(archives, tmp_path):
    """What has come back is taken from its site; what an archive has said is not asked again."""
    back, gone = archives.url("/back"), archives.url("/gone")
    archives.wayback |= {url: [Captured("20190301120000", old(url))] for url in (back, gone)}
    lists = write_list(tmp_path / "urls.jsonl.zst", [back, gone])
    download(lists, tmp_path / "live")
    assert rescue(archives, tmp_path / "live", tmp_path / "out").tally.kept == 2
    archives.live["/back"] = 200, old("back")
    archives.asked.clear()
    shutil.rmtree(tmp_path / "live")
    download(lists, tmp_path / "live")
    assert rescue(archives, tmp_path / "live", tmp_path / "out").tally.kept == 1
    assert not archives.asked
    assert [document.url for document in extract(tmp_path / "out", tmp_path / "again")] == [gone]


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
    rows = rows_of(tmp_path, archives, [*bad, *good], archive=("wayback",), date="2019")
    assert {url: row.get("captured_at") for url, row in rows.items()} == {
        **dict.fromkeys(bad, "2015-01-01T00:00:00Z"),
        good[0]: "2019-01-01T00:00:00Z",
        good[1]: "2019-02-02T00:00:00Z",
    }
    assert "/live" not in archives.asked_live
    assert {document.url for document in extract(tmp_path / "out", tmp_path / "again")} == {*bad, *good}


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


def test_answers_of_an_archive_that_are_no_answers_cost_one_url(archives, tmp_path):
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
    malformed = dict.fromkeys(("words", "list", "cut"), "malformed_response")
    expected = {**malformed, "empty": "not_archived", "forbidden": "http_403"}
    assert {name: rows[url]["outcome"] for name, url in urls.items()} == expected


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
    rows = rows_of(tmp_path, archives, urls.values(), archive=("common-crawl",), date="2019-02")
    assert {url: row.get("captured_at") for url, row in rows.items()} == dict.fromkeys(
        urls.values(), "2018-01-20T00:00:00Z"
    )
    found = extract(tmp_path / "out", tmp_path / "again")
    assert len(found) == len(urls) and all(document.text.startswith(WORDS.strip()) for document in found)


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
    found = collections.Counter(row["outcome"] for row in rows.values())
    assert found == {"archived": 1, "http_429": 1, "host_down": 2}
    rows = rows_of(tmp_path, archives, urls, archive=("wayback",))
    assert {row["outcome"] for row in rows.values()} == {"archived"}
    assert len(asked) == 4 + 3 * 2  # robots.txt is kept for a day


def test_an_archive_that_only_refuses_is_given_up_for_this_run(archives, tmp_path, monkeypatch):
    monkeypatch.setattr(captures, "PAUSE", 0.001)
    urls = [archives.url(f"/{number}") for number in range(30)]
    archives.trouble = lambda request: request.path != "/robots.txt" and (request.answer(429) or True)
    rows = rows_of(tmp_path, archives, urls, archive=("wayback",), retries=2)
    assert len(archives.pages()) == captures.GIVE_UP_HOST_AFTER
    assert {row["outcome"] for row in rows.values()} == {"http_429", "host_down"}
    times = [when for _, _, when in archives.pages()]
    assert times[-1] - times[-2] > 0.001 * 2**8


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
    assert years("given", date="2012-06") == ["2012", "2012"]
    assert years("newest", date="newest") == ["2018", "2018"]
    list_of = [Document(row.url) for row in list_of]
    assert years("date=2012-06-01") == ["2012", "2012"]
    assert extract(tmp_path / "own" / "out", tmp_path / "again")[0].metadata.items() >= dated.items()


@pytest.mark.parametrize("date", ["1.1.2012", "12/11/2012", "12 Nov 2012", "5.6.2012", "2012-13", "201204"])
def test_a_date_of_a_list_that_is_none_of_iso_8601_is_refused_before_anything_is_asked(archives, tmp_path, date):
    """`1.1.2012` was the year 1120, and a capture of another time was stored without a word."""
    lists = [Document(archives.url("/a"), "", {"date": date})]
    with pytest.raises(InputError, match=r"urls\.jsonl\.zst, http://127\.0\.0\.24:\d+/a: date .* is no date: give one"):
        rows_of(tmp_path, archives, lists)
    assert not archives.asked
    assert rows_of(tmp_path, archives, lists, date="newest")  # no date of the list is needed then


def test_what_an_archive_forbids_by_its_robots_txt_is_not_asked_for(archives, tmp_path):
    url = archives.url("/gone")
    archives.wayback[url] = [Captured("20190301120000", old(url))]
    archives.robots = b"User-agent: *\nDisallow: /web/\n"
    rows = rows_of(tmp_path, archives, [url], archive=("wayback",))
    assert (rows[url]["outcome"], rows[url]["archives"]) == ("robots", {"wayback": "robots"})
    assert [path.partition("?")[0] for _, path, _ in archives.pages()] == ["/cdx/search/cdx"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"archive": ("waybck",)}, "--archive waybck is not known"),
        ({"date": "soon"}, "--date soon is no date"),
        ({"wayback_address": "archive"}, "--wayback-address archive is no web address"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        Rescue(**settings)


def gone_web(archives, pages=18):
    """URLs of pages that are gone, a third of which one archive has, and another third the other."""
    urls = [archives.url(f"/{number}") for number in range(pages)]
    archives.wayback |= {url: [Captured("20190301120000", old(url))] for url in urls[::3]}
    archives.crawls["CC-MAIN-2019-18"] = {url: [Captured("20190422080000", old(url))] for url in urls[1::3]}
    archives.write_crawls()
    return urls


def bytes_of(output):
    return {
        path.relative_to(output): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and ".state" not in path.parts
    }


@pytest.mark.exhaustive
def test_the_same_bytes_however_often_it_is_killed(archives, tmp_path):
    """kill -9 at several moments: nothing lost, and never more than the limit."""
    one = write_list(tmp_path / "one.jsonl.zst", gone_web(archives))
    rescue(archives, one, tmp_path / "expected")
    expected, in_all = bytes_of(tmp_path / "expected"), len(archives.asked)
    flags = {"input": one, "output": tmp_path / "out", **LOOPBACK, "requests": 72_000, **archives.settings}
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "webtext_prep", "rescue", *words]
    archives.asked.clear()
    for more in (5, 12):
        archives.answers = len(archives.asked) + more
        with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
            with archives.condition:
                assert archives.condition.wait_for(lambda: len(archives.asked) > archives.answers, 60)
            os.killpg(process.pid, signal.SIGKILL)
    archives.answers = None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wayback: some 36 requests for 18 URLs" in done.stderr
    assert bytes_of(tmp_path / "out") == expected
    # A search that was cut short begins anew, and the index is read again.
    assert len(archives.asked) <= in_all + 2 * 20
    check_limits(archives, 0.05)


def test_limits_of_an_archive_hold_for_all_lists_together(archives, tmp_path):
    urls = gone_web(archives)
    rescue(archives, write_list(tmp_path / "one.jsonl.zst", urls), tmp_path / "expected")
    lists = [write_list(tmp_path / f"list{number}.jsonl.zst", urls[number::3]) for number in range(3)]
    archives.asked.clear()
    archives.most_at_once.clear()
    rescue(archives, lists, tmp_path / "out")
    assert sorted(saved_pages(tmp_path / "out")) == sorted(saved_pages(tmp_path / "expected"))
    check_limits(archives)


class Killed(Exception):
    """In the place of a kill."""


def kill(*_, **__):
    raise Killed


def test_another_archive_may_be_asked_later_and_none_the_same_twice(archives, tmp_path, monkeypatch):
    """Also where the first run was killed after it had written a shard."""
    url = archives.url("/gone")
    archives.crawls = {"CC-MAIN-2019-18": {url: [Captured("20190422080000", old(url))]}}
    archives.write_crawls()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(rescue_stage, "Outcome", kill)
        rows_of(tmp_path, archives, [url], archive=("wayback",))
    assert outcomes_of(tmp_path / "out")[0]["outcome"] == "not_archived"
    archives.asked.clear()
    row = rows_of(tmp_path, archives, [url])[url]
    assert (row["outcome"], row["archives"]) == ("archived", {"wayback": "not_archived"})
    assert not archives.pages(WAYBACK)
    archives.asked.clear()
    assert rows_of(tmp_path, archives, [url])[url] == row and not archives.asked


def test_what_an_archive_has_said_is_not_asked_again_after_a_kill(archives, tmp_path, monkeypatch):
    """Its answer is in the database before the next archive is asked."""
    url = archives.url("/gone")
    archives.crawls = {"CC-MAIN-2019-18": {url: [Captured("20190422080000", old(url))]}}
    archives.write_crawls()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(common_crawl.CommonCrawl, "captures", kill)
        rows_of(tmp_path, archives, [url])
    assert archives.pages(WAYBACK)
    archives.asked.clear()
    assert rows_of(tmp_path, archives, [url])[url]["outcome"] == "archived"
    assert not archives.pages(WAYBACK)


def test_a_capture_keeps_its_headers_and_its_encoding(archives, tmp_path):
    latin = archives.url("/latin")
    page = "<html><head><title>caf\u00e9</title></head><body><p>" + "Le caf\u00e9 est ouvert. " * 20
    archives.wayback[latin] = [Captured("20190301120000", page.encode("latin-1"), kind="text/html; charset=latin-1")]
    rows_of(tmp_path, archives, [latin])
    (document,) = extract(tmp_path / "out", tmp_path / "again")
    assert document.text.startswith("Le caf\u00e9 est ouvert.")
    saved = gzip.decompress((tmp_path / "out" / "pages" / "part-00000.warc.gz").read_bytes())
    assert b"server: old" in saved.lower() and b"WARC-Date: 2019-03-01T12:00:00Z" in saved


def test_captures_are_told_of_by_why_report_and_the_card_of_an_export(archives, tmp_path, capsys):
    urls = gone_web(archives)
    live, again = tmp_path / "live", tmp_path / "again"
    archives.live |= {"/2": (200, html("Page not found", "Sorry.")), "/live": (200, old("live"))}
    lists = write_list(tmp_path / "urls.jsonl.zst", [*urls, archives.url("/live")])
    download(lists, live)
    summary = rescue(archives, live, tmp_path / "out")
    assert summary.facts["archived"] == "6 from common-crawl, 6 from wayback"
    assert summary.tally.dropped == {"not_archived": 6}
    extract(tmp_path / "out", again)

    def said(*words):
        assert cli.main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    story = said("why", urls[1], again)
    for line in ("outcome: archived", "archive: common-crawl", "captured at: 2019-04-22T08:00:00Z", "gone: http_404"):
        assert line in story
    assert "archives: wayback not_archived" in story
    assert "dropped: soft_404" in (story := said("why", urls[2], again))
    assert "archives: wayback not_archived, common-crawl not_archived" in story
    said("report", again, "--output", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "page with text of a web archive" in page and "soft_404" in page
    assert "12 of 18 URLs (66.7%) gave a page with text, 12 of them as web archives have it." in page
    said("export", "--input", again, "--output", tmp_path / "dataset", "--state", tmp_path / "state")
    card = (tmp_path / "dataset" / "README.md").read_text()
    assert "12 documents were gone when they were asked for, and came from web archives" in card
    assert "`captured_at`" in card and "| `archive` | string | 100.0% |" in card


def test_a_takedown_reaches_what_was_rescued_and_asks_no_archive(archives, tmp_path, capsys):
    urls = gone_web(archives, 6)
    archives.live["/live"] = 200, old("live")
    lists, again = tmp_path / "urls.jsonl.zst", tmp_path / "again"
    download(write_list(lists, [*urls, archives.url("/live")]), tmp_path / "live")
    rescue(archives, tmp_path / "live", tmp_path / "out", archive=("wayback",))
    assert [document.url for document in extract(tmp_path / "out", again)] == urls[::3]
    write_list(lists, [*urls[1:], archives.url("/live")])
    (tmp_path / "remove.txt").write_text(urls[0])
    archives.asked.clear()
    assert cli.main(["takedown", "--urls", str(tmp_path / "remove.txt"), str(again), "--apply", "--workers", "1"]) == 0
    assert not archives.asked
    assert [document.url for document in documents_of(again)] == [urls[3]]
    assert [url for url, _ in saved_pages(tmp_path / "out")] == [urls[3]]
    kept = (tmp_path / "out" / ".state" / "kept" / rescue_stage.DATABASE).read_bytes()
    assert urls[1].encode() in kept and f'"{urls[0]}"'.encode() not in kept


def test_a_plan_counts_what_is_rescued_and_says_how_long_that_takes(tmp_path, capsys):
    (tmp_path / "urls.txt").write_text("".join(f"http://host{number}.org/\n" for number in range(1_000)))
    (tmp_path / "pipeline.toml").write_text("[download]\n[rescue]\nrequests = 600\n[extract]\n[merge]\n")
    words = ["--input", tmp_path / "urls.txt", "--config", tmp_path / "pipeline.toml", "--output", tmp_path / "plan"]
    assert cli.main(["plan", *map(str, words), "--workers", "1"]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_bytes())
    assert [(stage["stage"], stage["read"], stage["kept"]) for stage in plan["stages"]] == [
        ("download", 1_000, 600), ("rescue", 600, 300), ("extract", 300, 300), ("merge", 900, 900)
    ]  # fmt: skip
    assert plan["stages"][1]["output"] < 40_000 * 300
    assert "rescue: wayback: some 1,200 requests for 600 URLs, 2 h at 600 an hour" in plan["notes"]


NO = b'<meta name="robots" content="noai">'


def test_a_page_that_is_gone_is_not_taken_from_an_archive_against_a_preference(archives, tmp_path):
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
    live = tmp_path / "live"
    download(write_list(tmp_path / "urls.jsonl.zst", [refusing, reserved]), live)
    rescue(archives, live, tmp_path / "out", date="2019-03")
    rows = {row["url"]: row for row in outcomes_of(tmp_path / "out")}
    assert [(rows[url]["outcome"], rows[url]["opt_out"]) for url in (refusing, reserved)] == [
        ("opted_out", "noai"),
        ("opted_out", "tdm-reservation"),
    ]
    assert rows[refusing]["archives"] == {"wayback": "opted_out"} and not rows[reserved]["archives"]
    assert extract(tmp_path / "out", tmp_path / "again") == []
    rescue(archives, live, tmp_path / "marked", opt_outs="record", date="2019-03")
    job_of(Extract(extractor="resiliparse", opt_outs="record"), [tmp_path / "marked"], tmp_path / "kept").run()
    marks = [document.metadata["opt_out"] for document in documents_of(tmp_path / "kept")]
    assert marks == ["noai", "tdm-reservation"]
