"""A web server on loopback, each of whose pages uses up another limit of whoever asks for it; in its own process."""

import asyncio
import contextlib
import gzip
import os
import subprocess
import sys
import zlib

FOREVER = 3600
HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
GZIPPED = HEADERS + b"Content-Encoding: gzip\r\n\r\n"
BOMB = gzip.compress(bytes(30_000_000))


async def says_nothing(writer):
    await asyncio.sleep(FOREVER)


async def drips(writer):
    """A byte now and then."""
    writer.write(HEADERS + b"\r\n<p>")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def drips_headers(writer):
    writer.write(HEADERS)
    while True:
        writer.write(b"X: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def never_ends(writer, before, piece):
    writer.write(before)
    while True:
        writer.write(piece)
        await writer.drain()


def endless(before, piece):
    return lambda writer: never_ends(writer, before, piece)


async def empty_blocks(writer):
    """A gzip stream that goes on without anything in it."""
    packer = zlib.compressobj(wbits=31)
    packer.compress(b"<p>")
    await never_ends(writer, GZIPPED + packer.flush(zlib.Z_FULL_FLUSH), b"\0\0\0\xff\xff" * 10_000)


async def answer(writer, data):
    writer.write(data)
    await writer.drain()


def whole(body, more=b""):
    return HEADERS + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def one_byte_short(writer):
    await answer(writer, whole(b"<p>" * 1000)[:-1])
    await asyncio.sleep(FOREVER)


def moved(target):
    return b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % target


KINDS = {
    "says-nothing": says_nothing,
    "drips": drips,
    "drips-headers": drips_headers,
    "endless-headers": endless(HEADERS, b"X-A: " + b"a" * 1000 + b"\r\n"),
    "endless-header-line": endless(HEADERS + b"X: ", b"a" * 60_000),
    "endless-status": endless(b"HTTP/1.1 200 ", b"a" * 60_000),
    "endless-continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "endless-body": endless(HEADERS + b"\r\n", b"<p>and on it goes</p>" * 3000),
    "endless-chunks": endless(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000),
    "endless-padding": endless(GZIPPED + gzip.compress(b"<p>"), b"\0" * 60_000),
    "bomb": lambda writer: answer(writer, whole(BOMB, b"Content-Encoding: gzip\r\n")),
    "members": endless(GZIPPED, gzip.compress(b"") * 3000),
    "empty-blocks": empty_blocks,
    "one-byte-short": one_byte_short,
    "hangs-up": lambda writer: asyncio.sleep(0),
    "trouble": lambda writer: answer(writer, b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
}
"""What each page does; `loop` and `chain` redirect, `nested` and `page` are whole pages."""


async def serve(reader, writer):
    """Answer one request, then hang up."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        kind, _, number = path[1:].partition(b"/")
        if kind in (b"robots.txt", b"ai.txt", b".well-known"):
            await answer(writer, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif kind == b"loop":
            await answer(writer, moved(path))
        elif kind == b"chain":  # five redirects, and then a page that does not come
            length = number.count(b"x")
            await answer(writer, moved(path + b"x" if length < 4 else b"/says-nothing/" + number))
        elif kind == b"nested":
            await answer(writer, whole(b"<div>" * 19_900))
        elif kind == b"page":
            await answer(writer, whole(b"<html><body><p>" + b"A page like any other. " * 50))
        else:
            await KINDS[kind.decode()](writer)
    writer.close()


async def main():
    """Print the port, and serve until standard input ends."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # there is always a page under way


class HostileServer:
    """The server in a process of its own. Use as a context manager; `port` is where it listens on 127.0.0.1."""

    def __enter__(self):
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *error):
        self._process.communicate()

    def urls(self, count):
        """So many URLs, of all kinds in turn, one of them with a page for the extractor to work on."""
        kinds = [*KINDS, "loop", "chain", "tls"]
        for number in range(count - 1):
            kind = kinds[number % len(kinds)]
            if kind == "tls":  # a greeting that is never answered
                yield f"https://127.0.0.1:{self.port}/says-nothing/{number}"
            else:
                yield f"http://127.0.0.1:{self.port}/{kind}/{number}"
        yield f"http://127.0.0.1:{self.port}/nested/{count}"


if __name__ == "__main__":
    asyncio.run(main())
