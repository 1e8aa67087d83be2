"""Marks of where a text comes from, which nobody sees and which are tokens: manifests of C2PA 2.4 (1 April 2026).

In a text such a manifest is U+FEFF and a run of variation selectors, one a byte (annex A.8): 4 kB in 205 tokens make
15,671 of them. In a text with comments it is a block in ASCII armour (A.9), in HTML an element (A.7). Selectors and tag
characters (U+E0000 to U+E007F) carry other hidden messages, too.

What is meant stays: one selector behind a sign that has variants, as emoji, CJK and Mongolian letters have, and the
tags of a flag (UTS 51, section 1.4.8).
"""

from __future__ import annotations

import re

from webtext_prep.text.tags import holds

_SELECTOR = "[\ufe00-\ufe0f\U000e0100-\U000e01ef]"
_RUN = re.compile(
    rf"(?P<kept>(?<=[^\sA-Za-z\u200b-\u200f\u2060-\u206f\ufeff]){_SELECTOR})?\ufeff?(?P<run>{_SELECTOR}++)"
)
_TAGS = re.compile("(?P<flag>\U0001f3f4[\U000e0030-\U000e007a]{1,32}+\U000e007f)|[\U000e0000-\U000e007f]++")
_ARMOUR = re.compile(
    r"(?:(?:#|//|--|;|%|/\*|<!--|!)[ \t]*+)?-----BEGIN C2PA MANIFEST-----\s++\S++\s++-----END C2PA MANIFEST-----"
    r"(?:[ \t]*+(?:\*/|-->))?"
)
_MAGIC = "".join(chr(0xFE00 + byte if byte < 16 else 0xE00F0 + byte) for byte in b"C2PATXT\0")
_IN_HTML = re.compile(
    rb"<(?:script|link)\b[^<>]{0,500}?['\"= ](?:application/c2pa|c2pa-manifest)['\"\s>]", re.IGNORECASE
)


def without_marks(text: str) -> tuple[str, int]:
    r"""A text without marks, and how many it had.

    >>> without_marks("snow \u2744\ufe0f\ufe01\ufe02 falls\ufeff\ufe00\ufe01")
    ('snow ❄️ falls', 2)
    """
    marks = 0
    if "-----BEGIN C2PA" in text:
        text, marks = _ARMOUR.subn("", text)
    if text.isascii():
        return text, marks
    data = text.encode("utf-8", "surrogatepass")
    # How tags and all selectors begin; one byte is found ten times as fast as two.
    if not any(begin[:1] in data and begin in data for begin in (b"\xf3\xa0", b"\xef\xb8")):
        return text, marks

    def of_run(found: re.Match[str]) -> str:
        nonlocal marks
        if len(found[0]) == 1:
            return found[0]
        marks += 1
        return found["kept"] or ""

    def of_tags(found: re.Match[str]) -> str:
        nonlocal marks
        marks += found["flag"] is None
        return found["flag"] or ""

    return _TAGS.sub(of_tags, _RUN.sub(of_run, text)), marks


def has_credentials(text: str, html: bytes = b"") -> bool:
    """Whether a text, or the page that it stands in, has a manifest."""
    return (
        _MAGIC in text
        or "-----BEGIN C2PA MANIFEST-----" in text
        or (holds(html, b"c2pa") and _IN_HTML.search(html) is not None)
    )
