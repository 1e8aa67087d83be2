"""Which pages are gone, and which archive is asked for them next.

A visit to a page that is gone goes on at an archive, a host like every other: with its robots.txt, its pauses and its
turn in the rounds. What the archives say is kept in the row of the URL, so that none is asked twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webtext_prep.crawl.archives.captures import Archive, Retrieval
from webtext_prep.crawl.archives.settings import ArchiveSettings
from webtext_prep.crawl.frontier.queues import Visit
from webtext_prep.crawl.http.client import host_name
from webtext_prep.crawl.state.page_cache import KEY
from webtext_prep.extraction.outcomes import is_gone, is_retryable

ANSWERS = "archives"
"""Under it, the row of a URL that is gone says what the archives answered that did not have it."""


def is_gone_row(row: Mapping[str, Any], rounds: int) -> bool:
    """Whether a row says that its page is gone, where a retryable URL is tried in this number of rounds."""
    return is_gone(row["outcome"], is_last=row.get("rounds", 0) >= rounds)


def asked_for(row: Mapping[str, Any], rounds: int) -> str | None:
    """The archives that were asked for a page that is gone, joined by commas; None for any other row."""
    return ",".join(sorted(row.get(ANSWERS, {}))) if is_gone_row(row, rounds) else None


class Archives:
    """The archives of a download.

    Args:
        settings: which they are.
        max_bytes: most bytes of a page.
        rounds: in how many passes over a list what failed for the moment is tried.

    Attributes:
        names: of the archives, in the order in which they are asked.
        pause: seconds from one request to an archive to the next.
        hosts: their hosts, each with the name of its archive.
    """

    def __init__(self, settings: ArchiveSettings, max_bytes: int, rounds: int) -> None:
        self._archives: dict[str, Archive] = settings.make_archives(max_bytes)
        self.names = tuple(self._archives)
        self._rounds = rounds
        self.pause = settings.archive_pause
        self.hosts = {host_name(url): name for name, each in self._archives.items() for url in each.addresses}

    def is_due_again(self, row: Mapping[str, Any]) -> bool:
        """Whether a URL may end in another way in a later pass, the live page or what an archive has of it."""
        answers = row.get(ANSWERS, {}).items() if is_gone_row(row, self._rounds) else ()
        return is_retryable(row["outcome"]) or any(name in self._archives and is_retryable(a) for name, a in answers)

    def next(self, row: Mapping[str, Any], after: str = "") -> str | None:
        """The archive to ask for a URL with such a row, after the one that was asked; None if there is none."""
        if not is_gone_row(row, self._rounds):
            return None
        answers = row.get(ANSWERS, {})
        for name in self.names[self.names.index(after) + 1 if after else 0 :]:
            answer = answers.get(name)
            if answer is None or (is_retryable(answer) and row.get("rounds", 0) < self._rounds):
                return name
        return None

    def enter(self, visit: Visit, name: str, row: dict[str, Any]) -> None:
        """Have a visit go on at an archive; `row` is the row of its URL without that."""
        row = {key: value for key, value in row.items() if key != KEY}  # where the page that is none was saved
        visit.retrieval, visit.url = Retrieval(name, row), self._archives[name].addresses[0]
        visit.failures = visit.retries = 0
        visit.seconds = 0.0

    def go_on(self, visit: Visit, reply: Any = None) -> None:
        """Begin the search of a visit, or take its next step with the reply to its request."""
        retrieval = visit.retrieval
        assert retrieval is not None
        if retrieval.search is None:
            retrieval.search = self._archives[retrieval.archive].search(visit.asked, visit.date)
        retrieval.go_on(reply)
        if retrieval.request is not None:
            visit.url = retrieval.request.url
            visit.failures = visit.retries = 0
            visit.seconds = 0.0
