"""What a URL is made of, as far as the stages need it: its host, its registered name, and the key that makes two equal.

tldextract uses the public suffix list that it carries: nothing is fetched.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import xxhash

if TYPE_CHECKING:
    import tldextract

REPLACEMENT = "\ufffd"
"""What stands in a URL in place of bytes that are not UTF-8: it is not known which page is meant."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f<>\"\\^`{|}\s]")
_PLAIN_HOST = re.compile(r"[a-z0-9._-]*")
_HOST = re.compile(r"[^\s/?#@:%\[\]]+|\[[0-9a-f:.]+\]", re.IGNORECASE)
# Browsers take any number of slashes of either kind after http and https, so that much is taken for the beginning.
_CREDENTIALS = re.compile(r"^(\s*(?:https?:[/\\]*|(?:[a-z][a-z0-9+.-]*:)?[/\\]{2,}))[^/\\?#]*@", re.IGNORECASE)
# A password with a slash, a question mark or a hash in it: what looks like a port is no number.
_ODD_CREDENTIALS = re.compile(r"^\s*https?:[/\\]*[^/\\?#@\[]*:(?!\d*(?:[/\\?#]|$)).*@", re.IGNORECASE | re.DOTALL)
_AT_SIGNS = ("@", "\uff20", "\ufe6b", "%40")
_URL_WITH_CREDENTIALS = re.compile(r"^(\s*[a-z][a-z0-9+.-]*:[/\\]{2,})[^/\\?#\s]*@", re.IGNORECASE)
_HIDDEN = "(hidden)@"


def shards_for(size: int, bytes_per_shard: int) -> int:
    """How many shards an input of `size` bytes makes: a power of two, so that a grown input only splits shards."""
    return min(1 << max(0, (size - 1) // bytes_per_shard).bit_length(), 4096) if size else 1


def canonical_host(host: str) -> str:
    """The one form of a host, by which hosts are compared: as in DNS, in lower case, without a dot at its end.

    A name in another script becomes Punycode by the rules of the HTTP client, an IPv6 address its shortest form without
    brackets. A name that has no such form stays as it is.

    >>> canonical_host("M\u00fcnchen.de"), canonical_host("xn--mnchen-3ya.de.")
    ('xn--mnchen-3ya.de', 'xn--mnchen-3ya.de')
    """
    host = host.rstrip(".")
    return host if _PLAIN_HOST.fullmatch(host) else _encoded_host(host)


@functools.lru_cache(maxsize=1 << 14)
def _encoded_host(host: str) -> str:
    from yarl import URL  # needed for few hosts only

    with contextlib.suppress(ValueError):
        host = URL.build(scheme="http", host=host.strip("[]")).raw_host or host
    return host.lower().rstrip(".")


def host_of(url: str) -> str:
    """The host of `url` as `canonical_host` has it, without port and user.

    Raises ValueError if `url` is not an absolute web address.
    """
    if _FORBIDDEN.search(url):
        raise ValueError("white space or a character that a URL may not hold")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("not http or https")
    host = parts.hostname or ""
    _ = parts.port  # raises ValueError where it is not a number
    bracketed = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(bracketed) or ".." in host or host.startswith(".") or len(host) > 253:
        raise ValueError("not a valid host")
    return canonical_host(host)


@functools.lru_cache(maxsize=1)
def suffix_list() -> tldextract.TLDExtract:
    """tldextract with the public suffix list that it carries."""
    # Imported here, since it brings an HTTP client that is never used and doubles the time in which a command starts.
    import tldextract

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


@functools.lru_cache(maxsize=1 << 16)
def registered_name(host: str) -> tuple[str, str]:
    """The name that somebody registered, without and with its public suffix.

    >>> registered_name("news.bbc.co.uk")
    ('bbc', 'bbc.co.uk')
    """
    parts = suffix_list()(host)
    return parts.domain, f"{parts.domain}.{parts.suffix}" if parts.suffix else parts.domain


def without_credentials(url: str) -> str:
    """`url` without user name and password.

    Whoever put them into a list did not mean them for a corpus, a log, or a server: they are taken out where a URL is
    read, and where a redirect names one.

    >>> without_credentials("http://user:secret@example.com/~a@b?c=d@e")
    'http://example.com/~a@b?c=d@e'

    A web address that is none, as its password is not escaped, stays none.

    >>> without_credentials("http://user:sec/ret@example.com/")
    '(hidden)@example.com/'
    """
    if "@" not in url:
        return url
    bare = _CREDENTIALS.sub(r"\1", url)
    return _ODD_CREDENTIALS.sub(_HIDDEN, bare) if "@" in bare else bare


def without_any_credentials(url: str) -> str:
    """As `without_credentials`, for a line of a list: where it is no web address, what may be credentials goes, too.

    It stays no web address.

    >>> without_any_credentials("- user:secret@example.com/a")
    '(hidden)@example.com/a'
    """
    bare = without_credentials(url)
    end = max(place + len(sign) if (place := bare.rfind(sign)) >= 0 else 0 for sign in _AT_SIGNS)
    if ":" not in bare[:end]:
        return bare
    try:
        host_of(bare)
    except ValueError:
        rest = bare[end:]
        # Bytes that were not UTF-8 are the reason to drop it, wherever they were.
        lost = REPLACEMENT if REPLACEMENT in bare and REPLACEMENT not in rest else ""
        return f"{lost}{_HIDDEN}{rest}"
    return bare


def clean_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Take user names and passwords out of the values that are URLs, at any depth; changes and returns `metadata`.

    >>> clean_metadata({"link": "ftp://user:secret@example.com/", "by": "a@example.com"})
    {'link': 'ftp://example.com/', 'by': 'a@example.com'}
    """
    todo: list[Any] = [metadata]
    while todo:
        holder = todo.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(value, str):
                if "@" in value:
                    holder[key] = _URL_WITH_CREDENTIALS.sub(r"\1", value)
            elif isinstance(value, dict | list):
                todo.append(value)
    return metadata


def url_key(url: str) -> str:
    """What two URLs share when they name one page: without fragment and default port, the host in its one form.

    >>> url_key("HTTP://Example.com:80#top") == url_key("http://example.com/")
    True
    """
    try:
        parts = urlsplit(url)
        host, port = canonical_host(parts.hostname or ""), parts.port
    except ValueError:
        return url
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme):
        host = f"{host}:{port}"
    path = parts.path or ("/" if host else "")
    return urlunsplit((parts.scheme, host, path, parts.query, ""))


def bucket_of(name: str, buckets: int) -> int:
    """A stable bucket, 0 to `buckets` - 1, for `name`. With twice the buckets, each one's names stay in it or move to
    the one `buckets` further on."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) % buckets
