"""A word is the same in every script, for Python and for machine code, on every machine."""

import unicodedata

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.webtext_prep.support.plain_words import WORD, plain_words

from webtext_prep.documents.packed import PackedTexts
from webtext_prep.text import words
from webtext_prep.text.fingerprints import Shingling, shingle_spans

EVERYTHING = range(0x110000)
AWKWARD = "aB1_ .-中文かカーｶﾞᄀ한กาำะเ្ក្ခ\u200c\u200d\u0345\u0301ßẞİǰŉ\u00ad\ud800\U0001f600न\u0940ـَ"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Don't stop at 3.5", "don t stop at 3 5"),
        ("na\u00efve caf\u00e9, cafe\u0301", "na\u00efve caf\u00e9 cafe\u0301"),
        ("GPT-2模型，很大", "gpt 2 模 型 很 大"),
        ("図書館でカードを", "図 書 館 で カ ー ド を"),
        ("ｶﾞｽ ２０ｋｍ", "ｶﾞ ｽ ２０ｋｍ"),
        ("서울은 대한민국의 수도", "서울은 대한민국의 수도"),
        ("नई दिल्ली यमुना नदी", "नई दिल्ली यमुना नदी"),
        ("বাংলাদেশের রাজধানী", "বাংলাদেশের রাজধানী"),
        ("தமிழ்நாடு மாநிலம்", "தமிழ்நாடு மாநிலம்"),
        ("بِسْمِ ٱللَّهِ", "بِسْمِ ٱللَّهِ"),
        ("می\u200cخواهم بروم", "می\u200cخواهم بروم"),
        ("ภาษาดี ๒๕๖๗", "ภ า ษ า ดี ๒๕๖๗"),
        ("ພາສາ", "ພ າ ສ າ"),
        ("ខ្មែរ", "ខ្ មែ រ"),
        ("မြန်မာ", "မြ န် မာ"),
        ("ꦲꦏ꧀ꦱꦫ", "ꦲ ꦏ꧀ ꦱ ꦫ"),
        ("བོད་ཡིག", "བོད ཡིག"),
        ("አማርኛ፡ቋንቋ", "አማርኛ ቋንቋ"),
        ("ꆈꌠ", "ꆈ ꌠ"),
        ("❤️ \u0301x 👨\u200d👩", "x"),
        ("Straße STRASSE İX", "strasse strasse i\u0307x"),
    ],
)
def test_a_word_is_a_run_of_letters_with_marks_or_one_character_of_a_script_without_spaces(text, expected):
    assert words.words_of(text) == expected.split(" ")
    assert [text[start:end] for start, end in words.places_of(text)] == [found[0] for found in WORD.finditer(text)]


def test_every_character_of_unicode_is_as_the_database_says():
    """The tables are those of Unicode 18, and agree with the running Python on all that it knows."""
    kinds, folded, several, version = words.characters()
    assert version == "18"
    categories = np.array([unicodedata.category(character) for character in map(chr, EVERYTHING)])
    is_known, first = categories != "Cn", categories.astype("<U1")
    is_word = np.isin(first, ["L", "N", "M"]) | np.isin(np.arange(len(kinds)), [0x200C, 0x200D, ord("_")])
    assert np.array_equal((kinds != words.OTHER)[is_known], is_word[is_known])
    assert (kinds[first == "M"] == words.MARK).all()
    for point in np.flatnonzero(is_known & (folded != np.arange(len(kinds)))).tolist():
        assert chr(point).casefold() == several.get(point, chr(min(folded[point], 0x10FFFF)))
    changed = [point for point in EVERYTHING if chr(point).casefold() != chr(point)]
    assert (folded[changed] != changed).all()


def is_of_many(point: int) -> bool:
    """Whether it is in a large block of characters of one kind, Han, Hangul or none."""
    return 0x3400 < point < 0x9FF0 or 0xAC00 < point < 0xD7A0 or 0x17000 < point < 0x1AFF0 or point > 0x20000


@pytest.mark.exhaustive
@pytest.mark.parametrize("before, behind", [("a", "b"), ("中", "文")])
def test_machine_code_finds_the_words_that_python_does_whatever_the_character(before, behind):
    chosen = [chr(point) for point in EVERYTHING if not (is_of_many(point) and point % 64)]
    text = " . ".join(before + character + behind for character in chosen)
    hashes, starts, ends, _ = shingle_spans(PackedTexts.of([text]), Shingling("word", 1))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == words.places_of(text)
    found = (word.encode("utf-8", "surrogatepass") for word in words.words_of(text))
    assert hashes.tolist() == list(map(xxhash.xxh3_64_intdigest, found))


@given(st.text(st.sampled_from(AWKWARD), max_size=40) | st.text(st.characters(exclude_categories=()), max_size=40))
def test_words_are_those_of_the_properties_of_unicode(text):
    expected = plain_words(text)
    assert words.places_of(text) == [(start, end) for _, start, end in expected]
    assert words.words_of(text) == [words.fold(text[start:end]) for _, start, end in expected]
    assert words.has_word(text) == bool(expected)
    if not any(unicodedata.category(character) == "Cn" for character in text):
        assert words.fold(text) == text.casefold()


def test_a_character_of_chinese_or_thai_says_less_than_a_word():
    shares = words.shares(["word", "中", "ไ", "ន", "नदी", "한국"]) / words.WHOLE_WORD
    assert shares.round(3).tolist() == [1, 0.625, 0.333, 0.333, 1, 1]
