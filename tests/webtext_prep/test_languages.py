"""Detectors of languages. langdetect's answers come from langdetect-rs: its probabilities, to the last bit."""

import json
import random
from pathlib import Path
from pydoc_data.topics import topics

import langdetect
import langdetect_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep import cli
from webtext_prep.text import languages
from webtext_prep.text.english import is_plainly_english
from webtext_prep.text.languages import Langdetect, known_detectors, load_factory

SENTENCES = [
    "The committee met on Thursday to discuss whether the old bridge should be repaired or replaced.",
    "Der Ausschuss traf sich am Donnerstag, um über die alte Brücke zu sprechen; GEÄNDERT wurde nichts.",
    "Le comité s’est réuni jeudi pour décider si le vieux pont doit être réparé ou remplacé.",
    "El comité se reunió el jueves para decidir si el viejo puente debe repararse.",
    "Ủy ban đã họp vào thứ Năm để thảo luận xem cây cầu cũ nên được sửa chữa hay thay thế.",
    "U\u0309y ban đa\u0303 ho\u0323p va\u0300o thư\u0301 Năm.",
    "Comitetul s-a întrunit joi pentru a discuta dacă vechiul pod ar trebui reparat, și țara așteaptă.",
    "Комитет собрался в четверг, чтобы обсудить, нужно ли ремонтировать старый мост (bridge).",
    "委员会星期四开会讨论这座旧桥应该修理还是应该更换。",
    "委員會星期四開會討論這座舊橋應該修理還是更換。",
    "委員会は木曜日に、古い橋を修理すべきか取り替えるべきかを話し合った。カタカナ",
    "위원회는 목요일에 모여 오래된 다리를 수리할지 교체할지 논의했다.",
    "اجتمعت اللجنة يوم الخميس لمناقشة ما إذا كان ينبغي إصلاح الجسر القديم، ی",
    "समिति ने गुरुवार को बैठक की कि पुराने पुल की मरम्मत की जाए या नहीं।",
    "Η επιτροπή συνεδρίασε την Πέμπτη για να συζητήσει το θέμα της παλιάς γέφυρας.",
    "คณะกรรมการประชุมกันเมื่อวันพฤหัสบดี",
    "write to someone.else@example.org or see https://example.org/a_b?c=d&e#f  now",
    "12 345, 6.7 (89)",
    "\U0001f600 \U0001d400\U0001d401 \U00020000 ａｂｃ ẞß ǅ ŸŸ",
]

TEXTS = Path(__file__).resolve().parents[2] / "data" / "languages.jsonl"

pieces = st.sampled_from(SENTENCES).flatmap(
    lambda sentence: st.builds(
        lambda start, length, change: change(sentence[start : start + length]),
        st.integers(0, 40),
        st.integers(1, 80),
        st.sampled_from([str, str.upper, str.title, str.swapcase, lambda text: text.replace(" ", "   ")]),
    )
)
texts = st.lists(pieces | st.text(max_size=5), max_size=8).map(" ".join) | st.text(st.characters(), max_size=40)


def probabilities(factory, text, error):
    """What a factory's detector computes for every language that is likely enough, or None."""
    detector = factory.create()
    detector.append(text)
    try:
        return [(found.lang, found.prob) for found in detector.get_probabilities()]
    except error:
        return None


@pytest.fixture(scope="module")
def both():
    """A function: what langdetect-rs says of a text, and what langdetect says."""
    fast, own = load_factory("langdetect_rs"), load_factory("langdetect")

    def ask(text):
        said = probabilities(own, text, langdetect.LangDetectException)
        return probabilities(fast, text, langdetect_rs.LangDetectException), said

    return ask


@given(texts)
def test_probabilities_are_equal_to_the_last_bit(both, text):
    found, expected = both(text)
    assert found == expected


SCRIPTS = [
    *("the old bridge und", "ABC DEF", "ñçß țară șarpe", "ĐÀ ắ ế ộ Việt Nam thời tiết", "ẠẢẤḂẞ"),
    *("a\u0300e\u0301 o\u0323 \u0300", "これは日本の天気", "カタカナ", "委員會星期", "ㄅㄆㄇ", "위원회는"),
    *("Комитет", "اجتمعت ی", "समिति ने", "Η επιτροπή", "คณะ", "ა ბ", "ע ב", "12,3", "  "),
    *("x@y.org", "http://a.b/c", "\U0001f600", "ǅ ŸŸ", "\u3000"),
]


