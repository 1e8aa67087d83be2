"""Lines of documents taken apart in compiled code, as far as they are what this project writes: `encode_document`.

Such a line begins with the URL and ends with the text, in the one form of JSON that msgspec writes. Its text is
unescaped eight bytes at a time; all before it, some hundred bytes, is left to msgspec. Other lines are not looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import BYTES, compiled, inner

U64 = np.uint64
signed: Any = np.int64
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

SLACK = 8
"""Bytes of room behind the texts."""
_BEGIN, _TEXT, _END = (np.frombuffer(part, np.uint8) for part in (b'{"url":"', b',"text":"', b'"}\n'))
SHORTEST = len(_BEGIN) + len(_TEXT) + 1 + len(_END)
"""Bytes of the shortest line that is taken apart: one character of text, and a URL without an end, which
`decode_heads` refuses."""
_NEWLINE, _QUOTE, _BACKSLASH, _SPACE, _U = b'\n"\\ u'
_ESCAPES, _HEX = np.zeros(256, np.uint8), np.full(256, 255, np.uint8)
_ESCAPES[np.frombuffer(b'btnfr"\\', np.uint8)] = np.frombuffer(b'\b\t\n\f\r"\\', np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = range(16)
_ONES, _HIGHEST = U64(0x0101010101010101), U64(0x8080808080808080)


@inner
def begins_with(block: Bytes, at: np.uint64, part: Bytes) -> bool:
    """Whether `part` stands there; nothing is read behind a newline that `part` has not."""
    place = U64(0)
    while place < U64(len(part)) and block[at + place] == part[place]:
        place += U64(1)
    return place == U64(len(part))


@inner
def special(word: np.uint64) -> np.uint64:
    """Of eight bytes a bit for the first one that is no plain character of a JSON string in ASCII; 0 if all are."""
    quotes, slashes = word ^ (U64(_QUOTE) * _ONES), word ^ (U64(_BACKSLASH) * _ONES)
    # Where a byte is less than another: Bit Twiddling Hacks (S. E. Anderson), exact for the first one.
    controls = (word - U64(_SPACE) * _ONES) & ~word
    found = (controls | word | ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)) & _HIGHEST
    return found & (~found + U64(1))


@inner
def character(block: Bytes, at: np.uint64) -> np.uint64:
    """How many bytes the character takes that begins at `block[at]` and is not ASCII; 0 if it is not valid UTF-8."""
    lead, second = block[at], block[at + U64(1)]
    least, most = 0x80, 0xBF
    if lead < 0xC2 or lead > 0xF4:
        return U64(0)
    if lead == 0xE0:
        least = 0xA0
    elif lead == 0xED:
        most = 0x9F
    elif lead == 0xF0:
        least = 0x90
    elif lead == 0xF4:
        most = 0x8F
    if second < least or second > most:
        return U64(0)
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    for place in range(2, size):
        if block[at + U64(place)] & 0xC0 != 0x80:
            return U64(0)
    return U64(size)


@inner
def unescape(block: Bytes, at: np.uint64, text: Bytes, to: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Write the text of a JSON string from `block[at]` to `text[to]`. Returns where its quote is, where the text ends,
    and how many of its bytes are of a character that began before; the first of these is 0 if it is in another form."""
    size, more = U64(len(block)), U64(0)
    while True:
        if at + U64(8) <= size:
            word = U64(0)
            for place in range(8):
                word |= U64(block[at + U64(place)]) << U64(8 * place)  # together one instruction
            for place in range(8):
                text[to + U64(place)] = word >> U64(8 * place)
            first = special(word)
            if first == 0:
                at += U64(8)
                to += U64(8)
                continue
            before = ((((first >> U64(7)) - U64(1)) & _ONES) * _ONES) >> U64(56)
            at += before
            to += before
        byte = block[at]
        if byte == _QUOTE:
            return at, to, more
        if byte >= 0x80:
            length = character(block, at)
            if length == 0:
                return U64(0), to, more
            for place in range(length):
                text[to + U64(place)] = block[at + U64(place)]
            at += length
            to += length
            more += length - U64(1)
        elif byte == _BACKSLASH:
            kind = block[at + U64(1)]
            text[to] = _ESCAPES[kind]
            at += U64(2)
            if text[to] == 0:
                if kind != _U or not (block[at] == 48 and block[at + U64(1)] == 48 and block[at + U64(2)] >> 1 == 24):
                    return U64(0), to, more
                low = _HEX[block[at + U64(3)]]
                high = block[at + U64(2)] == 49
                if low > 15 or (not high and (8 <= low <= 10 or 12 <= low <= 13)):
                    return U64(0), to, more
                text[to] = low + 16 * high
                at += U64(4)
            to += U64(1)
        elif byte < _SPACE:
            return U64(0), to, more
        else:
            text[to] = byte
            at += U64(1)
            to += U64(1)


@compiled(types.UniTuple(types.int64, 3)(BYTES, types.uint8[::1], types.uint8[::1], types.int64[::1], types.int64[::1]))
def take_apart(block: Bytes, heads: Bytes, text: Bytes, ends: Numbers, lengths: Numbers) -> tuple[int, int, int]:
    """Take lines apart, of which each ends with a newline.

    Args:
        block: the lines.
        heads: as long; takes each line without its text, as a line.
        text: as long and `SLACK`; takes the texts in UTF-8.
        ends: of the texts, with room for as many lines of `SHORTEST` as the block is long.
        lengths: of the texts in characters.

    Returns how many lines there are, and the sizes of `heads` and of `text`; no lines if one of them is in another form
    than `encode_document` gives a document with a text. What msgspec would not write before the text is not noticed.
    """
    at, head, to = U64(0), U64(0), U64(0)
    line = 0
    while at < len(block):
        if not begins_with(block, at, _BEGIN):
            return 0, 0, 0
        while not begins_with(block, at, _TEXT):
            if block[at] == _NEWLINE:
                return 0, 0, 0
            heads[head] = block[at]
            head += U64(1)
            at += U64(1)
        heads[head], heads[head + U64(1)] = _END[1], _END[2]
        head += U64(2)
        begin = to
        at, to, more = unescape(block, at + U64(len(_TEXT)), text, to)
        if at == 0 or to == begin or not begins_with(block, at, _END):
            return 0, 0, 0
        at += U64(len(_END))
        ends[line], lengths[line] = to, to - begin - more
        line += 1
    return line, signed(head), signed(to)
