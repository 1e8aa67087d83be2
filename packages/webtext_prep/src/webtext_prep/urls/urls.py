"""What a URL is made of, as far as the stages need it: its host, its registered name, and the key that makes two equal.

`urlsplit` defines the parts of a URL. In nearly all URLs a regular expression finds the same parts at a fraction of its
cost, and what follows from their origins is remembered.

tldextract uses the public suffix list that it carries: nothing is fetched.

Two more keys: `surt`, by which indexes of web archives are sorted, and the hash that says which pages are held out of
training. That is of the URL alone, so that a page stays on its side whatever becomes of the corpus: more pages, a
stricter filter, another deduplication, other extraction of its text. With a larger share the pages of a smaller one are
held out, too.

Which task may ask which host, where several fetch at once: each host belongs to one of them.

So what holds for a host (requests at once, pauses, its robots.txt) is kept by one process that knows all of its
requests, and no task waits for another. In the first round there is a task for each list, and hosts are divided as
`webtext blacklist` divides them, so that its lists hold no URL of another task's host. In the rounds after it, sites
(registered domains) are divided, so that `example.org` leads to `www.example.org` in one task.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

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

_LETTERS = r"!$-.0-;=@-\[\]_a-z~\u00a1-\u167f\u3001-\U0010ffff"
"""What may stand anywhere in a URL, as a class of a regular expression: none of it is `_FORBIDDEN`."""
_USUAL = re.compile(
    rf"(https?://[{_LETTERS}]{{1,300}}+)(/[{_LETTERS}/]*+)?+(\?[{_LETTERS}/?]*+)?+(?:#[{_LETTERS}/?#]*+)?+"
).fullmatch
"""Origin, path and query of a URL, as `urlsplit` finds them, of nearly all URLs; None for the others."""


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
    if _PLAIN_HOST.fullmatch(host):
        return host
    # A text too long for a host is not remembered: thousands of such lines would fill the memory.
    return (_encoded_host if len(host) <= 253 else _encoded_host.__wrapped__)(host)


@functools.lru_cache(maxsize=1 << 14)
def _encoded_host(host: str) -> str:
    from yarl import URL  # needed for few hosts only

    with contextlib.suppress(ValueError):
        host = URL.build(scheme="http", host=host.strip("[]")).raw_host or host
    return host.lower().rstrip(".")


def parts_of(url: str) -> tuple[str, str, str]:
    """`host_of`, the path with its percent-escapes, and `url_key` of a URL, at the cost of one of them.

    >>> parts_of("HTTP://Example.com:80/a%20b?c#d")
    ('example.com', '/a%20b', 'http://example.com/a%20b?c')
    """
    usual = _USUAL(url)
    if usual is not None:
        origin, path, query = usual.groups("")
        host, key = _parts_of_origin(origin)
        if host:
            return host, path, f"{key}{path or '/'}{query if query != '?' else ''}"
    return parts_by_rules(url)


@functools.lru_cache(maxsize=1 << 16)
def _parts_of_origin(origin: str) -> tuple[str, str]:
    """The host and the key of a URL that has nothing else, without the slash at the end of the key."""
    host, _, key = parts_by_rules(origin)
    return host, key[:-1]


def parts_by_rules(url: str) -> tuple[str, str, str]:
    """`parts_of` without its short cut for usual URLs: the definition."""
    try:
        parts = urlsplit(url)
        found, port = parts.hostname or "", parts.port
    except ValueError:
        return "", "", url
    host = in_key = canonical_host(found)
    if (
        _FORBIDDEN.search(url)
        or parts.scheme not in _DEFAULT_PORTS
        or not _HOST.fullmatch(f"[{found}]" if ":" in found else found)
        or ".." in found
        or found.startswith(".")
        or len(found) > 253
    ):
        host = ""
    if ":" in in_key:
        in_key = f"[{in_key}]"
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme):
        in_key = f"{in_key}:{port}"
    path = parts.path or ("/" if in_key else "")
    return host, parts.path, urlunsplit((parts.scheme, in_key, path, parts.query, ""))


def host_of(url: str) -> str:
    """The host of `url` as `canonical_host` has it, without port and user; "" if `url` is no absolute web address."""
    usual = _USUAL(url)
    return parts_by_rules(url)[0] if usual is None else _parts_of_origin(usual[1])[0]


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


def domain_of(url: str) -> str:
    """The registered domain of a URL, for any path and query; of an address itself, "" where there is no host.

    >>> domain_of("https://news.example.co.uk:8080/a b")
    'example.co.uk'
    """
    return _domain_of_origin("/".join(url.split("/", 3)[:3]))


@functools.lru_cache(maxsize=1 << 16)
def _domain_of_origin(origin: str) -> str:
    return registered_name(host_of(origin))[1]


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
    if url.isascii() and "@" not in url and "%40" not in url:
        return url
    bare = without_credentials(url)
    end = max(place + len(sign) if (place := bare.rfind(sign)) >= 0 else 0 for sign in _AT_SIGNS)
    if ":" not in bare[:end]:
        return bare
    if host_of(bare):
        return bare
    rest = bare[end:]
    # Bytes that were not UTF-8 are the reason to drop it, wherever they were.
    lost = REPLACEMENT if REPLACEMENT in bare and REPLACEMENT not in rest else ""
    return f"{lost}{_HIDDEN}{rest}"


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
    return parts_of(url)[2]


def bucket_of(name: str, buckets: int) -> int:
    """A stable bucket, 0 to `buckets` - 1, for `name`. With twice the buckets, each one's names stay in it or move to
    the one `buckets` further on."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) % buckets


