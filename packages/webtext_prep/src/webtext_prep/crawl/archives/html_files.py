"""Files of HTML as people have them: a page each, its URL in a sidecar, in its name, or in the page itself."""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin

from webtext_prep.crawl.archives.warc import FoundPage, is_address
from webtext_prep.crawl.http.media_types import is_html_page
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.documents.records.base import Keys, SourceFile, Unreadable
from webtext_prep.documents.records.plain_text import read_sidecar, url_from_name
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.pages import Page
from webtext_prep.storage.locations import Location
from webtext_prep.text.tags import tags
from webtext_prep.urls.credentials import clean_metadata, without_credentials

SUFFIXES = (".html", ".htm", ".xhtml")
HEAD_BYTES = 1 << 16
"""How far into a page its own URL is looked for."""
_KEYS = Keys(text=(), url=("url",))
_SAVED_FROM = re.compile(rb"<!-- saved from url=\(\d{1,6}\)(\S{1,4000}) -->")


def url_in_page(body: bytes) -> str:
    """The URL that a page says it has: where a browser saved it from, or its canonical one; empty if it says none.

    A `<base>` alone names no page, but the beginning of a canonical URL that is relative.

    >>> url_in_page(b'<base href="https://a.org/b/"><link rel="canonical" href="c?d&amp;e">')
    'https://a.org/b/c?d&e'
    """
    head = body[:HEAD_BYTES]
    saved_from = _SAVED_FROM.search(head)
    if saved_from is not None:
        return _web_address(html.unescape(saved_from[1].decode("utf-8", "replace")), "")
    base = canonical = ""
    for tag in tags(head.decode("utf-8", "replace"), "link", "base"):
        values = tag.attributes()
        if tag.name == "base":
            base = base or values.get("href", "")
        elif values.get("rel", "").lower().split() == ["canonical"]:
            canonical = canonical or values.get("href", "")
    return _web_address(canonical, base.strip()) if canonical else ""


def _web_address(value: str, base: str) -> str:
    try:
        url = urljoin(base, value.strip())
    except ValueError:
        return ""
    return url if url.startswith(("http://", "https://")) and is_address(url) else ""


def read_html_file(file: SourceFile, max_bytes: int) -> FoundPage:
    """The page in a file."""
    url = url_from_name(file, SUFFIXES)
    is_own = url == file.url()
    try:
        metadata = read_sidecar(file)
        _, said = _KEYS.take_url(metadata)
        metadata.pop("text", None)
        body = _read(file.location, max_bytes)
    except (Unreadable, InputError) as error:
        return FoundPage(url, PageOutcome.UNREADABLE, problem=str(error))
    url = without_credentials(said or (is_own and body and url_in_page(body)) or url)
    if not is_address(url):
        return FoundPage(file.url(), PageOutcome.MALFORMED_URL)
    found = clean_metadata(metadata)
    if body is None:
        return FoundPage(url, PageOutcome.TOO_LARGE, metadata=found)
    is_html = is_html_page("text/html", body)
    if is_html is None:
        return FoundPage(url, PageOutcome.NOT_HTML, metadata=found)
    return FoundPage(url, PageOutcome.OK, Page(url, body), metadata=found)


def _read(place: Location, max_bytes: int) -> bytes | None:
    """The bytes of a file, decompressed; None if they are more than allowed."""
    body = bytearray()
    for chunk in read_chunks(place):
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)
