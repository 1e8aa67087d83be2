"""A crawl with a client that needs no network."""

import asyncio

from webtext_prep.crawl.frontier.politeness import Crawler
from webtext_prep.crawl.frontier.queues import Archives, Visit
from webtext_prep.crawl.settings import Fetching
from webtext_prep.stages.download import Download


def crawl_with(client, urls, finish, *, page_bytes, leave=None, hosts=None, **settings):
    """Visit `urls`; `settings` are changes of `Download`, without which no robots.txt is asked for."""
    usual = {"per_host": 1, "delay": 0.0, "retries": 1, "robots": False}
    fetching = Fetching(Download(**(usual | settings)), 1, 1, page_bytes)
    crawler = Crawler(fetching, client, finish, leave, Archives(fetching), hosts)
    asyncio.run(crawler.run(Visit(url, url) for url in urls))