def mixtures(number):
    """Short pieces of several scripts, one after another, in which no script prevails."""
    source = random.Random(number)
    for _ in range(number):
        chosen = source.choices(SCRIPTS, k=source.randint(1, 12))
        cut = [script[source.randrange(len(script)) :][: source.randint(1, 14)] for script in chosen]
        yield "".join(piece + source.choice(["", " "]) for piece in cut)


def test_mixtures_of_scripts_have_equal_probabilities(both):
    """langdetect takes Vietnamese letters for another script than Latin."""
    known = "ĐÀ ắ ế ộ Việt Nam thời tiết これは日本の天気についてのテキストです"
    for text in (known, *mixtures(250)):
        found, expected = both(text)
        assert found == expected, text


def test_whole_documents_have_equal_probabilities(both):
    source = random.Random(4)
    for length in (*range(1, 30), 300, 1000, 3000, 12_000):
        words = " ".join(SENTENCES).split() * 15
        source.shuffle(words)
        found, expected = both(" ".join(words)[:length])
        assert found == expected


def test_pieces_of_every_language_have_equal_probabilities(both):
    for row in map(json.loads, TEXTS.read_text(encoding="utf-8").splitlines()):
        for length in (40, 400):
            found, expected = both(row["text"][:length])
            assert found == expected, row["language"]


def mixed_texts(count):
    """English with words or sentences of another language, or nothing but words that both may have, of any shares."""
    source = random.Random(7)
    english = " ".join(topics.values()).split()
    others = [row["text"].split() for row in map(json.loads, TEXTS.read_text(encoding="utf-8").splitlines())]
    longer = [[word for word in own if len(word) > 4] or own for own in others]
    function = [word for word in set(english) if len(word) < 5 and word.isalpha() and word.islower()]
    for number in range(count):
        own, share, words = source.choice(longer if number % 4 == 1 else others), source.random(), []
        while len(words) < 200:
            start, length = source.randrange(len(own)), source.randrange(2, 25)
            if number % 4 == 0:
                words.append(source.choice(english if source.random() < share else own))
            elif number % 4 == 1:
                words.append(source.choice(function if source.random() < share / 2 else own))
            elif source.random() < share:
                start = source.randrange(len(english))
                words += english[start : start + length]
            else:
                words += own[start : start + (length if number % 4 == 2 else 2)]
        text = " ".join(words)[:1000]
        yield text.upper() if source.random() < 0.02 else text


def test_what_is_told_by_its_words_is_english_to_langdetect():
    """12,000 hostile texts, of all its languages and more."""
    told, detector = 0, Langdetect()
    for text in mixed_texts(12_000):
        if is_plainly_english(text):
            told += 1
            assert detector.detect(text).language == "en", text
    assert told > 500


def test_short_texts_lists_code_and_addresses_are_left_to_the_detector():
    prose = topics["assignment"][:1000]
    assert is_plainly_english(topics["context-managers"][:1000])
    for text in ("", prose[:200], "the " * 250, prose.upper(), prose + " https://example.org/the/of", "x = 1\n" * 90):
        assert not is_plainly_english(text)


def test_verdicts_are_those_of_langdetect_as_its_users_call_it():
    langdetect.DetectorFactory.seed = 0
    detector, source = Langdetect(), random.Random(5)
    for _ in range(40):
        text = " ".join(source.choice(SENTENCES[:16])[at : at + 25] for at in (0, 5, 10))
        assert detector.detect(text).language == langdetect.detect(text)


def test_ctrl_c_while_the_profiles_load_ends_the_command(tmp_path, monkeypatch, capsys):
    """langdetect takes it for a profile that is not valid: `internal error`, and exit code 1 instead of 130."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "a.jsonl").write_text(json.dumps({"url": "http://a.org/", "text": SENTENCES[0] * 20}) + "\n")
    monkeypatch.setattr("langdetect_rs.utils.lang_profile.LangProfile.__init__", interrupted)
    languages._detector.cache_clear()  # an earlier test's may have them
    arguments = ["--input", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "out"), "--workers", "1"]
    assert cli.main(["clean", *arguments]) == 130
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(known_detectors()))
def test_detectors_name_the_languages_of_real_texts(name):
    """300 characters of each of 54 languages."""
    rows = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    detector = known_detectors()[name]()
    answers = {row["language"]: detector.detect(row["text"][:300]).language for row in rows}
    wrong = {language: answer for language, answer in answers.items() if answer[:2] != language[:2]}
    assert len(rows) == 55
    assert len(wrong) <= 2, wrong
    assert "en" not in wrong.values()
