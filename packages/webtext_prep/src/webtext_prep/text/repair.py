"""Repair of wrongly decoded text by ftfy, asked only where it may change something.

By default only wrong decoding is repaired: UTF-8 that was read as another encoding, bytes of windows-1252 that were
read as C1 controls, halves of characters beyond 16 bits (surrogates). All else that `ftfy.fix_text` does by default
(entities, widths, ligatures, quotes, line ends, control characters, NFC) changes text that was decoded rightly: full-
width punctuation is the right one in Chinese and Japanese, U+02BC a letter in Ukrainian. It is done on demand.

Most of ftfy's time goes into looking for wrong decoding: a regular expression of sequences of characters that are
hardly ever meant. Each such sequence has two non-ASCII characters of certain kinds side by side, or one of a few that
are suspect alone. So the runs of non-ASCII characters of a text say whether there can be any, and a text has few
different runs. Where nothing is left for ftfy but quotes, they are replaced here, for the whole text at once;
otherwise it is asked about the lines in question, since it goes line by line.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftfy import TextFixerConfig

_SUSPECT = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
"""The ASCII characters that ftfy may change, but for the `&` of entities."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_C1 = re.compile("[\x80-\x9f]")
_JOINED = re.compile("[\xc2-\xdf]\x85|[\xe0-\xf4](?:[^\x00-\x7f]{1,2}\x85|\x85[^\x00-\x7f])")
"""U+0085 that may be one of the bytes of a character of UTF-8."""
_SOFT_HYPHEN = re.compile(r"(?<=[^\s\d\xad])\xad+(?=[^\W\d_])")
"""Where it is a place for a hyphen. Beside space and digits, old programs wrote it for a hyphen or a dash itself."""
_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")
_STRAIGHT = {**dict.fromkeys("\u02bc\u2018\u2019\u201a\u201b", "'"), **dict.fromkeys("\u201c\u201d\u201e\u201f", '"')}
"""Curly quotes to straight ones."""


def repair(text: str) -> str:
    """`text` without wrong decoding.

    It is what ftfy makes of each line (`_only_decoding`), but that two things are taken for meant: a line that speaks
    of wrong decoding, since a character that would come out stands in it rightly, too (`Ä± is what ı becomes`); and
    U+0085, a line end of Unicode, where nothing else beside it or in its line is of the kind.
    """
    if text.isascii() or _is_sound_text(text, is_full=False):
        return text
    return "\n".join(map(_repair_line, text.split("\n")))


def _repair_line(line: str) -> str:
    if line.isascii() or _is_sound_text(line, is_full=False):
        return line
    if "\x85" in line and len(_C1.findall(line)) == line.count("\x85") and not _JOINED.search(line):
        return "\x85".join(map(_repair_line, line.split("\x85")))
    import ftfy

    return line if _speaks_of_it(line) else ftfy.fix_text(line, _only_decoding())


def _speaks_of_it(line: str) -> bool:
    """Whether a line holds a character both rightly and wrongly decoded."""
    import ftfy
    from ftfy.chardata import UTF8_DETECTOR_RE

    others = set(UTF8_DETECTOR_RE.sub("", line))
    for found in UTF8_DETECTOR_RE.finditer(line):
        repaired = ftfy.fix_encoding(found[0])
        if repaired != found[0] and not repaired.isascii() and others.issuperset(_NOT_ASCII.findall(repaired)):
            return True
    return False


@functools.lru_cache(maxsize=1)
def _only_decoding() -> TextFixerConfig:
    """The settings of ftfy that repair wrong decoding, without those that change right text."""
    import ftfy

    return ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        normalization=None,
    )


def without_places_to_break(text: str) -> tuple[str, int, int]:
    r"""`text` without soft hyphens in words and zero-width spaces, which nobody sees, and how many of each it had.

    A text with them is no duplicate of the same one without, and every piece of a word is a token of its own. It must
    have been repaired: U+00AD is half of a wrongly decoded `í`, say.

    >>> without_places_to_break("Ver\xadwal\xadtung, a\u200b/b, 10\xad20")
    ('Verwaltung, a/b, 10\xad20', 2, 1)
    """
    hyphens = spaces = 0
    if text.isascii():
        return text, 0, 0
    if "\xad" in text:
        before = text.count("\xad")
        text = _SOFT_HYPHEN.sub("", text)
        hyphens = before - text.count("\xad")
    # Zero-width space, word joiner, zero-width no-break space; the joiners U+200C and U+200D are part of the spelling.
    for sign in "\u200b\u2060\ufeff":
        if sign in text:
            spaces += text.count(sign)
            text = text.replace(sign, "")
    return text, hyphens, spaces


def repair_all(text: str) -> str:
    """`ftfy.fix_text(text)`."""
    repaired = _repair_simply(text)
    if repaired is not None:
        return repaired
    import ftfy

    lines = text.split("\n")
    if max(map(len, lines)) >= 1_000_000:  # ftfy cuts longer lines, by its default setting
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
    """What ftfy makes of `text` by default, if that is no more than other quotes; None where it has to be asked."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded.translate(None, _SUSPECT)) != len(encoded) or ("&" in text and _ENTITY.search(text)):
        return None
    if text.isascii():
        return text
    if not _is_sound_text(text, is_full=True) or not unicodedata.is_normalized("NFC", text):
        return None
    for quote, straight in _STRAIGHT.items():
        if quote in text:
            text = text.replace(quote, straight)
    return text


def _is_sound_text(text: str, *, is_full: bool) -> bool:
    # Longer runs, of scripts without spaces, hardly ever come again.
    return all(
        _is_known_sound(run, is_full) if len(run) <= 32 else _is_sound(run, is_full)
        for run in set(_NOT_ASCII.findall(text))
    )


def _is_sound(run: str, is_full: bool) -> bool:
    """Whether ftfy leaves a run of non-ASCII characters, but for quotes and normalization, in any context."""
    return _unsound(is_full).search(run) is None


_is_known_sound = functools.lru_cache(maxsize=1 << 16)(_is_sound)


@functools.cache
def _unsound(is_full: bool) -> re.Pattern[str]:
    """What a run has if ftfy may take it for wrongly decoded, or, in full, has another form for one of its characters.

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
    codes = (*LIGATURES, *WIDTH_MAP, *CONTROL_CHARS, 0x2028, 0x2029) if is_full else ()
    changed = "".join(re.escape(chr(code)) for code in codes if code > 127)
    return re.compile(
        f"[{rare}{letters}][{rare}]|[{rare}][{letters}]|[ØÙÎÐ√][{CATEGORIES['common']}]"
        f"|[{CATEGORIES['c1']}ŒœÂÃ]|[{changed}\ud800-\udfff]"
    )
