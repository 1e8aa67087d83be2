"""How long a download can take and how much memory, if every server does its worst: a sum of limits, known beforehand.

A URL holds its place at its host, among the connections, in the memory for pages and at an extractor for a limited time
each. A list is done no later than what its longest queue takes plus what all its URLs take of each shared thing,
divided by how much there is of it (Graham, "Bounds on multiprocessing timing anomalies", 1969). Most runs take a small
part of that. Pauses that servers ask for are a bound of their own, since nobody can know beforehand who asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from command_kit.progress import spoken_duration
from webtext_prep.crawl.frontier import politeness
from webtext_prep.crawl.frontier.robots import ATTEMPTS, KEPT_RULES, MAX_ROBOTS_REDIRECTS
from webtext_prep.crawl.http.client import host_name
from webtext_prep.crawl.settings import Fetching
from webtext_prep.crawl.state.database_writer import WAITING_TEXT
from webtext_prep.extraction.page_stage import parsers_of
from webtext_prep.running.preflight import readable

START_SECONDS = 3.0
"""Processor time in which an extractor is started, after a page has cost the one before its life."""
COMMAND_BYTES = 160 << 20
"""Memory of the command with its libraries,"""
EXTRACTOR_BYTES = 200 << 20
"""and of an extractor before its first page."""
URL_BYTES = 1_000
"""Memory of a URL that waits, its host included,"""
RULE_BYTES = 300
"""of a rule of a robots.txt,"""
CONNECTION_BYTES = 2 << 20
"""and of a connection: buffers of both directions, and headers up to their limits."""
ARCHIVE_BYTES = 256 << 20
"""Memory of what was read of the indexes of archives."""


@dataclass(frozen=True)
class Lists:
    """The numbers known of some URLs before any of them is asked for.

    Attributes:
        urls: how many.
        largest: how many name the same one, at most.
    """

    urls: int
    largest: int

    @classmethod
    def count(cls, urls: Iterable[str]) -> Lists:
        """Count them; memory grows with the number of hosts."""
        hosts: dict[str, int] = {}
        for url in urls:
            host = host_name(url)
            hosts[host] = hosts.get(host, 0) + 1
        return cls(sum(hosts.values()), max(hosts.values(), default=0))


@dataclass(frozen=True)
class WorstCase:
    """The bounds of one run over some lists.

    Attributes:
        seconds: until the last URL is finished, on a machine that does nothing else, if servers ask for no pauses and
            redirects do not lead to one host.
        seconds_with_pauses: the same, if all URLs lead to one host that asks for the longest pauses at each request;
            without pauses that archives ask for.
        bytes: memory of all processes together.
    """

    seconds: float
    seconds_with_pauses: float
    bytes: int


def worst_case(fetching: Fetching, lists: Lists) -> WorstCase:
    """The bounds for one process that fetches `lists` with these settings."""
    settings, parsers = fetching.settings, parsers_of(fetching.slots)
    hops = 1 + politeness.MAX_REDIRECTS
    requests = hops + settings.retries
    backoff = politeness.BACKOFF_SECONDS * 1.25 * 2**settings.retries
    request_seconds = settings.url_seconds
    robots_requests = ATTEMPTS * (1 + MAX_ROBOTS_REDIRECTS) if settings.robots else 0
    robots_seconds = ATTEMPTS * settings.timeout + backoff if settings.robots else 0.0

    def queue(urls: int, at_once: int, pause: float) -> float:
        """What one host's URLs take, one after the other: robots.txt, requests, pauses between them."""
        return (
            hops * (robots_seconds + robots_requests * pause)
            + math.ceil(urls / at_once) * request_seconds
            + urls * requests * pause
            + backoff
        )

    places = lists.urls * (request_seconds + hops * robots_seconds) / fetching.connections
    # Of pages that do not fit into memory together, only as many are read at once as fit.
    is_short = lists.urls * settings.max_bytes > fetching.page_bytes
    memory = lists.urls * request_seconds / fetching.unhindered if is_short else 0.0
    extraction = math.ceil(lists.urls / parsers) * (settings.extract_timeout + START_SECONDS)
    shared = places + memory + extraction
    # Each page may be gone, and each archive may have to be asked all that it can be asked for it.
    most = sum(archive.most_requests for archive in settings.make_archives(1).values())
    asked = lists.urls * (settings.retries + 1) * most
    shared += asked * (settings.archive_pause + settings.timeout)
    longest_pause = max(settings.delay, politeness.LONGEST_CRAWL_DELAY)
    asked_for = lists.urls * settings.retries * politeness.LONGEST_WAIT
    pages = min(lists.urls * settings.max_bytes, fetching.page_bytes + fetching.unhindered * settings.max_bytes)
    return WorstCase(
        queue(lists.largest, settings.per_host, settings.delay) + shared,
        queue(lists.urls, 1, longest_pause) + asked_for + shared,
        COMMAND_BYTES
        + 2 * 4 * WAITING_TEXT  # one batch being written, another coming together
        + pages
        + (ARCHIVE_BYTES + 3 * settings.max_bytes) * len(settings.archive)
        + parsers * 3 * settings.max_bytes  # copies on their way to an extractor
        + min(lists.urls, politeness.WINDOW) * URL_BYTES
        + min(lists.urls, fetching.connections) * CONNECTION_BYTES
        + KEPT_RULES * RULE_BYTES * settings.robots
        + min(lists.urls, parsers) * (EXTRACTOR_BYTES + (settings.extract_memory << 20)),
    )


def for_all(fetching: Fetching, lists: Sequence[Lists], at_once: int) -> WorstCase:
    """The bounds for this number of processes at once, which take one list after the other."""
    each = [worst_case(fetching, entry) for entry in lists]

    def total(seconds: Sequence[float]) -> float:
        return max(seconds) + (sum(seconds) / at_once if len(seconds) > at_once else 0.0)

    return WorstCase(
        total([entry.seconds for entry in each]),
        total([entry.seconds_with_pauses for entry in each]),
        min(at_once, len(each)) * max(entry.bytes for entry in each),
    )


def sentence(lists: Sequence[Lists], worst: WorstCase) -> str:
    """The bounds in one line."""
    urls, largest = sum(entry.urls for entry in lists), max(entry.largest for entry in lists)
    seconds, with_pauses = spoken_duration(worst.seconds), spoken_duration(worst.seconds_with_pauses)
    return (
        f"{urls:,} URLs, at most {largest:,} at one host, whatever the servers do: at worst {seconds} "
        f"({with_pauses} if they ask for pauses) and {readable(worst.bytes)} of memory"
    )
