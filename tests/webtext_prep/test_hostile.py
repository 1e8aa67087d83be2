"""Servers that use up every limit: a download of them ends, within the time and memory that the limits allow."""

import collections
import contextlib
import dataclasses
import time

import pytest
from crawls import crawl_with
from hostile_server import KINDS, HostileServer

from command_kit.progress import spoken_duration
from webtext_prep.crawl.crawl import Crawl
from webtext_prep.crawl.database import CrawlDatabase
from webtext_prep.crawl.frontier import crawler
from webtext_prep.crawl.http.bodies import ByteBudget, Reservation
from webtext_prep.crawl.http.client import Client, Reply
from webtext_prep.documents.document import Document
from webtext_prep.stages.download import Download


@pytest.fixture
def most_held(monkeypatch):
    """The most bytes of pages that were in memory, as a list of one number."""
    most = [0]
    take = Reservation.try_grow

    def noted(self, size):
        taken = take(self, size)
        most[0] = max(most[0], self.budget.held)
        return taken

    monkeypatch.setattr(Reservation, "try_grow", noted)
    return most


HURRIED = 0.25
LARGE = {"bomb", "endless-body", "endless-padding"}


@pytest.fixture
def hurry(monkeypatch):
    """A request has a quarter of a second, but what ends by its size eight times that, for a busy machine."""
    get = Client.get

    async def hurried(self, url, **options):
        unhurried = url.split("/")[3] in {*LARGE, "robots.txt"}
        return await get(self, url, **(options if unhurried else options | {"seconds": HURRIED}))

    monkeypatch.setattr(Client, "get", hurried)


@pytest.mark.exhaustive
def test_a_hundred_pages_that_use_up_every_limit_end_within_the_bounds(tmp_path, monkeypatch, most_held, hurry):
    """180 hostile URLs were not finished after 200 s, and nothing said how long they could take."""
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(crawler, "GIVE_UP_HOST_AFTER", 1_000_000)  # or all but the first ten would cost nothing
    stage = Download(
        extractor="resiliparse", allow_private_addresses="loopback", delay=0.0, per_host=50, concurrency=64,
        timeout=2.0, retries=1, max_bytes=100_000, extract_timeout=1.0,
    )  # fmt: skip
    with HostileServer() as server, CrawlDatabase(tmp_path / "crawl.sqlite") as database:
        urls = list(server.urls(100))
        start = time.monotonic()
        Crawl(stage, database, 1, lambda count: None, 500_000).fetch(map(Document, urls), tmp_path)
        seconds = time.monotonic() - start
        rows = list(database.rows())
    assert sorted(row["url"] for row in rows) == sorted(urls)
    outcomes = collections.defaultdict(set)
    for row in rows:
        outcomes[row["url"].split("/")[3]].add(row["outcome"])
    assert outcomes["says-nothing"] == outcomes["drips"] == outcomes["drips-headers"] == {"timeout"}
    # A busy machine may not get as far as their ends.
    assert outcomes["endless-header-line"] | outcomes["endless-headers"] <= {"malformed_response", "timeout"}
    assert {outcome for kind in LARGE for outcome in outcomes[kind]} <= {"too_large", "timeout"}
    assert not any("ok" in found for found in outcomes.values()) and outcomes.keys() >= KINDS.keys()
    assert all(row["attempts"] <= 1 + crawler.MAX_REDIRECTS + stage.retries for row in rows)
    limit = dataclasses.replace(stage, timeout=HURRIED).url_seconds
    assert seconds < len(urls) * (limit + stage.extract_timeout)
    assert 0 < most_held[0] <= 500_000 + 2 * stage.max_bytes


class Slow:
    """Each request takes `seconds`, or as long as it may; `location` makes it a redirect. Time is not spent."""

    user_agent = "test/1"

    def __init__(self, monkeypatch, *, seconds, location=""):
        self.seconds, self.location = seconds, location
        self.now, self.given = 0.0, []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    async def get(self, url, *, seconds=None, **_):
        self.given.append(seconds)
        taken = self.seconds if seconds is None else min(self.seconds, seconds)
        self.now += taken
        if taken < self.seconds:
            return Reply("timeout", url, retry_now=True)
        return Reply("redirect" if self.location else "http_503", url, 503, location=self.location, retry_now=True)


def visit(client, **settings):
    """How a single URL ended, and in how many requests."""
    found = []

    async def finish(visit, reply):
        found.append((reply.outcome, visit.attempts))

    crawl_with(client, ["http://a.org/"], finish, concurrency=1, page_bytes=1, **settings)
    return found[0]


def test_all_requests_of_a_url_share_one_limit_of_time(monkeypatch):
    """Each of six hops had three attempts of the whole time limit: a URL could take six minutes by default."""
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.0)
    client = Slow(monkeypatch, seconds=20.0, location="http://b.org/")
    assert visit(client, retries=2, timeout=50.0 / 3) == ("timeout", 3)
    assert client.given == [50.0, 30.0, 10.0] and client.now == 50.0
    client = Slow(monkeypatch, seconds=20.0)
    assert visit(client, retries=9, timeout=6.0) == ("http_503", 3)


def test_retries_are_counted_for_a_url_not_for_each_of_its_redirects(monkeypatch):
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.0)

    class Alternating(Slow):
        async def get(self, url, **_):
            self.location = "" if self.location else f"http://b.org/{len(self.given)}"
            return await super().get(url)

    assert visit(Alternating(monkeypatch, seconds=0.0), retries=2) == ("http_503", 6)


def test_a_robots_txt_with_all_its_redirects_has_one_limit_of_time(monkeypatch):
    monkeypatch.setattr(crawler, "BACKOFF_SECONDS", 0.0)
    client = Slow(monkeypatch, seconds=20.0, location="/robots.txt")
    assert visit(client, robots=True, retries=0, timeout=50.0) == ("timeout", 0)
    assert client.given == [50.0, 30.0, 10.0] * 2


def test_senders_that_fill_the_memory_and_then_dawdle_are_not_read_one_after_the_other():
    budget = ByteBudget(100, unhindered=3)
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(budget.reservation()) for _ in range(10)]
        assert [page.try_grow(10) for page in pages] == [True] * 10
        assert [page.try_grow(5) for page in pages] == [True] * 3 + [False] * 7


def test_a_duration_is_said_in_a_word():
    assert [spoken_duration(found) for found in (0.1, 99.5, 100, 5999, 6000, 400_000)] == [
        "1 s", "100 s", "2 min", "100 min", "1.7 h", "5 days"
    ]  # fmt: skip
