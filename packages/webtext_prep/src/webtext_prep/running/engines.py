"""Where tasks run. An engine takes picklable calls and gives back their results as they finish; nothing else.

`LocalEngine` runs them in processes of this machine, which end with the command that started them, even when that is
killed. Everything a task needs travels in its arguments and everything it makes lies in files or in its result, so
that an engine for a cluster only has to send calls elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_connection
from typing import Any, Protocol

from webtext_prep.errors import WebtextError

OPEN_FILES = (20_000, 10_240)
"""How many files a process may want to have open; macOS refuses more than the second on some machines."""

Report = Callable[[int], None]
"""Tells the engine that so many more units of work are done."""
Call = Callable[[Any, Report], Any]
"""A task's function: its argument and the report to its result; a module's top-level function, picklable."""


def allow_open_files() -> None:
    """Raise the limit on open files of this process, and of those that it starts, as far as the system lets it.

    A stage has a few open for each of up to 4,096 shards, a download one for each of up to 10,000 connections; many
    systems allow 1,024, or 256, unless asked.
    """
    with contextlib.suppress(ImportError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in OPEN_FILES:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            if soft == resource.RLIM_INFINITY or soft >= most:
                return
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                return


class Engine(Protocol):
    """What the runner asks of a place to run tasks."""

    def run(
        self, function: Call, arguments: Sequence[Any], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Call `function` on each argument and yield (position, result) as they finish, in any order.

        `on_progress` is given the units that all tasks have reported so far, now and then. A task's exception is
        raised here after the other running tasks have been stopped.
        """
        ...


_counter: Any = None


def _report_to_counter(units: int) -> None:
    with _counter.get_lock():
        _counter.value += units


def _start_worker(counter: Any) -> None:
    """In each new process: leave Ctrl-C to the parent, and end when the parent is gone."""
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            wait_for_connection([parent.sentinel])
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(function: Call, argument: Any) -> Any:
    return function(argument, _report_to_counter)


class LocalEngine:
    """Tasks in processes of this machine; with one worker, in this very process.

    Args:
        workers: how many tasks run at once.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(
        self, function: Call, arguments: Sequence[Any], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.run`. Raises WebtextError if a worker process dies."""
        if self.workers == 1 or len(arguments) <= 1:
            yield from self._run_here(function, arguments, on_progress)
        else:
            yield from self._run_in_processes(function, arguments, on_progress)

    @staticmethod
    def _run_here(
        function: Call, arguments: Sequence[Any], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        done = 0

        def report(units: int) -> None:
            nonlocal done
            done += units
            on_progress(done)

        for position, argument in enumerate(arguments):
            yield position, function(argument, report)

    def _run_in_processes(
        self, function: Call, arguments: Sequence[Any], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        counter = context.Value(ctypes.c_uint64)
        workers = min(self.workers, len(arguments))
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(counter,))
        positions: dict[Future[Any], int] = {}
        remaining = iter(enumerate(arguments))
        try:
            while True:
                # Only a few tasks wait in the pool, so that stopping is quick whatever the number of shards.
                while len(positions) < 2 * workers and (entry := next(remaining, None)) is not None:
                    positions[pool.submit(_call, function, entry[1])] = entry[0]
                if not positions:
                    break
                finished, _ = wait(positions, timeout=0.2, return_when=FIRST_COMPLETED)
                on_progress(counter.value)
                for future in finished:
                    yield positions.pop(future), future.result()
        except BrokenProcessPool:
            raise WebtextError(
                "a worker process was killed, most often for want of memory: run the same command again with fewer "
                "--workers, it goes on from the last finished shard."
            ) from None
        finally:
            self._stop(pool, at_once=bool(positions))

    @staticmethod
    def _stop(pool: ProcessPoolExecutor, *, at_once: bool) -> None:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=not at_once, cancel_futures=True)
        if not at_once:
            return
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + 5
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
