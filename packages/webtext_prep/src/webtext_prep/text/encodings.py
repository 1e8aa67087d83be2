"""The encodings of the WHATWG Encoding Standard, as Python codecs named `whatwg-...`.

Python has most of these encodings, but other tables for some (CPython 3.11): EUC-JP and ISO-2022-JP without the 457
characters of NEC's and IBM's rows and with 6 others, Big5 without 192, GBK as of 2000, KOI8-U without two letters of
Belarusian, the Windows ones with undefined bytes that the standard reads as C1 controls. And a wrong byte swallows
less, or more, of what follows it.

So each decoder here is Python's, which is fast, and what differs: an error handler knows the sequences that Python's
table lacks, and replaces wrong bytes as the standard's decoder does; then the characters are changed that Python reads
otherwise. For every character the result is what Chromium 156 shows (the tests hold digests of that), but for four
accented letters of Big5, which the standard (12.1.1, Big5 decoder) reads as two code points, as is done here, and
Chromium as other characters. Wrong bytes are replaced as the standard says, where Chromium loses some after an escape.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import webencodings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_PREFIX = "whatwg-"
_WRONG = "\ufffd"
_C1 = {bytes((code,)): chr(code) for code in range(0x80, 0xA0)}
_ROW_13 = 12  # NEC's row; rows are counted from 0
_IBM_ROWS = range(88, 92)


class _Base(NamedTuple):
    """A decoder of the standard, by the one of Python that is nearest to it.

    Attributes:
        codec: Python's.
        missing: sequences that Python takes for wrong, and their characters.
        changed: what Python makes of some sequences, and what they are.
        wrong: the length of a wrong sequence at a place.
        alike: sequences that Python reads as it reads another one, and their characters.
    """

    codec: str
    missing: Mapping[bytes, str]
    changed: Mapping[str, str] = {}
    wrong: Callable[[bytes, int], int] = lambda data, at: 1
    alike: Mapping[bytes, str] = {}


def _wrong_pair(leads: Container[int]) -> Callable[[bytes, int], int]:
    """How much of the bytes is one wrong sequence: a wrong trail byte belongs to it, but where it is ASCII."""

    def length(data: bytes, at: int) -> int:
        return 2 if data[at] in leads and data[at + 1 : at + 2] >= b"\x80" else 1

    return length


def _wrong_euc_jp(data: bytes, at: int) -> int:
    two, trails = data[at : at + 2], range(0xA1, 0xFF)
    if two[0] == 0x8F and len(two) == 2 and two[1] in trails:  # the beginning of three bytes
        return 3 if data[at + 2 : at + 3] >= b"\x80" else 2
    return _wrong_pair({0x8E, 0x8F, *trails})(data, at)


def _wrong_gb18030(data: bytes, at: int) -> int:
    four = data[at : at + 4]
    if four[0] in range(0x81, 0xFF) and len(four) > 1 and four[1] in range(0x30, 0x3A):
        is_beginning = len(four) < 3 or four[2] in range(0x81, 0xFF)
        is_beginning = is_beginning and (len(four) < 4 or four[3] in range(0x30, 0x3A))
        return len(four) if is_beginning else 1
    return _wrong_pair(range(0x81, 0xFF))(data, at)


def _shift_jis(row: int, cell: int) -> str:
    """A character of the standard's index jis0208, which Python has whole in its cp932, or U+FFFD."""
    lead, trail = divmod(94 * row + cell, 188)
    lead, trail = lead + (0x81 if lead < 0x1F else 0xC1), trail + (0x40 if trail < 0x3F else 0x41)
    return bytes((lead, trail)).decode("cp932", "replace")


def _missing_in_euc_jp() -> dict[bytes, str]:
    places = [(row, cell) for row in (_ROW_13, *_IBM_ROWS) for cell in range(94)]
    signs = {bytes((row + 0xA1, cell + 0xA1)): _shift_jis(row, cell) for row, cell in places}
    return {place: sign for place, sign in signs.items() if _WRONG not in sign}


_MISSING_IN_BIG5 = """
87 7a㡵𡵓𣚞𦀡㻬𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦珄
87 c0𥶹瓆鿇垳䤯呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿拁灮鿋
8e 69箸 6f簆 7e糎 ab緒 b4縝 cd者 d0耨
8f 57菁 69蒨 6e萏 cb覦覩 fe起
90 6d都 7a銹 dc靜 f1響
91 bf鼖
92 44蔃 af兙兛兝兞 c8鍮 d1瑹
94 47浧 ca禛
95 d9邗
96 44靝 ed瀞 fc嬨
9b 76爁 78矗 7b纇 c6駖 de釔 ec惞 f6澶
9c 42輶 53侻 62營 68鄄 6b鷰 77菏 bc尐秣 d0婧
9d 57輋 5a筑 c4拐
9e a9恢 ef痹 fd汊
9f 60鬮 66鼗 cb僭 d8弌
a0 63蠏 77拎 d5瑨 df煢 e4牐
a3 c0␀␁␂␃␄␅␆␇␈␉␊␋␌␍␎␏␐␑␒␓␔␕␖␗␘␙␚␛␜␝␞␟␡€
c6 cf廴 d3无 d5癶 d7隶 de〃仝
fa 5f倩 66偽 bd包 c5卄 d5卿
fb 48嘅 b8婷 f3幵 f9廐
fc 4f彘 6c悤 b9撐 e2晴 f1杞
fd b7沜渝 bb港 f1煮
fe 52猪 6f瑜 aa瓩 dd砉
"""
"""HKSCS-2008, what it has twice, and the pictures of control characters: each line is a lead byte, and the first trail
bytes of runs of characters."""