@dataclass(frozen=True)
class Hosts:
    """The hosts of one task.

    Attributes:
        part: the number of the task.
        parts: how many tasks there are.
        by_site: whether whole sites are divided, not hosts.
        archives: hosts that belong to one task where sites are divided, and before that to none.
    """

    part: int
    parts: int
    by_site: bool = False
    archives: frozenset[str] = frozenset()

    def part_of(self, host: str) -> int:
        """The number of the task to which a host belongs, -1 where it belongs to none."""
        if host not in self.archives:
            return bucket_of((registered_name(host)[1] if self.by_site else "") or host, self.parts)
        return bucket_of("archives", self.parts) if self.by_site else -1

    def owns(self, host: str) -> bool:
        """Whether a host is one of them."""
        return self.part_of(host) == self.part


# Indexes of web archives

MAX_KEYED = 8_192
"""Characters of a URL that has a key: what was escaped many times costs the square of its length."""
_WWW = re.compile(r"www\d*\.")
_SAFE = frozenset(range(0x21, 0x7F)) - frozenset(b"#%")
_PATH_SESSION = re.compile(r";jsessionid=[0-9a-z]{32}(?=[/?]|$)|/\((?:[a-z]\([0-9a-z]{24}\)|[0-9a-z]{24})+\)(?=/)")
_QUERY_SESSION = re.compile(
    r"(?:(?<=&)|^)(?:(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}|aspsessionid[a-z]{8}=[a-z]{24}"
    r"|cfid=[^&]+&cftoken=[^&]+)(?:&|$)"
)


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
        host, port = canonical_host((parts.hostname or "").lower()), parts.port
    except ValueError:
        return ""
    if not host or parts.scheme not in _DEFAULT_PORTS:
        return ""
    host = _WWW.sub("", host, count=1) if _WWW.match(host) else host
    names = ",".join(reversed(host.split("."))) if ":" not in host else host
    place = f":{port}" if port is not None and port != _DEFAULT_PORTS[parts.scheme] else ""
    path = _PATH_SESSION.sub("", _without_dots(_without_escapes(parts.path).lower()))
    query = "&".join(sorted(_QUERY_SESSION.sub("", _without_escapes(parts.query).lower()).split("&")))
    path = path.rstrip("/") or "/"
    return f"{names}{place}){path}{'?' if query else ''}{query}"


def _without_escapes(text: str) -> str:
    """Without any percent-escapes that can be spared, as many times as it was escaped."""
    data = text.encode("utf-8", "surrogatepass")
    while (bare := unquote_to_bytes(data)) != data:
        data = bare
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in data)


def _without_dots(path: str) -> str:
    """Without empty steps, `.` and `..`."""
    found: list[str] = []
    for step in path.split("/"):
        if step == "..":
            found[-1:] = []
        elif step not in ("", "."):
            found.append(step)
    return "/" + "/".join(found)


# Pages that are held out of training

HELD_OUT = "held_out"
"""The reason to drop a page that is held out; also the folder, or the end of the prefix, where it goes instead."""
_SEED = 0x68656C64


def is_held_out(url: str, share: float) -> bool:
    """Whether the page of a URL, or of a `Document.id`, is among the `share` (0 to 1) of all that are held out.

    >>> [is_held_out("http://example.com/a", share) for share in (0.0, 1.0)]
    [False, True]
    """
    if not share:
        return False
    return xxhash.xxh3_64_intdigest(url_key(url).encode("utf-8", "surrogatepass"), _SEED) < share * 2**64


def held_out_reason(url: str, share: float, *, is_only: bool = False) -> str:
    """Why a page is not written to an output that holds out a share, or holds only held-out pages; empty if it is."""
    if is_held_out(url, share) == is_only:
        return ""
    return f"not_{HELD_OUT}" if is_only else HELD_OUT
