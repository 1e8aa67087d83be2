"""Extractors: the right characters, the main text, the same from page to page, and nothing that JSON cannot hold."""

import codecs
import random
import re
import struct
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.extraction import extractors
from webtext_prep.extraction.extractors import EXTRACTORS, nests_too_deep
from webtext_prep.extraction.processes.workers import PageHead, extract_page
from webtext_prep.text.decoding import TITLE_CHARACTERS, declared_charset, decode, readable, scrub, title_of

SENTENCE = "The café on the corner was where Zoë and Viktor met, and it is not known to us why they had left Malmö. "
PAGE = (
    "<html><head>{meta}<title>Caf&eacute; &amp; corner</title></head><body><nav><a href='/'>Start page</a></nav>"
    "<article><h1>Café</h1><p>" + SENTENCE * 4 + "</p><p>" + SENTENCE * 3 + "</p></article>"
    "<footer>Imprint and contact</footer></body></html>"
)


def page(meta: str = "") -> str:
    return PAGE.format(meta=meta)


@pytest.mark.parametrize("name", EXTRACTORS)
def test_each_extractor_finds_the_text_and_the_title_and_leaves_the_menu(name):
    found = EXTRACTORS[name](page("<meta charset=utf-8>").encode(), "http://example.com/", None)
    assert found.text.count(SENTENCE.strip()) >= 7
    assert "Start page" not in found.text
    assert found.title == "Café & corner"


@pytest.mark.parametrize("name", EXTRACTORS)
def test_paragraphs_stay_apart(name):
    lines = [line for line in EXTRACTORS[name](page().encode(), "http://example.com/", None).text.split("\n") if line]
    assert len([line for line in lines if "Viktor" in line]) == 2


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize(
    ("meta", "encoding", "header"),
    [
        ("", "utf-8", None),
        ("", "latin-1", "iso-8859-1"),
        ('<meta charset="iso-8859-1">', "latin-1", None),
        ("<meta http-equiv='Content-Type' content='text/html; charset=windows-1252'>", "cp1252", None),
        ('<meta charset="utf-8">', "latin-1", "latin1"),  # the header comes before the page's own statement
        ('<meta charset="iso-8859-1">', "utf-8", "iso-8859-1"),  # both wrong, and the bytes say so
        ("", "utf-8-sig", "iso-8859-1"),
        ("", "utf-16", None),  # with a byte order mark
        ("", "latin-1", None),  # nothing said at all
        ("", "latin-1", "no-such-charset"),
    ],
)
def test_umlauts_survive_however_the_page_states_its_charset(name, meta, encoding, header):
    found = EXTRACTORS[name](page(meta).encode(encoding), "http://example.com/", header)
    assert SENTENCE.strip() in found.text


@pytest.mark.parametrize("name", EXTRACTORS)
def test_no_nul_control_character_or_surrogate_comes_out(name):
    html = page().replace("Viktor", "Vik\x00tor\x01 &#0;&#1;&#xD800;&#x85;\x0b").encode()
    text = EXTRACTORS[name](html, "http://example.com/", None).text
    assert "on the corner" in text
    assert scrub(text) == text
    assert not set(text) & {chr(code) for code in [*range(9), 11, 12, *range(14, 32), 127, *range(0xD800, 0xE000)]}


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize(
    "html", [b"", b"\x00", b"<", b"<html>", b"<!-- ", b"<?xml version='1.0' encoding='x'?>", b"\xff"]
)
def test_a_page_of_nothing_gives_no_text_or_fails_openly(name, html):
    try:
        text = EXTRACTORS[name](html, "http://example.com/", None).text
    except Exception as error:  # the worker turns it into an outcome
        assert not isinstance(error, MemoryError)
    else:
        assert len(text) <= 1