def _missing_in_big5() -> dict[bytes, str]:
    found = {}
    for row in _MISSING_IN_BIG5.strip().split("\n"):
        lead, *runs = row.split()
        for run in runs:
            trail = int(run[:2], 16)
            for sign in run[2:]:
                found[bytes((int(lead, 16), trail))] = sign
                trail = 0xA1 if trail == 0x7E else trail + 1
    return found


_CHANGED_IN_EUC_JP = dict(zip("〜‖−¢£¬", "～∥－￠￡￢", strict=True))
_CHANGED_IN_BIG5 = dict(zip("•､‾∼♁☉¥¢£", "‧﹑¯～⊕⊙￥￠￡", strict=True))
_ALIKE_IN_BIG5 = {b"\xa2\x41": "∕", b"\xa2\x42": "﹨"}
_CHANGED_IN_GB18030 = dict(
    zip(
        "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7\u1e3f"
        "\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
        "\u3000\ufe10\ufe12\ufe11\ufe13\ufe14\ufe15\ufe16\ufe17\ufe18\ufe19\u1e3f\ue7c7"
        "\u9fb4\u9fb5\u9fb6\u9fb7\u9fb8\u9fb9\u9fba\u9fbb",
        strict=True,
    )
)
"""GB 18030-2022 gives characters of their own to what stood in the private use area."""
_NOT_IN_SHIFT_JIS = dict.fromkeys("\uf8f0\uf8f1\uf8f2\uf8f3", _WRONG)

_WINDOWS = ("874", "1250", "1251", "1252", "1253", "1254", "1257", "1258")


@functools.cache
def _base(name: str) -> _Base | None:
    """How an encoding of the standard is decoded, or None where Python does it as it says."""
    if name == "euc-jp":
        return _Base("euc_jp", _missing_in_euc_jp(), _CHANGED_IN_EUC_JP, _wrong_euc_jp, {b"\x8f\xa2\xb7": "～"})
    if name == "big5":
        return _Base("big5hkscs", _missing_in_big5(), _CHANGED_IN_BIG5, _wrong_pair(range(0x81, 0xFF)), _ALIKE_IN_BIG5)
    if name == "gb18030":
        return _Base("gb18030", {b"\x80": "€"}, _CHANGED_IN_GB18030, _wrong_gb18030)
    if name == "shift_jis":
        leads = {*range(0x81, 0xA0), *range(0xE0, 0xFD)}
        return _Base("cp932", {}, _NOT_IN_SHIFT_JIS, _wrong_pair(leads))
    if name == "euc-kr":
        return _Base("cp949", {}, wrong=_wrong_pair(range(0x81, 0xFF)))
    if name == "koi8-u":
        return _Base("koi8-u", {}, {"╝": "\u045e", "╬": "\u040e"})
    if name == "windows-1255":
        return _Base("cp1255", _C1 | {b"\xca": "\u05ba"})
    number = name.removeprefix("windows-")
    return _Base(f"cp{number}", _C1) if number in _WINDOWS else None


def _decode(name: str, data: bytes, errors: str = "strict") -> tuple[str, int]:
    base = _base(name)
    assert base is not None
    data = bytes(data)
    handler = f"{_PREFIX}{name} {errors}"
    try:
        codecs.lookup_error(handler)
    except LookupError:
        codecs.register_error(handler, functools.partial(_handle, base, errors))
    done, start = [], 0
    for at, end in _places(data, base.alike):
        done += [_decode_piece(data[start:at], base, handler), base.alike[data[at:end]]]
        start = end
    return "".join([*done, _decode_piece(data[start:], base, handler)]), len(data)


def _decode_piece(data: bytes, base: _Base, handler: str) -> str:
    text = data.decode(base.codec, handler)
    if any(sign in text for sign in base.changed):
        text = text.translate({ord(sign): other for sign, other in base.changed.items()})
    return text


_CHARACTER = re.compile(rb"\x8f[\xa1-\xfe][\x80-\xff]|[\x81-\xfe][\x40-\x7e\x80-\xff]|.", re.DOTALL)
"""A character of Big5 or EUC-JP, or a wrong byte."""


def _places(data: bytes, sequences: Collection[bytes]) -> Iterator[tuple[int, int]]:
    """Where in a text in Big5 or EUC-JP one of the sequences is a character."""
    if any(sequence in data for sequence in sequences):
        yield from (found.span() for found in _CHARACTER.finditer(data) if found[0] in sequences)


