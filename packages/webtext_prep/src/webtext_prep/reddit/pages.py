"""All submissions of one page as one row of a list of URLs: which URL stands for them, and their metadata.

When two URLs mean one page: the key by which `webtext urls` puts the submissions of a page together.

The key is for comparing alone: fetched is a URL that somebody submitted. So a rule that is wrong for some odd
site costs one of two pages there, and never asks a server for an address that nobody wrote. Each rule is one that
holds for all sites, as far as is known:

1. the scheme is `http` in place of `https`, and the host in lower case, without the dot at its end;
2. ports 80 and 443 are left out;
3. `www.`, `m.`, `mobile.` and `amp.` in front of a site's own name are left out, as is `.m` of `en.m.wikipedia.org`;
4. the fragment is left out: it is never sent to a server;
5. parameters that only tell where a reader came from are left out (`utm_*`, `fbclid`, ...: TRACKING);
6. the other parameters are sorted by name; equal names keep their order;
7. an empty path is `/`; percent-escapes are written as RFC 3986, 6.2.2 asks, and other characters are escaped.

Not done, since pages are known that differ: a slash at the end, `index.html`, capitals in the path, parameters such as
`ref`, `source` or `id`, session numbers.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import msgspec

from webtext_prep.documents.document import Document, decode_document
from webtext_prep.reddit.rows import Submission, unescaped
from webtext_prep.urls.urls import canonical_host, clean_metadata, suffix_list

TRACKING = (
    "utm_[^=&]*",
    # Google Ads and Analytics, Meta, Microsoft, X, TikTok, Yandex, LinkedIn, Pinterest
    *("gclid", "gclsrc", "dclid", "gbraid", "wbraid", "srsltid", "_ga", "_gl"),
    *("fbclid", "fb_action_ids", "fb_action_types", "fb_ref", "fb_source", "igshid", "igsh"),
    *("msclkid", "twclid", "ttclid", "yclid", "ysclid", "_openstat", "li_fat_id", "epik"),
    # newsletters: Mailchimp, HubSpot, Marketo, Vero, Omeda, Klaviyo
    *("mc_cid", "mc_eid", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp", "hsctatracking"),
    *("mkt_tok", "vero_id", "vero_conv", "oly_anon_id", "oly_enc_id", "_kx"),
)
"""Parameters (patterns, in any case) that tell where a reader came from. Each name is one company's, like no other."""
_TRACKED = re.compile(f"(?:^|(?<=&))(?:{'|'.join(TRACKING)})(?:[=&]|$)", re.IGNORECASE | re.ASCII)
_MOBILE = ("m", "mobile", "amp")
_WIKIMEDIA = re.compile(r"([a-z-]+)\.m\.((?:wik[a-z]+|mediawiki)\.org)")

_UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})?")
_SAFE = string.punctuation  # letters and digits always are

# What needs no more than to leave out some parts, as nearly all URLs.
_PLAIN = re.compile(
    r"https?://(?:www\.)?(?!(?:www|m|mobile|amp|[a-z0-9-]+\.m)\.)"
    r"((?:[a-z0-9-]+\.)+[a-z][a-z0-9-]*)(/[-!$&'()*+,./0-9:;=@A-Z_a-z~]*)?"
    r"(?:\?([-!$&'()*+,./0-9:;=?@A-Z_a-z~]*))?(?:#[!-~]*)?"
)


def page_key(url: str) -> str:
    """What two URLs share when they mean one page. The key of a key is itself.

    >>> page_key("HTTPS://m.Example.com:443/a?b=2&utm_source=x&a=1#top")
    'http://example.com/a?a=1&b=2'

    A text that is no web address is its own key.
    """
    plain = _PLAIN.fullmatch(url)
    if plain is None:
        return page_key_by_rules(url)
    host, path, query = plain.groups()
    if query and (query := _without_tracking(query)):
        return f"http://{host}{path or '/'}?{query}"
    return f"http://{host}{path or '/'}"


def page_key_by_rules(url: str) -> str:
    """`page_key` without its short cut for plain URLs: the definition."""
    try:
        parts = urlsplit(url)
        host, port = canonical_host(parts.hostname or ""), parts.port
    except ValueError:
        return url
    if parts.scheme not in ("http", "https") or not host:
        return url
    host = f"[{host}]" if ":" in host else _without_device(host)
    if port is not None and port not in (80, 443):
        host = f"{host}:{port}"
    query = _without_tracking(_escaped(parts.query))
    return f"http://{host}{_escaped(parts.path) or '/'}{query and '?'}{query}"


def _without_device(host: str) -> str:
    """`host` without what only says on which device the page is read."""
    while True:
        first, _, rest = host.partition(".")
        if not (first == "www" and "." in rest) and not (first in _MOBILE and _is_below_suffix(rest)):
            break
        host = rest
    wikimedia = _WIKIMEDIA.fullmatch(host)
    return f"{wikimedia[1]}.{wikimedia[2]}" if wikimedia else host


