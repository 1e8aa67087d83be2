"""`ftfy.fix_text`, asked only where it may change more than curly quotes.

ftfy repairs text that was decoded wrongly. Most of its time goes into looking for that: a regular expression of
sequences of characters that are hardly ever meant. Each such sequence has two non-ASCII characters of certain kinds
side by side, or one of a few that are suspect alone. So the runs of non-ASCII characters of a text say whether there
can be any, and a text has few different runs. Where nothing is left for ftfy but quotes, they are replaced here, for
the whole text at once; otherwise it is asked about the lines in question, since it goes line by line. The result is
always its own.
"""

from __future__ import annotations

import functools
import re
import unicodedata

_SUSPECT = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
"""The ASCII characters that ftfy may change, but for the `&` of entities."""
_LONGEST_SEGMENT = 1_000_000
"""ftfy cuts longer lines, by its default setting."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")
_SHORT_RUN = 32
"""Runs up to this length are remembered; longer ones, of scripts without spaces, hardly ever come again."""
_STRAIGHT = {**dict.fromkeys("\u02bc\u2018\u2019\u201a\u201b", "'"), **dict.fromkeys("\u201c\u201d\u201e\u201f", '"')}
"""Curly quotes to straight ones."""


def repair(text: str) -> str:
    """`ftfy.fix_text(text)`."""
    repaired = _repair_simply(text)
    if repaired is not None:
        return repaired
    import ftfy

    lines = text.split("\n")
    if max(map(len, lines)) >= _LONGEST_SEGMENT:
        return ftfy.fix_text(text)
    settings = ftfy.TextFixerConfig()
    done = []
    for number, line in enumerate(lines, 1):
        segment = line if number == len(lines) else line + "\n"
        # The only thing that one line leaves to the next ones: a `<` ends the unescaping of entities.
        if settings.unescape_html and "<" in segment:
            settings = settings._replace(unescape_html=False)
        repaired = _repair_simply(segment)
        done.append(ftfy.fix_text_segment(segment, settings) if repaired is None else repaired)
    return "".join(done)


def _repair_simply(text: str) -> str | None:
    """What ftfy makes of `text`, if that is no more than other quotes; None where it has to be asked."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded.translate(None, _SUSPECT)) != len(encoded) or ("&" in text and _ENTITY.search(text)):
        return None
    if text.isascii():
        return text
    runs = set(_NOT_ASCII.findall(text))
    if not all(
        _is_known_sound(run) if len(run) <= _SHORT_RUN else _is_sound(run) for run in runs
    ) or not unicodedata.is_normalized("NFC", text):
        return None
    for quote in _STRAIGHT.keys() & "".join(runs):
        text = text.replace(quote, _STRAIGHT[quote])
    return text


def _is_sound(run: str) -> bool:
    """Whether ftfy leaves a run of non-ASCII characters, but for quotes and normalization, in any context."""
    return _unsound().search(run) is None


_is_known_sound = functools.lru_cache(maxsize=1 << 16)(_is_sound)


@functools.lru_cache(maxsize=1)
def _unsound() -> re.Pattern[str]:
    """What a run has if ftfy may take it for wrongly decoded, or has another form for one of its characters.

    The pairs come from `ftfy.badness.BADNESS_RE`. In each of its alternatives, two neighbours are of its categories of
    characters, one of them of a category other than the letters of Greek and Cyrillic; or the first is one of Ø, Ù, Î,
    Ð and √, and the second common punctuation; or there is a character that is suspect alone.
    """
    from ftfy.badness import MOJIBAKE_CATEGORIES as CATEGORIES
    from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

    letters = CATEGORIES["lower_common"] + CATEGORIES["upper_common"]
    rare = "".join(
        members for name, members in CATEGORIES.items() if name not in ("common", "lower_common", "upper_common")
    ) + "\N{CYRILLIC CAPITAL LETTER DJE}"  # fmt: skip
    changed = "".join(re.escape(chr(code)) for code in (*LIGATURES, *WIDTH_MAP, *CONTROL_CHARS) if code > 127)
    return re.compile(
        f"[{rare}{letters}][{rare}]|[{rare}][{letters}]|[ØÙÎÐ√][{CATEGORIES['common']}]"
        f"|[{CATEGORIES['c1']}ŒœÂÃ]|[{changed}\u2028\u2029\ud800-\udfff]"
    )
