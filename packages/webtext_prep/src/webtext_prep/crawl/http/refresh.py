"""Pages that lead on at once: `<meta http-equiv="refresh">` and the `Refresh` header, read as HTML says.

("Shared declarative refresh steps" of the living standard.) A page that does so within `SECONDS` is a redirect, as
readers see the other page; one that loads itself again, or leads to no web page, is a page. What stands in `<noscript>`
is not for browsers: most of it leads to "please switch on JavaScript" (Scrapy 2.11.2 leaves it out, too).
"""

from __future__ import annotations

import re

from webtext_prep.text.tags import meta_tags

SECONDS = 5
"""Longer than that a reader has the page itself; Scrapy follows up to 100, and Google calls 0 a permanent redirect."""
_VALUE = re.compile(
    r"[\t\n\f\r ]*([0-9]{0,9})[0-9.]*(?:[\t\n\f\r ]*[;,][\t\n\f\r ]*|[\t\n\f\r ]+)"
    r"(?:url[\t\n\f\r ]*=[\t\n\f\r ]*)?(?:\"([^\"]*)|'([^']*)|(.*))",
    re.IGNORECASE | re.DOTALL,
)


def refresh_of(value: str) -> str | None:
    """Where a value leads at once, relative to its page; None where it leads nowhere.

    >>> refresh_of("0; URL='/a'"), refresh_of("300; url=/a"), refresh_of("0")
    ('/a', None, None)
    """
    found = _VALUE.match(value)
    if found is None or not (found[1] or value.lstrip().startswith(".")) or int(found[1] or 0) > SECONDS:
        return None
    return (found[2] or found[3] or found[4] or "").strip() or None


def refresh_in(header: str | None, body: bytes, charset: str | None) -> tuple[str, str] | None:
    """Where a page leads at once, and the address that this is relative to, itself relative to that of the page."""
    target = None if header is None else refresh_of(header)
    if target is not None:
        return target, ""
    base = ""
    for tag in meta_tags(body, (b"refresh",), without_noscript=True):
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
