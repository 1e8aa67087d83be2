"""From the bytes of a page to its text: `trafilatura` (the default), `newspaper`, `resiliparse`.

Each is one function, `extract(html, url, charset) -> Extracted`, without network, cache or state between pages. The
bytes are decoded here, the same way for all three, since each library guesses differently and some give up; what comes
out holds no NUL, control character or lone surrogate. On 120 real pages with gold snippets, one core: trafilatura
F1 .912 at 71 pages a second, resiliparse .856 at 383, newspaper .843 at 29 (its own `parse()`, same text: 21).

None of them bounds its own time or memory: call them through `webtext_prep.extraction.workers`.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import html as html_entities
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.\-]{2,40})", re.IGNORECASE)
_REFERENCE = re.compile(r"&#(?:[xX]([0-9a-fA-F]{1,8})|([0-9]{1,10}));?")
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*>", re.IGNORECASE)
_TITLE = re.compile(r"<title(?:\s[^>]{0,500})?>([^<]{1,2000})", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9:-]*)[^<>]*?(/?)>")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

META_BYTES = 4096
"""How far into a page its own statement of its charset is looked for (browsers read 1,024 bytes)."""
TITLE_CHARACTERS = 300
"""A longer title is cut."""
DEPTH_LIMIT = 255
"""libxml2 stops reading a page that nests deeper, and says nothing (`xmlParserMaxDepth` of its HTML parser is 256)."""

# Elements without an end tag, and those whose end tag is so often left out that counting them says nothing.
_UNNESTED = frozenset(
    {
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
        "p",
        "li",
        "dt",
        "dd",
        "option",
        "tr",
        "td",
        "th",
    }
)

# The web's labels for encodings that Python knows by another name, or reads more strictly than browsers do.
_ALIASES = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "latin-1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso-8859-9": "cp1254",
    "iso-8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "x-sjis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "utf8": "utf-8",
    "x-user-defined": "cp1252",
}


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a page says: its main text, paragraphs parted by newlines, and its title ("" where it has none)."""

    text: str
    title: str = ""


Extractor = Callable[[bytes, str, "str | None"], Extracted]


def scrub(text: str) -> str:
    """`text` without NUL and other control characters (tab and newline stay), lone surrogates, and `\\r`."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _SURROGATE.sub("", _CONTROL.sub("", text))


def _codec(label: str | None) -> str | None:
    """The codec that browsers use for a label, or None where it names no text encoding."""
    name = (label or "").strip().strip("\"'").lower()
    name = _ALIASES.get(name, name)
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    # Not an encoding of text (base64, rot13), or one that would run code points through its own little language.
    if not getattr(info, "_is_text_encoding", True) or info.name in ("idna", "punycode", "unicode_escape", "utf-7"):
        return None
    return None if info.name in ("raw_unicode_escape", "undefined", "mbcs", "oem") else info.name


def declared_charset(html: bytes) -> str | None:
    """The charset that the page itself states in a meta element or an XML declaration."""
    head = html[:META_BYTES]
    found = _XML_ENCODING.search(head) or _META_CHARSET.search(head)
    codec = _codec(found[1].decode("ascii")) if found else None
    # A page that says utf-16 in ASCII is not utf-16.
    return "utf-8" if codec is not None and codec.startswith(("utf-16", "utf-32")) else codec


def decode(html: bytes, charset: str | None = None) -> str:
    """The characters of a page.

    In the order of the WHATWG standard: the byte order mark, the charset of the HTTP header, the page's own statement;
    then UTF-8 if the bytes are valid UTF-8; then what their statistics say. Bytes that do not fit become U+FFFD, unless
    all of them are valid UTF-8, which no other encoding is by chance: then a wrong statement is ignored.
    """
    for mark, codec in _BOMS:
        if html.startswith(mark):
            return html[len(mark) :].decode(codec, "replace")
    stated = _codec(charset) or declared_charset(html)
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

    return html.decode(_codec(detect_encoding(html)) or "cp1252", "replace")


def title_of(page: str) -> str:
    """The title of a page, on one line, or ""."""
    found = _TITLE.search(page, 0, 1 << 18)
    return " ".join(scrub(html_entities.unescape(found[1])).split())[:TITLE_CHARACTERS] if found else ""


def nests_too_deep(html: bytes) -> bool:
    """Whether the page opens more than 255 elements inside each other, which makes lxml lose its text in silence."""
    depth = 0
    for tag in _TAG.finditer(html.decode("latin-1")):
        if tag[3] or tag[2].lower() in _UNNESTED:
            continue
        depth = max(0, depth - 1) if tag[1] else depth + 1
        if depth > DEPTH_LIMIT:
            return True
    return False


def _without_bad_reference(reference: re.Match[str]) -> str:
    """The character reference itself, or nothing if its character is none that a text may hold.

    80 to 9F are left: every parser reads them as the Windows characters that their writers meant.
    """
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    is_good = code in (9, 10, 13) or 32 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return reference[0] if is_good and code != 0x7F else ""


def _readable(html: bytes, charset: str | None) -> str:
    """The page as the libraries can read it.

    lxml refuses a str with an XML declaration and ends at a NUL; trafilatura gives up on a page in which a character
    reference names a control character.
    """
    page = _XML_DECLARATION.sub("", scrub(decode(html, charset)))
    return _REFERENCE.sub(_without_bad_reference, page) if "&#" in page else page


def trafilatura(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """Main text by trafilatura in its fast mode, without comments, with tables.

    The settings are those with the best F1 of six on the gold pages; its slower mode finds .003 more of the text.
    """
    from trafilatura import extract

    page = _readable(html, charset)
    return Extracted(scrub(extract(page, url=url, fast=True, include_comments=False) or "").strip(), title_of(page))


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """newspaper makes folders in the system's temporary one when it is imported, and fails if another user's lie there.

    Nothing used here needs them.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