def _handle(base: _Base, errors: str, error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for bytes that Python's decoder does not know, and where it goes on."""
    assert isinstance(error, UnicodeDecodeError)
    data, at = error.object, error.start
    for sequence in (data[at : at + 2], data[at : at + 1]):
        if (sign := base.missing.get(sequence)) is not None:
            return sign, at + len(sequence)
    if errors != "replace":
        return codecs.lookup_error(errors)(error)
    return _WRONG, min(at + base.wrong(data, at), len(data))


_ESCAPE = re.compile(rb"\x1b(\$[@B]|\([BJI])")
_RUN = {
    b"B": re.compile(rb"[\x00-\x0d\x10-\x1a\x1c-\x7f]+"),
    b"J": re.compile(rb"[\x00-\x0d\x10-\x1a\x1c-\x7f]+"),
    b"I": re.compile(rb"[\x21-\x5f]+"),
    b"$": re.compile(rb"(?:[\x21-\x7e]{2})+"),
}
"""What is right in ISO-2022-JP after each escape sequence: ASCII, JIS X 0201's letters, its katakana, JIS X 0208."""
_HIGH = bytes(code | 0x80 for code in range(256))


def _decode_iso_2022_jp(data: Buffer, errors: str = "strict", /) -> tuple[str, int]:
    """The standard's ISO-2022-JP decoder (12.2.1)."""
    data = bytes(data)
    text = "".join(_iso_2022_jp(data))
    if errors == "strict" and _WRONG in text:
        raise UnicodeDecodeError(f"{_PREFIX}iso-2022-jp", data, 0, len(data), "not ISO-2022-JP")
    return text, len(data)


def _iso_2022_jp(data: bytes) -> Iterator[str]:
    state, at, is_after_escape = b"B", 0, False
    while at < len(data):
        if escape := _ESCAPE.match(data, at):
            if is_after_escape:  # two with nothing between them hide something from who looks for ASCII
                yield _WRONG
            kind, at, is_after_escape = escape[1], escape.end(), True
            state = b"$" if kind[:1] == b"$" else kind[1:]
            continue
        is_after_escape = False
        if run := _RUN[state].match(data, at):
            at = run.end()
            yield from _in_state(state, run[0])
            continue
        yield _WRONG
        has_trail = state == b"$" and data[at] in range(0x21, 0x7F) and data[at + 1 : at + 2] != b"\x1b"
        at += 2 if has_trail else 1


def _in_state(state: bytes, run: bytes) -> str:
    if state == b"$":
        return run.translate(_HIGH).decode(f"{_PREFIX}euc-jp", "replace")
    if state == b"I":
        return "".join(chr(code - 0x21 + 0xFF61) for code in run)
    text = run.decode("ascii")
    return text.replace("\\", "\u00a5").replace("~", "\u203e") if state == b"J" else text


def _search(name: str) -> codecs.CodecInfo | None:
    """The codec of a name, for `codecs.register`, which gives names with underscores."""
    name = name.replace("_", "-").removeprefix(_PREFIX).replace("shift-jis", "shift_jis")
    if name == "iso-2022-jp":
        return codecs.CodecInfo(codecs.lookup("iso2022_jp").encode, _decode_iso_2022_jp, name=f"{_PREFIX}{name}")
    base = _base(name)
    if base is None:
        return None
    return codecs.CodecInfo(codecs.lookup(base.codec).encode, functools.partial(_decode, name), name=f"{_PREFIX}{name}")


codecs.register(lambda name: _search(name) if name.startswith(_PREFIX.replace("-", "_")) else None)

_SAME = {"gbk": "gb18030", "x-user-defined": "windows-1252"}
"""The standard decodes gbk as gb18030; and a page that says x-user-defined is no different from one that says
windows-1252 (HTML standard, 13.2.3.2)."""
_LOOSE_LABELS = {"latin-1": "iso-8859-1", "iso8859_1": "iso-8859-1", "shift-jis": "shift_jis"}
"""Labels outside the standard that Python reads more strictly than was meant."""
_NOT_TEXT = frozenset(
    {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined", "mbcs", "oem", "replacement"}
)
"""Codecs of Python that are not encodings of pages, or that run code points through a little language of their own."""


@functools.lru_cache(maxsize=256)
def codec_for(label: str | None) -> str | None:
    """The Python codec for a charset label, or None where it does not name an encoding of text.

    >>> codec_for("x-gbk"), codec_for("windows-949"), codec_for("latin2"), codec_for("base64")
    ('whatwg-gb18030', 'whatwg-euc-kr', 'iso8859-2', None)
    """
    name = (label or "").strip().strip("\"'").lower()
    name = _LOOSE_LABELS.get(name, name)
    standard = webencodings.lookup(name)
    if standard is not None and standard.name != "replacement":
        own = _SAME.get(standard.name, standard.name)
        return f"{_PREFIX}{own}" if own == "iso-2022-jp" or _base(own) else standard.codec_info.name
    # Browsers refuse the "replacement" encodings lest scripts hide in them; here they are only text.
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    return info.name if getattr(info, "_is_text_encoding", True) and info.name not in _NOT_TEXT else None
