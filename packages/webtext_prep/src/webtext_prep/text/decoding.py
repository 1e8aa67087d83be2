"""From the bytes of a page to its characters, as browsers do it.

Every extractor guesses encodings differently and some give up, so that pages are decoded here, the same way for all.
Labels and tables are those of the WHATWG Encoding Standard (`text.encodings`); what comes out holds no NUL, control
character or lone surrogate, which JSON and some parsers cannot take.

Hardly any page holds such a character, so that whether it does is asked of its UTF-8 by numpy, at some 3 GB/s, and only
then do the regular expressions that remove them run, at a hundredth of that: 0.1 ms for a page of 110 kB instead of
1.2, where the fastest extractor takes 1.3.
"""

from __future__ import annotations

import codecs
import contextlib
import html as html_entities
import re

import numpy as np

from webtext_prep.text.encodings import codec_for
from webtext_prep.text.tags import tags

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_CHARSET = re.compile(r"charset\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;\"']+))", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_REFERENCE = re.compile(r"&#([xX][0-9a-fA-F]{1,8}|[0-9]{1,10});?")
_REFERENCE_BYTES = re.compile(rb"&#([xX][0-9a-fA-F]{1,8}|[0-9]{1,10})")
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_JIS = re.compile(rb"\x1b\$[@B]")
"""What begins Japanese in ISO-2022-JP, and is in no other text."""
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_MARKS = tuple(mark for mark, _ in _BOMS)

TITLE_CHARACTERS = 300
"""A longer title is cut."""
_WESTERN = "whatwg-windows-1252"
_WINDOWS = {
    f"iso8859-{number}": f"whatwg-windows-{page}"
    for number, page in {2: 1250, 5: 1251, 7: 1253, 8: 1255, 9: 1254, 10: 1257, 13: 1257, 15: 1252, 16: 1250}.items()
} | {"iso8859-1": _WESTERN, "iso8859-6": "cp1256"}
"""For encodings of ISO 8859 what was meant if there are bytes from 80 to 9F, which are letters and quotes in these."""
_HIGH_RUNS = re.compile(rb"[\x80-\xff]+")
_LONG_RUNS = re.compile(rb"[\xc0-\xff]{3,}")
_KOREAN = re.compile(rb"[\xa1-\xfe]{2}|([\x81-\xc6][A-Za-z\x81-\xa0]|[\x81-\xa0][\xa1-\xfe])|[\x80-\xff]")
"""A character of EUC-KR: one of KS X 1001, a syllable of Windows' extension (in group 1), or a byte that is none."""
_HANGUL = re.compile("[\uac00-\ud7a3]")
MOST_REPLACED = 0.005
"""The share of wrong bytes in a text that is UTF-8 all the same."""
_least = np.minimum.reduce  # what `min` calls in the end

_SEVEN_BIT = ("iso2022", "whatwg-iso-2022-jp", "hz")
"""Codecs whose every byte is ASCII, so that their text is also valid UTF-8, of nonsense."""
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
    if (codec_for(charset) or "").startswith(("utf-16", "utf-32")):
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
    # What is printable is fine, and faster to ask; a no-break space, say, is not, and fine all the same.
    if text.replace("\n", " ").isprintable() or not ("\r" in text or _FORBIDDEN.search(text)):
        return text
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
    if not data or _least(octets) < 9 or _least(octets - np.uint8(11)) < 21 or b"\x7f" in data:
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


def declared_charset(html: bytes) -> str | None:
    """The codec that the page itself states: in the first meta element with a known label, or else as XML does.

    As in the HTML standard (13.2.3.2 and 13.2.3.5), wherever it stands in the page: browsers look through the first
    1,024 bytes, and read the page again if their parser finds the statement behind them.
    """
    for tag in tags(html.decode("latin-1"), "meta"):
        stated = tag.attributes()
        label = stated.get("charset")
        if label is None and stated.get("http-equiv", "").strip().lower() == "content-type":
            found = _CHARSET.search(stated.get("content", ""))
            label = next(filter(None, found.groups()), None) if found else None
        if (codec := codec_for(label)) is not None:
            break
    else:
        declaration = _XML_ENCODING.search(html[:1_024])
        codec = codec_for(declaration[1].decode("ascii")) if declaration else None
    # A page that says utf-16 in ASCII is not utf-16.
    return "utf-8" if codec is not None and codec.startswith(("utf-16", "utf-32")) else codec


def _stated_charset(html: bytes, charset: str | None) -> str | None:
    """The codec that the HTTP header names, or else the page itself."""
    return codec_for(charset) or declared_charset(html)


def _may_be_utf8(html: bytes, charset: str | None) -> bool:
    """Whether a page is read as UTF-8 if it is valid UTF-8, though it states another charset."""
    if html.startswith(_MARKS) or (codec_for(charset) or "").startswith("utf-16"):
        return False
    if not (html.isascii() and (b"\x1b" in html or b"~{" in html)):
        return True
    return not (_JIS.search(html) or (_stated_charset(html, charset) or "").startswith(_SEVEN_BIT))


def decode(html: bytes, charset: str | None = None) -> str:
    """The characters of a page.

    In the order of the WHATWG standard: the byte order mark, the charset of the HTTP header, the page's own statement;
    then UTF-8 if the bytes are valid UTF-8; then what their statistics say. Invalid bytes become U+FFFD, unless
    all of them are valid UTF-8, which no other encoding is by chance: then a wrong statement is ignored. So it is where
    the bytes are ASCII that only ISO-2022-JP makes sense of.
    """
    for mark, codec in _BOMS:
        if html.startswith(mark):
            return html[len(mark) :].decode(codec, "replace")
    if _may_be_utf8(html, charset):
        with contextlib.suppress(UnicodeDecodeError):
            return html.decode("utf-8")
    stated = _stated_charset(html, charset)
    if html.isascii() and _JIS.search(html) and not (stated or "").startswith(_SEVEN_BIT):
        stated = "whatwg-iso-2022-jp"
    if stated is not None and stated != "utf-8":
        return _decode_as(html, stated)
    if stated == "utf-8":
        # A few wrong bytes in a page that says UTF-8 are damage; many mean that it says so wrongly.
        text = html.decode("utf-8", "replace")
        if text.count("\ufffd") < MOST_REPLACED * len(text):
            return text
    return _decode_as(html, _guess(html))


def _guess(html: bytes) -> str:
    """The codec of bytes that are not UTF-8 and say nothing.

    resiliparse 2.0.1, which asks Mozilla's old detector, answers `utf-8` where it knows none, for all texts in EUC-KR
    among them; it takes all that is KOI8 for KOI8-R, whose line-drawing signs hardly any page holds, so that it is read
    as KOI8-U here, as in Firefox (chardetng); and it names encodings of ISO 8859 for pages with bytes that are letters
    in the Windows ones and control characters in these.
    """
    from resiliparse.parse.encoding import detect_encoding

    guess = codec_for(detect_encoding(html)) or "utf-8"
    if guess in ("utf-8", _WESTERN) and _is_korean(html):
        return "whatwg-euc-kr"
    if guess == "utf-8":
        # words of nothing but bytes that are letters of Cyrillic in windows-1251, or else a Western language
        is_cyrillic = 2 * sum(map(len, _LONG_RUNS.findall(html))) > sum(map(len, _HIGH_RUNS.findall(html)))
        return "whatwg-windows-1251" if is_cyrillic else _WESTERN
    if guess == "koi8-r":
        return "whatwg-koi8-u"
    has_controls = any(byte in html for byte in range(0x80, 0xA0))
    return _WINDOWS.get(guess, guess) if has_controls else guess


def _is_korean(html: bytes) -> bool:
    """Whether bytes are EUC-KR: what is not ASCII comes in pairs, hardly one is wrong, most are syllables of Hangul.

    Few are of Windows' extension, whose pairs a quotation mark and a letter of windows-1252 make, too.
    """
    found = list(_KOREAN.finditer(html))
    pairs = b"".join(one[0] for one in found if len(one[0]) == 2)
    signs = pairs.decode("whatwg-euc-kr", "replace")
    is_paired = len(pairs) >= 0.95 * sum(len(one[0]) for one in found) and signs.count("\ufffd") <= 0.02 * len(signs)
    is_usual = 5 * sum(one[1] is not None for one in found) <= len(found)
    return is_paired and is_usual and 2 * len(_HANGUL.findall(signs)) > len(signs)


def _decode_as(html: bytes, codec: str) -> str:
    """What the codec makes of a page; for the most frequent one that is not UTF-8 three times as fast as it is."""
    if codec != _WESTERN:
        return html.decode(codec, "replace")
    text = html.decode("latin-1")
    for byte in range(0x80, 0xA0):
        if byte in html:
            text = text.replace(chr(byte), bytes([byte]).decode(_WESTERN))
    return text


def title_of(page: str) -> str:
    """The title of a page, on one line, or "": what stands in its first `<title>`, as browsers with scripts show it."""
    found = next((tag for tag in tags(page, "title", "noscript") if tag.name == "title"), None)
    return "" if found is None else title_line(html_entities.unescape(found.text[:4_000]))


def title_line(text: str) -> str:
    """The text of a title on one line, cut after TITLE_CHARACTERS."""
    return " ".join(scrub(text).split())[:TITLE_CHARACTERS]


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
    # Asked first, as the pattern takes longer to find nothing.
    is_good = b"&#" not in data or all(map(_is_good, set(_REFERENCE_BYTES.findall(data))))
    return _XML_DECLARATION.sub("", page) if is_good else None


def readable(html: bytes, charset: str | None) -> str:
    """The page as the extraction libraries can read it.

    lxml refuses a str with an XML declaration and ends at a NUL; trafilatura gives up on a page in which a character
    reference names a control character.
    """
    if _may_be_utf8(html, charset) and (found := _readable_utf8(html)) is not None:
        return found
    page = _XML_DECLARATION.sub("", scrub(decode(html, charset)))
    return _REFERENCE.sub(lambda found: found[0] if _is_good(found[1]) else "", page) if "&#" in page else page
