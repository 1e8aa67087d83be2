"""From the bytes of a page to its characters, as browsers do it.

Every extractor guesses encodings differently and some give up, so that pages are decoded here, the same way for all.
Labels are those of the WHATWG Encoding Standard, by `webencodings`; what comes out holds no NUL, control character or
lone surrogate, which JSON and some parsers cannot take.
"""

from __future__ import annotations

import codecs
import contextlib
import html as html_entities
import re

import webencodings

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_REFERENCE = re.compile(r"&#(?:[xX]([0-9a-fA-F]{1,8})|([0-9]{1,10}));?")
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_TITLE = re.compile(r"<title(?:\s[^>]{0,500})?>([^<]{1,2000})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

META_BYTES = 4096
"""How far into a page its own statement of its charset is looked for (browsers read 1,024 bytes)."""
TITLE_CHARACTERS = 300
"""A longer title is cut."""

_CODECS = {"gbk": "gb18030", "x-user-defined": "cp1252"}
"""Encodings of the standard for which another codec than `webencodings`' fits better: gb18030 reads all that gbk does,
and a page that says x-user-defined is no different from one that says nothing."""
_LOOSE_LABELS = {"latin-1": "cp1252", "iso8859_1": "cp1252", "shift-jis": "cp932"}
"""Labels outside the standard that Python reads more strictly than was meant."""
_SEVEN_BIT = ("iso2022", "hz")
"""Codecs whose every byte is ASCII, so that their text is also valid UTF-8, of nonsense."""
_NOT_TEXT = frozenset(
    {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined", "mbcs", "oem", "replacement"}
)
"""Codecs of Python that are not encodings of pages, or that run code points through a little language of their own."""


def scrub(text: str) -> str:
    """`text` without NUL and other control characters (tab and newline stay), lone surrogates, and `\\r`."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _SURROGATE.sub("", _CONTROL.sub("", text))


def codec_for(label: str | None) -> str | None:
    """The Python codec for a charset label, or None where it does not name an encoding of text.

    >>> codec_for("x-gbk"), codec_for("windows-949"), codec_for("base64")
    ('gb18030', 'cp949', None)
    """
    name = (label or "").strip().strip("\"'").lower()
    standard = webencodings.lookup(name)
    if standard is not None and standard.name != "replacement":
        return _CODECS.get(standard.name, standard.codec_info.name)
    # Browsers refuse the "replacement" encodings lest scripts hide in them; here they are only text.
    try:
        info = codecs.lookup(_LOOSE_LABELS.get(name, name))
    except (LookupError, ValueError):
        return None
    return info.name if getattr(info, "_is_text_encoding", True) and info.name not in _NOT_TEXT else None


def declared_charset(html: bytes) -> str | None:
    """The codec that the page itself states in a meta element or an XML declaration."""
    head = html[:META_BYTES]
    found = _XML_ENCODING.search(head) or _META_CHARSET.search(head)
    codec = codec_for(found[1].decode("ascii")) if found else None
    # A page that says utf-16 in ASCII is not utf-16.
    return "utf-8" if codec is not None and codec.startswith(("utf-16", "utf-32")) else codec


def decode(html: bytes, charset: str | None = None) -> str:
    """The characters of a page.

    In the order of the WHATWG standard: the byte order mark, the charset of the HTTP header, the page's own statement;
    then UTF-8 if the bytes are valid UTF-8; then what their statistics say. Invalid bytes become U+FFFD, unless
    all of them are valid UTF-8, which no other encoding is by chance: then a wrong statement is ignored.
    """
    for mark, codec in _BOMS:
        if html.startswith(mark):
            return html[len(mark) :].decode(codec, "replace")
    stated = codec_for(charset) or declared_charset(html)
    if stated is not None and stated.startswith(_SEVEN_BIT) and html.isascii():
        return html.decode(stated, "replace")
    if stated is None or not stated.startswith("utf-16"):
        with contextlib.suppress(UnicodeDecodeError):
            return html.decode("utf-8")
    if stated is not None and stated != "utf-8":
        return html.decode(stated, "replace")
    # A few wrong bytes in a page that says UTF-8 are damage; many mean that it says so wrongly.
    text = html.decode("utf-8", "replace")
    if stated == "utf-8" and text.count("\ufffd") * 200 < len(text):
        return text
    from resiliparse.parse.encoding import detect_encoding

    return html.decode(codec_for(detect_encoding(html)) or "cp1252", "replace")


def title_of(page: str) -> str:
    """The title of a page, on one line, or ""."""
    found = _TITLE.search(page, 0, 1 << 18)
    return " ".join(scrub(html_entities.unescape(found[1])).split())[:TITLE_CHARACTERS] if found else ""


def _without_bad_reference(reference: re.Match[str]) -> str:
    """The character reference itself, or nothing if no text may hold its character.

    80 to 9F are left: every parser reads them as the Windows characters that their writers meant.
    """
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    is_good = code in (9, 10, 13) or 32 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return reference[0] if is_good and code != 0x7F else ""


def readable(html: bytes, charset: str | None) -> str:
    """The page as the extraction libraries can read it.

    lxml refuses a str with an XML declaration and ends at a NUL; trafilatura gives up on a page in which a character
    reference names a control character.
    """
    page = _XML_DECLARATION.sub("", scrub(decode(html, charset)))
    return _REFERENCE.sub(_without_bad_reference, page) if "&#" in page else page
