"""`Content-Signal: ai-train=no` in robots.txt: Cloudflare's Content Signals Policy of 24 September 2025.

A signal stands in a group of robots.txt, and may have a path in front: then it is for the pages that begin so. One in
front of all groups is taken for one for all crawlers. `ai-train` says yes or no; without it nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable

from webtext_prep.opt_outs.usage_lines import read_usage
from webtext_prep.opt_outs.wishes import CONTENT_SIGNAL, HostWishes

_SAYS = {"yes": True, "no": False}


def says(value: str) -> bool | None:
    """Whether a value allows training; None where it says nothing of it.

    >>> says("search=yes, ai-train=no"), says("search=yes")
    (False, None)
    """
    signals = (signal.partition("=") for signal in value.lower().split(","))
    found = [_SAYS.get(value.strip()) for name, _, value in signals if name.strip() == "ai-train"]
    return min((one for one in found if one is not None), default=None)


def read(lines: Iterable[str], source: str) -> HostWishes:
    """The rules in the lines of a robots.txt that hold for our crawler."""
    return read_usage(lines, "Content-Signal", says, CONTENT_SIGNAL, source)