@pytest.mark.parametrize("name", EXTRACTORS)
def test_the_same_page_gives_the_same_text_whatever_came_before(name):
    html = page().encode()
    first = EXTRACTORS[name](html, "http://example.com/", None)
    EXTRACTORS[name](b"<html lang=ko><p>" + "안녕하세요 여러분. ".encode() * 30 + b"</p></html>", "http://a.kr/", None)
    assert EXTRACTORS[name](html, "http://example.com/", None) == first


def test_newspaper_gives_the_text_of_its_own_article():
    extractors.warm_up("newspaper")
    import newspaper

    article = newspaper.Article("http://example.com/", fetch_images=False)
    article.set_html(page())
    article.release_resources = lambda: None
    article.parse()
    assert EXTRACTORS["newspaper"](page().encode(), "http://example.com/", None).text == article.text


def test_newspaper_reads_a_language_without_stop_words():
    html = page().replace("<html>", '<html lang="xx">').encode()
    assert "Viktor" in EXTRACTORS["newspaper"](html, "http://example.com/", None).text


def test_a_charset_label_that_is_no_charset_of_text_is_passed_over():
    for label in ("base64", "rot13", "utf-7", "idna", "unicode_escape", "hex", "zip", "", "\u0000"):
        assert decode("Grüße".encode(), label) == "Grüße"


def test_a_few_damaged_bytes_do_not_change_the_charset():
    text = decode(("ü" * 2000).encode() + b"\xff", "utf-8")
    assert text == "ü" * 2000 + "\ufffd"


def test_the_page_states_its_charset_in_the_ways_of_the_web():
    assert declared_charset(b"<meta charset=koi8-r>") == "koi8-r"
    assert declared_charset(b"<?xml version='1.0' encoding='Shift_JIS'?>") == "whatwg-shift_jis"
    assert declared_charset(b"<meta charset=utf-16>") == "utf-8"
    assert declared_charset(b"<p>charset=latin1</p>") is None


def test_depth_is_counted_as_the_parser_nests():
    assert nests_too_deep(b"<div>" * 300)
    assert not nests_too_deep(b"<div></div>" * 300)
    assert not nests_too_deep(b"<p>one<p>two<br>" * 300)


def test_a_title_is_one_line_of_text():
    assert title_of("<head><TITLE>\n A &lt;b&gt;\n title </TITLE>") == "A <b> title"
    assert title_of("<p>no title</p>") == ""
    assert len(title_of("<title>" + "x" * 1000)) == TITLE_CHARACTERS


@pytest.mark.parametrize(
    "head",
    [
        "<!-- <title>no</title> --><title>yes</title>",
        "<!--><title>yes</title>",
        "<!-- <title>no</title> --!><title>yes</title>",
        "<script>document.write('<title>no</title>')</script><title>yes</title>",
        "<style/> <title>no</title> </style><title>yes</title>",  # the slash of an HTML element counts for nothing
        "<textarea><title>no</title></textarea><title>yes</title>",
        "<template><title>no</title></template><title>yes</title>",
        "<svg><title>no</title><svg><title>no</title></svg><title>no</title></svg><title>yes</title>",
        "<svg class=icon /><title>yes</title>",
        "<svg><path d='M0'><body><title>yes</title>",
        "<math><title>no</title></math><title>yes</title>",
        "<meta content='<title>no</title>'><title>yes</title>",
        "<noscript><title>Switch on JavaScript</title></noscript><title>yes</title>",
        '<a title="<!--">x</a> a < b <titles>no</titles><TITLE\nlang=de >yes</title\n>',
        "<style>" + "p { color: red }\n" * 20_000 + "</style><title>yes</title><title>no</title>",
    ],
)
def test_the_title_is_the_one_that_browsers_show(head):
    """Chromium 156: `document.title` is the first title element of HTML, and not what looks like one in a comment, a
    script, an attribute or a picture. Those were believed, and one behind 256 KiB was not found."""
    assert title_of(f"<!doctype html><html><head>{head}<p>text") == "yes"


