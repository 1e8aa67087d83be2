"""Cookies within one chain of redirects: a site that sets one and looks for it at the next request leads on for ever
without. They are sent to the hosts and paths that they are for (RFC 6265), and forgotten with the chain.
"""

from __future__ import annotations

from http.cookies import SimpleCookie

import aiohttp
from yarl import URL

from webtext_prep.urls.urls import registered_name

MOST = 50
"""Cookies of one answer, as RFC 6265, section 6.1, has it for a host; further ones are left."""
MAX_HEADER = 8000
"""Characters of the header; one that is longer is not sent, as servers refuse it."""


def with_cookies_of(response: aiohttp.ClientResponse, known: aiohttp.CookieJar | None) -> aiohttp.CookieJar | None:
    """The cookies of a chain with those that an answer sets; None if there are none."""
    if not response.cookies:
        return known
    jar = known or aiohttp.CookieJar(unsafe=True)  # also for hosts that are addresses
    taken: SimpleCookie = SimpleCookie()
    for name, cookie in list(response.cookies.items())[:MOST]:
        domain = cookie["domain"].lstrip(".").lower()
        # One for all of `com` or `co.uk` is for no host (RFC 6265, section 5.3, step 5).
        if domain in ("", response.url.host) or _is_registered(domain):
            taken[name] = cookie
    jar.update_cookies(taken, response.url)
    return jar


def _is_registered(domain: str) -> bool:
    name, registered = registered_name(domain)
    return bool(name) and registered != name


def cookie_header(jar: aiohttp.CookieJar, url: URL) -> str:
    """What is sent to a URL of them; "" for nothing."""
    header = "; ".join(f"{name}={cookie.coded_value}" for name, cookie in jar.filter_cookies(url).items())
    return header if len(header) <= MAX_HEADER else ""
