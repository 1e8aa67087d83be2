"""How pages are fetched; which web archives are asked for pages that are gone; and what that leaves to do for a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from command_kit import setting
from command_kit.progress import spoken_duration
from command_kit.settings import Removed
from webtext_prep.crawl.archives.times import timestamp
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import PageOutcome, is_gone, is_retryable
from webtext_prep.extraction.page_stage import PageStage
from webtext_prep.opt_outs.decisions import NOTHING, Decision, Metadata, decide
from webtext_prep.opt_outs.robots_txt import agent_of
from webtext_prep.opt_outs.wishes import HostWishes
from webtext_prep.urls.urls import host_of

if TYPE_CHECKING:
    from webtext_prep.crawl.archives.captures import Archive
    from webtext_prep.crawl.http.client import Reply

ANSWERS = "archives"
"""Under it, the row of a URL that is gone says what the archives answered that did not have it."""
PASSES = "passes"
"""Under it, a row says how many passes over the lists have tried its URL."""
NAMES = ("wayback", "common-crawl")
NEWEST = "newest"
DATES = ("reddit_first_submitted", "created_utc", "date")
"""The metadata of a list that say when a page was submitted, the first one that is there."""


def _of_archives(default: Any, help: str, **more: Any) -> Any:
    """A setting that a later run over the same output may change: what was asked already is not asked again."""
    return setting(default, help, group="pages that are gone", identity=False, **more)


@dataclass(frozen=True)
class ArchiveSettings:
    """What a download has to know of web archives."""

    archive: tuple[str, ...] = _of_archives(
        (), "web archives to ask for pages that are gone, in this order", metavar="NAME", choices=lambda: NAMES
    )
    archive_date: str = _of_archives(
        "",
        "take the capture nearest to this date, such as 2019-04, or the newest; without it that nearest to the date of "
        "submission, where the list has one",
        metavar="DATE",
    )
    archive_requests: int = _of_archives(1200, "requests an hour to one archive", ge=1, le=3_600_000)
    wayback_address: str = _of_archives(
        "https://web.archive.org", "where the Wayback Machine is, or a copy of it", metavar="URL"
    )
    common_crawl_address: str = _of_archives(
        "https://data.commoncrawl.org", "where the files of Common Crawl are", metavar="URL"
    )
    common_crawl_index_address: str = _of_archives(
        "https://index.commoncrawl.org", "where Common Crawl's list of crawls is", metavar="URL"
    )

    def make_archives(self, max_bytes: int) -> dict[str, Archive]:
        """The archives that are asked, by name, in their order; pages have `max_bytes` at most."""
        from webtext_prep.crawl.archives.common_crawl import CommonCrawl
        from webtext_prep.crawl.archives.wayback import Wayback

        known: dict[str, Archive] = {
            Wayback.name: Wayback(self.wayback_address, max_bytes),
            CommonCrawl.name: CommonCrawl(self.common_crawl_address, self.common_crawl_index_address, max_bytes),
        }
        return {name: known[name] for name in self.archive}

    @property
    def archive_hosts(self) -> dict[str, str]:
        """The hosts of the archives that are asked, each with the archive's name."""
        from webtext_prep.crawl.http.client import host_name

        found = self.make_archives(1)
        return {host_name(url): name for name, archive in found.items() for url in archive.addresses}

    @property
    def archive_pause(self) -> float:
        """Seconds from one request to an archive to the next."""
        return 3600 / self.archive_requests

    def date_for(self, metadata: Mapping[str, Any]) -> str:
        """The `timestamp` to which the capture of a page is to be the nearest; "" for the newest one."""
        if self.archive_date:
            return "" if self.archive_date == NEWEST else timestamp(self.archive_date)
        values = (metadata.get(name, "") for name in DATES)
        texts = (str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values)
        return next(filter(None, map(timestamp, texts)), "")

    def _requests(self, gone: int) -> dict[str, int]:
        return {name: gone * archive.usual_requests for name, archive in self.make_archives(1).items()}

    def seconds(self, gone: int) -> float:
        """The time that asking for so many pages that are gone will take; the archives are asked at once."""
        return max(self._requests(gone).values(), default=0) * self.archive_pause

    def expected(self, gone: int) -> list[str]:
        """A sentence for each archive: about how many requests and hours this number of gone pages will take there."""
        return [
            f"{name}: some {count:,} requests for {gone:,} pages that are gone, "
            f"{spoken_duration(count * self.archive_pause)} at {self.archive_requests:,} an hour"
            for name, count in self._requests(gone).items()
        ]


def _pace(default: Any, help: str, **more: Any) -> Any:
    """A setting of how fast to go, on which the result does not depend."""
    return setting(default, help, group="pace", identity=False, **more)


