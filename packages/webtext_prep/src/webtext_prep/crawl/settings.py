"""How pages are fetched, and what that leaves to do for a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from command_kit import setting
from command_kit.settings import Removed
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import PageOutcome, is_gone, is_retryable
from webtext_prep.extraction.page_stage import PageStage
from webtext_prep.opt_outs.decisions import NOTHING, Decision, Metadata, decide
from webtext_prep.opt_outs.preferences import HostPreferences
from webtext_prep.opt_outs.robots_txt import agent_of

if TYPE_CHECKING:
    from webtext_prep.crawl.http.client import Client, Reply

PASSES = "passes"
"""Under it, a row says how many passes over the lists have tried its URL."""


def _pace(default: Any, help: str, **more: Any) -> Any:
    """A setting of how fast to go, on which the result does not depend."""
    return setting(default, help, group="pace", identity=False, **more)


@dataclass(frozen=True)
class RequestSettings:
    """How a stage introduces itself to servers, and when it gives up."""

    robots: bool = setting(True, "fetch robots.txt and obey it")
    user_agent: str = setting("webtext/0.1", "User-Agent header; the part before / is matched against robots.txt")
    allow_private_addresses: Literal["none", "loopback", "all"] | bool = setting(
        False, "also connect to addresses outside the public internet: this machine's (loopback), or all"
    )
    timeout: float = _pace(20.0, "seconds for one request in total", metavar="SECONDS", ge=0.1, le=3600)
    retries: int = _pace(2, "retries of a URL within one run, where that may help", ge=0, le=10)
    retry_passes: int = _pace(2, "later runs of this command that try a retryable URL again", ge=0, le=1000)

    def __post_init__(self) -> None:
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

    @property
    def passes(self) -> int:
        """The number of runs, in all, that try a retryable URL."""
        return 1 + self.retry_passes

    def client(self, connections: int, max_bytes: int) -> Client:
        """What makes the requests, over so many connections, for bodies of so many bytes at most."""
        from webtext_prep.crawl.http.client import Client

        return Client(
            connections=connections,
            timeout=self.timeout,
            max_bytes=max_bytes,
            user_agent=self.user_agent,
            private=self.private_addresses,
        )


@dataclass(frozen=True)
class FetchSettings(RequestSettings, PageStage):
    """A stage that fetches pages."""

    REMOVED: ClassVar[Mapping[str, Removed]] = {
        "rounds": Removed("give --retry-passes, the runs after the first one (--rounds 3 is --retry-passes 2)"),
        "try_again": Removed("give --retry-passes 0 for --no-try-again"),
        "archive": Removed("give the output to `webtext rescue`, which has --archive", unused=[]),
        **{name: Removed("it is a setting of `webtext rescue`") for name in (
            "archive_date", "archive_requests", "wayback_address", "common_crawl_address", "common_crawl_index_address"
        )},
    }  # fmt: skip
    save_pages: bool = setting(False, "also keep the pages, as WARC files in pages/, for `webtext extract`")
    max_urls: int = setting(0, "only the first N URLs of the input; 0 means all", ge=0)
    concurrency: int = _pace(200, "requests at once", ge=1, le=10_000)
    per_host: int = _pace(2, "requests at once to one host", ge=1, le=1000)
    delay: float = _pace(0.1, "seconds between requests to one host", metavar="SECONDS", ge=0, le=3600)

    def __post_init__(self) -> None:
        PageStage.__post_init__(self)
        RequestSettings.__post_init__(self)

    def within_limits(self) -> FetchSettings:
        """The same with no more requests at once than this process may have connections."""
        from webtext_prep.crawl.http.connections import connections_at_once

        return replace(self, concurrency=connections_at_once(self.concurrency))

    @property
    def url_seconds(self) -> float:
        """What all requests of one URL may take, redirects included: as much as all attempts at one of them."""
        return (self.retries + 1) * self.timeout

    # What owners say of training

    def judged(self, reply: Reply, host: HostPreferences, known: Metadata) -> Reply:
        """A reply with what the owner of its page says; where that is obeyed and refuses the page, without the page.

        `known` may hold what was found on the way to it. What the host of a page that is gone says is noted, too: it
        holds for what archives have of it.
        """
        if self.opt_outs == "ignore":
            return reply
        if reply.outcome != PageOutcome.OK:
            if not is_gone(reply.outcome, is_last=True):
                return reply
            preference = decide(reply.url, host, (), b"", known=known).refusal
            return reply if preference is None else replace(reply, decision=Decision(preference))
        page = reply.body if reply.is_html else b""
        decision = decide(reply.url, host, reply.headers, page, agent_of(self.user_agent), known)
        if decision.refusal is not None and self.opt_outs == "obey":
            return replace(reply, outcome=PageOutcome.OPTED_OUT, body=b"", headers=(), decision=decision)
        return reply if decision is NOTHING else replace(reply, decision=decision)

    # What is left to do for a URL, as its row says

    def is_tried_again(self, row: Mapping[str, Any]) -> bool:
        """Whether the page itself is asked for once more in a later pass."""
        return is_retryable(row["outcome"]) and row.get(PASSES, 0) < self.passes

    def is_gone(self, row: Mapping[str, Any]) -> bool:
        """Whether the page of a URL with such a row is gone, as `is_gone` says."""
        return is_gone(row["outcome"], is_last=row.get(PASSES, 0) >= self.passes)