@functools.lru_cache(maxsize=1 << 16)
def _is_below_suffix(host: str) -> bool:
    """Whether somebody has registered `host` or a name in it, by the public suffix list; for `co.uk` nobody has.

    Hosts below which users have names of their own (blogspot.com) count as suffixes.
    """
    parts = suffix_list()(host, include_psl_private_domains=True)
    return bool(parts.domain and parts.suffix)


def _without_tracking(query: str) -> str:
    """The parameters that do not track, in the order of their names; equal names stay in their own order."""
    parts = query.split("&")
    if _TRACKED.search(query):
        parts = [part for part in parts if not _TRACKED.match(part)]
    if len(parts) > 1:
        parts = sorted(filter(None, parts), key=lambda parameter: parameter.partition("=")[0])
    return "&".join(parts)


def _escaped(text: str) -> str:
    """`text` with everything escaped that a URL may not hold, and nothing that need not be."""
    if not (text.isascii() and text.isprintable() and " " not in text):
        text = quote(text, _SAFE, errors="surrogatepass")
    return _ESCAPE.sub(_one_escape, text) if "%" in text else text


def _one_escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return "%25"
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0].upper()


class Submitted(msgspec.Struct, array_like=True, gc=False):
    """The kept part of a submission: its fields, with texts as they were written.

    Attributes:
        key: the hash of its page's key, in hexadecimal digits.
        url: the page.
        score: votes for it less votes against it.
        subreddit: where it was submitted.
        title: what it was called there.
        id: of the submission; empty where it is not known.
        created: when, in seconds since 1970; 0 where it is not known.
    """

    key: str
    url: str
    score: int
    subreddit: str
    title: str
    id: str
    created: int


class LinkedPage(msgspec.Struct, omit_defaults=True, gc=False):
    """A row of the list: the metadata of a page from its submissions. The fields are the keys of the row.

    Attributes:
        url: as the submission with the highest score has it.
        reddit_score: the sum of the scores of all its submissions.
        reddit_submissions: how many they are.
        reddit_title: of the submission with the highest score.
        reddit_subreddits: where it was submitted, that with the highest score first.
        reddit_id: of the submission with the highest score.
        reddit_first_submitted: when it was first submitted, such as `2005-06-23T18:43:53Z`.
    """

    url: str
    reddit_score: int
    reddit_submissions: int
    reddit_title: str = ""
    reddit_subreddits: tuple[str, ...] = ()
    reddit_id: str = ""
    reddit_first_submitted: datetime | None = None


_encoder = msgspec.json.Encoder()
encode_link = _encoder.encode
encode_pages = _encoder.encode_lines
"""Pages as lines of a URL list."""
decode_links = msgspec.json.Decoder(Submitted).decode_lines


def link_of(row: Submission, url: str, key: str = "") -> Submitted:
    """A submission of `url`, whose page has that key."""
    title = unescaped(row.title)
    if "@" in title:
        title = clean_metadata({"title": title})["title"]
    return Submitted(key, url, row.score, row.subreddit, title, row.id, row.created)


def best_of(links: Sequence[Submitted]) -> Submitted:
    """The one with the highest score, among several the earliest; nothing depends on their order."""
    return min(links, key=_rank)


def page_of(best: Submitted, links: Sequence[Submitted]) -> LinkedPage:
    """The page that was submitted so: with URL, title and id of the `best` submission, and what all of them tell."""
    if len(links) == 1:
        time = _time(best.created) if best.created else None
        return LinkedPage(best.url, best.score, 1, best.title, _names(best.subreddit), best.id, time)
    first = min((link.created for link in links if link.created), default=0)
    score, time = sum(link.score for link in links), _time(first) if first else None
    return LinkedPage(best.url, score, len(links), best.title, _subreddits(links), best.id, time)


@functools.lru_cache(maxsize=1 << 12)
def _names(subreddit: str) -> tuple[str, ...]:
    # Made once, not for each page: the garbage collector would look at all of them.
    return (subreddit,) if subreddit else ()


def document_of(page: LinkedPage) -> Document:
    """A page as a row of a URL list."""
    return decode_document(_encoder.encode(page))


def without_repeats(links: Sequence[Submitted]) -> tuple[Sequence[Submitted], Sequence[Submitted]]:
    """`links` with each submission once, and the others: dumps overlap, and hold some rows twice.

    Of submissions with one id the highest score counts. Submissions without an id are different ones.
    """
    if len({link.id for link in links}) == len(links):
        return links, ()
    best: dict[str, Submitted] = {}
    for link in links:
        other = best.get(link.id)
        if link.id and (other is None or link.score > other.score):
            best[link.id] = link
    kept = [link for link in links if not link.id or best[link.id] is link]
    return kept, [link for link in links if link.id and best[link.id] is not link]


def _rank(link: Submitted) -> tuple[int, int, str, str, str]:
    return -link.score, link.created, link.id, link.url, link.title


def _subreddits(links: Sequence[Submitted]) -> tuple[str, ...]:
    """The subreddits, by the sum of scores there."""
    scores: dict[str, int] = {}
    for link in links:
        if link.subreddit:
            scores[link.subreddit] = scores.get(link.subreddit, 0) + link.score
    return tuple(sorted(scores, key=lambda name: (-scores[name], name)))


def _time(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
