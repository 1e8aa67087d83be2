"""A crawl with a client that needs no network."""

import asyncio

from webtext_prep.crawl.frontier.crawler import Crawler
from webtext_prep.crawl.frontier.queues import Visit
from webtext_prep.stages.download import Download


def crawl_with(client, urls, finish, *, page_bytes, **settings):
    """Visit `urls`; `settings` are changes of `Download`, without which no file of a host is asked for."""
    usual = {"per_host": 1, "delay": 0.0, "retries": 1, "robots": False, "opt_outs": "ignore"}
    crawler = Crawler(Download(**(usual | settings)), client, finish, page_bytes)
    asyncio.run(crawler.run(Visit(url, url) for url in urls))
