"""Where an answer leads: the address of a redirect, and pages that lead on by themselves.

A page that leads on by `<meta http-equiv="refresh">` or the `Refresh` header within `REFRESH_SECONDS` is a redirect, as
readers see the other page ("Shared declarative refresh steps" of the HTML standard). One that leads to no web page, or
loads itself again, is a page; but if it has set the first cookie of its chain, it is what comes with that. What stands
in `<noscript>` is not for browsers: most of it leads to "please switch on JavaScript" (Scrapy 2.11.2 leaves it out,
too).
"""

from __future__ import annotations

import re

from yarl import URL

from webtext_prep.text.tags import meta_tags, text_with
from webtext_prep.urls import urls

REFRESH_SECONDS = 5
"""Longer than that a reader has the page itself; Scrapy follows up to 100, and Google calls 0 a permanent redirect."""
_REFRESH = re.compile(
    r"[\t\n\f\r ]*([0-9]{0,9})[0-9.]*(?:[\t\n\f\r ]*[;,][\t\n\f\r ]*|[\t\n\f\r ]+)"
    r"(?:url[\t\n\f\r ]*=[\t\n\f\r ]*)?(?:\"([^\"]*)|'([^']*)|(.*))",
    re.IGNORECASE | re.DOTALL,
)


def next_url(url: str, location: str) -> str | None:
    """Where a redirect from `url` leads, without credentials and fragment, or None if that is not a web address."""
    try:
        target = URL(urls.with_ascii_host(urls.without_credentials(url))).join(URL(urls.with_ascii_host(location)))
        if target.scheme not in ("http", "https") or not target.raw_host:
            return None
        return urls.without_credentials(str(target.with_fragment(None)))
    except (ValueError, LookupError):  # of `http://[]@` yarl looks for a first letter
        return None


def refreshed(url: str, header: str | None, body: bytes, charset: str | None, *, to_itself: bool = False) -> str | None:
    """The other page to which a page leads at once, if it does; also the same one, if that counts."""
    found = refresh_in(header, body, charset)
    if found is None:
        return None
    target, base = found
    there = next_url((base and next_url(url, base)) or url, target)
    is_itself = there is not None and urls.url_key(there) == urls.url_key(url)
    return None if is_itself and not to_itself else there


def refresh_of(value: str) -> str | None:
    """Where a value leads at once, relative to its page; None where it leads nowhere.

    >>> refresh_of("0; URL='/a'"), refresh_of("300; url=/a"), refresh_of("0")
    ('/a', None, None)
    """
    found = _REFRESH.match(value)
    if found is None or not (found[1] or value.lstrip().startswith(".")) or int(found[1] or 0) > REFRESH_SECONDS:
        return None
    return (found[2] or found[3] or found[4] or "").strip() or None


def refresh_in(header: str | None, body: bytes, charset: str | None) -> tuple[str, str] | None:
    """Where a page leads at once, and the address that this is relative to, itself relative to that of the page."""
    target = None if header is None else refresh_of(header)
    if target is not None:
        return target, ""
    base, text = "", text_with([b"refresh"], body)
    for tag in meta_tags(text, without_noscript=True) if text else ():
        values = tag.attributes()
        if tag.name == "base":
            base = base or values.get("href", "").strip()
        elif values.get("http-equiv", "").strip().lower() == "refresh":
            target = target or refresh_of(values.get("content", ""))
    return None if target is None else (_decoded(target, charset), base)


def _decoded(text: str, charset: str | None) -> str:
    """Text that was read as Latin-1, as the page means it."""
    raw = text.encode("latin-1", "replace")
    for encoding in ("utf-8", charset or "cp1252"):
        try:
            return raw.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    return text
