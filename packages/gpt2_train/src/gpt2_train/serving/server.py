"""The HTTP server's beginning and end: uvicorn, with the model's thread started and stopped beside it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.serving.connections import Connection, Door, connection_limit
from gpt2_train.serving.model_thread import ModelThread

STOPPING = "the server is stopping"


class Server(uvicorn.Server):
    """Serves `app` until a signal, or a failure of the model, ends it.

    Then no connection is accepted any more, and texts being written get some seconds before they are ended, too.

    Args:
        app: the application.
        thread: what writes.
        seconds: how long texts may go on after a signal.
        on_ready: called when connections are accepted.
    """

    def __init__(self, app: ASGIApp, thread: ModelThread, *, seconds: float, on_ready: Callable[[], object]) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # After it, clients that don't read what they are sent are left alone.
            timeout_graceful_shutdown=round(seconds) + 2,
        )
        super().__init__(config)
        self.model_thread, self.on_ready = thread, on_ready
        self._seconds = seconds
        thread.on_failure = self._end

    def serve_until_stopped(self, listener: socket.socket) -> None:
        """Answer on `listener`, which `bound_socket` made. Raises what made the model fail."""
        try:
            with self._signals_end_here():
                self.run(sockets=[listener])
        finally:
            self.model_thread.close()
        if self.model_thread.failure is not None:
            raise self.model_thread.failure

    def _end(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def _signals_end_here(self) -> Iterator[None]:
        """While open, a signal that comes before uvicorn listens to them, or that it raises again, ends the server."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Signals go to the main thread alone.
            return

        def end(number: int, frame: FrameType | None) -> None:
            self._end()

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        limit = connection_limit()
        self.model_thread.start()
        await super().startup([])  # Connections are let in here: uvicorn takes all that come, and fails on them.
        door = Door(cast("set[Connection]", self.server_state.connections), self._connection, limit)
        self._accepting = [asyncio.create_task(door.let_in(listener)) for listener in sockets or ()]
        self.on_ready()

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and wait for the texts being written."""
        for task in self._accepting:
            task.cancel()
        await asyncio.wait(self._accepting)
        self.model_thread.refuse(STOPPING)
        for connection in cast("set[Connection]", self.server_state.connections.copy()):
            if connection.has_half_body:
                connection.abort()
        asyncio.get_running_loop().call_later(self._seconds, self.model_thread.end_all, STOPPING)
        await super().shutdown(sockets)
        if self.force_exit and (tasks := self.server_state.tasks):
            # A second Ctrl-C: the texts end now, each with its last words.
            self.model_thread.end_all(STOPPING)
            await asyncio.wait(tasks, timeout=1)


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
