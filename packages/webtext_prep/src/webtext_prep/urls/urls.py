"""What a URL is made of, as far as the stages need it: its host, its registered name, the key that makes two equal; and
what follows from it: whether its page is held out of training, and which shard it belongs to.

User names and passwords are taken out where a URL is read, and where a redirect names one: whoever put them into a list
did not mean them for a corpus, a log, or a server.

`urlsplit` defines the parts of a URL. In nearly all URLs a regular expression finds the same parts at a fraction of its
cost, and what follows from their origins is remembered.

tldextract uses the public suffix list that it carries: nothing is fetched.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
import unicodedata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import xxhash

if TYPE_CHECKING:
    import tldextract


REPLACEMENT = "\ufffd"
"""What stands in a URL in place of bytes that are not UTF-8: it is not known which page is meant."""

DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f<>\"\\^`{|}\s]")
_FORBIDDEN_HOST = re.compile(r"[\x00-\x20\x7f#/:<>?@\[\\\]^|%]")
"""The URL standard's forbidden domain code points."""
_NETLOC = re.compile(r"[^/\\?#]*")
_PLAIN_HOST = re.compile(r"[a-z0-9._-]*")
_HOST = re.compile(r"[^\s/?#@:%\[\]]+|\[[0-9a-f:.]+\]", re.IGNORECASE)

_LETTERS = r"!$-.0-;=@-\[\]_a-z~\u00a1-\u167f\u3001-\U0010ffff"
"""What may stand anywhere in a URL, as a class of a regular expression: none of it is `_FORBIDDEN`."""
_USUAL = re.compile(
    rf"(https?://[{_LETTERS}]{{1,300}}+)(?>(/[{_LETTERS}/]*+)?)(?>(\?[{_LETTERS}/?]*+)?)(?>(?:#[{_LETTERS}/?#]*+)?)"
).fullmatch
"""Origin, path and query of a URL, as `urlsplit` finds them, of nearly all URLs; None for the others."""


def canonical_host(host: str) -> str:
    """The one form of a host, by which hosts are compared: as in DNS, in lower case, without a dot at its end.

    A name in another script becomes Punycode as in browsers (UTS #46, non-transitional), an IPv6 address its shortest
    form without brackets. A name that has no such form stays as it is.

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
    with contextlib.suppress(ValueError):
        if not host.isascii():
            return _punycode(host).rstrip(".")
        if ":" in host:
            return str(ipaddress.IPv6Address(host.strip("[]")))
    return host.lower().rstrip(".")


def _punycode(host: str) -> str:
    """A name beyond ASCII as browsers ask for it: UTS #46 with CheckJoiners and CheckBidi, without UseSTD3ASCIIRules.

    yarl 1.25.1 refuses U+200C and U+200D wherever they stand, though Persian names have them, and takes what IDNA 2008
    refuses by the rules of 2003. Raises ValueError (IDNAError is one) for what is no name.
    """
    import idna  # needed for few hosts only

    labels = idna.uts46_remap(host, std3_rules=False).split(".")
    if _FORBIDDEN_HOST.search(".".join(labels)):
        raise ValueError(f"{host} is not a host")
    is_bidi = any(unicodedata.bidirectional(sign) in ("R", "AL", "AN") for label in labels for sign in label)
    for label in filter(None, labels):
        idna.check_initial_combiner(label)
        if is_bidi:
            idna.check_bidi(label, check_ltr=True)
        if not all(idna.valid_contextj(label, at) for at, sign in enumerate(label) if sign in "\u200c\u200d"):
            raise ValueError(f"a joiner in {host} joins nothing")
    return ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels)


def with_ascii_host(url: str) -> str:
    """A URL with its host as `canonical_host` has it, if that is beyond ASCII. Raises ValueError if it is no name."""
    if url.isascii():
        return url
    start = url.find("//") + 2
    netloc = _NETLOC.match(url, start)
    if start < 2 or netloc is None or netloc[0].isascii():
        return url
    user, at, place = netloc[0].rpartition("@")
    host, colon, port = place.partition(":")
    name = canonical_host(host)
    if not name.isascii():
        raise ValueError(f"{host} is not a host")
    return f"{url[:start]}{user}{at}{name}{colon}{port}{url[netloc.end() :]}"


def host_in(parts: SplitResult) -> str:
    """The host that `urlsplit` found. Its own lower case of a name beyond ASCII is not UTS #46's."""
    host = parts.hostname or ""
    return host if host.isascii() else parts.netloc.rpartition("@")[2].partition(":")[0]


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
        found, port = host_in(parts), parts.port
    except ValueError:
        return "", "", url
    host = in_key = canonical_host(found)
    if (
        _FORBIDDEN.search(url)
        or parts.scheme not in DEFAULT_PORTS
        or not _HOST.fullmatch(f"[{found}]" if ":" in found else found)
        or ".." in found
        or found.startswith(".")
        or len(found) > 253
    ):
        host = ""
    if ":" in in_key:
        in_key = f"[{in_key}]"
    if port is not None and port != DEFAULT_PORTS.get(parts.scheme):
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


