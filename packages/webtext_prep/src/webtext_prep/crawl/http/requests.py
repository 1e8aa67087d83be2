"""One HTTP request to an unknown server, bounded in every way: address, time, bytes, type; never more than one hop.

Redirects are given back, not followed. A deadline covers the whole request but for two things: the name look-up has
one of its own, so that a dead name server is told apart from a slow site, and the time in which no memory was free
does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ssl
import time
from types import TracebackType

import aiohttp
from yarl import URL

from webtext_prep.crawl.http.addresses import (
    BlockedAddressError,
    CheckedResolver,
    NoSuchNameError,
    OddAddressError,
    PrivateAddresses,
    check_host,
    decoded_host,
)
from webtext_prep.crawl.http.bodies import CutShortError, DamagedBodyError, TooLargeError, read_body, read_first
from webtext_prep.crawl.http.content_types import content_type_of, is_html_page, may_be_page
from webtext_prep.crawl.http.fetcher import Reply
from webtext_prep.crawl.http.memory import Reservation
from webtext_prep.extraction.outcomes import PageOutcome, http_outcome, is_retryable
from webtext_prep.urls.urls import without_credentials

REDIRECTS = frozenset({301, 302, 303, 307, 308})
DNS_SECONDS = 10.0
"""For one name look-up at most; less where a whole request may not take so long."""


def retry_after(value: str | None) -> float | None:
    """The seconds to wait that a `Retry-After` header asks for, as a number or as a date; None if it says neither."""
    value = (value or "").strip()[:100]
    if value.isascii() and value.isdigit():
        return float(value)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def trusted_authorities() -> ssl.SSLContext:
    """Certificates are always verified: against the system's authorities, and certifi's where that is installed.

    A slim container has none of its own, and every https page would fail.
    """
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def parse_url(url: str, private: PrivateAddresses) -> URL:
    """`url` as it is asked for: without fragment and credentials, its host decoded and checked.

    Raises ValueError if it is not a web address, BlockedAddressError and OddAddressError as `check_host` does.
    """
    parsed = URL(without_credentials(url)).with_fragment(None)
    if "@" in parsed.raw_authority:
        parsed = parsed.with_user(None)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise ValueError("not a web address")
    host = decoded_host(parsed.raw_host)
    if host != parsed.raw_host:
        parsed = parsed.with_host(host)
    check_host(host, private=private)
    return parsed


class _Deadline:
    """The end of a request, put off by the time in which no memory was free."""

    def __init__(self, timeout: asyncio.Timeout, reservation: Reservation | None) -> None:
        self._timeout, self._reservation = timeout, reservation

    async def reserve(self, size: int) -> None:
        if self._reservation is None or self._reservation.try_grow(size):
            return
        end = self._timeout.when()
        self._timeout.reschedule(None)
        waited = await self._reservation.grow(size)
        self._timeout.reschedule(None if end is None else end + waited)


class Client:
    """A `Fetcher` over aiohttp. Use as an async context manager.

    Args:
        connections: open connections at most.
        timeout: seconds for one request, from the name look-up to the last byte.
        max_bytes: most bytes of a body, decompressed.
        user_agent: how it introduces itself.
        private: which addresses outside the public internet may be connected to.
    """

    def __init__(
        self, *, connections: int, timeout: float, max_bytes: int, user_agent: str, private: PrivateAddresses
    ) -> None:
        self.connections, self.timeout, self.max_bytes = connections, timeout, max_bytes
        self.user_agent, self.private = user_agent, private
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(
            limit=self.connections,
            resolver=CheckedResolver(self.private, seconds=min(DNS_SECONDS, self.timeout / 2)),
            ttl_dns_cache=300,
            dns_cache_max_size=10_000,
            ssl=trusted_authorities(),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # through a proxy nobody could say which address is connected to
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

    async def get(
        self,
        url: str,
        *,
        any_type: bool = False,
        max_bytes: int | None = None,
        reservation: Reservation | None = None,
        seconds: float | None = None,
    ) -> Reply:
        """See `Fetcher.get`."""
        try:
            parsed = parse_url(url, self.private)
        except BlockedAddressError:
            return Reply(PageOutcome.BLOCKED_ADDRESS, url)
        except (ValueError, OddAddressError):
            return Reply(PageOutcome.MALFORMED_URL, url)
        limit = self.max_bytes if max_bytes is None else max_bytes
        try:
            async with asyncio.timeout(self.timeout if seconds is None else min(seconds, self.timeout)) as timeout:
                return await self._send(parsed, any_type, limit, _Deadline(timeout, reservation))
        except TimeoutError:
            return Reply(PageOutcome.TIMEOUT, str(parsed), retry_now=True)
        except BlockedAddressError:
            return Reply(PageOutcome.BLOCKED_ADDRESS, str(parsed))
        except aiohttp.ClientConnectorDNSError as error:
            # A name that does not exist will not exist in a moment; a resolver that is busy may answer then.
            is_gone = isinstance(error.os_error, NoSuchNameError)
            return Reply(PageOutcome.DNS, str(parsed), retry_now=not is_gone)
        except (aiohttp.ClientSSLError, ssl.SSLError, ssl.CertificateError):
            return Reply(PageOutcome.TLS, str(parsed))
        except aiohttp.InvalidURL:
            return Reply(PageOutcome.MALFORMED_URL, str(parsed))
        except (aiohttp.ClientResponseError, DamagedBodyError):
            return Reply(PageOutcome.MALFORMED_RESPONSE, str(parsed))
        except (aiohttp.ClientError, CutShortError, OSError):
            return Reply(PageOutcome.CONNECTION, str(parsed), retry_now=True)
        except ValueError:  # a header that cannot be parsed, a name that cannot be encoded
            return Reply(PageOutcome.MALFORMED_RESPONSE, str(parsed))

    async def _send(self, url: URL, any_type: bool, limit: int, deadline: _Deadline) -> Reply:
        assert self._session is not None
        async with self._session.get(url, allow_redirects=False) as response:
            try:
                return await self._reply(response, str(url), any_type, limit, deadline)
            except TooLargeError:
                return Reply(PageOutcome.TOO_LARGE, str(url), response.status)
            finally:
                # Closing, not releasing: what is left of a body that is not wanted is not read either.
                if not response.content.is_eof():
                    response.close()

    async def _reply(
        self, response: aiohttp.ClientResponse, url: str, any_type: bool, limit: int, deadline: _Deadline
    ) -> Reply:
        status = response.status
        if status in REDIRECTS and "Location" in response.headers:
            location = response.headers["Location"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return Reply(PageOutcome.REDIRECT, url, status, location=location)
        if status not in (200, 203):  # 203: a page, changed by a proxy on the way
            outcome = http_outcome(status)
            wait = retry_after(response.headers.get("Retry-After"))
            return Reply(outcome, url, status, retry_after=wait, retry_now=is_retryable(outcome))
        kind, charset = content_type_of(response.headers.get("Content-Type"))
        if any_type:
            return Reply(PageOutcome.OK, url, status, body=await read_first(response, limit), charset=charset)
        if not may_be_page(kind):
            return Reply(PageOutcome.NOT_HTML, url, status)
        body = await read_body(response, limit, deadline.reserve)
        is_html = is_html_page(kind, body)
        if is_html is None:
            return Reply(PageOutcome.NOT_HTML, url, status)
        return Reply(
            PageOutcome.OK,
            url,
            status,
            body=body,
            charset=charset,
            is_html=is_html,
            reason=response.reason or "",
            headers=response.raw_headers,
        )