def test_a_page_whose_only_title_is_that_of_a_picture_has_none():
    assert title_of("<body><svg><title>chevron-right</title></svg><!-- <title>no</title> --><p>text") == ""
    assert title_of("<title>a <b> c</title>") == "a <b> c"
    assert title_of("<title>never ended <p>text") == "never ended"


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("x-gbk", "gb18030", "你好，世界"),
        ("gb2312", "gb18030", "你好，镕"),  # more than the label says, as all browsers read it
        ("windows-949", "cp949", "안녕하세요 뷁"),
        ("ks_c_5601-1987", "cp949", "안녕하세요 뷁"),
        ("windows-31j", "cp932", "こんにちは①"),
        ("shift_jis", "cp932", "こんにちは①"),
        ("iso-8859-8-i", "iso8859-8", "שלום עולם"),
        ("x-mac-cyrillic", "mac_cyrillic", "Привет"),
        ("ISO-8859-1", "cp1252", "“quoted” – and €"),
        ("latin-1", "cp1252", "“quoted” – and €"),
        ("tis-620", "cp874", "สวัสดี"),
        ("hz-gb-2312", "hz", "你好"),
        ("iso-2022-jp", "iso2022_jp", "こんにちは"),
        ("unicode-1-1-utf-8", "utf-8", "Grüße"),
    ],
)
def test_the_labels_of_the_web_name_the_encodings_that_browsers_use(label, encoding, text):
    """x-gbk, windows-949, windows-31j and iso-8859-8-i were not known, and pages in ISO-2022-JP, all of whose bytes are
    ASCII, were taken for UTF-8."""
    assert decode(text.encode(encoding), label) == text
    assert decode(f"<meta charset={label}>{text}".encode(encoding)).endswith(text)


# The fast path through the bytes of a page against the rules, written down plainly


def simply_scrubbed(text):
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "", text)


def simply_readable(html, charset):
    def kept(reference):
        code = int(reference[1], 16) if reference[1] else int(reference[2])
        is_control = (code < 32 and code not in (9, 10, 13)) or code == 127
        is_no_character = 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF) or code >= 0x110000
        return "" if is_control or is_no_character else reference[0]

    page = re.sub(r"^\s*<\?xml[^>]*>", "", simply_scrubbed(decode(html, charset)), flags=re.IGNORECASE)
    return re.sub(r"&#(?:[xX]([0-9a-fA-F]{1,8})|([0-9]{1,10}));?", kept, page)


CHARACTERS = st.sampled_from(
    [
        "\x00\x01\x08\t\n\x0b\x0c\r\x0e\x1f", "\x7f\x80\x85\x9f\xa0", "\r\n", "\r", "a<p>é",
        "\ud7ff\ue000\ufffd\ufffe\uffff",
    ]
).flatmap(lambda some: st.text(some) | st.just(some))  # fmt: skip
BYTES = [
    b"\xc2", b"\x85", b"\xef", b"\xbf", b"\xbe", b"\xed\xa0\x80", b"\xff", b"\xef\xbb\xbf", b"\x1b$B",
    b"\xc3\r\n\xa9",
]  # fmt: skip
MARKUP = b"&#|&#1;|&#x7F|&#127;|&#x80;|&#13|&#xFFFE;|&#xD800|&#1114112;|&#39;|&#\x001;|<?xml version='1.0' &#0; ?>"
CHARSETS = [b"<meta charset=latin-1>", b"<meta charset=iso-2022-jp>"]
PIECES = CHARACTERS.map(str.encode) | st.sampled_from([*BYTES, *MARKUP.split(b"|"), *CHARSETS])
PAGES = st.lists(PIECES, max_size=12).map(b"".join)


@given(PAGES, st.sampled_from([None, "utf-8", "latin-1", "utf-16", "iso-2022-jp", "gbk"]))
def test_a_page_is_made_readable_by_the_rules(html, charset):
    assert readable(html, charset) == simply_readable(html, charset)


