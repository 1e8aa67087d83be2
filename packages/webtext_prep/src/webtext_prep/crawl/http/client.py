"""One HTTP request to an unknown server, bounded in every way: address, time, bytes, memory, type; never a second hop.

A redirect is a reply like any other, so that each hop passes the same checks and waits its turn at its own host. A
deadline covers the whole request but for two things: the name look-up has one of its own, so that a dead name server is
not taken for a slow site, and the time in which no memory was free does not count.

Cookies are kept within one chain of redirects: a site that sets one and looks for it at the next request leads on for
ever without. They are sent to the hosts and paths that they are for (RFC 6265), and forgotten with the chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import re
import ssl
import time
from dataclasses import dataclass, replace
from http.cookies import Morsel, SimpleCookie
from urllib.parse import unquote, urlsplit

import aiohttp
from yarl import URL

from webtext_prep.crawl.http import bodies
from webtext_prep.crawl.http.connections import (
    NO_FILE_LEFT,
    BlockedAddressError,
    CheckedResolver,
    Connector,
    NoSuchNameError,
    PrivateAddresses,
    check_host,
    decoded_host,
)
from webtext_prep.crawl.http.media_types import content_type_of, is_html_page, may_be_page
from webtext_prep.crawl.http.redirects import refreshed
from webtext_prep.errors import WebtextError
from webtext_prep.extraction.edge_refusals import PRICE, refused_outcome
from webtext_prep.extraction.outcomes import PageOutcome, http_outcome, is_retryable
from webtext_prep.opt_outs.decisions import NOTHING, Decision
from webtext_prep.urls import urls

_PLAIN = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?=[/?#]|\Z)")
"""The beginning of a URL that says all of its host and origin, as most do."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one request.

    Attributes:
        outcome: `ok`, `redirect`, or the reason for which there is no page (`http_404`, `timeout`, ...).
        url: the URL that answered.
        status: the HTTP status, or None where there was no answer.
        location: where a redirect points to, also one by a refresh.
        body: the page, decompressed, or nothing.
        charset: as the header says, or None.
        is_html: whether the page is HTML, or else plain text.
        retry_after: how many seconds the server asks to wait.
        retry_now: whether trying again in a moment may help.
        reason: the words after the status of a page.
        headers: the headers of a page, or of a request for any type of body.
        decision: what the owner of a page says of training on it.
        waited: seconds in which no file was free for a connection.
        cookies: what a redirect and those before it want to have back.
        price: of a page that is to be paid for, as its header `crawler-price` says.
    """

    outcome: str
    url: str
    status: int | None = None
    location: str = ""
    body: bytes = b""
    charset: str | None = None
    is_html: bool = True
    retry_after: float | None = None
    retry_now: bool = False
    reason: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    decision: Decision = NOTHING
    waited: float = 0.0
    cookies: aiohttp.CookieJar | None = None
    price: str = ""


def host_and_origin(url: str) -> tuple[str, str]:
    """The host of a URL ("" if it has none) as `canonical_host` has it, and its origin.

    Raises ValueError where it has no origin.

    >>> host_and_origin("HTTP://Example.com:80/a?b#c")
    ('example.com', 'http://example.com')
    """
    plain = _PLAIN.match(url)
    return _parsed(url) if plain is None else _parsed_once(plain[0])


def _parsed(url: str) -> tuple[str, str]:
    bare = urls.with_ascii_host(urls.without_credentials(url))
    # Percent-escapes are decoded as they are before the request is sent.
    return urls.canonical_host(unquote(urls.host_in(urlsplit(bare)))), str(URL(bare).origin())


_parsed_once = functools.lru_cache(maxsize=1 << 14)(_parsed)


def host_name(url: str) -> str:
    """The host that the client connects to for a URL, and under which it waits for its turn; "" if it has none."""
    try:
        return host_and_origin(url)[0]
    except ValueError:
        return ""  # fails at once, whatever it waits for


REDIRECTS = frozenset({301, 302, 303, 307, 308})
FILE_PAUSE = 1.0
"""Seconds before a connection is tried again for which no file was free."""
FILE_TRIES = 60
"""Then whatever else has them open won't close them."""
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

    Raises ValueError if it is not a web address, or no valid address; BlockedAddressError as `check_host` does.
    """
    parsed = URL(urls.with_ascii_host(urls.without_credentials(url))).with_fragment(None)
    if "@" in parsed.raw_authority:
        parsed = parsed.with_user(None)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise ValueError("not a web address")
    host = decoded_host(parsed.raw_host)
    host = host if host.isascii() else urls.canonical_host(host)
    if host != parsed.raw_host:
        parsed = parsed.with_host(host)
    check_host(host, private=private)
    return parsed


class _NoFileLeftError(Exception):
    """All files that this process, or this machine, may have open are open."""


async def _reserve(timeout: asyncio.Timeout, reservation: bodies.Reservation | None, size: int) -> None:
    """Take memory for a piece of a body; the end of its request is put off by the time in which none was free."""
    if reservation is None or reservation.try_grow(size):
        return
    end = timeout.when()
    timeout.reschedule(None)
    waited = await reservation.grow(size)
    timeout.reschedule(None if end is None else end + waited)


class Client:
    """Makes single requests, over aiohttp. Use as an async context manager.

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

    async def __aenter__(self) -> Client:
        self._connector = Connector(
            limit=self.connections,
            resolver=CheckedResolver(self.private, seconds=min(DNS_SECONDS, self.timeout / 2)),
            ttl_dns_cache=300,
            dns_cache_max_size=10_000,
            ssl=trusted_authorities(),
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
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

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(
        self,
        url: str,
        *,
        any_type: bool = False,
        max_bytes: int | None = None,
        reservation: bodies.Reservation | None = None,
        seconds: float | None = None,
        span: tuple[int, int] | None = None,
        cookies: aiohttp.CookieJar | None = None,
    ) -> Reply:
        """Ask for `url` once. Never raises for what a URL, a server or a network can do: the reply's outcome says it.

        Where no file is free for a connection it waits, and raises WebtextError after a minute of that.

        Args:
            url: an absolute http or https URL.
            any_type: take a body of any type (robots.txt), cut at the cap instead of refused.
            max_bytes: another cap than the fetcher's own.
            reservation: grows with the body, and waits where memory is short.
            seconds: a shorter limit on its time than the fetcher's own.
            span: the first byte of a part of the body, and the bytes of it, if only that is wanted, as it is sent. A
                server that sends something else answers `malformed_response`.
            cookies: those of the redirects that led here; sent to the hosts that they are for.
        """
        try:
            parsed = parse_url(url, self.private)
        except BlockedAddressError:
            return Reply(PageOutcome.BLOCKED_ADDRESS, url)
        except ValueError:
            return Reply(PageOutcome.MALFORMED_URL, url)
        limit = self.max_bytes if max_bytes is None else max_bytes
        for number in range(FILE_TRIES):
            try:
                reply = await self._get(parsed, any_type, limit, reservation, seconds, span, cookies)
            except _NoFileLeftError:
                self._connector.close_idle()
                await asyncio.sleep(FILE_PAUSE)
                continue
            return replace(reply, waited=number * FILE_PAUSE) if number else reply
        raise WebtextError(
            "no file is free for a connection: raise the limit on open files (ulimit -n), or give a smaller "
            "--concurrency, and run the command again."
        )

    async def _get(
        self,
        parsed: URL,
        any_type: bool,
        limit: int,
        reservation: bodies.Reservation | None,
        seconds: float | None,
        span: tuple[int, int] | None,
        cookies: aiohttp.CookieJar | None,
    ) -> Reply:
        """The reply to one request. Raises _NoFileLeftError where the limit on open files keeps it from being sent."""
        try:
            async with asyncio.timeout(self.timeout if seconds is None else min(seconds, self.timeout)) as timeout:
                return await self._send(
                    parsed, any_type, limit, functools.partial(_reserve, timeout, reservation), span, cookies
                )
        except TimeoutError:
            return Reply(PageOutcome.TIMEOUT, str(parsed), retry_now=True)
        except BlockedAddressError:
            return Reply(PageOutcome.BLOCKED_ADDRESS, str(parsed))
        except aiohttp.ClientConnectorDNSError as error:
            # A name that does not exist will not exist in a moment; a resolver that is busy may answer then.
            if isinstance(error.os_error, NoSuchNameError):
                return Reply(PageOutcome.NO_SUCH_HOST, str(parsed))
            return Reply(PageOutcome.DNS, str(parsed), retry_now=True)
        except (aiohttp.ClientSSLError, ssl.SSLError, ssl.CertificateError):
            return Reply(PageOutcome.TLS, str(parsed))
        except aiohttp.InvalidURL:
            return Reply(PageOutcome.MALFORMED_URL, str(parsed))
        except (aiohttp.ClientResponseError, bodies.DamagedBodyError):
            return Reply(PageOutcome.MALFORMED_RESPONSE, str(parsed))
        except (aiohttp.ClientError, bodies.CutShortError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_FILE_LEFT:
                raise _NoFileLeftError from None
            return Reply(PageOutcome.CONNECTION, str(parsed), retry_now=True)
        except ValueError:  # a header that cannot be parsed, a name that cannot be encoded
            return Reply(PageOutcome.MALFORMED_RESPONSE, str(parsed))

    async def _send(
        self,
        url: URL,
        any_type: bool,
        limit: int,
        reserve: bodies.Reserve,
        span: tuple[int, int] | None,
        cookies: aiohttp.CookieJar | None,
    ) -> Reply:
        headers = {} if span is None else {"Range": f"bytes={span[0]}-{sum(span) - 1}", "Accept-Encoding": "identity"}
        if cookies is not None and (sent := cookie_header(cookies, url)):
            headers["Cookie"] = sent
        async with self._session.get(url, allow_redirects=False, headers=headers) as response:
            try:
                if span is not None and response.status in (200, 206):
                    return await _part(response, str(url), span)
                is_for_cookie = cookies is None and bool(_cookies_of(response))
                reply = await self._reply(response, str(url), any_type, limit, reserve, is_for_cookie)
                if reply.outcome == PageOutcome.REDIRECT:
                    return replace(reply, cookies=with_cookies_of(response, cookies))
                return reply
            except bodies.TooLargeError:
                return Reply(PageOutcome.TOO_LARGE, str(url), response.status)
            finally:
                # Closing, not releasing: the rest of an unwanted body is not read either.
                if not response.content.is_eof():
                    response.close()

    async def _reply(
        self,
        response: aiohttp.ClientResponse,
        url: str,
        any_type: bool,
        limit: int,
        reserve: bodies.Reserve,
        is_for_cookie: bool,
    ) -> Reply:
        status = response.status
        if status in REDIRECTS and "Location" in response.headers:
            location = response.headers["Location"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return Reply(PageOutcome.REDIRECT, url, status, location=location)
        refusal = refused_outcome(status, response.headers)
        if refusal is not None or status not in (200, 203):  # 203: a page, changed by a proxy on the way
            outcome, price = refusal or http_outcome(status), response.headers.get(PRICE, "")[:200]
            wait = retry_after(response.headers.get("Retry-After"))
            return Reply(outcome, url, status, retry_after=wait, retry_now=is_retryable(outcome), price=price)
        kind, charset = content_type_of(",".join(response.headers.getall("Content-Type", ())))
        page = Reply(PageOutcome.OK, url, status, charset=charset, headers=response.raw_headers)
        if any_type:
            return replace(page, body=await bodies.read_body(response, limit, reserve, may_be_cut=True))
        if not may_be_page(kind):
            return Reply(PageOutcome.NOT_HTML, url, status)
        body = await bodies.read_body(response, limit, reserve)
        is_html = is_html_page(kind, body)
        if is_html is None:
            return Reply(PageOutcome.NOT_HTML, url, status)
        header = response.headers.get("Refresh")
        if is_html and (target := refreshed(url, header, body, charset, to_itself=is_for_cookie)) is not None:
            return Reply(PageOutcome.REDIRECT, url, status, location=target)
        return replace(page, body=body, is_html=is_html, reason=response.reason or "")


async def _part(response: aiohttp.ClientResponse, url: str, span: tuple[int, int]) -> Reply:
    """The answer to a request for a part of a body: no more than was asked for, nor from elsewhere."""
    is_there = response.headers.get("Content-Range", "").startswith(f"bytes {span[0]}-")
    if response.status != 206 or not is_there or (response.content_length or 0) > span[1]:
        return Reply(PageOutcome.MALFORMED_RESPONSE, url, response.status)
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > span[1]:
            return Reply(PageOutcome.MALFORMED_RESPONSE, url, response.status)
    return Reply(PageOutcome.OK, url, response.status, body=bytes(body), headers=response.raw_headers)


MOST_COOKIES = 50
"""Cookies of one answer, as RFC 6265, section 6.1, has it for a host; further ones are left."""
MAX_COOKIE_HEADER = 8000
"""Characters of the header; one that is longer is not sent, as servers refuse it."""


def with_cookies_of(response: aiohttp.ClientResponse, known: aiohttp.CookieJar | None) -> aiohttp.CookieJar | None:
    """The cookies of a chain with those that an answer sets; None if there are none."""
    set_now = _cookies_of(response)
    if not set_now:
        return known
    jar = known or aiohttp.CookieJar(unsafe=True, quote_cookie=False)  # unsafe: also for hosts that are addresses
    taken: SimpleCookie = SimpleCookie()
    for name, cookie in list(set_now.items())[:MOST_COOKIES]:
        domain = cookie["domain"].lstrip(".").lower()
        # One for all of `com` or `co.uk` is for no host (RFC 6265, section 5.3, step 5).
        if domain in ("", response.url.host) or _is_registered(domain):
            # As it was sent: aiohttp (3.14) puts quotes around `{"a":1}`, browsers and RFC 6265 (5.4) don't.
            state = {"key": name, "value": cookie.coded_value, "coded_value": cookie.coded_value}
            cookie.__setstate__(state)  # type: ignore[attr-defined]
            taken[name] = cookie
    jar.update_cookies(taken, response.url)
    return jar


def _cookies_of(response: aiohttp.ClientResponse) -> dict[str, Morsel[str]]:
    """What an answer sets, by name; the last one without a name by ""."""
    found = dict(response.cookies)
    for line in response.headers.getall("Set-Cookie", ()):
        if (cookie := _nameless(line)) is not None:
            found[""] = cookie
    return found


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _nameless(line: str) -> Morsel[str] | None:
    """The cookie of a `Set-Cookie` if it has no name: RFC 6265bis, 5.6 and 5.7; aiohttp (3.14) passes over it."""
    pair, *attributes = line.split(";")
    value = pair.strip().removeprefix("=").strip()
    has_name = "=" in pair and not pair.lstrip().startswith("=")
    if has_name or not value or value.lower().startswith(("__secure-", "__host-")) or _CONTROL.search(line):
        return None
    cookie = Morsel[str]()
    cookie.__setstate__({"key": "", "value": value, "coded_value": value})  # type: ignore[attr-defined]
    for attribute in attributes:
        name, _, of_it = map(str.strip, attribute.partition("="))
        if cookie.isReservedKey(name):
            cookie[name] = name if name.lower() == "secure" else of_it
    return cookie


def _is_registered(domain: str) -> bool:
    name, registered = urls.registered_name(domain)
    return bool(name) and registered != name


def cookie_header(jar: aiohttp.CookieJar, url: URL) -> str:
    """What is sent to a URL of them; "" for nothing."""
    cookies = jar.filter_cookies(url).items()
    header = "; ".join(f"{name}={cookie.value}" if name else cookie.value for name, cookie in cookies)
    return header if len(header) <= MAX_COOKIE_HEADER else ""
