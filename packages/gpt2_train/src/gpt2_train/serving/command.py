"""`gpt2 serve`: texts from a checkpoint over HTTP, for OpenAI's clients, for programs, and for a page in a browser.

Requests that come at the same time are written together, each token of all of them by one pass through the model; a
text that is asked for while others are written joins them at the next token, or waits for a row: first in, first out.
The server is for people you trust; public access needs a reverse proxy.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import ipaddress
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from command_kit import add_config_flag, add_flags, setting, settings_from
from gpt2_train.config.errors import Gpt2UsageError, explained_out_of_memory
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.config.loading import load_torch
from gpt2_train.inference.model import InferenceModel, InferenceSettings

if TYPE_CHECKING:
    from gpt2_train.serving.server import Server


EXAMPLE = """\
example:
  gpt2 serve --checkpoint runs/quickstart/model       the page and the API at http://127.0.0.1:8000
  gpt2 serve --checkpoint runs/quickstart/model --port 8080 --batch-size 32 --max-tokens 500
"""
TOKEN_VARIABLE = "GPT2_SERVE_TOKEN"  # noqa: S105
_WHO, _LIMITS = "who may ask", "limits"


@dataclasses.dataclass(frozen=True)
class ServeSettings(InferenceSettings):
    """The settings of `gpt2 serve`. Raises Gpt2UsageError for a token that no client could send."""

    host: str = setting(
        "127.0.0.1", "address to listen on; 0.0.0.0 for all of this machine", metavar="ADDRESS", group=_WHO
    )
    port: int = setting(8000, "port to listen on; 0 for any that is free", ge=0, le=65535, group=_WHO)
    token: str | None = setting(
        None,
        f"what clients have to send as their API key; the environment's {TOKEN_VARIABLE} without it, and if that is "
        "not set either, none on 127.0.0.1 and a new one, printed at the start, on any other --host",
        group=_WHO,
    )
    allow_host: tuple[str, ...] = setting(
        (), "further names by which clients may call a server on 127.0.0.1: the names of a proxy before it",
        metavar="NAME", group=_WHO,
    )  # fmt: skip
    batch_size: int = setting(16, "texts written at once; each takes memory for its past", ge=1, group=_LIMITS)
    queue: int = setting(256, "texts that may wait for a place; more are refused", ge=0, group=_LIMITS)
    max_tokens: int = setting(2048, "the most tokens that one text may ask for", ge=1, group=_LIMITS)
    max_request_tokens: int | None = setting(
        None,
        "the most tokens that all texts of one request may ask for; --batch-size times --max-tokens without it",
        ge=1, group=_LIMITS,
    )  # fmt: skip
    stop_seconds: float = setting(
        5.0, "how long texts may be finished after Ctrl-C or SIGTERM", ge=0, le=3600, group=_LIMITS
    )
    name: str | None = setting(None, "how clients call the model; the name of its folder without it", metavar="NAME")

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token, "--token")
        if self.tensor_parallel > 1:
            raise Gpt2UsageError("gpt2 serve has the model in one process: leave out --tensor-parallel.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 serve` to `parser`."""
    add_config_flag(parser)
    add_flags(parser, ServeSettings)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code. Raises Gpt2Error."""
    settings = settings_from(ServeSettings, arguments, command="serve", config=arguments.config)
    load_torch()
    from gpt2_train.serving.server import bound_socket

    with (
        explained_out_of_memory("lower --batch-size"),
        settings.opened() as source,
        # Before the model is read: an address that can't be had is said at once.
        contextlib.closing(bound_socket(settings.host, settings.port)) as listener,
    ):
        make_server(settings, listener, source).serve_until_stopped(listener)
    print("gpt2: stopped", file=sys.stderr)
    return 0


def make_server(settings: ServeSettings, listener: socket.socket, source: InferenceModel) -> Server:
    """The server that `settings` ask for, its model read. Raises Gpt2UsageError for a model that can't be used."""
    from gpt2_train.inference.generator import Encoder, TextSession
    from gpt2_train.serving.app import Service, make_app
    from gpt2_train.serving.completions import Limits
    from gpt2_train.serving.middleware import LOOPBACK
    from gpt2_train.serving.model_thread import ModelThread
    from gpt2_train.serving.server import Server

    is_local = is_loopback(settings.host)
    given = given_token(settings)
    new = None if given or is_local else secrets.token_urlsafe(24)
    settings.prepare_to_write(source)
    stored = source.stored
    encoder = Encoder(stored)
    print(f"gpt2: {stored.origin}: reading the model", file=sys.stderr, flush=True)
    session = TextSession(source, settings.batch_size, arranged=settings.batch_size)
    session.kv_cache.prepare()
    thread = ModelThread(session, settings.batch_size + settings.queue)
    name = settings.name or model_name(settings.checkpoint)
    limits = Limits(
        settings.max_tokens,
        settings.max_request_tokens or settings.batch_size * settings.max_tokens,
        stored.config.sequence_length,
        # Next to the largest request there is always room for another.
        max(settings.batch_size, settings.queue),
    )
    app = make_app(
        Service(name, encoder, thread, limits),
        hosts=(*LOOPBACK, settings.host, *settings.allow_host) if is_local else None,
        token=given or new,
    )

    place = address(settings, listener, new)  # A token that was given stays out of the log.
    return Server(
        app,
        thread,
        seconds=settings.stop_seconds,
        on_ready=lambda: announce(f"{name} ({stored.config.parameters:,} parameters)", place),
    )


def announce(model: str, place: str) -> None:
    """Print that the server answers, and where."""
    print(f"gpt2: serving {model} at {place} (Ctrl-C stops)", file=sys.stderr, flush=True)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_token(token: str, where: str) -> None:
    """Raise Gpt2UsageError for a token that no header can carry."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Gpt2UsageError(f"{where} should be letters, digits and signs of ASCII, without spaces: give another.")


def given_token(settings: ServeSettings) -> str | None:
    """The token that the user wants clients to send. Raises Gpt2UsageError for one that can't be."""
    given = settings.token or os.environ.get(TOKEN_VARIABLE)
    if given:
        check_token(given, TOKEN_VARIABLE if settings.token is None else "--token")
    return given or None


def model_name(checkpoint: str) -> str:
    """The name of a model's folder; of the run's if it is one of a run's checkpoints.

    A folder called `model`, as pipelines call it, says nothing: then that of the folder which it is in.
    """
    place = Path(checkpoint).resolve()
    if place.name.startswith("step-"):
        place = place.parent
    if place.name == CHECKPOINTS_FOLDER:
        place = place.parent
    return place.parent.name or place.name if place.name == "model" else place.name


def address(settings: ServeSettings, listener: socket.socket, token: str | None) -> str:
    """The address to open in a browser; a browser sends no server what stands after #."""
    host = settings.host
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{listener.getsockname()[1]}/" + (f"#token={quote(token, safe='')}" if token else "")