@given(st.lists(CHARACTERS | st.just("\ud800")).map("".join))
def test_text_is_scrubbed_by_the_rules(text):
    assert scrub(text) == simply_scrubbed(text)


BORDERS = [*range(0xA2), *(code for border in (0xD800, 0xE000, 0xFFFE, 0x10000) for code in (border - 1, border))]


def test_every_character_and_every_reference_is_judged_by_the_rules():
    for code in [*BORDERS, 0x10FFFF]:
        for text in (chr(code), f"é{chr(code)}\n"):
            assert scrub(text) == simply_scrubbed(text), code
    for code in [*BORDERS, 0x10FFFF, 0x110000]:
        for html in (b"&#%d;" % code, b"&#x%X" % code):
            assert readable(html, None) == simply_readable(html, None), code


@pytest.mark.parametrize("piece", ["", "\r", "\x00", "\x7f", "\x85", "\ufffe", "&#1;", "\ud7ff\uf8ff", "&#8217;"])
@pytest.mark.parametrize("at", [0, 1, 50_000, 99_999, 100_000])
def test_one_character_anywhere_in_a_long_page_is_found(piece, at):
    page = "<p>É</p>\r\n" * 10_000
    page = page[:at] + piece + page[at:]
    assert readable(page.encode(), None) == simply_readable(page.encode(), None)
    assert scrub(page) == simply_scrubbed(page)


def test_a_page_in_utf_16_that_is_also_valid_utf_8_is_read_as_it_says():
    assert decode("ab".encode("utf-16-le"), "utf-16") == readable("ab".encode("utf-16-le"), "utf-16") == "ab"


@given(st.lists(st.integers(0, 255)).map(bytes))
def test_windows_1252_is_read_as_its_codec_reads_it(html):
    html = b"\xe9<p>" + html + bytes(range(256))
    assert decode(html, "windows-1252") == html.decode("whatwg-windows-1252")


SHORT = "<html><body><p>Some words of a page, and a few more of them.</p></body></html>"
NOISE = random.Random(0).randbytes(10_000)


@pytest.mark.parametrize("is_html", [True, False])
@pytest.mark.parametrize(
    ("body", "is_text"),
    [
        (b"\0\xff" * 5000, False),
        (b"\xff\0" * 5000, False),
        (NOISE, False),
        (SHORT.encode() + NOISE, False),
        (codecs.BOM_UTF8 + NOISE, False),
        (zlib.compress(SHORT.encode() * 50 + NOISE), False),
        (struct.pack("<5000h", *range(-2500, 2500)), False),
        (Path(sys.executable).read_bytes()[:50_000], False),
        (bytes(range(32)) * 99, False),
        (SHORT.encode("utf-16"), True),
        (SHORT.encode("utf-16-le"), True),
        (SHORT.encode("utf-16-be"), True),
        (SHORT.encode() + bytes(5000), True),
        (SHORT.encode("utf-16-le") + b"\0", True),
        (SHORT.replace(" ", "\0 ").encode(), True),
        (SHORT.replace("words", "caf\xe9 \x1a").encode("cp1252"), True),
        (SHORT.replace("words", "お探しのページ").encode("shift_jis"), True),
        (SHORT.replace("words", "お探しのページ").encode("iso2022_jp"), True),
        (SHORT.replace("words", "页面未找到").encode("gb18030"), True),
        (SHORT.replace("o", "o\bo").encode(), True),
        (SHORT.replace("words", "w\x01rds\x02").encode(), True),
    ],
)
def test_bytes_that_are_no_text_are_no_page_whatever_they_are_sent_as(body, is_html, is_text):
    """Ten kilobytes of 00 FF sent as text/html were a document."""
    parsed = extract_page("resiliparse", PageHead("http://a.org/", is_html=is_html), body)
    assert parsed.outcome == ("ok" if is_text else "not_html")
