"""Tables of text whose columns align on a terminal: wide characters take two columns, accents and colours none."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def display_width(text: str) -> int:
    """How many columns of a terminal `text` takes: two for wide characters (Chinese, Japanese, Korean, emoji), none
    for those that are written over the one before, for control characters, and for colours.

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


def padded(text: str, width: int, align: str = "<") -> str:
    """`text` with spaces up to `width` columns, on the right (`<`) or on the left (`>`)."""
    spaces = " " * max(0, width - display_width(text))
    return spaces + text if align == ">" else text + spaces


def aligned(rows: Sequence[Sequence[str]], align: str, *, gap: str = "  ") -> list[str]:
    """The lines of a table.

    Args:
        rows: the cells; a row may be shorter than the others.
        align: for each column `<` (text) or `>` (numbers).
        gap: between two columns.
    """
    widths = [max((display_width(row[at]) for row in rows if at < len(row)), default=0) for at in range(len(align))]
    return [
        gap.join(padded(cell, width, side) for cell, width, side in zip(row, widths, align, strict=False)).rstrip()
        for row in rows
    ]
