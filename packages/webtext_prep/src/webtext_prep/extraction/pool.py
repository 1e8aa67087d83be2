"""A bounded pool of extraction workers: each page ends in text or in an outcome, and the next one is served.

Some pages are always on their way to each worker, so that none waits for this process; results come one by one. A
worker that breaks a limit costs the page at which it did: the others that it had go to another worker. Pages wait here
until there is room; how many bytes of them may wait is for the caller to bound (a download's crawler does, by
`web.memory`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import itertools
import os
import signal
import sys
from pathlib import Path
from types import TracebackType

import msgspec

from webtext_prep.documents.outcomes import PageOutcome
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.fork_server import STARTED, ForkServer, borrow, give_back
from webtext_prep.extraction.frames import FrameReader, frame
from webtext_prep.extraction.workers import Limits, PageHead, Parsed

WAIT_FACTOR = 4
"""A worker that waits instead of working is ended after this many times the page's limit in processor time,"""
WAIT_SECONDS = 5.0
"""and so much more. A worker that would work, but gets no processor on a busy machine, does not wait."""
UNKNOWN_WAIT = 1 / 8
"""The part of the time that counts as waiting where the system does not say what a process does."""
PAGES_PER_WORKER = 5_000
"""Then a worker is replaced, since libraries leak a little with every page."""
AHEAD = 8
"""Pages that a worker may have at once, the one that it works on included: some milliseconds of work for the fastest
extractor, in which this process may do other things."""
AHEAD_BYTES = 1 << 20
"""No further page is given to a worker that has so many bytes of them."""
SLOW_SECONDS = 1.0
"""After so long with one page, the others that a worker has are given to others."""
TICK_SECONDS = 0.25
"""How often it is looked which worker is slow."""
STOP_SECONDS = 10
"""How long it may take until all killed workers are gone."""
LOSSES = 3
"""A page that was lost with the server of its worker so often is given up."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parsed).decode


class _Page:
    """A page on its way, and who waits for it."""

    __slots__ = ("answer", "body", "head", "losses")

    def __init__(self, head: PageHead, body: bytes, answer: asyncio.Future[Parsed]) -> None:
        self.head, self.body, self.answer, self.losses = head, body, answer, 0

    def end(self, parsed: Parsed) -> None:
        if not self.answer.done():  # else nobody waits for it any more
            self.answer.set_result(parsed)


class _Worker:
    """A worker process: its pipes, and the pages that it has, the one that it works on first.

    Attributes:
        results: the descriptor that its results come from.
        process: its id, 0 until that is known.
        pages: those that it has.
        since: the loop's time at which it began with the first of them.
        waited: seconds of these in which it was seen to wait.
        is_open: it may get further pages.
        is_spoiled: it has had too little memory for a page, and does no other.
        is_timed_out: it has been killed for taking too long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: int, results: int) -> None:
        self._loop, self._target, self.results = loop, target, results
        self._reader = FrameReader(results)
        self._unsent: list[memoryview] = []
        self._bytes = self._given = 0
        self.process, self.since, self.waited = 0, 0.0, 0.0
        self.pages: collections.deque[_Page] = collections.deque()
        self.is_open, self.is_spoiled, self.is_timed_out = True, False, False

    @property
    def has_room(self) -> bool:
        return self.is_open and (not self.pages or (len(self.pages) < AHEAD and self._bytes < AHEAD_BYTES))

    def give(self, page: _Page) -> None:
        """Put a page into the pipe, or behind those that wait for room in it."""
        if not self.pages:
            self.since, self.waited = self._loop.time(), 0.0
        self.pages.append(page)
        self._bytes += len(page.body)
        self._given += 1
        self.is_open = self._given < PAGES_PER_WORKER
        is_first = not self._unsent
        self._unsent += map(memoryview, frame(_encode(page.head), page.body))
        if is_first and not self._send():
            self._loop.add_writer(self._target, self._go_on)

    def _send(self) -> bool:
        """Write what fits into the pipe; True if that is everything."""
        try:
            sent = os.writev(self._target, self._unsent)
        except BlockingIOError:
            return False
        except OSError:  # it is dead, as will be told soon
            self._unsent.clear()
            return True
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if self._unsent:
            self._unsent[0] = self._unsent[0][sent:]
        return not self._unsent

    def _go_on(self) -> None:
        if self._send():
            self._loop.remove_writer(self._target)

    def receive(self) -> bool:
        """Hand out the results that are there; False if no more will come.

        Raises BlockingIOError if there is none yet, and msgspec.DecodeError if it is not one.
        """
        if not self._reader.receive():
            return False
        while self.pages and not self.is_spoiled and (found := self._reader.take()) is not None:
            parsed = _decode(found[0])
            page = self.pages.popleft()
            self._bytes -= len(page.body)
            self.since, self.waited = self._loop.time(), 0.0
            self.is_spoiled = parsed.outcome == PageOutcome.EXTRACT_MEMORY
            page.end(parsed)
        return True

    def take_back(self, keep: int) -> list[_Page]:
        """Its pages but for the first `keep`; it gets no others."""
        taken = list(self.pages)[keep:]
        self.pages = collections.deque(list(self.pages)[:keep])
        self.is_open = False
        return taken

    def kill(self) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes, at the end of which it ends."""
        self._loop.remove_reader(self.results)
        self._loop.remove_writer(self._target)
        os.close(self.results)
        os.close(self._target)


def waiting(process: int) -> float:
    """1 if a process sleeps; 0 if it works, would like to, has been stopped or is not there yet."""
    if not process:
        return 0.0
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split(None, 1)[0]
    except OSError:
        return 0.0 if sys.platform == "linux" else UNKNOWN_WAIT  # it has just ended, or there is no such file
    return float(state == b"S")


def _pipe() -> tuple[int, int]:
    """The ends of a pipe that holds several pages, where the system lets it."""
    read_end, write_end = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, AHEAD_BYTES)
    return read_end, write_end


class ExtractorPool:
    """Workers that extract text. Use as an async context manager.

    Args:
        extractor: which of `extractors.EXTRACTORS`.
        workers: how many pages at once; a process each, started when first needed.
        seconds: processor time for a page.
        memory: MiB that a worker may grow by while it works on a page.
        folder: where libraries may put temporary files.
    """

    def __init__(self, extractor: str, *, workers: int, seconds: float, memory: int, folder: str) -> None:
        self._limits = Limits(extractor, seconds, memory, os.fsencode(folder))
        self._most = workers
        self._waiting: collections.deque[_Page] = collections.deque()
        self._workers: dict[int, _Worker] = {}
        self._numbers = itertools.count()
        self._server: ForkServer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_forking = self._is_closing = False
        self._has_ended = asyncio.Event()

    async def __aenter__(self) -> ExtractorPool:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.call_later(TICK_SECONDS, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        self._clock.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for worker in self._workers.values():
            worker.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._workers:
                    self._has_ended.clear()
                    await self._has_ended.wait()
        if self._server is not None:
            self._loop.remove_reader(self._server.control)
            if self._workers:
                self._server.close()
            else:
                give_back(self._server)
        for worker in self._workers.values():
            worker.close()
        for page in self._waiting:
            page.answer.cancel()

    @property
    def processes(self) -> list[int]:
        """The ids of the workers' processes."""
        return [worker.process for worker in self._workers.values() if worker.process]

    async def extract(self, body: bytes, url: str, charset: str | None, *, is_html: bool = True) -> Parsed:
        """The text of one page, or why there is none; waits until a worker has done it.

        Raises WebtextError if no worker can be started.
        """
        page = _Page(PageHead(url, charset, is_html), body, self._loop.create_future())
        self._waiting.append(page)
        self._feed()
        return await page.answer

    # Pages to workers, and results back

    def _feed(self) -> None:
        """Give waiting pages to workers with room, the least busy one first, and start more as long as all are busy."""
        while self._waiting and not self._is_closing:
            if self._waiting[0].answer.done():  # nobody waits for it any more
                self._waiting.popleft()
                continue
            open_ones = [worker for worker in self._workers.values() if worker.has_room]
            worker = min(open_ones, key=lambda worker: len(worker.pages), default=None)
            if worker is None or worker.pages:
                self._start_another()
            if worker is None:
                return
            worker.give(self._waiting.popleft())

    def _take_results(self, worker: _Worker) -> None:
        try:
            is_alive = worker.receive()
        except BlockingIOError:
            return
        except msgspec.DecodeError:  # the page's code has written into its process' memory
            worker.kill()
            is_alive = False
        if worker.is_spoiled:
            self._return(worker.take_back(0))
        if not worker.is_open and not worker.pages:
            worker.kill()
            is_alive = False
        if not is_alive:
            self._loop.remove_reader(worker.results)
        self._feed()

    def _return(self, pages: list[_Page]) -> None:
        """Pages that another worker is to do, before those that came later."""
        self._waiting.extendleft(reversed(pages))

    def _look(self) -> None:
        """End what waits too long, and let no page stand behind one that takes long."""
        self._clock = self._loop.call_later(TICK_SECONDS, self._look)
        now = self._loop.time()
        for worker in self._workers.values():
            seconds = now - worker.since
            if not worker.pages or seconds <= SLOW_SECONDS:
                continue
            if len(worker.pages) > 1:
                self._return(worker.take_back(1))
            # Counted by looks: neither this process nor a machine that stood still for a while makes a page late.
            worker.waited += TICK_SECONDS * waiting(worker.process)
            if worker.waited > WAIT_FACTOR * self._limits.seconds + WAIT_SECONDS:
                worker.is_timed_out = True
                worker.kill()
        self._feed()

    # The lives of workers

    def _start_another(self) -> None:
        """Start one more worker, unless there are enough or one is being started."""
        if len(self._workers) < self._most and not self._is_forking:
            self._is_forking = True
            self._starting = self._loop.create_task(self._start())

    async def _start(self) -> None:
        try:
            if self._server is None:
                self._server = await borrow(self._limits.extractor, os.fsdecode(self._limits.folder))
                self._loop.add_reader(self._server.control, self._hear)
            self._fork(self._server)
        except Exception as error:
            self._fail(error)
        self._feed()

    def _fork(self, server: ForkServer) -> None:
        number = next(self._numbers)
        with contextlib.ExitStack() as theirs:
            source, target = _pipe()
            theirs.callback(os.close, source)
            results, results_end = os.pipe()
            theirs.callback(os.close, results_end)
            os.set_blocking(target, False)
            os.set_blocking(results, False)
            worker = self._workers[number] = _Worker(self._loop, target, results)
            with contextlib.suppress(OSError):  # it is gone, as will be heard
                server.fork(number, _encode(self._limits), source, results_end)
        self._loop.add_reader(results, self._take_results, worker)

    def _fail(self, error: Exception) -> None:
        """No worker could be started: those that are there do it, or else all who wait are told."""
        self._is_forking = False
        if self._workers:
            self._most = len(self._workers)
            return
        while self._waiting:
            page = self._waiting.popleft()
            if not page.answer.done():
                page.answer.set_exception(error)

    def _hear(self) -> None:
        """What the server has to tell."""
        assert self._server is not None
        try:
            for number, process, code in self._server.events():
                if code != STARTED:
                    self._conclude(number, code)
                    continue
                self._is_forking = False
                if process < 0:
                    self._workers.pop(number).close()
                    reason = os.strerror(-process)
                    self._fail(WebtextError(f"can't start another process ({reason}): run with fewer --workers."))
                    continue
                self._workers[number].process = process
                if self._is_closing:
                    self._workers[number].kill()
        except EOFError:  # it was killed, and its workers with it
            self._loop.remove_reader(self._server.control)
            self._server.close()
            self._server, self._is_forking = None, False
            for number in list(self._workers):
                self._conclude(number, None)
        self._feed()

    def _conclude(self, number: int, code: int | None) -> None:
        """A worker has ended: with this exit code, or with its server."""
        worker = self._workers.pop(number)
        with contextlib.suppress(BlockingIOError, msgspec.DecodeError):
            while worker.receive():
                pass
        worker.close()
        pages = list(worker.pages)
        if pages and not worker.is_spoiled:
            page = pages[0]
            page.losses += 1
            if code is not None or page.losses >= LOSSES:
                page.end(self._verdict(worker, code))
                del pages[0]
        self._return(pages)
        self._has_ended.set()

    @staticmethod
    def _verdict(worker: _Worker, code: int | None) -> Parsed:
        """What became of the page at which a worker died."""
        if worker.is_timed_out:
            return Parsed(PageOutcome.EXTRACT_TIMEOUT)
        if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
            return Parsed(PageOutcome.EXTRACT_TIMEOUT, detail=f"exit code {code}")
        detail = "ended with the process that had started it" if code is None else f"exit code {code}"
        return Parsed(PageOutcome.EXTRACT_CRASH, detail=detail)
