"""Extracting text in processes that can be killed: no page can hang the download, fill the memory, or crash it.

Each worker is a fresh interpreter that imports its extractor once and is then handed one page after the other through
a pipe (0.2 ms a page; a process for each page would cost 300 ms or more). Bounds are the kernel's own where it has
them: processor time by a timer whose signal kills, so that a busy machine changes no outcome; memory by a limit on
address space. A worker that breaks one is replaced. It ends when its pipe does, thus with its parent, however that
ended.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import queue
import signal
import struct
import sys
import threading
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from webtext_prep.extraction.extractors import EXTRACTORS, Extracted, nests_too_deep, plain_text, warm_up

try:
    import resource
except ImportError:  # not on this system: memory is then bounded by the size of pages alone
    resource = None  # type: ignore[assignment]

WALL_CLOCK_FACTOR = 4
"""A page may take this many times its limit in processor time by the clock: the way out where there is no timer, or
where a parser waits instead of working."""
PAGES_PER_WORKER = 5_000
"""Then a worker is replaced, since libraries leak a little with every page."""
START_SECONDS = 120
"""A worker that has not imported its extractor by then never will."""
MAX_TEXT_FACTOR = 4
"""Text of more than so many times the bytes of its page (and 64 KiB) is no text of the page: some parser loops."""

_LENGTH = struct.Struct("<I")
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
_MAIN = "from webtext_prep.extraction.workers import work; work()"


class Parsed(msgspec.Struct):
    """What became of one page: `ok`, `empty`, `too_deep`, `extract_timeout`, `extract_memory`, `extract_crash`, or
    `extract_error`, with the extractor's exception as `detail`."""

    outcome: str
    text: str = ""
    title: str = ""
    detail: str = ""


# In the worker


def _read_frame(file: BinaryIO) -> bytes | None:
    header = file.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(header)[0]
    data = file.read(length)
    return data if len(data) == length else None