@functools.cache
def top_level_domains() -> frozenset[str]:
    """The top-level domains of the public suffix list that tldextract carries, in lower case, with their Punycode.

    Read from its file: to import tldextract takes a hundred times as long.
    """
    found = find_spec("tldextract")
    if found is None or found.origin is None:
        raise ImportError("tldextract is not installed")
    lines = Path(found.origin).with_name(".tld_set_snapshot").read_text(encoding="utf-8").splitlines()
    names = {line.rpartition(".")[2] for line in lines if line and not line.startswith("//")}
    return frozenset(names | {f"xn--{name.encode('punycode').decode()}" for name in names if not name.isascii()})


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


def url_key(url: str) -> str:
    """What two URLs share when they name one page: without fragment and default port, the host in its one form.

    >>> url_key("HTTP://Example.com:80#top") == url_key("http://example.com/")
    True
    """
    return parts_of(url)[2]


_USUAL_HOST = r"(?![a-z0-9._-]{254})[a-z0-9_-]++(?>(?:\.[a-z0-9_-]++)*)"
_USUAL_LETTERS = r"!$&-.0-;=A-\[\]_a-z~"
"""What may stand in a usual URL besides `/`, `?` and `#`, as a class of a regular expression."""

hosts_of_lines = re.compile(
    rf"(https?://({_USUAL_HOST})(?>(?:[/?#][{_USUAL_LETTERS}/?#]*+)?)(?=\n)|[^\n]++)".encode()
).findall
"""Each line of a block (bytes) that is not empty, with its host, which is empty unless it is a usual URL.

Usual is a URL in ASCII with a host in lower case, without port, user, percent-escape, and whatever `parts_of` would
look at twice. This takes a tenth of the time of asking for each; other lines are left to the caller.
"""
urls_of_lines = re.compile(
    rf"((https?://({_USUAL_HOST})(?>(/[{_USUAL_LETTERS}/]*+)?)(?>(?:\?[{_USUAL_LETTERS}/?]++)?))"
    rf"(?>(?:#[{_USUAL_LETTERS}/?#]*+)?)(?=\n)|[^\n]++)"
).findall
"""Each line of a block (text) that is not empty, with its URL without fragment, host and path, as `parts_of` has them.

All three are empty unless it is a usual URL, and the path of an address without one.
"""


HELD_OUT = "held_out"
"""The reason to drop a page that is held out; also the folder, or the end of the prefix, where it goes instead."""
_SEED = 0x68656C64


def is_held_out(url: str, share: float) -> bool:
    """Whether the page of a URL, or of a `Document.id`, is among the `share` (0 to 1) of all that are held out.

    The hash is of the URL alone, so that a page stays on its side whatever becomes of the corpus: more pages, a
    stricter filter, other extraction of its text. With a larger share the pages of a smaller one are held out, too.

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


def shards_for(size: int, bytes_per_shard: int) -> int:
    """How many shards an input of `size` bytes makes: a power of two, so that a grown input only splits shards."""
    return min(1 << max(0, (size - 1) // bytes_per_shard).bit_length(), 4096) if size else 1


def bucket_of(name: str, buckets: int) -> int:
    """A stable bucket, 0 to `buckets` - 1, for `name`. With twice the buckets, each one's names stay in it or move to
    the one `buckets` further on."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) % buckets


# Browsers take any number of slashes of either kind after http and https, so that much is taken for the beginning.
_CREDENTIALS = re.compile(r"^(\s*(?:https?:[/\\]*|(?:[a-z][a-z0-9+.-]*:)?[/\\]{2,}))[^/\\?#]*@", re.IGNORECASE)
# A password with a slash, a question mark or a hash in it: what looks like a port is no number.
_ODD_CREDENTIALS = re.compile(r"^\s*https?:[/\\]*[^/\\?#@\[]*:(?!\d*(?:[/\\?#]|$)).*@", re.IGNORECASE | re.DOTALL)
_AT_SIGNS = ("@", "\uff20", "\ufe6b", "%40")
_URL_WITH_CREDENTIALS = re.compile(r"^(\s*[a-z][a-z0-9+.-]*:[/\\]{2,})[^/\\?#\s]*@", re.IGNORECASE)
_HIDDEN = "(hidden)@"


def without_credentials(url: str) -> str:
    """`url` without user name and password.

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
