"""A budget of bytes for page bodies, from the first byte read until the page is extracted.

Without it, memory is bounded only by connections times the largest page: 200 pages of 5 MB are a gigabyte. Whoever
reads a body takes bytes from the budget as they come, and waits when there are none: unread data then stays with the
kernel, and the sender is slowed down. The one that holds a reservation the longest never waits, so that there is
always one who gets on; the budget is thus exceeded by one page at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator


class Reservation:
    """The bytes that one page holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held = 0

    def try_grow(self, size: int) -> bool:
        """Take `size` bytes more if there is room now."""
        return self._budget._try_take(self, size)

    async def grow(self, size: int) -> float:
        """Take `size` bytes more, as soon as there is room. Returns the seconds waited."""
        return await self._budget._take(self, size)


class ByteBudget:
    """Bytes shared by all pages of a process.

    Args:
        limit: bytes that may be held at once, but for one page more.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
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
        if self.held + size > self.limit and next(iter(self._holders)) is not reservation:
            return False
        self.held += size
        reservation.held += size
        return True
