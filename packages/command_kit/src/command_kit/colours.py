"""Colour for a terminal that has it, and nothing anywhere else.

In this order: `NO_COLOR` (https://no-color.org) set to anything turns colour off, `FORCE_COLOR` (https://force-color.org)
turns it on for any stream, `TERM=dumb` is a terminal without any, and otherwise a stream has colour if it is a
terminal. That is the order of CPython's own tracebacks. Only the 8 colours of every terminal are used, which its owner
has chosen to be readable, and nothing is said by colour alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"


def is_terminal(stream: TextIO) -> bool:
    """Whether a line on `stream` can be drawn again: a terminal, but none that knows no commands (`TERM=dumb`)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether what is written to `stream` may hold colours."""
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
        """What suits a stream."""
        return cls(has_colours(stream))

    def __call__(self, text: str, *codes: str) -> str:
        """`text` in the colours and weights of `codes`."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.is_on and text and codes else text


PLAIN = Paint()
"""Text as it is."""
