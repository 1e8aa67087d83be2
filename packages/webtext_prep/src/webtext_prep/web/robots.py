"""robots.txt, asked for once per origin and obeyed as RFC 9309 says.

A file that is not there (4xx) allows everything. A server in trouble (5xx, 429) forbids all for now: its URLs end
as `robots_unreachable` and may pass in a later run. An origin that cannot be reached at all gives its URLs the same
outcome as it gave this file, at once, so that ten thousand URLs of a dead host cost one attempt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protego import Protego
from yarl import URL

from webtext_prep.web.requests import Client, Reply, next_url

MAX_BYTES = 500 << 10
"""RFC 9309, section 2.5: at least 500 kibibytes are read; the rest is left."""
MAX_REDIRECTS = 5
"""RFC 9309, section 2.3.1.2."""
ATTEMPTS = 2
KEPT_ORIGINS = 5_000
"""How many origins' rules are remembered; the ones asked for longest ago are forgotten first."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an origin allows.

    Attributes:
        parsed: its rules, or None where it has none.
        failure: the outcome for all of its URLs where the rules could not be had, or None.
    """

    parsed: Protego | None = None
    failure: str | None = None

    def refusal(self, url: str, agent: str) -> str | None:
        """The outcome for `url` if it must not be fetched, or None."""
        if self.failure is not None:
            return self.failure
        return None if self.parsed is None or self.parsed.can_fetch(url, agent) else "robots"

    def crawl_delay(self, agent: str) -> float | None:
        """Seconds between requests that the origin asks for, or None."""
        return None if self.parsed is None else self.parsed.crawl_delay(agent)


def parse_rules(body: bytes) -> Rules:
    """The rules in a robots.txt. What cannot be parsed allows everything, as a file of no valid lines does."""
    text = body.decode("utf-8-sig", "replace").replace("\0", "")
    try:
        return Rules(Protego.parse(text))
    except Exception:  # a parser of strangers' files: whatever it stumbles over is no rule
        return Rules()


class Robots:
    """The rules of every origin met, each asked for once.

    Args:
        client: sends the requests.
        pause: awaited with the number of the attempt before a second one.
    """

    def __init__(self, client: Client, pause: Callable[[int], Awaitable[None]]) -> None:
        self._client, self._pause = client, pause
        self._known: OrderedDict[str, asyncio.Task[Rules]] = OrderedDict()

    async def rules(self, url: str) -> Rules:
        """The rules for the origin of `url`. Raises ValueError if `url` is none."""
        origin = str(URL(url).with_user(None).origin())
        task = self._known.get(origin)
        if task is None:
            task = self._known[origin] = asyncio.create_task(self._fetch(origin))
            while len(self._known) > KEPT_ORIGINS:
                self._known.popitem(last=False)
        self._known.move_to_end(origin)
        # Shielded: a visit that is given up does not take the answer from the others that wait for it.
        return await asyncio.shield(task)

    async def _fetch(self, origin: str) -> Rules:
        reply = await self._follow(origin)
        for attempt in range(1, ATTEMPTS):
            if not reply.passes_soon:
                break
            await self._pause(attempt)
            reply = await self._follow(origin)
        if reply.outcome == "ok":
            return parse_rules(reply.body)
        status = reply.status or 0
        if reply.outcome.startswith("http_"):
            return Rules(failure="robots_unreachable") if status >= 500 or status == 429 else Rules()
        if reply.outcome in ("too_many_redirects", "malformed_url", "malformed_response"):
            return Rules()
        return Rules(failure=reply.outcome)

    async def _follow(self, origin: str) -> Reply:
        url = f"{origin}/robots.txt"
        for _ in range(MAX_REDIRECTS + 1):
            reply = await self._client.get(url, any_type=True, max_bytes=MAX_BYTES)
            if reply.outcome != "redirect":
                return reply
            target = next_url(reply.url, reply.location)
            if target is None:
                break
            url = target
        return Reply("too_many_redirects", url)
