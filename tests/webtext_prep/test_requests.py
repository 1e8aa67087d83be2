"""Single requests to servers that answer byte for byte what the tests say, and names that resolve as they say."""

import asyncio
import gzip
import resource
import sys
from pathlib import Path

import aiodns
import pytest

from webtext_prep.crawl.http import client, connections
from webtext_prep.crawl.http.client import Client, Reply, retry_after
from webtext_prep.errors import WebtextError

PAGE = b"<html><body><p>Some words of a page.</p></body></html>"


def ask(answer: bytes, *, path: str = "/", span: tuple[int, int] | None = None, **settings: object) -> Reply:
    """The reply to one request that a server answers with `answer`, closing the connection."""

    async def run() -> Reply:
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = {"connections": 4, "timeout": 20.0, "max_bytes": 1 << 20, "user_agent": "t/1", "private": "loopback"}
        async with server, Client(**(options | settings)) as client:
            return await client.get(f"http://127.0.0.1:{port}{path}", span=span)

    return asyncio.run(run())


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (answer("204 No Content"), "http_204"),
        (answer("204 No Content", Content_Length="0"), "http_204"),
        (answer("204 No Content", Content_Type="text/html", Content_Encoding="gzip"), "http_204"),
        (answer("205 Reset Content", Content_Length="0"), "http_205"),
        (answer("205 Reset Content", b"<p>", Content_Length="3"), "http_205"),
        (answer("304 Not Modified", Content_Length="1000"), "http_304"),
        (answer("418 I'm a teapot", b"<p>", Content_Length="3"), "http_418"),
    ],
)
def test_an_answer_without_a_page_is_named_by_its_status(text, outcome):
    """An answer that has no body by definition could pass for a damaged one."""
    assert ask(text).outcome == outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (answer("206 Partial Content", b"\x1f\x8bcd", Content_Range="bytes 10-13/99", Content_Length="4"), "ok"),
        (answer("206 Partial Content", b"\x1f\x8b", Content_Range="bytes 10-11/12"), "ok"),  # the end of the file
        (answer("200 OK", b"abcdefgh", Content_Length="8"), "malformed_response"),  # all of it
        (answer("206 Partial Content", b"abcd", Content_Range="bytes 0-3/99"), "malformed_response"),
        (answer("206 Partial Content", b"abcd"), "malformed_response"),
        (
            answer("206 Partial Content", b"a", Content_Range="bytes 10-13/99", Content_Length="99999"),
            "malformed_response",
        ),
        (answer("206 Partial Content", b"a" * 9999, Content_Range="bytes 10-13/99"), "malformed_response"),
        (answer("206 Partial Content", b"ab", Content_Range="bytes 10-13/99", Content_Length="4"), "connection"),
        (answer("416 Range Not Satisfiable", Content_Length="0"), "http_416"),
    ],
)
def test_a_part_of_a_file_is_that_part_as_it_lies_there_or_none(text, outcome):
    reply = ask(text, span=(10, 4))
    assert reply.outcome == outcome
    assert reply.body == (text.rpartition(b"\r\n")[2] if outcome == "ok" else b"")


def test_a_compressed_page_that_breaks_off_is_a_broken_connection_and_retried():
    """A gzip page without a length, cut off anywhere, passed as the whole page."""
    packed = gzip.compress(PAGE * 1000)
    for length in (1, len(packed) // 2, len(packed) - 1):
        reply = ask(answer("200 OK", packed[:length], Content_Type="text/html", Content_Encoding="gzip"))
        assert (reply.outcome, reply.retry_now) == ("connection", True)
    reply = ask(answer("200 OK", packed, Content_Type="text/html", Content_Encoding="gzip"))
    assert (reply.outcome, reply.body) == ("ok", PAGE * 1000)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("²", None),
        ("-1", None),
        ("soon", None),
        ("9" * 5000, 1e300),
    ],
)
def test_a_wait_that_is_no_number_is_no_wait(value, seconds):
    """ "²" counts as a digit but not as a number, and made a server's polite 503 a malformed response."""
    found = retry_after(value)
    assert found == seconds or (seconds == 1e300 and found is not None and found > 1e50)


# Open files


