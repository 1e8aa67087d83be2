"""A web server on loopback that costs little, so that a client next to it can be measured: pages are made beforehand.

python page_server.py FOLDER          serves FOLDER/0.html, FOLDER/1.html, ... as /0, /1, ..., and begins again
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
_NONE = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"


class _Connection(asyncio.Protocol):
    answers: list[bytes]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._waiting = transport, b""

    def data_received(self, data: bytes) -> None:
        *requests, self._waiting = (self._waiting + data).split(b"\r\n\r\n")
        for request in requests:
            path = request.split(b" ", 2)[1][1:]
            is_page = path.isdigit()
            self._transport.write(self.answers[int(path) % len(self.answers)] if is_page else _NONE)


async def _serve(folder: Path) -> None:
    pages = [path.read_bytes() for path in sorted(folder.glob("*.html"), key=lambda path: int(path.stem))]
    _Connection.answers = [_HEADERS % len(page) + page for page in pages]
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def serving(pages: list[bytes], folder: Path) -> Iterator[str]:
    """Serve `pages` from a process of its own while open; gives the address, `http://127.0.0.1:PORT`."""
    folder.mkdir(parents=True)
    for number, page in enumerate(pages):
        (folder / f"{number}.html").write_bytes(page)
    server = subprocess.Popen([sys.executable, __file__, folder], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.communicate()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
