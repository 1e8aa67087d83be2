"""Words by the properties that the package `regex` has (Unicode 18, as the table of the product)."""

import regex

_MARK = r"[\p{M}\u200c\u200d\u0e33\u0eb3\uff9e\uff9f]"
_ALONE = (
    r"(?=[\p{L}\p{N}])[\p{Ideographic}\p{WB=Katakana}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}"
    r"\p{Script=Yi}\p{Script=Bopomofo}]|(?=\p{L})[\p{LB=SA}\p{LB=AK}\p{LB=AP}\p{LB=AS}]"
)
_LETTER = rf"(?!{_MARK}|{_ALONE})[\p{{L}}\p{{N}}_]"
WORD = regex.compile(rf"(?!{_MARK})(?:{_ALONE}){_MARK}*|{_LETTER}(?:{_LETTER}|{_MARK})*")


def plain_words(text: str) -> list[tuple[str, int, int]]:
    """Each word of a text, case folded, and where it begins and ends."""
    return [(found[0].casefold(), *found.span()) for found in WORD.finditer(text)]
