"""The order of requests, with a client that answers from a script instead of the network."""

import asyncio
import time
from collections.abc import Callable

import pytest
from crawls import crawl_with

from webtext_prep.crawl.frontier import crawler
from webtext_prep.crawl.frontier.queues import Visit
from webtext_prep.crawl.http.client import Reply


class ScriptedClient:
    """Answers the n-th request for a URL with the n-th reply of its script, and notes when it was asked."""

    user_agent = "test/1"

    def __init__(self, script: dict[str, list[Callable[[str], Reply]]]) -> None:
        self.script = script
        self.asked: list[tuple[str, float]] = []

    async def get(self, url: str, **_: object) -> Reply:
        self.asked.append((url, time.monotonic()))
        return self.script[url].pop(0)(url)


def crawl(client: ScriptedClient, urls: list[str], **settings: object) -> dict[str, str]:
    """Visit `urls` and return how each ended."""
    outcomes: dict[str, str] = {}

    async def finish(visit: Visit, reply: Reply) -> None:
        outcomes[visit.asked] = reply.outcome

    crawl_with(client, urls, finish, **({"concurrency": 1, "page_bytes": 1 << 20} | settings))
    return outcomes


def ok(url: str) -> Reply:
    return Reply("ok", url, 200)


def test_a_pause_that_a_host_asks_for_holds_for_redirects_to_it_too():
    pause = 0.3
    client = ScriptedClient(
        {
            "http://busy.org/a": [lambda url: Reply("http_503", url, 503, retry_after=pause, retry_now=True), ok],
            "http://other.org/": [lambda url: Reply("redirect", url, 301, location="http://busy.org/b")],
            "http://busy.org/b": [ok],
        }
    )
    assert set(crawl(client, ["http://busy.org/a", "http://other.org/"]).values()) == {"ok"}
    (first, begin), *rest = client.asked
    assert first == "http://busy.org/a"
    assert all(when - begin >= pause for url, when in rest if url.startswith("http://busy.org/"))


def test_pages_that_wait_for_a_parser_hold_back_the_reading_of_others():
    """Every connection could hold a page of the largest size while it waited for a parser: a gigabyte by default."""
    page = 4000
    held = most = 0

    class Pages:
        user_agent = "test/1"

        async def get(self, url, *, reservation, **_):
            nonlocal held, most
            for _ in range(page // 1000):
                await reservation.grow(1000)
                held += 1000
                most = max(most, held)
                await asyncio.sleep(0)
            return Reply("ok", url, 200)

    parser = asyncio.Semaphore(1)
    finished = []

    async def finish(visit, reply):
        nonlocal held
        async with parser:
            for _ in range(10):
                await asyncio.sleep(0)
        finished.append(visit.asked)
        held -= page

    urls = [f"http://host{n}.org/" for n in range(60)]
    crawl_with(Pages(), urls, finish, concurrency=50, retries=0, page_bytes=10_000)
    assert sorted(finished) == sorted(urls)
    assert 2 * page <= most <= 10_000 + page


@pytest.mark.parametrize(("asked", "at_once"), [("0", 4), ("0.001", 4), ("0.02", 1)])
def test_a_crawl_delay_that_our_own_pause_keeps_leaves_a_host_its_connections(asked, at_once):
    """`Crawl-delay: 0`, or one below ours, left a host at one connection for good."""
    running = most = 0
    enough = asyncio.Event()

    class Pages:
        user_agent = "test/1"

        async def get(self, url, **_):
            nonlocal running, most
            if url.endswith("/robots.txt"):
                return Reply("ok", url, 200, body=b"User-agent: *\nCrawl-delay: " + asked.encode())
            running += 1
            most = max(most, running)
            if running == at_once:
                enough.set()
            async with asyncio.timeout(20):
                await enough.wait()
            await asyncio.sleep(0.05)  # others have their turn
            running -= 1
            return Reply("ok", url, 200)

    settings = {"concurrency": 8, "per_host": 4, "delay": 0.01, "robots": True}
    urls = [f"http://a.org/{number}" for number in range(5)]
    assert set(crawl(Pages(), urls, **settings).values()) == {"ok"}
    assert most == at_once


def test_requests_have_their_turn_while_a_long_list_is_read(monkeypatch):
    """A hundred thousand URLs were looked up in the database before the first request was sent."""
    monkeypatch.setattr(crawler, "URLS_AT_ONCE", 10)
    read = 0
    read_at_request = []

    def urls():
        nonlocal read
        for n in range(500):
            read += 1
            yield f"http://host{n}.org/"

    class Pages:
        user_agent = "test/1"

        async def get(self, url, **_):
            read_at_request.append(read)
            return Reply("ok", url, 200)

    async def finish(visit, reply):
        pass

    crawl_with(Pages(), urls(), finish, concurrency=5, retries=0, page_bytes=1)
    assert len(read_at_request) == read == 500
    assert read_at_request[0] <= 20


def test_a_page_that_is_extracted_late_does_not_take_back_what_its_host_refused_meanwhile():
    """Its end wrote the host's count of refusals back as it had been before: a host was asked on."""
    urls = [f"http://shut.org/{number}" for number in range(40)]
    asked = []
    outcomes = {}

    async def finish(visit, reply):
        while visit.asked == urls[0] and len(asked) < crawler.FEWEST_ANSWERS - 1:
            await asyncio.sleep(0)
        outcomes[visit.asked] = reply.outcome
        return reply.outcome

    class Shut:
        user_agent = "test/1"

        async def get(self, url, **_):
            asked.append(url)
            return Reply("ok" if url == urls[0] else "refused_by_edge", url, 200)

    crawl_with(Shut(), urls, finish, concurrency=2, page_bytes=1 << 30)
    assert asked == urls[: crawler.FEWEST_ANSWERS]
    assert set(outcomes) == set(urls)


def test_a_robots_txt_that_is_elsewhere_waits_for_its_turn_there():
    """It was asked for past the queue of that host, however busy that was."""
    at_once: dict[str, int] = {}
    most: dict[str, int] = {}

    class Hosts:
        user_agent = "test/1"

        async def get(self, url, **_):
            host = url.split("/")[2]
            at_once[host] = at_once.get(host, 0) + 1
            most[host] = max(most.get(host, 0), at_once[host])
            for _ in range(20):
                await asyncio.sleep(0)
            at_once[host] -= 1
            if url == "http://one.org/robots.txt":
                return Reply("redirect", url, 301, location="http://busy.org/rules")
            if url == "http://busy.org/robots.txt":  # and this leads back
                return Reply("redirect", url, 301, location="http://one.org/robots.txt?")
            return Reply("ok", url, 200, body=b"User-agent: *\nDisallow: /private")

    urls = [f"http://{host}.org/{name}" for name in ("private", *"abcd") for host in ("busy", "one")]
    found = crawl(Hosts(), urls, concurrency=9, robots=True)
    assert found == {url: "robots" if "private" in url else "ok" for url in urls}
    assert most == {"busy.org": 1, "one.org": 1}
