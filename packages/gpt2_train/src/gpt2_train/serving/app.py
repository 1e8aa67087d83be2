"""The paths of the server: OpenAI's `/v1/completions` and `/v1/models`, `/health`, and the page at `/`."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib.resources
import time
from collections.abc import Iterable

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.inference.generator import Encoder
from gpt2_train.serving.completions import Answer, Limits, read_request
from gpt2_train.serving.middleware import RECORD, ApiError, Guard, Log, RequestRecord, read_body
from gpt2_train.serving.model_thread import Completions, ModelStoppedError, ModelThread, TooManyCompletionsError

LONG_BODY = 1 << 14
"""Bytes from which on a body is read in a thread, so that its tokenizing does not stop the others."""
BODY_SECONDS = 20
"""Seconds that a client may take to send a body."""
RETRY_SECONDS = 2
PLACE_SECONDS = 1.0
"""Seconds between two looks at the place of a request that waits."""
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclasses.dataclass(frozen=True)
class Service:
    """The state that the paths share.

    Attributes:
        name: how clients call the model.
        encoder: its tokenizer and its settings; its weights are the thread's.
        thread: what writes.
        limits: what one request may ask for.
    """

    name: str
    encoder: Encoder
    thread: ModelThread
    limits: Limits
    started: int = dataclasses.field(default_factory=lambda: int(time.time()))

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await read_body(request)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {BODY_SECONDS} seconds: send it again.") from None
        understand = functools.partial(read_request, body, self.encoder, self.name, self.limits)
        answer = await run_in_threadpool(understand) if len(body) > LONG_BODY else understand()
        try:
            texts = self.thread.write(answer.requests)
        except TooManyCompletionsError:
            raise ApiError(
                429,
                f"{self.thread.open_texts} of {self.thread.capacity} texts are being written or waiting, and this "
                f"request asks for {len(answer.requests)} more: try again in a moment.",
                code="queue_full",
                headers={"Retry-After": str(RETRY_SECONDS)},
            ) from None
        except ModelStoppedError as error:
            raise stopped(error, self.thread) from None
        record: RequestRecord = request.scope[RECORD]
        record.texts, record.read = len(answer.requests), answer.prompt_tokens
        return Writing(texts, answer, self.thread, record)

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        if request.path_params["name"] != self.name:
            raise ApiError(404, f"no such model: this server has {self.name!r}.", param="model", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, object]:
        config = self.encoder.model.config
        return {
            "id": self.name,
            "object": "model",
            "created": self.started,
            "owned_by": "gpt2",
            "parameters": config.parameters,
            "step": self.encoder.model.step,
            "max_model_len": config.sequence_length,
            "max_tokens": self.limits.tokens,
        }

    async def health(self, request: Request) -> Response:
        """`GET /health`."""
        thread = self.thread
        writing = thread.writing
        counts = {"writing": writing, "waiting": max(0, thread.open_texts - writing), "capacity": thread.capacity}
        state = {"status": "stopping" if thread.is_stopped else "ok", **counts}
        return JSONResponse(state, 503 if thread.is_stopped else 200)


class Writing(Response):
    """The answer to a request for completions while it is being written; a client that leaves ends it."""

    def __init__(self, texts: Completions, answer: Answer, thread: ModelThread, record: RequestRecord) -> None:
        self.texts, self.answer, self.thread, self.record = texts, answer, thread, record
        self.is_done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        write = self._stream if self.answer.stream else self._whole
        with self.texts:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    self.record.is_cut = not self.is_done  # A client may also leave once it has all.
                    group.cancel_scope.cancel()

                group.start_soon(watch)
                response = await write(send)
                if response is not None:
                    self.is_done = True
                    await response(scope, receive, send)
                group.cancel_scope.cancel()

    async def _whole(self, send: Send) -> Response:
        try:
            async for news in self.texts:
                for index, piece in news:
                    self.answer.add(index, piece)
                self.record.written = self.answer.written
        except (ModelStoppedError, Gpt2UsageError) as error:
            return stopped(error, self.thread).response()
        return Response(self.answer.whole(), media_type="application/json")

    async def _stream(self, send: Send) -> None:
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        async with anyio.create_task_group() as telling:
            telling.start_soon(self._tell_place, send)
            await self._stream_texts(send)
            telling.cancel_scope.cancel()

    async def _tell_place(self, send: Send) -> None:
        """Send the place of a request among those that wait, as comments of the stream, which clients skip."""
        told = 0
        while place := self.thread.place(self.texts):
            if place != told:
                told = place
                body = f": waiting in place {place:,}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await anyio.sleep(PLACE_SECONDS)

    async def _stream_texts(self, send: Send) -> None:
        try:
            async for news in self.texts:
                body = b"".join(self.answer.add(index, piece) for index, piece in news)
                self.record.written = self.answer.written
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            body = self.answer.last_events()
        except (ModelStoppedError, Gpt2UsageError) as error:
            body = b"data: " + stopped(error, self.thread).as_json() + b"\n\n"
        self.is_done = True
        await send({"type": "http.response.body", "body": body, "more_body": False})


def stopped(error: Exception, thread: ModelThread) -> ApiError:
    """The answer to a client whose text is not written to its end."""
    if isinstance(error, Gpt2UsageError):
        return ApiError(400, str(error), param="prompt")
    if thread.failure is not None:
        return ApiError(500, "the model failed, and the server ends: its log says why.", code="model_failed")
    return ApiError(
        503,
        f"{error}: try again later.",
        code="stopping",
        headers={"Retry-After": str(RETRY_SECONDS), "Connection": "close"},
    )


def make_app(service: Service, *, hosts: Iterable[str] | None, token: str | None) -> Starlette:
    """The ASGI application; `hosts` and `token` as `Guard` has them."""
    routes = [
        Route("/v1/completions", service.completions, methods=["POST"]),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/health", service.health),
        *(page_route(path, name, kind) for path, (name, kind) in PAGE.items()),
    ]

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path[:200]}"
        message = (
            f"this server has no {what}: it continues texts at POST /v1/completions, and lists its model at /v1/models."
        )
        return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()

    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Log), Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={ApiError: refused, HTTPException: not_found, ClientDisconnect: left},
    )


def page_route(path: str, name: str, kind: str) -> Route:
    """A path that answers with a file of the page."""
    content = importlib.resources.files("gpt2_train.serving").joinpath("page", name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, 200, PAGE_HEADERS, kind)

    return Route(path, answer)
