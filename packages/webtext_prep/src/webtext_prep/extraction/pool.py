"""A bounded pool of extraction workers: each page ends in text or in an outcome, and the next one is served.

A worker that breaks one of its limits is replaced. Pages wait here until a worker is free; how many bytes of them may
wait is for the caller to bound (a download's crawler does, by `web.memory`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import sys
import tempfile
from types import TracebackType
from typing import IO, Any

import msgspec

from webtext_prep.documents.outcomes import PageOutcome
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.workers import LENGTH, MAIN, Parsed

WALL_CLOCK_FACTOR = 4
"""A page may take this many times its limit in processor time by the clock: the way out where there is no timer, or
where a parser waits instead of working."""
PAGES_PER_WORKER = 5_000
"""Then a worker is replaced, since libraries leak a little with every page."""
START_SECONDS = 120
"""A worker that has not imported its extractor by then never will."""

_encode = msgspec.msgpack.Encoder().encode


def _last_line(file: IO[bytes]) -> str:
    """The last line that says something, "" if there is none."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
    lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


class _Worker:
    """One worker process, or none yet."""

    def __init__(self, settings: dict[str, Any], folder: str) -> None:
        self._settings, self._folder = settings, folder
        self._process: asyncio.subprocess.Process | None = None
        self._pages = 0

    async def _start(self) -> asyncio.subprocess.Process:
        """Start the process and wait until it is ready. Raises WebtextError, with what it printed, if it cannot be."""
        # A hash seed of its own would make two runs differ: the extractors go through sets of strings.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": self._folder}
        with tempfile.TemporaryFile(dir=self._folder) as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-c",
                MAIN,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
            self._process, self._pages = process, 0
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._send(process, _encode({**self._settings, "parent": os.getpid()}))
                    await self._receive(process)
            except (OSError, EOFError):
                code = await self.stop()
                reason = _last_line(errors) or f"exit code {code}"
                raise WebtextError(f"the extractor {self._settings['extractor']} did not start: {reason}") from None
            except BaseException:
                await self.stop()
                raise
        return process

    @staticmethod
    async def _send(process: asyncio.subprocess.Process, data: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(LENGTH.pack(len(data)))
        process.stdin.write(data)
        await process.stdin.drain()

    @staticmethod
    async def _receive(process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        header = await process.stdout.readexactly(LENGTH.size)
        return await process.stdout.readexactly(LENGTH.unpack(header)[0])

    async def extract(self, page: dict[str, Any]) -> Parsed:
        process = self._process if self._process is not None else await self._start()
        self._pages += 1
        try:
            async with asyncio.timeout(WALL_CLOCK_FACTOR * self._settings["seconds"] + 5):
                await self._send(process, _encode(page))
                parsed = msgspec.msgpack.decode(await self._receive(process), type=Parsed)
        except TimeoutError:
            await self.stop()
            return Parsed(PageOutcome.EXTRACT_TIMEOUT)
        except (OSError, EOFError, msgspec.DecodeError):
            code = await self.stop()
            is_timeout = hasattr(signal, "SIGPROF") and code == -signal.SIGPROF
            outcome = PageOutcome.EXTRACT_TIMEOUT if is_timeout else PageOutcome.EXTRACT_CRASH
            return Parsed(outcome, detail=f"exit code {code}")
        except BaseException:
            await self.stop()
            raise
        if parsed.outcome == PageOutcome.EXTRACT_MEMORY or self._pages >= PAGES_PER_WORKER:
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
        settings = {"extractor": extractor, "seconds": seconds, "memory": memory}
        self._workers = [_Worker(settings, folder) for _ in range(workers)]
        self._idle = collections.deque(self._workers)
        self._free = asyncio.Semaphore(workers)

    async def __aenter__(self) -> ExtractorPool:
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
