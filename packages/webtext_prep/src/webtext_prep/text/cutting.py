"""Cutting contaminated passages out of a text, by the rules of the GPT-3 paper as Megatron-LM wrote them down.

Around each n-gram `margin` characters on both sides go, and from there on the rest of the sentence; the text falls
into pieces, and short ones go, too. (Brown et al. 2020, appendix C; Megatron-LM, tools/openwebtext/filter_ngrams.py.)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of `text` in lower case, in order."""
    if text.isascii():
        return _WORD.findall(text.lower())
    # Each by itself: lower-casing a whole text may split a word (a dotted capital I becomes two characters).
    return [word.lower() for word in _WORD.findall(text)]


def places_of(text: str) -> list[tuple[int, int]]:
    """Where each of `words_of(text)` begins and ends."""
    return [found.span() for found in _WORD.finditer(text)]


SENTENCE_ENDS = ".!?"
LINE_ENDS = SENTENCE_ENDS + "\n。！？"
"""Of sentences in more languages, and of lines: lists and poems have no other."""


@dataclass(frozen=True)
class Cut:
    """The pieces of a text that are left.

    Attributes:
        pieces: the pieces that stay, in order.
        used: the number of each hit that was cut out; the others lay in what an earlier one took along.
    """

    pieces: list[str]
    used: list[int]


def cut(
    text: str, hits: Sequence[tuple[int, int]], margin: int, shortest: int, ends_of_sentences: str = SENTENCE_ENDS
) -> Cut:
    """Cut `hits`, (start, end) in order of their starts, out of `text`; pieces of `shortest` characters or fewer go."""
    pieces, used, rest = [], [], 0
    for number, (start, end) in enumerate(hits):
        if start < rest:
            continue
        used.append(number)
        before = _last_end(text, rest, start - margin, ends_of_sentences)
        if before - rest > shortest:
            pieces.append(text[rest:before])
        rest = _next_end(text, end + margin, ends_of_sentences)
        if len(text) - rest <= shortest:
            break
    else:
        pieces.append(text[rest:])
    return Cut([piece.strip() for piece in pieces], used)


def joined(text: str, hits: Sequence[tuple[int, int]], ends_of_sentences: str) -> list[tuple[int, int]]:
    """The same hits, with hits put together that begin in the cut of an earlier one."""
    found: list[tuple[int, int]] = []
    rest = 0
    for start, end in hits:
        if found and start < rest:
            start, end = found[-1][0], max(found.pop()[1], end)
        found.append((start, end))
        rest = _next_end(text, end, ends_of_sentences)
    return found


def _last_end(text: str, begin: int, before: int, marks: str) -> int:
    """After the last end of a sentence at or before `before`; `begin` if there is none after it."""
    if before <= begin:
        return begin
    found = max(text.rfind(mark, begin + 1, before + 1) for mark in marks)
    return found + 1 if found >= 0 else begin


def _next_end(text: str, behind: int, marks: str) -> int:
    """After the first end of a sentence at or after `behind`; the end of the text if there is none."""
    found = _any_of(marks).search(text, behind)
    return found.end() if found else len(text)


@functools.cache
def _any_of(marks: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(marks)}]")
