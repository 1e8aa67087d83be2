"""Work on many items at once whose results come in order, bounded in number and in bytes.

What reads an archive blocks: reading goes on in a thread next to the event loop, one batch ahead. One slow item holds
up the results of later ones, and no work until the bound is reached.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH = 64
"""The largest number of items that are read together."""
BATCH_BYTES = 1 << 20
"""Bytes with which such a batch is full."""


async def in_order(
    items: Iterator[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    size: Callable[[Item], int],
    most: int,
    most_bytes: int,
) -> AsyncGenerator[tuple[Item, Result], None]:
    """Each item with the result of `work` on it, in order. To be closed (`contextlib.aclosing`) where it is left early.

    Args:
        items: what to work on; used by another thread.
        work: what to do with one.
        size: bytes of one.
        most: how many are worked on at once, including results that wait for one before them.
        most_bytes: no further one is begun while these have that many bytes; two batches beyond that may be held.
    """
    loop = asyncio.get_running_loop()
    begun: collections.deque[tuple[Item, asyncio.Future[Result]]] = collections.deque()
    unbegun: collections.deque[Item] = collections.deque()
    held = 0

    def read() -> list[Item]:
        found, total = [], 0
        for item in items:
            found.append(item)
            total += size(item)
            if len(found) >= BATCH or total >= BATCH_BYTES:
                break
        return found

    thread = ThreadPoolExecutor(1, "reader")
    try:
        coming = loop.run_in_executor(thread, read)
        is_at_end = False
        while True:
            while unbegun and (not begun or (len(begun) < most and held < most_bytes)):
                item = unbegun.popleft()
                held += size(item)
                begun.append((item, asyncio.ensure_future(work(item))))
            if begun and (unbegun or is_at_end or begun[0][1].done()):
                item, future = begun[0]
                result = await future
                begun.popleft()
                held -= size(item)
                yield item, result
            elif is_at_end:
                return
            else:
                unbegun.extend(batch := await coming)
                is_at_end = not batch
                if not is_at_end:
                    coming = loop.run_in_executor(thread, read)
    finally:
        for _, future in begun:
            future.cancel()
        await asyncio.gather(*(future for _, future in begun), return_exceptions=True)
        thread.shutdown(cancel_futures=True)