def ask_hosts(number: int) -> tuple[list[Reply], int]:
    """The replies of so many hosts that keep connections open, and how many were open at once."""
    held = most = 0

    async def serve(reader, writer):
        nonlocal held, most
        held += 1
        most = max(most, held)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer("200 OK", PAGE, Content_Type="text/html", Content_Length=str(len(PAGE))))
        except (asyncio.IncompleteReadError, ConnectionError):
            held -= 1
            writer.close()

    async def run() -> list[Reply]:
        server = await asyncio.start_server(serve, "0.0.0.0", 0)
        port = server.sockets[0].getsockname()[1]
        options = {"connections": 4, "timeout": 20.0, "max_bytes": 1 << 20, "user_agent": "t/1", "private": "loopback"}
        async with server, Client(**options) as client:
            return [await client.get(f"http://127.0.0.{host + 2}:{port}/") for host in range(number)]

    return asyncio.run(run()), most


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and further are hosts on Linux only")
def test_connections_that_wait_are_closed_before_they_are_too_many(monkeypatch):
    """aiohttp keeps all of them for 15 seconds: 3,000 hosts ended a crawl where 1,024 files may be open."""
    monkeypatch.setattr(connections, "MOST_IDLE", 5)
    replies, most = ask_hosts(40)
    assert {reply.outcome for reply in replies} == {"ok"}
    assert 2 <= most <= 8  # the server notices a moment later


@pytest.fixture
def files():
    """Sets how many more files this process may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(more: int) -> None:
        soft = len(list(Path("/dev/fd").iterdir())) + more if more else 3
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))

    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_fewer_requests_run_at_once_where_few_files_may_be_open(files, monkeypatch):
    monkeypatch.setattr(connections, "allow_open_files", lambda: None)
    monkeypatch.setattr(connections, "available_cores", lambda: 2)
    files(connections.OTHER_FILES + 8 + 300)
    assert connections.connections_at_once(20) == 20
    assert 90 <= connections.connections_at_once(200) <= 110
    files(5)
    assert connections.connections_at_once(200) == 1


def test_a_request_for_which_no_file_is_free_waits_for_one(files, monkeypatch):
    """It ended as `connection`."""
    monkeypatch.setattr(client, "FILE_PAUSE", 0.01)
    before, waits = resource.getrlimit(resource.RLIMIT_NOFILE), 0

    def close_idle(self, keep=0):
        nonlocal waits
        waits += 1
        if waits == 3:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    monkeypatch.setattr(connections.Connector, "close_idle", close_idle)
    send = client.Client._get

    async def without_files(self, *arguments):
        if not waits:
            files(0)
        return await send(self, *arguments)

    monkeypatch.setattr(client.Client, "_get", without_files)
    reply = ask(answer("200 OK", PAGE, Content_Type="text/html"))
    assert (reply.outcome, waits, round(reply.waited, 3)) == ("ok", 3, 0.03)


def test_a_crawl_for_which_no_file_becomes_free_ends_with_a_sentence(files, monkeypatch):
    monkeypatch.setattr(client, "FILE_PAUSE", 0.0)
    send = client.Client._get

    async def without_files(self, *arguments):
        files(0)
        return await send(self, *arguments)

    monkeypatch.setattr(client.Client, "_get", without_files)
    with pytest.raises(WebtextError, match=r"raise the limit on open files \(ulimit -n\), or give a smaller --conc"):
        ask(answer("200 OK", PAGE))


# Names


def test_dead_names_do_not_keep_live_ones_waiting_and_are_named_dns(names, monkeypatch):
    """Each look-up of a dead name held one of 32 threads until the system gave up: healthy URLs behind them ended as
    `timeout`."""
    monkeypatch.setattr(client, "DNS_SECONDS", 1.5)
    names["live.example"] = ["127.0.0.1"]

    async def run():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer("200 OK", PAGE, Content_Type="text/html", Content_Length=str(len(PAGE))))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(connections=200, timeout=60.0, max_bytes=1 << 20, user_agent="t/1", private="loopback")
        async with server, client:
            dead = [asyncio.create_task(client.get(f"http://dead{n}.example/")) for n in range(100)]
            await asyncio.sleep(0)  # all of them are being looked up
            live = await client.get(f"http://live.example:{port}/")
            return live, [task.done() for task in dead], await asyncio.gather(*dead)

    live, were_done, dead = asyncio.run(run())
    assert live.outcome == "ok"
    assert not any(were_done)
    assert {(reply.outcome, reply.retry_now) for reply in dead} == {("dns", True)}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (aiodns.error.ARES_ENOTFOUND, "no_such_host"),
        (aiodns.error.ARES_ENODATA, "no_such_host"),
        (aiodns.error.ARES_ETIMEOUT, "dns"),
        (aiodns.error.ARES_ESERVFAIL, "dns"),
    ],
)
def test_a_name_that_does_not_exist_is_not_asked_for_again_at_once(names, code, outcome):
    names["gone.example"] = code

    async def run():
        async with Client(connections=1, timeout=9.0, max_bytes=9, user_agent="t/1", private="none") as client:
            return await client.get("http://gone.example/")

    reply = asyncio.run(run())
    assert (reply.outcome, reply.retry_now) == (outcome, outcome == "dns")
