"""A bounded pool of extraction workers: each page ends in text or in an outcome, and the next one is served.

Some pages are always on their way to each worker, so that none waits for this process. Several are sent at once, and
all results are taken that have come; the worker writes each before it begins the next page. A worker that breaks a
limit costs the page at which it did: the others that it had go to another worker. Pages wait here until there is room;
how many bytes of them may wait is for the caller to bound (a download's crawler does, by a `ByteBudget`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from command_kit.processes import WorkerProcess
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.processes.workers import EXTRACTOR, PAGE, RESULT, PageHead, PageLimits, Parsed, work

WAIT_FACTOR = 4
"""A worker that waits instead of working is ended after this many times the page's limit in processor time, and
`WAIT_SECONDS` more. One that would work, but gets no processor on a busy machine, does not wait."""
WAIT_SECONDS = 5.0
UNKNOWN_WAIT = 1 / 8
"""The part of the time that counts as waiting where the system does not say what a process does."""
PAGES_PER_WORKER = 5_000
"""Then a worker is replaced, since libraries leak a little with every page."""
AHEAD = 16
"""Pages that a worker may have at once, the one that it works on included: some milliseconds of work for the fastest
extractor, in which this process may do other things. With half of them, or half of their bytes, it gets others."""
PIPE_BYTES = 1 << 20
"""Bytes of the pages that wait in a worker's pipe, where the system lets a pipe hold them."""
SMALL_PIPE = 1 << 14
"""The same where it does not."""
FRAME_BYTES = 3 << 12
"""Bytes that a page may take in a pipe on top of its body."""
READ_BYTES = 1 << 16
"""Bytes of results that are read at once."""
SLOW_SECONDS = 1.0
"""After so long with one page, the others that a worker has are given to others."""
TICK_SECONDS = 0.25
"""How often it is looked which worker is slow."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parsed).decode


@dataclass(eq=False, slots=True)
class _Page:
    """A page on its way, and who waits for it."""

    head: PageHead
    body: bytes
    answer: asyncio.Future[Parsed]

    def end(self, parsed: Parsed) -> None:
        if not self.answer.done():  # else nobody waits for it any more
            self.answer.set_result(parsed)


class _Extractor(WorkerProcess):
    """A worker process, and the pages that it has, the one that it works on first.

    Attributes:
        pages: the ones that it has.
        since: the loop's time at which it began with the first of them.
        waited: seconds of these in which it was seen to wait.
        given: how many pages it has had.
        is_open: it may get further pages.
        is_timed_out: it has been killed for taking too long.

    Raises CommandError if it can't be started.
    """

    def __init__(self, limits: PageLimits) -> None:
        environment = {EXTRACTOR: limits.extractor}
        super().__init__(
            work, limits, preload=["webtext_prep.extraction.processes.preloading"], environment=environment
        )
        try:
            problem = self.results.recv_bytes().decode()
        except (EOFError, OSError):
            self.process.join()
            problem = f"exit code {self.process.exitcode}"
        if problem:
            self.close()
            raise WebtextError(f"the extractor {limits.extractor} did not start: {problem}")
        self._room = SMALL_PIPE
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                self._room = fcntl.fcntl(self.tasks.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.since, self.waited, self.given = 0.0, 0.0, 0
        self.pages: collections.deque[_Page] = collections.deque()
        self._held = 0  # bytes of them in the pipe, if none is read
        self._unsent: list[bytes] = []
        self._heard = bytearray()
        self.is_open, self.is_timed_out = True, False

    @property
    def is_hungry(self) -> bool:
        """Whether it is time to give it further pages, several at once."""
        return len(self.pages) <= AHEAD // 2 and self._held <= self._room // 2

    def has_room(self, page: _Page) -> bool:
        """Whether a page can be given without waiting: into the pipe, or as the worker reads it."""
        if not self.is_open or len(self.pages) >= AHEAD:
            return False
        return not self.pages or self._held + len(page.body) + FRAME_BYTES <= self._room

    def give(self, page: _Page) -> None:
        """Give it a page, which `send` puts into the pipe."""
        self.pages.append(page)
        self._held += len(page.body) + FRAME_BYTES
        self.given += 1
        self.is_open = self.given < PAGES_PER_WORKER
        head = _encode(page.head)
        self._unsent += (PAGE.pack(len(head), len(page.body)), head, page.body)

    def send(self) -> None:
        """Put the pages that it was given into the pipe."""
        parts, self._unsent = self._unsent, []
        if not parts:
            return
        with contextlib.suppress(OSError):  # it is dead, as will be heard
            sent = os.writev(self.tasks.fileno(), parts)
            if sent < sum(map(len, parts)):  # a signal came in between
                rest = memoryview(b"".join(parts))
                while sent < len(rest):
                    sent += os.write(self.tasks.fileno(), rest[sent:])

    def hear(self) -> Iterator[tuple[_Page, Parsed]]:
        """The results that have come, each with its page.

        Raises EOFError or OSError if the process has ended, and DecodeError or IndexError for what is no result.
        """
        data = os.read(self.results.fileno(), READ_BYTES)
        if not data:
            raise EOFError
        self._heard += data
        while len(self._heard) >= RESULT.size:
            (size,) = RESULT.unpack_from(self._heard)
            end = RESULT.size + size
            if len(self._heard) < end:
                return
            parsed, page = _decode(self._heard[RESULT.size : end]), self.pages.popleft()
            del self._heard[:end]
            self._held -= len(page.body) + FRAME_BYTES
            yield page, parsed

    def take_back(self, keep: int) -> list[_Page]:
        """Its pages but for the first `keep`; it gets no others."""
        taken = list(self.pages)[keep:]
        self.pages = collections.deque(list(self.pages)[:keep])
        self.is_open = False
        return taken


def waiting(process: int | None) -> float:
    """1 if a process sleeps; 0 if it works, would like to or has been stopped."""
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split(None, 1)[0]
    except OSError:
        return 0.0 if sys.platform == "linux" else UNKNOWN_WAIT  # it has just ended, or there is no such file
    return float(state == b"S")


class ExtractorPool:
    """Workers that extract text. Use as an async context manager.

    Args:
        limits: of each worker.
        workers: how many pages at once; a process each, started when first needed.
    """

    def __init__(self, limits: PageLimits, workers: int) -> None:
        self._limits = limits
        self._most = workers
        self._waiting: collections.deque[_Page] = collections.deque()
        self._workers: list[_Extractor] = []
        self._starting: asyncio.Task[None] | None = None
        self._is_closing = self._is_about_to_feed = False

    async def __aenter__(self) -> ExtractorPool:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.call_later(TICK_SECONDS, self._look)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._clock.cancel()
        try:
            if self._starting is not None:
                await self._starting
        finally:
            for worker in self._workers:
                self._loop.remove_reader(worker.results)
                worker.process.kill()
            for worker in self._workers:
                worker.close()
        for page in self._waiting:
            page.answer.cancel()

    @property
    def processes(self) -> list[int]:
        """The ids of the workers' processes."""
        return [worker.process.pid for worker in self._workers if worker.process.pid]

    async def extract(self, body: bytes, url: str, charset: str | None, *, is_html: bool = True) -> Parsed:
        """The text of one page, or why there is none; waits until a worker has done it.

        Raises CommandError if no worker can be started.
        """
        page = _Page(PageHead(url, charset, is_html), body, self._loop.create_future())
        self._waiting.append(page)
        self._feed_soon()
        return await page.answer

    def _feed_soon(self) -> None:
        """Have `_feed` called once for all that happens at once."""
        if not self._is_about_to_feed:
            self._is_about_to_feed = True
            self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        """Give waiting pages to workers with room, the least busy one first, and start more as long as all are busy."""
        self._is_about_to_feed = False
        hungry = [worker for worker in self._workers if worker.is_hungry]
        while self._waiting and not self._is_closing:
            page = self._waiting[0]
            if page.answer.done():  # nobody waits for it any more
                self._waiting.popleft()
                continue
            open_ones = [worker for worker in hungry if worker.has_room(page)]
            worker = min(open_ones, key=lambda worker: len(worker.pages), default=None)
            if (worker is None or worker.pages) and self._starting is None and len(self._workers) < self._most:
                self._starting = self._loop.create_task(self._start())
            if worker is None:
                break
            if not worker.pages:
                worker.since, worker.waited = self._loop.time(), 0.0
            worker.give(self._waiting.popleft())
        for worker in hungry:
            worker.send()

    async def _start(self) -> None:
        """Start one more worker. If that fails, the others go on; without any, all who wait get the error."""
        try:
            worker = await asyncio.to_thread(_Extractor, self._limits)
            self._workers.append(worker)
            self._loop.add_reader(worker.results, self._hear, worker)
        except Exception as error:
            self._most = len(self._workers)
            while self._waiting and not self._workers:
                page = self._waiting.popleft()
                if not page.answer.done():
                    page.answer.set_exception(error)
        self._starting = None
        self._feed()

    def _hear(self, worker: _Extractor) -> None:
        """Take results from a worker, or notice its end."""
        try:
            for page, parsed in worker.hear():
                worker.since, worker.waited = self._loop.time(), 0.0
                page.end(parsed)
                if parsed.outcome == PageOutcome.EXTRACT_MEMORY:  # it does no other
                    self._waiting.extendleft(reversed(worker.take_back(0)))
        except (EOFError, OSError, msgspec.DecodeError, IndexError):  # a page's code may have written into its memory
            self._conclude(worker)
            return
        if not worker.is_open and not worker.pages:
            self._conclude(worker)
        self._feed_soon()

    def _conclude(self, worker: _Extractor) -> None:
        """Clear away a worker. The page at which it died has its verdict; another worker does the others."""
        self._workers.remove(worker)
        self._loop.remove_reader(worker.results)
        worker.process.kill()  # it may have closed its pipe
        worker.close()
        if worker.pages:
            worker.pages.popleft().end(self._verdict(worker))
        self._waiting.extendleft(reversed(worker.pages))
        self._feed_soon()

    def _look(self) -> None:
        """End what waits too long, and let no page wait for one that takes long."""
        self._clock = self._loop.call_later(TICK_SECONDS, self._look)
        now = self._loop.time()
        for worker in self._workers:
            seconds = now - worker.since
            if not worker.pages or seconds <= SLOW_SECONDS:
                continue
            if len(worker.pages) > 1:
                self._waiting.extendleft(reversed(worker.take_back(1)))
            # Counted by looks: neither this process nor a machine that stood still for a while makes a page late.
            worker.waited += TICK_SECONDS * waiting(worker.process.pid)
            if worker.waited > WAIT_FACTOR * self._limits.seconds + WAIT_SECONDS:
                worker.is_timed_out = True
                worker.process.kill()
        self._feed()

    @staticmethod
    def _verdict(worker: _Extractor) -> Parsed:
        """What became of the page at which a worker died."""
        if worker.is_timed_out:
            return Parsed(PageOutcome.EXTRACT_TIMEOUT)
        code = worker.process.exitcode
        is_timeout = code == -signal.SIGPROF
        return Parsed(
            PageOutcome.EXTRACT_TIMEOUT if is_timeout else PageOutcome.EXTRACT_CRASH, detail=f"exit code {code}"
        )
