"""A budget of bytes for page bodies, from the first byte read until the page is extracted.

Without it, memory is bounded only by connections times the largest page: 200 pages of 5 MB are a gigabyte. Whoever
reads a body takes bytes from the budget as they come, and waits when there are none: unread data then stays with the
kernel, and the sender is slowed down. Those that hold a reservation the longest never wait, so that there is always one
who gets on, or several: each of them may exceed the budget by one page. Were it only one, senders that fill the budget
and then dawdle would be read one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator


class Reservation:
    """The bytes that one page holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held = 0
        self.waited = 0.0  # seconds

    def try_grow(self, size: int) -> bool:
        """Take `size` bytes more if there is room now."""
        return self._budget._try_take(self, size)

    async def grow(self, size: int) -> float:
        """Take `size` bytes more, as soon as there is room. Returns the seconds waited."""
        waited = await self._budget._take(self, size)
        self.waited += waited
        return waited


class ByteBudget:
    """Bytes shared by all pages of a process.

    Args:
        limit: bytes that may be held at once, but for `unhindered` pages more.
        unhindered: how many of the pages that hold some, the oldest ones, never wait.
    """

    def __init__(self, limit: int, *, unhindered: int = 1) -> None:
        self.limit, self.held, self.unhindered = limit, 0, unhindered
        self._holders: dict[Reservation, None] = {}  # in the order of their first byte
        self._changed = asyncio.Event()

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Reservation]:
        """A reservation, given back at the end of the block."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.held -= reservation.held
            self._holders.pop(reservation, None)
            self._changed.set()

    async def _take(self, reservation: Reservation, size: int) -> float:
        start = time.monotonic()
        while not self._try_take(reservation, size):
            self._changed.clear()
            await self._changed.wait()
        return time.monotonic() - start

    def _try_take(self, reservation: Reservation, size: int) -> bool:
        self._holders.setdefault(reservation)
        if self.held + size > self.limit and reservation not in itertools.islice(self._holders, self.unhindered):
            return False
        self.held += size
        reservation.held += size
        return True
