"""Connections under the limit on open files, which is 1,024 in many containers, and can't be raised there.

aiohttp 3.14.5 counts connections in use alone: its pool keeps each one that waits for another request for 15 seconds,
however many they are, and a crawl meets a thousand hosts in that time. So those that have waited longest are closed.
Its pool has no public way to do so; the attributes used here are those of 3.13 and 3.14.
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey

from command_kit import available_cores
from webtext_prep.running.processes import allow_open_files

OTHER_FILES = 48
"""Files that a crawl has open beside its connections: its database, the resolver's sockets, pipes of processes that
start; and so many for each process that extracts:"""
FILES_OF_A_WORKER = 4
SOCKETS_OF_A_CONNECTION = 2
"""While it is made: aiohttp tries another address of the host before the first has failed (RFC 8305)."""
MOST_IDLE = 1000
"""Connections that wait, at most: each takes some 50 kB, and all hosts of a crawl that are between two requests have
room among them."""
NO_FILE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})


def connections_at_once(wanted: int) -> int:
    """As many of the `wanted` connections as the limit on open files leaves room for; it is raised as far as may be."""
    allow_open_files()
    return max(1, min(wanted, _sockets() // (SOCKETS_OF_A_CONNECTION + 1)))


def _sockets() -> int:
    """How many more files this process may open for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return soft - len(list(Path("/dev/fd").iterdir())) - OTHER_FILES - FILES_OF_A_WORKER * available_cores()


class Connector(aiohttp.TCPConnector):
    """aiohttp's connections, of which a bounded number waits for another request. It takes what that one takes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._most_idle = max(1, min(MOST_IDLE, _sockets() - SOCKETS_OF_A_CONNECTION * self.limit))
        self._idle = 0  # at most so many, as some were taken again

    def close_idle(self, keep: int = 0) -> None:
        """Close connections that wait for another request, those that have waited longest first, but for `keep`."""
        self._idle = sum(map(len, self._conns.values()))
        while self._idle > keep:
            key = next(iter(self._conns))
            waiting = self._conns[key]
            waiting.popleft()[0].close()
            self._idle -= 1
            if not waiting:
                del self._conns[key]

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        self._idle += 1
        if self._idle > self._most_idle:  # not each time, since counting them takes as long as they are many
            self.close_idle(self._most_idle * 3 // 4)
