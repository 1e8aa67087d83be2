"""The HTTP server's beginning and end: uvicorn, with the model's thread started and stopped next to it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.serving.model_thread import ModelThread

MOST_CONNECTIONS = 2048
SPARE_DESCRIPTORS = 16
"""Left free for files: below the limit of descriptors, connections and what else is open stay this far."""
FEWEST_CONNECTIONS = 8
HEAD_SECONDS = 10
"""How long a client may take for the head of a request."""
LOG_SECONDS = 60
"""Between two lines of the log about the same trouble."""


def connection_limit() -> int:
    """How many connections may be open at once. Raises Gpt2UsageError where descriptors are left for a few only."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    used = sum(1 for _ in Path("/dev/fd").iterdir())  # Linux and macOS have it
    found = min(MOST_CONNECTIONS, most - used - SPARE_DESCRIPTORS)
    if found < FEWEST_CONNECTIONS:
        raise Gpt2UsageError(
            f"this process may open {most} files, and {used} are open before the first client comes: raise the limit "
            "(`ulimit -n 1024`)."
        )
    return found


class Connection(H11Protocol):
    """uvicorn's connection, which knows when it waits for its client, and ends when a request does not come."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits_since = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def _has_no_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def has_half_body(self) -> bool:
        """Whether the body of a request is still coming, of which the answer waits."""
        return not self._has_no_request and self.cycle.more_body and not self.cycle.response_started

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its client: for a whole request, or to take what it was sent."""
        is_half = self._has_no_request or self.has_half_body
        return is_half or self.flow.write_paused or self.transport.is_closing()

    def abort(self) -> None:
        """End it, even with bytes still to be sent."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since = time.monotonic()
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        self.waits_since = time.monotonic()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        """Give the client some time for a request that has begun; more data does not prolong it."""
        if not self._has_no_request:
            self._drop_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.abort)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Door:
    """Lets connections in, at most `limit` of them at once.

    Args:
        connections: the open ones; kept by them.
        make: makes the protocol of a new one.
        limit: the most.
    """

    def __init__(self, connections: set[Connection], make: Callable[[], Connection], limit: int) -> None:
        self._connections, self._make, self._limit = connections, make, limit
        self._silent_until = 0.0

    async def let_in(self, listener: Any) -> None:
        """Accept what comes to the socket `listener`, until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
                while len(self._connections) >= self._limit:
                    self._tell(f"{self._limit} connections are open, the most at once")
                    await self._end_one()
                await loop.connect_accepted_socket(self._make, accepted)
            except Exception as error:
                # The client has gone, or something else took the descriptors that were left free. Whatever it is, a
                # server that accepts nothing more would be silent.
                self._tell(f"can't accept a connection ({getattr(error, 'strerror', None) or error})")
                await self._end_one()

    async def _end_one(self) -> None:
        """End the connection that has waited longest for its client; if none does, wait for a moment."""
        waiting = [connection for connection in self._connections if connection.is_waiting]
        if waiting:
            min(waiting, key=lambda connection: connection.waits_since).abort()
        await asyncio.sleep(0 if waiting else 0.05)

    def _tell(self, what: str) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LOG_SECONDS
            print(f"gpt2: {what}: connections without a request are closed.", file=sys.stderr, flush=True)


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
