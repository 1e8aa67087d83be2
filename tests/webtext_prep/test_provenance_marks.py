"""Marks of where a text comes from: manifests of C2PA and other hidden signs go, and what is seen stays to the byte."""

import random
from collections import Counter

import pytest

from indexed_tokens import Tokenizer
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean
from webtext_prep.text.provenance_marks import has_credentials, without_marks

SENTENCE = "The river runs past the old mill, and in the garden behind it grow beans, roses and a tree of pears. "
TEXT = SENTENCE * 9


def manifest(size: int) -> str:
    """A manifest in a text (C2PA 2.4, annex A.8): a header with the magic, version and length, and its bytes."""
    data = b"C2PATXT\0" + b"\1" + size.to_bytes(4, "big") + random.Random(size).randbytes(size)
    return "\ufeff" + "".join(chr(0xFE00 + byte if byte < 16 else 0xE00F0 + byte) for byte in data)


ARMOUR = "-----BEGIN C2PA MANIFEST----- https://example.org/m.c2pa -----END C2PA MANIFEST-----"


def test_a_text_with_a_manifest_has_the_tokens_of_the_text():
    tokenizer = Tokenizer.gpt2()
    marked = TEXT + manifest(4000)
    assert len(tokenizer.encode(marked)) > 50 * len(tokenizer.encode(TEXT))
    assert without_marks(marked) == (TEXT, 1) and has_credentials(marked)


@pytest.mark.parametrize(
    ("marked", "plain", "marks"),
    [
        (f"One.{manifest(20)} Two.{manifest(30)}", "One. Two.", 2),
        (f"# {ARMOUR}\nprint('hello')\n", "\nprint('hello')\n", 1),
        (f"<!-- {ARMOUR} -->\nText", "\nText", 1),
        (ARMOUR.replace(" https", "\nhttps").replace("c2pa -", "c2pa\n-") + "\nText", "\nText", 1),
        ("a\ufe00\ufe01\ufe02b", "ab", 1),
        ("❄\ufe0f\ufe01\ufe02", "❄\ufe0f", 1),
        ("hidden\U000e0068\U000e0069 words", "hidden words", 1),
        ("a\U000e0001b", "ab", 1),
    ],
)
def test_marks_leave_a_text_and_are_counted(marked, plain, marks):
    assert without_marks(marked) == (plain, marks)


def test_what_is_seen_stays_to_the_byte():
    """Emoji with their selectors and joiners, flags, keycaps, variants of CJK, Mongolian and mathematical signs."""
    england = "🏴" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbeng") + "\U000e007f"
    pieces = [
        "❤\ufe0f", "☎\ufe0e", "👩\u200d❤\ufe0f\u200d👩", "1\ufe0f\u20e3", "#\ufe0f\u20e3", england,
        "🏳\ufe0f\u200d🌈", "🇩🇪", "👍🏽", "葛\U000e0100", "辻\U000e0101", "芦\ufe00", "ᠠ\u180b", "ᠨ\u180c", "≨\ufe00",
        "၀\ufe00", "☺\ufe0f", "x", "é", "\u00a0", "क्षि", "می\u200cخواهم", "\ufeff", "-----BEGIN", "\n",
    ]  # fmt: skip
    draw = random.Random(7)
    for _ in range(2000):
        # U+FEFF before a selector is how a manifest begins.
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(1, 12)))
        assert without_marks(text) == (text, 0)


@pytest.mark.parametrize(
    ("page", "is_marked"),
    [
        (b'<script type="application/c2pa">AAAA</script>', True),
        (b"<LINK REL=c2pa-manifest href=/m.c2pa>", True),
        (b"<p>application/c2pa is a media type</p>", False),
        (b'<a href="/c2pa-manifest">', False),
    ],
)
def test_a_page_with_a_manifest_is_known(page, is_marked):
    assert has_credentials("", page) == is_marked


def test_clean_counts_marks_and_notes_credentials():
    tally = Tally()
    documents = [Document("https://a.org/1", TEXT + manifest(100)), Document("https://a.org/2", TEXT + "\ufe00\ufe01")]
    first, second = Clean(language="any").process(documents, tally)
    assert (first.text, first.metadata.get("content_credentials")) == (TEXT, True)
    assert (second.text, "content_credentials" in second.metadata) == (TEXT, False)
    assert tally.notes == Counter(marks_removed=2)
