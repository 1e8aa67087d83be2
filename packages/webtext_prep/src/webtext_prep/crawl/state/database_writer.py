"""A journal at work. `JournalWriter` adds records from an event loop: in a thread, many in a transaction.

A transaction for each page cost more than fetching it. Records are written when `BATCH` of them have come together, or
when the first of them has waited `SECONDS`: that much is what a `kill -9` loses. An interruption or an error loses
nothing, since the end of the block writes the rest.

On this machine the journal of a task lies in the scratch folder, and is found there again. On a node of an engine it is
a working copy on the node's own disk, made of the segments (`page_cache`) that earlier attempts have kept, and gone at
the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from webtext_prep import storage
from webtext_prep.crawl.state import JOURNALS
from webtext_prep.crawl.state.database import Entry, Journal, journal_path
from webtext_prep.crawl.state.page_cache import SPOOL_SUFFIX, PageSpool, Segments, segments_in
from webtext_prep.errors import RetryableError
from webtext_prep.running.tasks import Context
from webtext_prep.storage.stores.base import Location

SECONDS = 0.25
"""The longest that a finished record waits before it is written, if the disk keeps up. So often what was written is
also offered to be kept elsewhere, while nothing new comes, too."""
BATCH = 256
"""Records in a transaction, about: then its fixed cost is a hundredth of the rest."""
WAITING_TEXT = 16 << 20
"""Characters of text (and bytes of pages to save) that may wait to be written; whoever adds beyond that waits too."""


class JournalWriter:
    """Writes to a journal in batches. Use as an async context manager.

    Args:
        journal: only this writes to it meanwhile.
        written: called after each transaction with the number of records that it added.
        save: is given the records of a transaction in the same thread, and gives them back with their pages saved.
        keep: is called in the same thread now and then, to keep what was written in another place, too.
    """

    def __init__(
        self,
        journal: Journal,
        written: Callable[[int], None],
        save: Callable[[Iterable[Entry]], Iterator[Entry]] = iter,
        keep: Callable[[], None] | None = None,
    ) -> None:
        self._journal, self._written, self._save, self._keep = journal, written, save, keep
        self._waiting: list[Entry] = []
        self._characters = 0
        self._is_full = asyncio.Event()  # there is a batch, or no more will come
        self._has_room = asyncio.Event()
        self._is_closing = False
        self._thread = ThreadPoolExecutor(1, "journal")

    async def __aenter__(self) -> JournalWriter:
        self._task = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._is_full.set()
        try:
            await self._task
        finally:
            self._thread.shutdown()  # a transaction that runs is finished first
            if self._waiting:  # the task was cancelled
                self._journal.add_many(self._save(self._take()))

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

    async def _write_all(self) -> None:
        """Write what waits, when there is a batch of it or some time has passed, until nothing more comes."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or not self._is_closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        await self._is_full.wait()
                self._is_full.clear()
                batch = self._take()
                await loop.run_in_executor(self._thread, self._write, batch)
                if batch:
                    self._written(len(batch))
        finally:
            self._has_room.set()

    def _write(self, batch: list[Entry]) -> None:
        if batch:
            self._journal.add_many(self._save(batch))
        if self._keep is not None:
            self._keep()

    def _take(self) -> list[Entry]:
        batch, self._waiting, self._characters = self._waiting, [], 0
        self._has_room.set()
        return batch


@dataclass(frozen=True)
class Work:
    """What a task has fetched so far.

    Attributes:
        journal: the records.
        spool: the pages, if they are saved.
        segments: what keeps both, on a node of an engine.
    """

    journal: Journal
    spool: PageSpool | None = None
    segments: Segments | None = None


@contextlib.contextmanager
def opened(name: str, context: Context, *, save_pages: bool, is_kept: bool = True) -> Iterator[Work]:
    """The journal of the task of that name, with all that earlier attempts have kept.

    Args:
        name: of the task.
        context: its surroundings.
        save_pages: whether pages are saved.
        is_kept: whether to keep also records added now.
    """
    kept = (context.scratch if context.kept is None else context.kept) / JOURNALS / name
    with contextlib.ExitStack() as stack:
        if context.kept is None:
            path = journal_path(context.scratch / JOURNALS, name)
        else:
            folder = (context.local or context.scratch) / JOURNALS
            folder.mkdir(parents=True, exist_ok=True)
            path = journal_path(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=name))), name)
        journal, spool = stack.enter_context(Journal(path)), None
        is_new = journal.is_empty
        if save_pages:
            spool = stack.enter_context(PageSpool(path.with_suffix(SPOOL_SUFFIX), is_new=is_new))
        segments = Segments(kept, journal, spool)
        if is_new:
            segments.restore()
        if context.kept is None or not is_kept:
            yield Work(journal, spool)
            return
        try:
            yield Work(journal, spool, segments)
        except BaseException:
            with contextlib.suppress(RetryableError):
                segments.save()
            raise
        segments.save()


def remove(name: str, context: Context) -> None:
    """Remove the journal of a task, when what it holds is in the output."""
    path = journal_path(context.scratch / JOURNALS, name)
    path.unlink(missing_ok=True)
    path.with_suffix(SPOOL_SUFFIX).unlink(missing_ok=True)
    folder: Location = (context.scratch if context.kept is None else context.kept) / JOURNALS / name
    if segments_in(folder):
        storage.remove_folder(folder)
