"""Adding to a database from an event loop: in a thread, many records in a transaction.

A transaction for each page cost more than fetching it. Records are written when `BATCH` of them have come together, or
when the first of them has waited `SECONDS`: that much is what a `kill -9` loses. An interruption or an error loses
nothing, since the end of the block writes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from webtext_prep.crawl.database import CrawlDatabase, Entry

SECONDS = 0.25
"""The longest that a finished record waits before it is written, if the disk keeps up."""
BATCH = 256
"""Records in a transaction, about: then its fixed cost is a hundredth of the rest."""
WAITING_TEXT = 16 << 20
"""Characters of text (and bytes of pages to save) that may wait to be written; whoever adds beyond that waits too."""


class DatabaseWriter:
    """Writes to a database in batches. Use as an async context manager.

    Args:
        database: only this writes to it meanwhile.
        written: called after each transaction with the number of records that it added.
    """

    def __init__(self, database: CrawlDatabase, written: Callable[[int], None]) -> None:
        self._database, self._written = database, written
        self._waiting: list[Entry] = []
        self._rules: dict[str, bytes] = {}
        self._rules_on_their_way: dict[str, bytes] = {}
        self._characters = 0
        self._is_full = asyncio.Event()  # there is a batch, or no more will come
        self._has_room = asyncio.Event()
        self._is_closing = False
        self._thread = ThreadPoolExecutor(1, "database")

    async def __aenter__(self) -> DatabaseWriter:
        self._task = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._is_full.set()
        try:
            await self._task
        finally:
            self._thread.shutdown()  # a transaction that runs is finished first
            if self._waiting or self._rules:  # the task was cancelled
                self._database.add_many(*self._take())

    async def add(self, entry: Entry) -> None:
        """Have a record written. Raises what writing an earlier one raised (WebtextError where the disk is full)."""
        if self._task.done():
            await self._task
        self._waiting.append(entry)
        self._characters += len(entry.document.text) if entry.document is not None else 0
        self._characters += len(entry.answer.body) if entry.answer is not None else 0
        if len(self._waiting) >= BATCH or self._characters > WAITING_TEXT:
            self._is_full.set()
        if self._characters > WAITING_TEXT:
            self._has_room.clear()
            await self._has_room.wait()

    def load_rules(self, origin: str) -> bytes | None:
        """What an origin says, if it is known; see `Robots`."""
        waiting = self._rules.get(origin) or self._rules_on_their_way.get(origin)
        return waiting or self._database.rules_of(origin)

    def store_rules(self, origin: str, rules: bytes) -> None:
        """Have what an origin says written with the next records."""
        self._rules[origin] = rules

    async def _write_all(self) -> None:
        """Write what waits, when there is a batch of it or some time has passed, until nothing more comes."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._rules or not self._is_closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        await self._is_full.wait()
                self._is_full.clear()
                batch, rules = self._take()
                if batch or rules:
                    await loop.run_in_executor(self._thread, self._database.add_many, batch, rules)
                    self._written(len(batch))
        finally:
            self._has_room.set()

    def _take(self) -> tuple[list[Entry], dict[str, bytes]]:
        taken = self._waiting, self._rules
        self._rules_on_their_way = self._rules
        self._waiting, self._rules, self._characters = [], {}, 0
        self._has_room.set()
        return taken
