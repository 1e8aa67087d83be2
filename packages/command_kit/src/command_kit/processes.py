"""Worker processes on this machine: forked by a server that has imported what they need, ended with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from typing import Any

from command_kit.errors import CommandError

SERVER_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""Two runs must not differ by the order of a set of strings, and a library with threads must not be forked."""
LONGEST_FOLDER = 70
"""Bytes of the name of a folder that sockets can lie in: the system allows 104 for theirs."""
STARTS = 3
"""Attempts to start a process."""
START_PAUSE = 0.1
"""Seconds between two attempts."""
STOP_SECONDS = 5
"""Seconds that a process may take to end before it is killed."""


def keep_freed_memory(*, all_of_it: bool = False) -> None:
    """Let glibc keep up to 64 MiB of freed memory, as it comes to by itself where it has freed 32 MiB, or all of it.

    What it gives back is zeroed for its next use: a tenth to a fifth of a fast extractor's time, and a quarter of
    a training step's on a CPU, whose logits are hundreds of megabytes.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        if all_of_it:
            mallopt(-4, 0)  # M_MMAP_MAX
            mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        else:
            mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
            mallopt(-1, 64 << 20)


def end_after(wait: Callable[[], object], number: int = signal.SIGKILL) -> None:
    """Start a thread that sends this process a signal as soon as `wait` returns."""

    def watch() -> None:
        wait()
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def end_with_parent() -> None:
    """End this worker process by the system when the one that started it ends, even if it is stuck in a library."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    try:
        # Linux kills this process when the other end of the pipe goes. The signal at a parent's death would not do:
        # the system's parent is the server that forks, which lives on as long as one of its children does.
        import fcntl

        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
        if wait_for_any([parent.sentinel], 0):  # it ended before that was in force
            os._exit(1)
    except (OSError, AttributeError):  # another system
        end_after(lambda: wait_for_any([parent.sentinel]))


class WorkerProcess:
    """A worker process with a pipe of its own in each direction, so that its death harms no other.

    It has the environment of this process, hears no Ctrl-C, and ends with this process, however that ends.

    Args:
        target: called in it with its ends of the pipes (tasks, results) and then `arguments`, all picklable.
        preload: modules that the server imports before it forks, if this is the first worker of this process.
        environment: what the server has on top of the environment of this process.

    Attributes:
        process: the process.
        tasks: the pipe to it.
        results: the pipe from it, at its end when the process has ended.

    Raises CommandError if no process can be started.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        preload: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        source, self.tasks = multiprocessing.Pipe(duplex=False)
        self.results, sink = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("forkserver").Process(
            target=_live, args=(target, dict(os.environ), source, sink, *arguments), daemon=True
        )
        with source, sink, contextlib.ExitStack() as undo:
            undo.callback(self.tasks.close)
            undo.callback(self.results.close)
            for attempt in range(STARTS):
                _ensure_server(preload, environment or {})
                try:
                    self.process.start()
                    break
                except (OSError, EOFError) as error:  # the server may have been killed just now
                    if attempt + 1 == STARTS:
                        sentence = f"can't start another process ({error}): run with fewer --workers."
                        raise CommandError(sentence) from error
                    time.sleep(START_PAUSE)
            undo.pop_all()

    def close(self) -> None:
        """Close the pipes and wait for its end, or else kill it."""
        self.tasks.close()
        self.results.close()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _live(
    target: Callable[..., None], environment: dict[str, str], tasks: Connection, results: Connection, *arguments: Any
) -> None:
    """A worker's life, until its parent closes the pipes."""
    os.environ.clear()  # of the server that forks, which may be older than the parent's settings
    os.environ.update(environment)
    multiprocessing.current_process().daemon = False  # it may have workers of its own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_freed_memory()
    end_with_parent()
    with contextlib.suppress(EOFError, ConnectionError):
        target(tasks, results, *arguments)


def _ensure_server(preload: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the server that forks workers, unless it runs.

    Ctrl-C reaches every process of a terminal. The server starts with it blocked, and so do the workers that it forks:
    one that came while they import would be a traceback each.
    """
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(["__main__", *preload])
    resource_tracker.ensure_running()  # by itself: it unblocks what is blocked here
    added = {**SERVER_ENVIRONMENT, **environment}
    before = {name: os.environ.get(name) for name in added}
    folder = tempfile.tempdir
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(added)
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"  # noqa: S108 - multiprocessing makes a folder of its own in it
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = folder
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
