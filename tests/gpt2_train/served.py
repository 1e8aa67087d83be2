"""`gpt2 serve` in a thread of this process, on a free port, for tests that ask it as clients do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
from tests.lazily import Lazily

from gpt2_train.serving.command import ServeSettings, make_server
from gpt2_train.serving.server import Server, bound_socket

openai = Lazily("openai")

PATIENCE = 60
"""Seconds after which a server is taken for stuck."""
NAME = "tiny"


class Served:
    """A server that answers.

    Attributes:
        server: itself.
        url: where it is.
        token: what it asks for.
        error: what its thread ended with.
    """

    def __init__(self, server: Server, port: int, token: str | None) -> None:
        self.server, self.token = server, token
        self.url = f"http://127.0.0.1:{port}"
        self.error: BaseException | None = None

    def client(self, **options: Any) -> Any:
        """OpenAI's client, which does not try again."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.token or "none", max_retries=0, **options)

    def post(self, body: Any = None, **options: Any) -> httpx2.Response:
        """The answer to a body of JSON, or to whatever else `options` send."""
        if body is not None:
            options["json"] = body
        return httpx2.post(f"{self.url}/v1/completions", timeout=PATIENCE, **options)

    def health(self) -> dict[str, Any]:
        """What it says of itself."""
        found: dict[str, Any] = httpx2.get(f"{self.url}/health", timeout=PATIENCE).json()
        return found

    def wait_for(self, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask for its health until that is as wanted."""
        end = time.monotonic() + PATIENCE
        while not is_there(found := self.health()):
            assert time.monotonic() < end, found
        return found


@contextlib.contextmanager
def served(checkpoint: Path, **settings: Any) -> Iterator[Served]:
    """A server for the block."""
    asked = ServeSettings(checkpoint=str(checkpoint), name=NAME, port=0, device="cpu", threads=1, **settings)
    with (
        asked.opened() as source,
        contextlib.closing(bound_socket(asked.host, asked.port)) as listener,
        running(make_server(asked, listener, source), listener, asked.token) as found,
    ):
        yield found


@contextlib.contextmanager
def running(server: Server, listener: socket.socket, token: str | None) -> Iterator[Served]:
    """Run `server` in a thread while the block lasts."""
    found = Served(server, listener.getsockname()[1], token)
    ready = threading.Event()
    server.on_ready = ready.set

    def serve() -> None:
        try:
            server.serve_until_stopped(listener)
        except BaseException as error:
            found.error = error
        ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield found
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
