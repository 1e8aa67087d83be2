"""Colour for a terminal that has it, and nothing anywhere else.

In this order: `NO_COLOR` (https://no-color.org) set to anything turns colour off, `FORCE_COLOR` (https://force-color.org)
turns it on for any stream, `TERM=dumb` is a terminal without any, and otherwise a stream has colour if it is a
terminal. That is the order of CPython's own tracebacks. Only the 8 colours of every terminal are used, which its owner
has chosen to be readable, and nothing is said by colour alone.

Tables of text whose columns align on a terminal: wide characters take two columns, accents and colours none.
"""

from __future__ import annotations

import functools
import os
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"


FALLBACK_COLUMNS = 80
CLEAR = "\r\x1b[K"
"""The way to the beginning of a terminal's line, and nothing left on it."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_terminal(stream: TextIO) -> bool:
    """Whether a line on `stream` can be drawn again: a terminal, but none that knows no commands (`TERM=dumb`)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether text written to `stream` may hold colours."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


@dataclass(frozen=True)
class Paint:
    """Puts colour on text, or leaves it as it is.

    >>> Paint(True)("error:", RED, BOLD), Paint(False)("error:", RED)
    ('\\x1b[31;1merror:\\x1b[0m', 'error:')
    """

    is_on: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        """The colours that suit a stream."""
        return cls(has_colours(stream))

    def __call__(self, text: str, *codes: str) -> str:
        """`text` in the colours and weights of `codes`."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.is_on and text and codes else text


PLAIN = Paint()
"""Text as it is."""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: str) -> str:
    """`text` without control characters: documents come from anywhere, and must not steer the terminal."""
    return _CONTROL.sub("\ufffd", text)


def display_width(text: str) -> int:
    """The columns of a terminal that `text` takes: two for wide characters (Chinese, Japanese, Korean, emoji), none
    for characters that are written over the one before, for control characters, and for colours.

    >>> display_width("abc"), display_width("日本"), display_width("e\\u0301")
    (3, 4, 1)
    """
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(map(_columns, _COLOUR.sub("", text)))


def _columns(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me", "Cc", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """The beginning of `text`, which holds no colours, that takes at most `width` columns."""
    if display_width(text) <= width:
        return text
    taken = 0
    for at, sign in enumerate(text):
        taken += _columns(sign)
        if taken > width:
            return text[:at]
    return text


def columns_of(stream: TextIO) -> int:
    """The width of a terminal as it is now; it may be resized at any time."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or FALLBACK_COLUMNS
    except (OSError, ValueError):
        return FALLBACK_COLUMNS


def wrapped(text: str, stream: TextIO) -> str:
    """`text` in lines that end between words, where `stream` is a terminal; else, for a log, as it is."""
    if not is_terminal(stream):
        return text
    width = max(columns_of(stream), 20)
    fill = functools.partial(textwrap.fill, width=width, subsequent_indent="  ", break_long_words=False)
    return "\n".join(fill(line, break_on_hyphens=False) if len(line) > width else line for line in text.split("\n"))


def padded(text: str, width: int, align: str = "<") -> str:
    """`text` with spaces up to `width` columns, on the right (`<`) or on the left (`>`)."""
    spaces = " " * max(0, width - display_width(text))
    return spaces + text if align == ">" else text + spaces


def aligned(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """The lines of a table.

    Args:
        rows: the cells; a row may be shorter than the others.
        align: for each column `<` (text) or `>` (numbers).
    """
    widths = [max((display_width(row[at]) for row in rows if at < len(row)), default=0) for at in range(len(align))]
    return [
        "  ".join(padded(cell, width, side) for cell, width, side in zip(row, widths, align, strict=False)).rstrip()
        for row in rows
    ]
