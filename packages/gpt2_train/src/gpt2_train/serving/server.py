"""The HTTP server's beginning and end: hypercorn, with the model's thread started and stopped next to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.types import ASGIApp

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.serving.model_thread import ModelThread

HEAD_SECONDS = 5.0
"""Seconds that a client may take for the head of a request, and that a connection may rest between two."""
LATE_SECONDS = 2.0
"""Seconds until clients that do not read what they were sent are left alone, once all texts have ended."""
LOG_SECONDS = 60
"""Seconds between two lines of the log about the same trouble."""
STOPPING = "the server is stopping"


class Server:
    """Serves `app` until a signal, or a failure of the model, ends it.

    Then no connection is accepted any more, and texts being written get some seconds before they are ended, too.

    Args:
        app: the application.
        thread: what writes.
        seconds: how long texts may go on after a signal.
        on_ready: called when requests are answered.
    """

    def __init__(self, app: ASGIApp, thread: ModelThread, *, seconds: float, on_ready: Callable[[], object]) -> None:
        self.app, self.model_thread, self.on_ready = app, thread, on_ready
        self._seconds = seconds
        self._stops = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._silent_until = 0.0
        thread.on_failure = self.stop

    def serve_until_stopped(self, listener: socket.socket) -> None:
        """Answer on `listener`, which `bound_socket` made. Raises what made the model fail."""
        try:
            with self._signals_end_here():
                asyncio.run(self._serve(listener))
        finally:
            self.model_thread.close()
        if self.model_thread.failure is not None:
            raise self.model_thread.failure

    def stop(self) -> None:
        """End the server, from any thread; asked twice, also the texts that are being written."""
        self._stops += 1
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        """Begin to stop; called in the loop."""
        self._stopping.set()
        self.model_thread.refuse(STOPPING)
        assert self._loop is not None
        self._loop.call_later(self._seconds if self._stops == 1 else 0, self.model_thread.end_all, STOPPING)

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._tell)
        self.model_thread.start()
        config = Config()
        config.bind = [f"fd://{os.dup(listener.fileno())}"]
        config.keep_alive_timeout = HEAD_SECONDS
        config.graceful_timeout = self._seconds + LATE_SECONDS
        config.errorlog = None
        config.include_server_header = False
        if self._stops:  # A signal came before.
            self._begin_to_stop()
        app: Any = self.app
        serving = asyncio.create_task(serve(app, config, shutdown_trigger=self._stopping.wait))
        self.on_ready()
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([serving], timeout=config.graceful_timeout + LATE_SECONDS)
        if serving.done():
            await serving

    def _tell(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log once a minute what goes wrong outside of requests, such as descriptors that have run out."""
        now, error = time.monotonic(), context.get("exception")
        if now >= self._silent_until and not self._stopping.is_set():
            self._silent_until = now + LOG_SECONDS
            what = getattr(error, "strerror", None) or error or context.get("message")
            print(f"gpt2: can't serve a connection ({what}): the next ones wait.", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _signals_end_here(self) -> Iterator[None]:
        """Make SIGINT and SIGTERM end the server while the block runs."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Signals go to the main thread alone.
            return

        def end(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at that address. Raises Gpt2UsageError where that can't be.

    Clients that come before the server answers wait.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()  # Two sockets with SO_REUSEADDR may have the same address until one of them listens.
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise Gpt2UsageError(
            f"can't listen on {host}, port {port} ({error.strerror or error}): give another --port or --host."
        ) from None
    return listener