@dataclass(frozen=True)
class FetchSettings(ArchiveSettings, PageStage):
    """A stage that fetches pages."""

    REMOVED: ClassVar[Mapping[str, Removed]] = {
        "rounds": Removed("give --retry-passes, the runs after the first one (--rounds 3 is --retry-passes 2)"),
        "try_again": Removed("give --retry-passes 0 for --no-try-again"),
    }
    save_pages: bool = setting(False, "also keep the pages, as WARC files in pages/, for `webtext extract`")
    max_urls: int = setting(0, "only the first N URLs of the input; 0 means all", ge=0)
    robots: bool = setting(True, "fetch robots.txt and obey it")
    user_agent: str = setting("webtext/0.1", "User-Agent header; the part before / is matched against robots.txt")
    allow_private_addresses: Literal["none", "loopback", "all"] | bool = setting(
        False, "also connect to addresses outside the public internet: this machine's (loopback), or all"
    )
    concurrency: int = _pace(200, "requests at once", ge=1, le=10_000)
    per_host: int = _pace(2, "requests at once to one host", ge=1, le=1000)
    delay: float = _pace(0.1, "seconds between requests to one host", metavar="SECONDS", ge=0, le=3600)
    timeout: float = _pace(20.0, "seconds for one request in total", metavar="SECONDS", ge=0.1, le=3600)
    retries: int = _pace(2, "retries of a URL within one run, where that may help", ge=0, le=10)
    retry_passes: int = _pace(2, "later runs of this command that try a retryable URL again", ge=0, le=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.archive_date not in ("", NEWEST) and not timestamp(self.archive_date):
            raise InputError(f"--archive-date {self.archive_date} is no date: give one such as 2019-04, or {NEWEST}.")
        for name in ("wayback_address", "common_crawl_address", "common_crawl_index_address"):
            if not host_of(getattr(self, name)):
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)} is no web address.")
        if not self.user_agent.strip() or not self.user_agent.isascii() or not self.user_agent.isprintable():
            raise InputError(f"--user-agent must be printable ASCII text, not {self.user_agent!r}.")
        # "all" and "none" say what the bare flags say: the same settings, whichever way they are written.
        said = {"all": True, "none": False}.get(str(self.allow_private_addresses), self.allow_private_addresses)
        object.__setattr__(self, "allow_private_addresses", said)

    @property
    def private_addresses(self) -> Literal["none", "loopback", "all"]:
        """Which addresses outside the public internet may be connected to."""
        if self.allow_private_addresses == "loopback":
            return "loopback"
        return "all" if self.allow_private_addresses else "none"

    def within_limits(self) -> FetchSettings:
        """The same with no more requests at once than this process may have connections."""
        from webtext_prep.crawl.http.connections import connections_at_once

        return replace(self, concurrency=connections_at_once(self.concurrency))

    @property
    def url_seconds(self) -> float:
        """What all requests of one URL may take, redirects included: as much as all attempts at one of them."""
        return (self.retries + 1) * self.timeout

    @property
    def passes(self) -> int:
        """The number of runs, in all, that try a retryable URL."""
        return 1 + self.retry_passes

    # What owners say of training

    def judged(self, reply: Reply, host: HostWishes, known: Metadata) -> Reply:
        """A reply with what the owner of its page says; where that is obeyed and refuses the page, without the page.

        `known` may hold what was found on the way to it. What the host of a page that is gone says is noted, too: it
        holds for what archives have of it.
        """
        if self.opt_outs == "ignore":
            return reply
        if reply.outcome != PageOutcome.OK:
            wish = decide(reply.url, host, (), b"", known=known).refusal if is_gone(reply.outcome) else None
            return reply if wish is None else replace(reply, decision=Decision(wish))
        page = reply.body if reply.is_html else b""
        decision = decide(reply.url, host, reply.headers, page, agent_of(self.user_agent), known)
        if decision.refusal is not None and self.opt_outs == "obey":
            return replace(reply, outcome=PageOutcome.OPTED_OUT, body=b"", headers=(), decision=decision)
        return reply if decision is NOTHING else replace(reply, decision=decision)

    # What is left to do for a URL, as its row says

    def is_tried_again(self, row: Mapping[str, Any]) -> bool:
        """Whether the page itself is asked for once more in a later pass."""
        return is_retryable(row["outcome"]) and row.get(PASSES, 0) < self.passes

    def next_archive(self, row: Mapping[str, Any], after: str = "") -> str | None:
        """The archive to ask for a URL with such a row, after the one that was asked; None if there is none."""
        if not self._is_gone(row):
            return None
        answers = row.get(ANSWERS, {})
        for name in self.archive[self.archive.index(after) + 1 if after else 0 :]:
            answer = answers.get(name)
            if answer is None or (is_retryable(answer) and row.get(PASSES, 0) < self.passes):
                return name
        return None

    def archives_asked(self, row: Mapping[str, Any]) -> str | None:
        """The archives that were asked for a page that is gone, joined by commas; None for any other row."""
        return ",".join(sorted(row.get(ANSWERS, {}))) if self._is_gone(row) else None

    def may_end_otherwise(self, row: Mapping[str, Any]) -> bool:
        """Whether a URL may end in another way in a later pass, the live page or what an archive has of it."""
        answers = row.get(ANSWERS, {}) if self._is_gone(row) else {}
        return is_retryable(row["outcome"]) or any(is_retryable(answers.get(name, "")) for name in self.archive)

    def _is_gone(self, row: Mapping[str, Any]) -> bool:
        return is_gone(row["outcome"], is_last=row.get(PASSES, 0) >= self.passes)