def _write_frame(file: BinaryIO, data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def _peak_memory() -> int:
    """The most address space that the process has had, in bytes; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"VmPeak:"):
                return int(line.split()[1]) << 10
    return 0


def _limit_memory(mebibytes: int) -> None:
    """Let the process grow by so much and no further, where the system can see to it (Linux)."""
    now = _peak_memory()
    if resource is None or not now:
        return  # elsewhere there are no limits on address space that are kept: see _watch_memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _watch_memory(mebibytes: int) -> None:
    """Where address space cannot be limited: end the process once its memory has grown by so much."""
    if resource is None or sys.platform == "linux":
        return
    unit = 1 if sys.platform == "darwin" else 1024
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def watch() -> None:
        pause = threading.Event()
        while not pause.wait(0.1):
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > start + (mebibytes << 20):
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _set_timer(seconds: float) -> None:
    """Be killed by SIGPROF after so much more processor time; 0 stops the timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def extract_page(name: str, page: dict[str, Any]) -> Parsed:
    """Extract one page in this very process, unbounded, and say what came of it.

    Args:
        name: an extractor.
        page: `body` (bytes), `url`, `charset` (or None) and `is_html`.

    Raises MemoryError, after which the process should not be trusted.
    """
    extract = EXTRACTORS[name] if page["is_html"] else plain_text
    body = page["body"]
    try:
        found: Extracted = extract(body, page["url"], page["charset"])
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise all sorts of things at odd pages
        if nests_too_deep(body):
            return Parsed("too_deep")
        return Parsed("extract_error", detail=f"{type(error).__name__}: {error}"[:200])
    if not found.text:
        return Parsed("too_deep" if page["is_html"] and nests_too_deep(body) else "empty")
    if len(found.text) > MAX_TEXT_FACTOR * len(body) + (1 << 16):
        return Parsed("extract_error", detail="more text than the page holds")
    return Parsed("ok", found.text, found.title)


def work() -> None:
    """A worker's life: settings, then pages from standard input; results to standard output; ends with its input."""
    # What a library prints must not get between the results.
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = _decode(_read_frame(source) or b"\x80")
    if not settings:
        return
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        while (frame := _read_frame(source)) is not None:
            frames.put(frame)
        os._exit(0)  # even in the middle of a page: nobody waits for it any more

    import logging

    logging.disable(logging.CRITICAL)
    warm_up(settings["extractor"])
    threading.Thread(target=listen, daemon=True).start()
    _limit_memory(settings["memory"])
    _watch_memory(settings["memory"])
    sys.setrecursionlimit(2_000)
    start = peak = _peak_memory()
    _write_frame(target, b"")
    while True:
        page = _decode(frames.get())
        _set_timer(settings["seconds"])
        data = b""
        with contextlib.suppress(MemoryError):
            parsed = extract_page(settings["extractor"], page)
            data = _encode(parsed)
            before, peak = peak, _peak_memory()
            # lxml and lexbor make nothing, or an error, of a page for which they got no memory: that is not the
            # page's fault, and the sign is that it wanted a good part of what there is.
            if parsed.outcome != "ok" and peak > max(before, start + (settings["memory"] << 18)):
                data = b""
        _set_timer(0)
        _write_frame(target, data or _encode(Parsed("extract_memory")))
        if not data:
            os._exit(1)  # whatever happened in there, it is in no state to go on


# In the parent


class _Worker:
    """One worker process, or none yet."""

    def __init__(self, settings: dict[str, Any], folder: str) -> None:
        self._settings, self._folder = settings, folder
        self._process: asyncio.subprocess.Process | None = None
        self._pages = 0

    async def _start(self) -> asyncio.subprocess.Process:
        # A hash seed of its own would make two runs differ: the extractors go through sets of strings.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": self._folder}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            _MAIN,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
        )
        self._process, self._pages = process, 0
        async with asyncio.timeout(START_SECONDS):
            await self._send(process, _encode(self._settings))
            await self._receive(process)
        return process

    @staticmethod
    async def _send(process: asyncio.subprocess.Process, data: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(_LENGTH.pack(len(data)))
        process.stdin.write(data)
        await process.stdin.drain()

    @staticmethod
    async def _receive(process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        header = await process.stdout.readexactly(_LENGTH.size)
        return await process.stdout.readexactly(_LENGTH.unpack(header)[0])

    async def extract(self, page: dict[str, Any]) -> Parsed:
        process = self._process if self._process is not None else await self._start()
        self._pages += 1
        try:
            async with asyncio.timeout(WALL_CLOCK_FACTOR * self._settings["seconds"] + 5):
                await self._send(process, _encode(page))
                parsed = msgspec.msgpack.decode(await self._receive(process), type=Parsed)
        except TimeoutError:
            await self.stop()
            return Parsed("extract_timeout")
        except (OSError, EOFError, msgspec.DecodeError):
            code = await self.stop()
            timed_out = hasattr(signal, "SIGPROF") and code == -signal.SIGPROF
            return Parsed("extract_timeout" if timed_out else "extract_crash", detail=f"exit code {code}")
        except BaseException:
            await self.stop()
            raise
        if parsed.outcome == "extract_memory" or self._pages >= PAGES_PER_WORKER:
            await self.stop()
        return parsed

    async def stop(self) -> int | None:
        """End the process at once; gives back its exit code, which may be older than this call."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.stdout is not None and process.stdout.at_eof():
            # It is dying by itself; only its own exit code tells of what.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    return await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


class ParsePool:
    """Workers that extract text. Use as an async context manager.

    Args:
        extractor: which of `extractors.EXTRACTORS`.
        workers: how many pages at once; a process each, started when first needed.
        seconds: processor time for a page.
        memory: MiB that a worker may grow by while it works on a page.
        folder: where libraries may put temporary files.
    """

    def __init__(self, extractor: str, *, workers: int, seconds: float, memory: int, folder: str) -> None:
        settings = {"extractor": extractor, "seconds": seconds, "memory": memory}
        self._workers = [_Worker(settings, folder) for _ in range(workers)]
        self._idle = collections.deque(self._workers)
        self._free = asyncio.Semaphore(workers)

    async def __aenter__(self) -> ParsePool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            await worker.stop()

    async def extract(self, body: bytes, url: str, charset: str | None, *, is_html: bool = True) -> Parsed:
        """The text of one page, or why there is none; waits until a worker is free."""
        async with self._free:
            # The one used last: its tables are still in the processor's cache, and idle ones need not be started.
            worker = self._idle.pop()
            try:
                return await worker.extract({"body": body, "url": url, "charset": charset, "is_html": is_html})
            finally:
                self._idle.append(worker)
