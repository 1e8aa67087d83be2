"""Which task may ask which host, where several fetch at once: each host belongs to one of them.

So what holds for a host (requests at once, pauses, its robots.txt) is kept by one process that knows all of its
requests, and no task waits for another. In the first round the tasks are those of the lists, and hosts are divided as
`webtext blacklist` divides them, so that its lists hold no URL of another task's host. In the rounds behind it, sites
(registered domains) are divided, so that `example.org` leads to `www.example.org` in one task.
"""

from __future__ import annotations

from dataclasses import dataclass

from webtext_prep.urls.urls import bucket_of, registered_name


def site_of(host: str) -> str:
    """The registered domain of a host, or the host itself where it has none."""
    return registered_name(host)[1] or host


@dataclass(frozen=True)
class Hosts:
    """The hosts of one task.

    Attributes:
        part: the number of the task.
        parts: how many tasks there are.
        by_site: whether whole sites are divided, not hosts.
    """

    part: int
    parts: int
    by_site: bool = False

    def owns(self, host: str) -> bool:
        """Whether a host is one of them."""
        return bucket_of(site_of(host) if self.by_site else host, self.parts) == self.part