@functools.lru_cache(maxsize=1)
def _newspaper() -> tuple[Any, ...]:
    with _own_temporary_folder():
        from newspaper.cleaners import DocumentCleaner
        from newspaper.configuration import Configuration
        from newspaper.extractors import ContentExtractor
        from newspaper.outputformatters import OutputFormatter
        from newspaper.settings import STOPWORDS_DIR
    known = frozenset(path.stem.removeprefix("stopwords-") for path in Path(STOPWORDS_DIR).glob("stopwords-*.txt"))
    return Configuration, ContentExtractor, DocumentCleaner, OutputFormatter, known


def newspaper(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """Main text as newspaper3k's `Article(url, fetch_images=False)` gives it after `parse()`.

    The same parts are called in the same order (the texts of 120 pages are the same), without those that collect
    authors, links and pictures, one of which may look up a list on the internet, and without its `download()`. A page
    in a language for which newspaper has no stop words, at which it would raise an error, is read as English.
    """
    configuration_class, extractor_class, cleaner_class, formatter_class, known = _newspaper()
    page = _readable(html, charset)
    configuration = configuration_class()
    configuration.fetch_images = False
    tree = configuration.get_parser().fromstring(page)
    if tree is None:
        return Extracted("", title_of(page))
    extractor, formatter = extractor_class(configuration), formatter_class(configuration)
    language = extractor.get_meta_lang(tree)
    if language in known:
        extractor.update_language(language)
        formatter.update_language(language)
    best = extractor.calculate_best_node(cleaner_class(configuration).clean(tree))
    if best is None:
        return Extracted("", title_of(page))
    text, _ = formatter.get_formatted(extractor.post_cleanup(best))
    return Extracted(scrub(text).strip(), title_of(page))


def resiliparse(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """Main text by Resiliparse: five times faster than trafilatura, and takes more of what surrounds the text."""
    from resiliparse.extract.html2text import extract_plain_text

    page = _readable(html, charset)
    text = extract_plain_text(page, main_content=True, alt_texts=False, list_bullets=False)
    return Extracted(scrub(text).strip(), title_of(page))


def plain_text(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """A page that is no HTML but text: all of it."""
    return Extracted(scrub(decode(html, charset)).strip())


EXTRACTORS: dict[str, Extractor] = {"trafilatura": trafilatura, "newspaper": newspaper, "resiliparse": resiliparse}
"""What `--extractor` chooses from."""


def warm_up(name: str) -> None:
    """Import what an extractor needs, and let it fill its tables, before the first page is timed."""
    page = b"<html><head><title>t</title></head><body><article><p>Some words of text.</p></article></body></html>"
    EXTRACTORS[name](page, "http://example.com/", None)
