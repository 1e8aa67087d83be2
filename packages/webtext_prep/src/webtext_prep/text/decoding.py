"""From the bytes of a page to its characters, as browsers do it.

Every extractor guesses encodings differently and some give up, so that pages are decoded here, the same way for all.
Labels are as in the WHATWG Encoding Standard, by `webencodings`; what comes out holds no NUL, control character or lone
surrogate, which JSON and some parsers cannot take.

Hardly any page holds such a character, so that whether it does is asked of its UTF-8 by numpy, at some 3 GB/s, and only
then do the regular expressions that remove them run, at a hundredth of that: 0.1 ms for a page of 110 kB instead of
1.2, where the fastest extractor takes 1.3.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import html as html_entities
import re

import numpy as np
import webencodings

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_REFERENCE = re.compile(r"&#([xX][0-9a-fA-F]{1,8}|[0-9]{1,10});?")
_REFERENCE_BYTES = re.compile(rb"&#([xX][0-9a-fA-F]{1,8}|[0-9]{1,10})")
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_TITLE = re.compile(r"<title(?:\s[^>]{0,500})?>([^<]{1,2000})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_MARKS = tuple(mark for mark, _ in _BOMS)

META_BYTES = 4096
"""How far into a page its own statement of its charset is looked for (browsers read 1,024 bytes)."""
TITLE_CHARACTERS = 300
"""A longer title is cut."""
_SHORT = 20_000
"""Characters up to which one pass of a regular expression is faster than a dozen calls of numpy."""
MOST_REPLACED = 0.005
"""The share of wrong bytes in a text that is UTF-8 all the same."""
_ELEVEN = np.uint8(11)
_least = np.minimum.reduce  # what `min` calls in the end

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
_CONTROLS = bytes({*range(1, 0x20)} - set(b"\b\t\n\v\f\r\x1a\x1b"))
"""But for white space, and for what old programs wrote to overstrike, to end a file, and to switch character sets."""
MOST_CONTROLS = 0.05
"""The share of such bytes in a text, or of NULs in one that is not UTF-8 without them; compressed data has 0.09."""


def is_text(html: bytes, charset: str | None) -> bool:
    """Whether the bytes of a page are text in some encoding: pictures, programs and archives are sent as HTML, too.

    Texts with NULs are UTF-16 (in ASCII, if they don't say so), or filled up with them.
    """
    if _with_newlines(html) is not None or html.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    if (_stated_charset(html, charset) or "").startswith(("utf-16", "utf-32")):
        return True
    rest = html.replace(b"\0", b"")
    if len(rest) - len(rest.translate(None, _CONTROLS)) > MOST_CONTROLS * len(rest):
        return False
    if len(html.rstrip(b"\0")) - len(rest) <= MOST_CONTROLS * len(html):
        return True
    text = rest.decode("utf-8", "replace")
    return text.count("\ufffd") <= MOST_REPLACED * len(text)


def scrub(text: str) -> str:
    """`text` without NUL and other control characters (tab and newline stay), lone surrogates, and `\\r`."""
    if len(text) <= _SHORT:
        # What is printable is fine, and faster to ask; a no-break space, say, is not, and fine all the same.
        if text.replace("\n", " ").isprintable() or not ("\r" in text or _FORBIDDEN.search(text)):
            return text
    else:
        with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate
            data = text.encode()
            clean = _with_newlines(data)
            if clean is not None:
                return text if clean is data else clean.decode()
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _FORBIDDEN.sub("", text)


def _with_newlines(data: bytes) -> bytes | None:
    """UTF-8 with `\\n` for each `\\r\\n` and `\\r`, or None if `scrub` would change anything else in it.

    Bytes that are not valid UTF-8 do not become so by that.
    """
    if b"\r" in data:
        octets = np.frombuffer(data, np.uint8)
        if data.endswith(b"\r") or ((octets[:-1] == 0x0D) > (octets[1:] == 0x0A)).any():
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            data = data.replace(b"\r", b"")  # the same, three times as fast
    octets = np.frombuffer(data, np.uint8)
    # 9 and 10 may stay; less 11, which wraps around, the others below 32 are the least there are.
    if not data or _least(octets) < 9 or _least(octets - _ELEVEN) < 21 or b"\x7f" in data:
        return None
    if b"\xc2" in data:  # U+0080 to U+009F
        starts = octets[:-1] == 0xC2
        starts &= octets[1:] < 0xA0
        if starts.any():
            return None
    if b"\xef" in data:  # U+FFFE and U+FFFF
        starts = octets[:-2] == 0xEF
        starts &= octets[1:-1] == 0xBF
        starts &= octets[2:] >= 0xBE
        if starts.any():
            return None
    return data


@functools.lru_cache(maxsize=256)
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


def _stated_charset(html: bytes, charset: str | None) -> str | None:
    """The codec that the HTTP header names, or else the page itself."""
    return codec_for(charset) or declared_charset(html)


def _may_be_utf8(html: bytes, stated: str | None) -> bool:
    """Whether a page is read as UTF-8 if it is valid UTF-8, though it states another charset."""
    if html.startswith(_MARKS):
        return False
    return stated is None or not (stated.startswith("utf-16") or (stated.startswith(_SEVEN_BIT) and html.isascii()))


def decode(html: bytes, charset: str | None = None) -> str:
    """The characters of a page.

    In the order of the WHATWG standard: the byte order mark, the charset of the HTTP header, the page's own statement;
    then UTF-8 if the bytes are valid UTF-8; then what their statistics say. Invalid bytes become U+FFFD, unless
    all of them are valid UTF-8, which no other encoding is by chance: then a wrong statement is ignored.
    """
    for mark, codec in _BOMS:
        if html.startswith(mark):
            return html[len(mark) :].decode(codec, "replace")
    stated = _stated_charset(html, charset)
    if _may_be_utf8(html, stated):
        with contextlib.suppress(UnicodeDecodeError):
            return html.decode("utf-8")
    if stated is not None and stated != "utf-8":
        return _decode_as(html, stated)
    if stated == "utf-8":
        # A few wrong bytes in a page that says UTF-8 are damage; many mean that it says so wrongly.
        text = html.decode("utf-8", "replace")
        if text.count("\ufffd") < MOST_REPLACED * len(text):
            return text
    from resiliparse.parse.encoding import detect_encoding

    return _decode_as(html, codec_for(detect_encoding(html)) or "cp1252")


def _decode_as(html: bytes, codec: str) -> str:
    """What the codec makes of a page; for the most frequent one that is not UTF-8 three times as fast as it is."""
    if codec != "cp1252":
        return html.decode(codec, "replace")
    text = html.decode("latin-1")
    for byte in range(0x80, 0xA0):
        if byte in html:
            text = text.replace(chr(byte), bytes([byte]).decode("cp1252", "replace"))
    return text


def title_of(page: str) -> str:
    """The title of a page, on one line, or ""."""
    found = _TITLE.search(page, 0, 1 << 18)
    return " ".join(scrub(html_entities.unescape(found[1])).split())[:TITLE_CHARACTERS] if found else ""


def _is_good(number: str | bytes) -> bool:
    """Whether a text may hold the character that a reference names by its number, decimal or hexadecimal (`x20AC`).

    80 to 9F are left: every parser reads them as the Windows characters that their writers meant.
    """
    code = int(number) if number.isdigit() else int(number[1:], 16)
    if code < 0xD800:
        return (code >= 32 and code != 0x7F) or code in (9, 10, 13)
    return 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000


def _readable_utf8(html: bytes) -> str | None:
    """`readable` for most pages: UTF-8 with nothing in it to remove; None for the others."""
    data = _with_newlines(html)
    if data is None:
        return None
    try:
        page = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return _XML_DECLARATION.sub("", page) if all(map(_is_good, set(_REFERENCE_BYTES.findall(data)))) else None


def readable(html: bytes, charset: str | None) -> str:
    """The page as the extraction libraries can read it.

    lxml refuses a str with an XML declaration and ends at a NUL; trafilatura gives up on a page in which a character
    reference names a control character.
    """
    if _may_be_utf8(html, _stated_charset(html, charset)) and (found := _readable_utf8(html)) is not None:
        return found
    page = _XML_DECLARATION.sub("", scrub(decode(html, charset)))
    return _REFERENCE.sub(lambda found: found[0] if _is_good(found[1]) else "", page) if "&#" in page else page
