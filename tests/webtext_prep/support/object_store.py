"""A server of S3's protocol on this machine (moto's), behind a proxy that fails as asked."""

import contextlib
import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

from pages_on_loopback import QuietServer

ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>as asked</Message></Error>"


@dataclass
class Fault:
    """What happens to requests.

    Attributes:
        applies: whether to a request of this method and path (with its query).
        times: to so many of them.
        status: the answer has this status and `code`, and the server hears nothing of it.
        code: S3's code of the error.
        cut: the connection ends after so many bytes of the answer's body; the server has done what was asked.
        is_whole: the answer is the whole object, whatever range was asked for.
    """

    applies: Callable[[str, str], bool]
    times: int = 1
    status: int = 0
    code: str = ""
    cut: int | None = None
    is_whole: bool = False


@dataclass
class ObjectStore:
    """The server as the tests see it.

    Attributes:
        endpoint: of the proxy.
        faults: what is to fail from now on.
        requests: method and path of each, since this was emptied last.
        ranges: the `Range` of each request that has one, since this was emptied last.
        signatures: the `Authorization` of each request that has one, since this was emptied last.
        clock: is added to the server's time in each answer.
    """

    endpoint: str = ""
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    clock: timedelta = timedelta()
    before: Callable[[str, str], None] = lambda method, path: None
    _stop: list[Callable[[], None]] = field(default_factory=list)

    def fail(self, method: str, part: str = "", **what: object) -> None:
        """Have requests of a method fail whose path contains `part`; for the rest see `Fault`."""
        self.faults.append(Fault(lambda m, path: m == method and part in path, **what))

    @property
    def backend(self) -> Any:
        """What the server keeps, without a request."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]

    def reset(self) -> None:
        """Let nothing fail any more."""
        self.faults.clear()
        self.requests.clear()
        self.ranges.clear()
        self.signatures.clear()
        self.clock, self.before = timedelta(), lambda method, path: None

    def fault_of(self, method: str, path: str) -> Fault | None:
        """What is to go wrong with a request."""
        self.requests.append((method, path))
        self.before(method, path)
        found = next((fault for fault in self.faults if fault.times and fault.applies(method, path)), None)
        if found is not None:
            found.times -= 1
        return found

    def start(self) -> None:
        """Start both servers."""
        import logging

        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        moto._server.handle_error = lambda request, client_address: None  # of killed commands and cut connections
        proxy = QuietServer(("127.0.0.1", 0), _handler(self, moto.get_host_and_port()))
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{proxy.server_port}"
        self._stop = [proxy.shutdown, proxy.server_close, moto.stop]

    def stop(self) -> None:
        """End both."""
        for stop in self._stop:
            stop()


def _handler(store: ObjectStore, server: tuple[str, int]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *arguments: object) -> None:
            pass

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            store.ranges += self.headers.get_all("Range") or []
            store.signatures += self.headers.get_all("Authorization") or []
            fault = store.fault_of(self.command, self.path)
            if fault is not None and fault.status:
                content = b"" if self.command == "HEAD" else ERROR % fault.code.encode()
                headers = [("Content-Type", "application/xml"), ("Date", self.date_time_string())]
                self.answer(fault.status, headers, content, str(len(content)))
                return
            connection = http.client.HTTPConnection(*server)
            headers = dict(self.headers)
            if fault is not None and fault.is_whole:
                headers.pop("Range", None)
            connection.request(self.command, self.path, body, headers)
            found = connection.getresponse()
            content = found.read()
            connection.close()
            length = found.getheader("Content-Length") or str(len(content))
            headers = [(name, value) for name, value in found.getheaders() if name.lower() not in DROPPED]
            if fault is not None and fault.cut is not None:
                self.close_connection = True
                content = content[: fault.cut]
                if not fault.cut:
                    return
            now = parsedate_to_datetime(found.getheader("Date")) + store.clock
            self.answer(found.status, [*headers, ("Date", format_datetime(now, usegmt=True))], content, length)

        def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, length: str) -> None:
            self.send_response_only(status)
            for name, value in [*headers, ("Content-Length", length)]:
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # who asked did not wait
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    return Handler


DROPPED = {"content-length", "date", "connection", "transfer-encoding"}
