"""One HTTP request to a stranger, bounded in every way: address, time, bytes, type; never more than one hop.

Redirects are given back, not followed, so that each hop passes the same checks and waits its turn at its own host.
Bodies are decompressed here, in small steps, against the cap on decompressed bytes: a few kilobytes of gzip can stand
for gigabytes, and only formats that can be read in steps are asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import socket
import ssl
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from webtext_prep.web.addresses import BlockedAddressError, CheckedResolver, OddAddressError, check_host

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
TEXT_TYPES = frozenset({"text/plain", "text/markdown", "text/x-markdown"})
UNSAID_TYPES = frozenset({"", "application/octet-stream", "binary/octet-stream", "unknown/unknown"})
"""What servers send that don't know: the content decides."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HTML_BEGINNINGS = (b"<!doctype html", b"<html", b"<head", b"<body", b"<!--", b"<title", b"<?xml", b"<script", b"<meta")
_BINARY = frozenset(bytes([*range(9), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)]))
_OTHER_FORMATS = (b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"\x1f\x8b", b"ID3", b"OggS", b"Rar!")
"""Beginnings of what some servers send as text/html all the same."""
_STEP = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one request.

    Attributes:
        outcome: `ok`, `redirect`, or the reason for which there is no page (`http_404`, `timeout`, ...).
        status: the HTTP status, or None where there was no answer.
        url: the URL that answered.
        location: where a redirect points to.
        body: the page, decompressed, or nothing.
        charset: as the header says, or None.
        is_html: whether the page is HTML, or else plain text.
        retry_after: how many seconds the server asks to wait.
        passes_soon: whether trying once more in a moment may help.
    """

    outcome: str
    url: str
    status: int | None = None
    location: str = ""
    body: bytes = b""
    charset: str | None = None
    is_html: bool = True
    retry_after: float | None = None
    passes_soon: bool = False


class TooLargeError(Exception):
    """A body with more bytes than allowed."""


class DamagedBodyError(Exception):
    """A body that is not compressed as its header says, or in a way that was not asked for."""


class Decompressor:
    """Takes the pieces of a body and gives back decompressed ones, each of at most 64 KiB.

    Raises DamagedBodyError for an encoding that it does not know or data that does not follow it.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding.strip().lower()
        if self.encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise DamagedBodyError(encoding)
        self._plain = self.encoding in ("", "identity")
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._begun = False

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield what `data` adds."""
        if self._plain:
            yield data
            return
        while data:
            try:
                piece = self._inflater.decompress(data, _STEP)
            except zlib.error:
                if self._begun or self.encoding != "deflate":
                    raise DamagedBodyError(self.encoding) from None
                # Some servers send bare deflate data under the name of the zlib format.
                self._inflater, self._begun = zlib.decompressobj(-zlib.MAX_WBITS), True
                continue
            self._begun = True
            yield piece
            data = self._inflater.unconsumed_tail
            if self._inflater.eof:
                data = self._inflater.unused_data.lstrip(b"\0")
                if data[:2] != b"\x1f\x8b":
                    return  # padding, or rubbish, after the end
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)


def may_pass(outcome: str) -> bool:
    """Whether a URL that ended so may well be there another time: the network or the server had trouble."""
    if outcome.startswith("http_"):
        return outcome in ("http_408", "http_425", "http_429") or (
            outcome.startswith("http_5") and outcome not in ("http_501", "http_505")
        )
    return outcome in ("timeout", "connection", "dns", "tls", "host_down", "robots_unreachable")


def retry_after(value: str | None) -> float | None:
    """The seconds to wait that a `Retry-After` header asks for, as a number or as a date; None if it says neither."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def looks_like(body: bytes) -> str:
    """What a body is by its beginning: `html`, `text`, `binary` or, where that is certain, `other`."""
    if body.startswith(_OTHER_FORMATS):
        return "other"
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "html" if b"<\0" in body[:64] or b"\0<" in body[:64] else "text"
    beginning = body.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\f")[:512].lower()
    if beginning.startswith(_HTML_BEGINNINGS):
        return "html"
    return "binary" if any(byte in _BINARY for byte in body[:512]) else "text"


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The decompressed body. Raises TooLargeError beyond `limit` bytes, before they are all in memory.

    Raises DamagedBodyError as `Decompressor` does.
    """
    decompressor = Decompressor(response.headers.get("Content-Encoding", ""))
    if (response.content_length or 0) > limit:
        raise TooLargeError
    pieces: list[bytes] = []
    size = wire = 0
    async for data in response.content.iter_any():
        wire += len(data)
        for piece in decompressor.steps(data):
            size += len(piece)
            if size > limit:
                raise TooLargeError
            pieces.append(piece)
        # Compressed data of which nothing comes out must not go on for ever either.
        if wire > limit:
            raise TooLargeError
    return b"".join(pieces)


def _trusted() -> ssl.SSLContext:
    """Certificates are always verified: against the system's authorities, and certifi's where that is installed.

    A slim container has none of its own, and every https page would fail.
    """
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


class Client:
    """Sends single requests. Use as an async context manager.

    Args:
        connections: open connections at most.
        timeout: seconds for one request, from the name look-up to the last byte.
        max_bytes: most bytes of a body, decompressed.
        user_agent: how it introduces itself.
        allow_private: whether addresses outside the public internet may be connected to.
    """

    def __init__(
        self, *, connections: int, timeout: float, max_bytes: int, user_agent: str, allow_private: bool
    ) -> None:
        self.connections, self.timeout, self.max_bytes = connections, timeout, max_bytes
        self.user_agent, self.allow_private = user_agent, allow_private
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        resolver: AbstractResolver = aiohttp.ThreadedResolver() if self.allow_private else CheckedResolver()
        connector = aiohttp.TCPConnector(
            limit=self.connections,
            resolver=resolver,
            ttl_dns_cache=300,
            dns_cache_max_size=10_000,
            ssl=_trusted(),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # through a proxy nobody could say which address is connected to
            requote_redirect_url=True,
            headers={
                "User-Agent": self.user_agent,
                "Accept": "text/html,application/xhtml+xml,text/plain;q=0.8,*/*;q=0.1",
                "Accept-Encoding": "gzip, deflate",
            },
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str, *, any_type: bool = False, max_bytes: int | None = None) -> Reply:
        """Ask for `url` once. Never raises for what a URL, a server or a network can do: the reply's outcome says it.

        Args:
            url: an absolute http or https URL.
            any_type: take a body of any type (robots.txt), cut at the cap instead of refused.
            max_bytes: another cap than the client's own.
        """
        try:
            parsed = URL(url).with_fragment(None)
            # Raises for a URL that names a user but no host; whoever put a password there did not mean us.
            parsed = parsed.with_user(None)
            if parsed.scheme not in ("http", "https") or not parsed.raw_host:
                return Reply("malformed_url", url)
            check_host(parsed.raw_host, allow_private=self.allow_private)
        except BlockedAddressError:
            return Reply("blocked_address", url)
        except (ValueError, OddAddressError):
            return Reply("malformed_url", url)
        try:
            async with asyncio.timeout(self.timeout):
                return await self._get(parsed, any_type, self.max_bytes if max_bytes is None else max_bytes)
        except TimeoutError:
            return Reply("timeout", str(parsed), passes_soon=True)
        except BlockedAddressError:
            return Reply("blocked_address", str(parsed))
        except aiohttp.ClientConnectorDNSError as error:
            # A name that does not exist will not exist in a moment; a resolver that is busy may answer then.
            gone = getattr(error.os_error, "errno", None) in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))
            return Reply("dns", str(parsed), passes_soon=not gone)
        except (aiohttp.ClientSSLError, ssl.SSLError, ssl.CertificateError):
            return Reply("tls", str(parsed))
        except aiohttp.InvalidURL:
            return Reply("malformed_url", str(parsed))
        except (aiohttp.ClientResponseError, DamagedBodyError):
            return Reply("malformed_response", str(parsed))
        except (aiohttp.ClientError, OSError):
            return Reply("connection", str(parsed), passes_soon=True)
        except ValueError:  # a header that cannot be parsed, a name that cannot be encoded
            return Reply("malformed_response", str(parsed))

    async def _get(self, url: URL, any_type: bool, limit: int) -> Reply:
        assert self._session is not None
        async with self._session.get(url, allow_redirects=False) as response:
            try:
                return await self._reply(response, str(url), any_type, limit)
            except TooLargeError:
                return Reply("too_large", str(url), response.status)
            finally:
                # Closing, not releasing: what is left of a body that is not wanted is not read either.
                if not response.content.is_eof():
                    response.close()

    async def _reply(self, response: aiohttp.ClientResponse, url: str, any_type: bool, limit: int) -> Reply:
        status = response.status
        if status in REDIRECTS and "Location" in response.headers:
            location = response.headers["Location"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return Reply("redirect", url, status, location=location)
        if status not in (200, 203):  # 203: a page, changed by a proxy on the way
            outcome = f"http_{status}"
            wait = retry_after(response.headers.get("Retry-After"))
            return Reply(outcome, url, status, retry_after=wait, passes_soon=may_pass(outcome))
        kind, charset = response.content_type.lower(), response.charset
        if "Content-Type" not in response.headers:
            kind = ""
        if any_type:
            return Reply("ok", url, status, body=await _read_some(response, limit), charset=charset)
        if kind not in HTML_TYPES | TEXT_TYPES | UNSAID_TYPES:
            return Reply("not_html", url, status)
        body = await read_body(response, limit)
        looks = looks_like(body)
        if looks == "other" or (looks == "binary" and kind not in HTML_TYPES):
            return Reply("not_html", url, status)
        is_html = kind in HTML_TYPES or (kind in UNSAID_TYPES and looks == "html")
        return Reply("ok", url, status, body=body, charset=charset, is_html=is_html)


async def _read_some(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The first `limit` bytes of a body, decompressed."""
    decompressor = Decompressor(response.headers.get("Content-Encoding", ""))
    body = b""
    async for data in response.content.iter_any():
        for piece in decompressor.steps(data):
            body += piece
            if len(body) >= limit:
                return body[:limit]
    return body


def next_url(url: str, location: str) -> str | None:
    """Where a redirect from `url` leads, or None if that is no web address."""
    try:
        target = URL(url).join(URL(location))
    except ValueError:
        return None
    return str(target.with_fragment(None)) if target.scheme in ("http", "https") and target.host else None
