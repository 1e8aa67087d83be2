"""What a `Content-Type` header and the first bytes of a body say: a page of HTML, of plain text, or neither.

Servers and archives are judged alike, so that a saved page gives the same document as the one that was fetched.
"""

from __future__ import annotations

import functools
import re
from email.message import Message

_HEAD_BYTES = 1 << 16
_HTML_PREFIXES = (b"<!doctype html", b"<html", b"<head", b"<body", b"<!--", b"<title", b"<?xml", b"<script", b"<meta")
_BINARY = frozenset(bytes([*range(9), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)]))
_OTHER_FORMATS = (b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"\x1f\x8b", b"ID3", b"OggS", b"Rar!")
"""What some servers send as text/html all the same."""


def looks_like(body: bytes) -> str:
    """What a body is by its first bytes: `html`, `text`, `binary` or, where that is certain, `other`."""
    if body.startswith(_OTHER_FORMATS):
        return "other"
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "html" if b"<\0" in body[:64] or b"\0<" in body[:64] else "text"
    head = body[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\f")[:512].lower()
    if head.startswith(_HTML_PREFIXES):
        return "html"
    return "binary" if any(byte in _BINARY for byte in body[:512]) else "text"


HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
TEXT_TYPES = frozenset({"text/plain", "text/markdown", "text/x-markdown"})
UNSAID_TYPES = frozenset({"", "application/octet-stream", "binary/octet-stream", "unknown/unknown"})
"""What servers send that don't know: the content decides."""
XML_TYPES = frozenset({"application/xml", "text/xml"})
"""Browsers show a document of these as a page if its root is XHTML's; feeds and sitemaps are of them, too."""
MAX_HEADER = 1_000
"""Characters of a header that are looked at."""
_XHTML_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>(?:\s+|<\?.*?\?>|<!--.*?-->|<![Dd][^>\[]*(?:\[.*?\]\s*)?>)*)<html\b[^>]*\bxmlns\s*=\s*"
    rb"[\"']http://www\.w3\.org/1999/xhtml[\"']",
    re.DOTALL,
)
"""The beginning of a document whose first element is XHTML's `html`."""
_VALUE = re.compile(r'(?:[^,"]|"[^"]*"?)+')
"""One of several values; a comma within quotes does not part them."""
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


@functools.lru_cache(maxsize=1024)
def content_type_of(header: str | None) -> tuple[str, str | None]:
    """The media type that a `Content-Type` header names ("" if none, or no valid one), and its charset.

    Of several, in lines joined by commas, the last valid one holds; if it says no charset and is of the same type as
    the one before it, that one's charset (WHATWG Fetch, "extract a MIME type"; Chromium 156 does so).

    >>> content_type_of('Text/HTML; Charset="utf-8"')
    ('text/html', 'utf-8')
    >>> content_type_of("text/plain; charset=koi8-r, text/html; charset=utf-8, text/html")
    ('text/html', 'utf-8')
    """
    known, its_charset = "", None
    for value in _VALUE.findall((header or "")[:MAX_HEADER]):
        kind, charset = _one_content_type(value)
        if kind and kind != "*/*":
            known, its_charset = kind, charset or (its_charset if kind == known else None)
    return known, its_charset


def _one_content_type(header: str) -> tuple[str, str | None]:
    message = Message()
    try:
        message["Content-Type"] = " ".join(header.split())
        kind, charset = message.get_params([("", "")])[0][0].strip().lower(), message.get_param("charset")
    except (ValueError, LookupError, TypeError):  # some malformed parameters are too much for the parser
        return "", None
    # A parameter in three parts (RFC 2231) says its own encoding first.
    value = charset[-1] if isinstance(charset, tuple) else charset
    return kind if _MEDIA_TYPE.fullmatch(kind) else "", (value or "").strip("'\" ") or None


def may_be_page(kind: str) -> bool:
    """Whether a body of this media type is worth reading."""
    return kind in HTML_TYPES or kind in TEXT_TYPES or kind in UNSAID_TYPES or kind in XML_TYPES


def is_html_page(kind: str, body: bytes) -> bool | None:
    """Whether a body of a media type that `may_be_page` is HTML, or else plain text; None if it is neither."""
    looks = looks_like(body)
    if looks == "other" or (looks == "binary" and kind not in HTML_TYPES):
        return None
    if kind in XML_TYPES:
        return True if _XHTML_ROOT.match(body[:_HEAD_BYTES]) else None
    return kind in HTML_TYPES or (kind in UNSAID_TYPES and looks == "html")
