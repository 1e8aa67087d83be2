"""The order of requests, with a client that answers from a script instead of the network."""

import asyncio
import time
from collections.abc import Callable

from webtext_prep.web.crawling import Crawler, Visit
from webtext_prep.web.fetcher import Reply


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

    options = {"concurrency": 1, "per_host": 1, "delay": 0.0, "retries": 1, "obey_robots": False} | settings
    asyncio.run(Crawler(client, finish, **options).run(iter(urls)))
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
