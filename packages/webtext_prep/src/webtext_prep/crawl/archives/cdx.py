"""How indexes of web archives write URLs and times: by the keys by which they are sorted, and in 14 digits."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import math
import re
import socket
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from webtext_prep.urls.urls import DEFAULT_PORTS, canonical_host

MAX_KEYED = 8_192
"""Characters of a URL that has a key: what was escaped many times costs the square of its length."""
_WWW = re.compile(r"www\d*\.")
_SAFE = frozenset(range(0x21, 0x7F)) - frozenset(b"#%")
_DOTS = re.compile(r"\.{2,}")
_SHORT_ADDRESS = re.compile(r"\d+(?:\.\d+){1,3}", re.ASCII)
_PATH_SESSION = re.compile(r"/\((?:(?:[a-z]\([0-9a-z]{24}\))+|[0-9a-z]{24})\)(?=/[^?]+\.aspx)")
"""Of ASP.NET alone: `;jsessionid=` of a path stays in the keys of all indexes (surt 0.3.1, pywb 2.10)."""
_QUERY_SESSIONS = [
    re.compile(rf"(.*){session}(?:&|$)", re.DOTALL)
    for session in (
        "jsessionid=[0-9a-z]{32}",
        "phpsessid=[0-9a-z]{32}",
        "sid=[0-9a-z]{32}",
        "aspsessionid[a-z]{8}=[a-z]{24}",
        "cfid=[^&]+&cftoken=[^&]+",
    )
]
"""Each is taken out once, the last one, and also at the end of another name, as the indexes do (`osid=...` -> `o`)."""


def surt(url: str) -> str:
    """The key by which indexes of web archives are sorted: the host backwards, then path and query; "" without a host.

    It follows the rules of the Internet Archive's URL canonicalization, which Common Crawl's index uses, too: no
    scheme, user name, fragment or default port, no `www.`, everything in small letters, parameters of the query in
    order, and no identifiers of sessions. What the rules say of malformed addresses is not repeated here: their pages
    are not found, nor those of addresses with more than `MAX_KEYED` characters.

    >>> surt("https://www.Example.org:443/A//b/?z=1&a=%7E#top")
    'org,example)/a/b?a=~&z=1'
    """
    if len(url) > MAX_KEYED:
        return ""
    try:
        parts = urlsplit(url.strip())
        host, port = _address_of(_DOTS.sub(".", parts.hostname or "").strip(".")), parts.port
    except ValueError:
        return ""
    if not host or parts.scheme not in DEFAULT_PORTS:
        return ""
    host = _WWW.sub("", host, count=1) if _WWW.match(host) else host
    names = ",".join(reversed(host.split("."))) if ":" not in host else host
    place = f":{port}" if port is not None and port != DEFAULT_PORTS[parts.scheme] else ""
    path = _PATH_SESSION.sub("", _without_dots(_without_escapes(parts.path).lower()))
    query = _without_escapes(parts.query).lower()
    for session in _QUERY_SESSIONS:
        if found := session.match(query):
            query = found[1] + query[found.end() :]
    query = "&".join(sorted(query.split("&"), key=lambda argument: argument.split("=", 1)))
    path = path.rstrip("/") or "/"
    return f"{names}{place}){path}{'?' if query else ''}{query}"


def _address_of(host: str) -> str:
    """A host in its one form; an IPv4 address of fewer than four numbers, or of octal ones, with all four."""
    if host.isascii() and host.isdigit():
        return str(ipaddress.IPv4Address(int(host) & 0xFFFFFFFF))
    if _SHORT_ADDRESS.fullmatch(host):
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(socket.inet_aton(host))
    return canonical_host(host.lower())


def _without_escapes(text: str) -> str:
    """Without any percent-escapes that can be spared, as many times as it was escaped."""
    data = text.encode("utf-8", "surrogatepass")
    while (bare := unquote_to_bytes(data)) != data:
        data = bare
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in data)


def _without_dots(path: str) -> str:
    """Without empty steps, `.`, and `..` but those that lead above the root, which surt keeps."""
    found: list[str] = []
    for step in path.split("/"):
        if step == ".." and found and found[-1] != "..":
            found.pop()
        elif step not in ("", "."):
            found.append(step)
    return "/" + "/".join(found)


READABLE = "%Y-%m-%dT%H:%M:%SZ"
_TIME = "%Y%m%d%H%M%S"
_DIGITS = re.compile(r"\d{14}", re.ASCII)
_UNIX = re.compile(r"\d{9,10}", re.ASCII)
_YEAR = re.compile(r"\d{4}(-\d\d)?", re.ASCII)

Found = TypeVar("Found")


def timestamp(date: str) -> str:
    """A date as archives write it, with 14 digits: of ISO 8601, also a year or a month, or in seconds of Unix time.

    A time without a zone is of UTC. Raises ValueError for anything else.

    >>> timestamp("2019-03"), timestamp("2019-03-01T13:00:00+01:00"), timestamp("1551441600")
    ('20190301000000', '20190301120000', '20190301120000')
    """
    date = date.strip()
    if _UNIX.fullmatch(date):
        return datetime.datetime.fromtimestamp(int(date), datetime.UTC).strftime(_TIME)
    year = _YEAR.fullmatch(date)
    time = datetime.datetime.fromisoformat(date if year is None else f"{date}{'-01' * (1 if year[1] else 2)}")
    if time.tzinfo is not None:
        with contextlib.suppress(OverflowError):  # of the first or last day that there is
            time = time.astimezone(datetime.UTC)
    return f"{time.year:04}{time.strftime(_TIME[2:])}"


def seconds_of(time: str) -> float:
    """A `timestamp` in seconds since 1970; infinite if it is none."""
    if _DIGITS.fullmatch(time):
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(time, _TIME).replace(tzinfo=datetime.UTC).timestamp()
    return math.inf


def readable_time(time: str) -> str:
    """A `timestamp` as `2019-03-01T12:00:00Z`."""
    return f"{time[:4]}-{time[4:6]}-{time[6:8]}T{time[8:10]}:{time[10:12]}:{time[12:]}Z"


def nearest(found: Iterable[tuple[str, Found]], date: str) -> list[tuple[str, Found]]:
    """What has a `timestamp`, the nearest to `date` first, or the newest if that is empty; others are left out."""
    timed = [(seconds_of(time), (time, each)) for time, each in found]
    timed = [(seconds, each) for seconds, each in timed if math.isfinite(seconds)]
    wanted = seconds_of(date) if date else math.inf
    timed.sort(key=lambda entry: (abs(entry[0] - wanted) if date else -entry[0], entry[0]))
    return [each for _, each in timed]
