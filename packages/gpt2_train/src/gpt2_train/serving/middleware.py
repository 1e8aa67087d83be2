"""Who may ask, the line that each request leaves, and errors as OpenAI's API has them.

A server on loopback is reachable from every web page that its user opens: a name of an attacker's may resolve to
127.0.0.1 (DNS rebinding), which the `Host` header gives away, so only names of this machine are answered. And a page
may send a plain form to any address without asking first, but not JSON: bodies have to be `application/json`. No other
site is ever allowed to read an answer (no CORS headers).
"""

from __future__ import annotations

import dataclasses
import hmac
import sys
import time
import traceback
from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ApiError(Exception):
    """An error that a client is answered with, instead of a text.

    Attributes:
        status: the HTTP status.
        message: one sentence: what was found, and what to do.
        param: the parameter that is wrong, if one is.
        code: a word that programs can compare.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    @property
    def kind(self) -> str:
        """OpenAI's `type` of the error."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def as_json(self) -> bytes:
        """The body of the answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """The HTTP answer that tells a client of this error, in JSON."""
        return Response(self.as_json(), self.status, self.headers, "application/json")


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 for a parameter that can't be used."""
    return ApiError(400, message, param=param, code=code)


LOOPBACK = ("localhost", "127.0.0.1", "::1")
MOST_BODY_BYTES = 4 << 20
RECORD = "gpt2.record"
"""The key of a request's scope under which its `RequestRecord` is."""


@dataclasses.dataclass
class RequestRecord:
    """The words of the log on a request besides its path and status."""

    texts: int = 0
    read: int = 0
    written: int = 0
    is_cut: bool = False
    started: float = dataclasses.field(default_factory=time.monotonic)

    def line(self, scope: Scope, status: int | None) -> str:
        """One line, with no word of a prompt or a text."""
        client = scope.get("client") or ("-", 0)
        path = scope.get("raw_path", b"").decode("ascii", "backslashreplace").partition("?")[0][:200]
        seconds = time.monotonic() - self.started
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {client[0]} {scope['method']} {path} {status or 499}"
        if self.texts:
            texts = "1 text" if self.texts == 1 else f"{self.texts} texts"
            rate = self.written / seconds if seconds else 0.0
            line += f" {texts}, {self.read} tokens read, {self.written} written, {rate:.1f} tokens/s"
        return f"{line}, {seconds:.2f} s" + (", cut by the client" if self.is_cut else "")


class Log:
    """Writes one line to standard error for each request but for `/health`; closes what is no HTTP."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        record = scope[RECORD] = RequestRecord()
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            traceback.print_exc()
            if status is None:
                error = ApiError(500, "internal error: the server's log has the traceback.", code="internal_error")
                await error.response()(scope, receive, watched)
        finally:
            if scope["path"] != "/health":
                print(record.line(scope, status), file=sys.stderr, flush=True)


class Guard:
    """Refuses requests with a foreign `Host`, or without the token.

    Args:
        app: the guarded one.
        hosts: names that `Host` may have, without port; None for any.
        token: what clients have to send as `Authorization: Bearer TOKEN` to paths below /v1/; None for nothing.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] | None, token: str | None) -> None:
        self.app = app
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check_host(headers.get(b"host", ""))
            if scope["path"].startswith("/v1"):
                self._check_token(headers.get(b"authorization", ""))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        if self.hosts is not None and host_name(host) not in self.hosts:
            raise ApiError(
                403,
                f"the request is for the host {host[:100]!r}, and this server answers for this machine only: open it "
                "by http://127.0.0.1, or start it with --allow-host and that name.",
                code="unknown_host",
            )

    def _check_token(self, authorization: str) -> None:
        if self.token is None:
            return
        kind, _, given = authorization.partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode())
        if kind.lower() != "bearer" or not is_right:
            found = "no token" if not authorization else "a wrong token"
            raise ApiError(
                401,
                f"{found} was sent: send the server's token as `Authorization: Bearer TOKEN` (`api_key` in OpenAI's "
                "clients).",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def host_name(host: str) -> str:
    """The name in a `Host` header.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("::1")
    ('localhost', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()


async def read_body(request: Request) -> bytes:
    """The JSON that was sent. Raises ApiError for another type or too many bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body should be JSON: send it with the header `Content-Type: application/json`.")
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise ApiError(413, f"the body has more than {MOST_BODY_BYTES:,} bytes: send fewer or shorter prompts.")
    return b"".join(parts)
