"""Files of HTML as people have them: a page each, its URL in a sidecar, in its name, or in the page itself."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Container
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from webtext_prep.crawl.archives.warc import FoundPage, is_web_address
from webtext_prep.crawl.http.media_types import is_html_page
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.documents.records.base import Keys, SourceFile, Unreadable
from webtext_prep.documents.records.plain_text import read_sidecar, url_from_name
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.pages import Page
from webtext_prep.storage.locations import Location
from webtext_prep.text.tags import HEAD, head_tags, utf8_of
from webtext_prep.urls.urls import clean_metadata, url_key, without_credentials

SUFFIXES = (".html", ".htm", ".xhtml")
HEAD_BYTES = 1 << 20
"""How far into a page its own URL is looked for, where its head is that long."""
_SHARED = "other files have its canonical URL, too, so that its own is that of the file"
_KEYS = Keys(text=(), url=("url",))
_SAVED = re.compile(
    r"\s*(?:saved from url=\(\d{1,6}\)(?P<browser>\S{1,4000})"
    r"|(?:Page saved with|Archive processed by) SingleFileZ?\s+url:\s*(?P<single_file>\S{1,4000})\s"
    r"|Saved from (?P<monolith>\S{1,4000}) at \S{1,40} using monolith\b"
    r"|Mirrored from (?P<httrack>\S{1,4000}) by HTTrack Website Copier/)",
    re.IGNORECASE,
)
"""What a program that saves pages writes into a comment: Chrome, Edge and Internet Explorer; SingleFile 1.22 (also in
ArchiveBox' singlefile.html) and before 2020; monolith 2.8; HTTrack 3.49, which leaves out the scheme."""
_SAVED_ATTRIBUTES = {"html": ("", "data-scrapbook-source"), "meta": ("savepage-url", "content")}
"""Where others write it: WebScrapBook; Save Page WE, at the end of the head, behind all styles of the page."""


class SaidUrls(NamedTuple):
    """What a page says about its own URL; empty where it says nothing.

    Attributes:
        saved: from where a program says that it saved the page.
        canonical: the canonical URL. A `<base>` alone names no page, but the beginning of one that is relative.
    """

    saved: str
    canonical: str


def said_urls(body: bytes) -> SaidUrls:
    """The URLs that a page says it has.

    >>> said_urls(b'<base href="https://a.org/b/"><link rel="canonical" href="c?d&amp;e">').canonical
    'https://a.org/b/c?d&e'
    >>> said_urls(b"<!-- Mirrored from a.org/b.html by HTTrack Website Copier/3.x [XR&CO'2014], Fri -->").saved
    'http://a.org/b.html'
    """
    saved = base = canonical = ""
    page = utf8_of(body[:HEAD_BYTES])
    end = page.rfind(b"</head>")
    head = page if end < 0 else page[: max(end + len(b"</head>"), HEAD)]  # to decode the rest takes time
    for tag in head_tags(head.decode("utf-8", "replace"), "!--", "html", "meta", "link", "base"):
        if tag.name == "!--":
            saved = saved or _saved_in(tag.inside)
            continue
        values = tag.attributes()
        if tag.name == "base":
            base = base or values.get("href", "")
        elif tag.name == "link":
            rel = values.get("rel", "").lower().split()
            if "canonical" in rel and "alternate" not in rel:
                canonical = canonical or values.get("href", "")
        elif values.get("name", "") == _SAVED_ATTRIBUTES[tag.name][0]:
            saved = saved or _web_address(values.get(_SAVED_ATTRIBUTES[tag.name][1], ""), "")
    return SaidUrls(saved, _web_address(canonical, base.strip()) if canonical else "")


def _saved_in(comment: str) -> str:
    found = _SAVED.match(comment)
    if found is None:
        return ""
    value = html.unescape(found[found.lastgroup or 0])
    is_bare = found.lastgroup == "httrack" and "://" not in value
    return _web_address(f"http://{value}" if is_bare else value, "")


def _web_address(value: str, base: str) -> str:
    try:
        url = urljoin(base, value.strip())
    except ValueError:
        return ""
    return url if url.startswith(("http://", "https://")) and is_web_address(url) else ""


class Name(NamedTuple):
    """What a page in a file is called.

    Attributes:
        url: its URL, or the `file:` one.
        canonical: the one that it says itself, where nothing better is known.
        metadata: what a sidecar says.
    """

    url: str
    canonical: str
    metadata: dict[str, Any]


def name_of(file: SourceFile, head: bytes) -> Name:
    """What a page is called that begins with `head`. Raises Unreadable or InputError for a sidecar that can't be read.

    Its URL is that of a sidecar, its file's name, or where a program saved it from; and if only this one says so,
    the canonical one.
    """
    metadata = read_sidecar(file)
    _, said = _KEYS.take_url(metadata)
    metadata.pop("text", None)
    url = url_from_name(file, SUFFIXES)
    if not said and url == file.url():
        said, canonical = said_urls(head)
        if not said:
            return Name(url, without_credentials(canonical), clean_metadata(metadata))
    return Name(without_credentials(said or url), "", clean_metadata(metadata))


def claim_of(url: str) -> str:
    """What stands for a URL where those of all files are compared."""
    return hashlib.blake2b(url_key(url).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def claim_in(file: SourceFile) -> str | None:
    """That of the URL which a page in a file has, or says it has; None if it can't be read."""
    try:
        name = name_of(file, _beginning(file.location, HEAD_BYTES))
        return claim_of(name.canonical or name.url)
    except (Unreadable, InputError, ValueError):
        return None


def read_html_file(file: SourceFile, max_bytes: int, shared: Container[str] = ()) -> FoundPage:
    """The page in a file.

    Args:
        file: where it lies.
        max_bytes: most bytes of it, decompressed.
        shared: claims that several files have: a canonical URL that is one of them names none of these.
    """
    url = url_from_name(file, SUFFIXES)
    try:
        body = _beginning(file.location, max_bytes)
        name = name_of(file, body)
    except (Unreadable, InputError) as error:
        return FoundPage(url, PageOutcome.UNREADABLE, problem=str(error))
    is_shared = bool(name.canonical) and claim_of(name.canonical) in shared
    url, found = name.url if is_shared else name.canonical or name.url, name.metadata
    if not _is_address(url):
        return FoundPage(file.url(), PageOutcome.MALFORMED_URL)
    if len(body) > max_bytes:
        return FoundPage(url, PageOutcome.TOO_LARGE, metadata=found)
    is_html = is_html_page("text/html", body)
    if is_html is None:
        return FoundPage(url, PageOutcome.NOT_HTML, metadata=found)
    return FoundPage(url, PageOutcome.OK, Page(url, body), metadata=found, problem=_SHARED if is_shared else "")


def _is_address(url: str) -> bool:
    """Whether a URL can be taken apart; that of a file need not be one of the web."""
    try:
        return bool(urlsplit(url).hostname or url)
    except ValueError:
        return False


def _beginning(place: Location, most: int) -> bytes:
    """The bytes of a file, decompressed; of one that has more than `most` only some, and more than that."""
    body = bytearray()
    for chunk in read_chunks(place):
        body += chunk
        if len(body) > most:
            break
    return bytes(body)
