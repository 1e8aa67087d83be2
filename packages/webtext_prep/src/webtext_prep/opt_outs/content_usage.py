"""`Content-Usage: train-ai=n`, the IETF's AI preferences, as header and in robots.txt.

By draft-ietf-aipref-vocab-08 (14 September 2026) and draft-ietf-aipref-attach-05 (19 August 2026). A value is a
dictionary of structured fields (RFC 9651); a key or value that is not known says nothing, and neither does a value that
is no dictionary. Keys of earlier drafts (`bots`, `all`, `genai`) are not known: the draft says to ignore them. Of a
key that comes twice the last counts. Several statements are combined to the strictest (vocab, section 5.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from webtext_prep.opt_outs.usage_lines import read_usage
from webtext_prep.opt_outs.wishes import CONTENT_USAGE, HostWishes, Wish, shortened

KEY = "train-ai"
HEADER = "content-usage"
_SAYS = {"y": True, "n": False}
_KEY = r"[a-z*][a-z0-9_.*-]*+"
_ITEM = (
    r"(?:[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*+"  # a token
    r"|-?+[0-9]{1,15}+(?>(?:\.[0-9]{1,3}+)?)"
    r"|%?+\"(?>(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\[\"\\])*)\""
    r"|:[A-Za-z0-9+/=]*+:|\?[01]|@-?+[0-9]{1,15}+)"
)
_PARAMETERS = rf"(?>(?:;\x20*+{_KEY}(?>(?:={_ITEM})?))*)"
_LIST = rf"\(\x20*+(?>(?:{_ITEM}{_PARAMETERS}(?:\x20++|(?=\))))*)\)"
_MEMBER = re.compile(rf"({_KEY})(?>(?:=({_ITEM}|{_LIST}))?){_PARAMETERS}")
_DICTIONARY = re.compile(rf"(?>(?:{_MEMBER.pattern}(?>(?:[ \t]*+,[ \t]*+{_MEMBER.pattern})*))?)")


def says(value: str) -> bool | None:
    """Whether a value allows training; None where it says nothing of it.

    Raises ValueError for a value that is no dictionary.

    >>> says("search=y, train-ai=n;reason=tdm"), says("train-ai"), says("train-ai=n, train-ai=y")
    (False, None, True)
    """
    if _DICTIONARY.fullmatch(value.strip(" ")) is None:
        raise ValueError("no dictionary")
    said = [_SAYS.get(member[2] or "") for member in _MEMBER.finditer(value) if member[1] == KEY]
    return said[-1] if said else None


def read(lines: Iterable[str], source: str) -> HostWishes:
    """The rules in the lines of a robots.txt that hold for our crawler."""
    return read_usage(lines, "Content-Usage", says, CONTENT_USAGE, source)


def read_header(values: Iterable[str], url: str) -> Wish | None:
    """What the header of a page says, all of its lines together. Raises ValueError as `says`."""
    value = ", ".join(values)
    is_allowed = says(value)
    return None if is_allowed is None else Wish(CONTENT_USAGE, is_allowed, shortened(f"Content-Usage: {value}"), url)
