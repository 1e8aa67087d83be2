"""langdetect in machine code: the probabilities of langdetect itself, to the last bit."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import langdetect
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep import cli
from webtext_prep.running.tasks import Context, Task
from webtext_prep.stages import clean
from webtext_prep.stages.clean import known_detectors
from webtext_prep.text.bayes_kernels import _COMPENSATED, Trials, _sum
from webtext_prep.text.languages.langdetect import COMPARED, Langdetect, load_factory

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


@pytest.fixture(scope="module")
def factory():
    return load_factory()


@pytest.fixture(scope="module")
def trials(factory):
    return Trials(factory)


def of_langdetect(factory, text):
    """What langdetect computes for every language, or None."""
    detector = factory.create()
    detector.append(text)
    try:
        detector.get_probabilities()
    except langdetect.LangDetectException:
        return None
    return detector.langprob


@given(texts)
def test_probabilities_are_equal_to_the_last_bit(factory, trials, text):
    found, expected = trials.probabilities(text), of_langdetect(factory, text)
    assert (None if found is None else found.tolist()) == expected


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


def test_mixtures_of_scripts_have_equal_probabilities(factory, trials):
    """Vietnamese letters counted as Latin where langdetect takes them for another script, and Latin ones were kept."""
    known = "ĐÀ ắ ế ộ Việt Nam thời tiết これは日本の天気についてのテキストです"
    for text in (known, *mixtures(250)):
        found = trials.probabilities(text)
        assert (None if found is None else found.tolist()) == of_langdetect(factory, text), text


def test_whole_documents_have_equal_probabilities(factory, trials):
    source = random.Random(4)
    for length in (*range(1, 30), 300, 1000, 3000, 12_000):
        words = " ".join(SENTENCES).split() * 15
        source.shuffle(words)
        text = " ".join(words)[:length]
        assert trials.probabilities(text).tolist() == of_langdetect(factory, text)


def test_verdicts_are_those_of_langdetect_as_its_users_call_it():
    langdetect.DetectorFactory.seed = 0
    detector, source = Langdetect(alone=10), random.Random(5)
    for number in range(40):
        assert detector.is_compiled == (number > 10)
        text = " ".join(source.choice(SENTENCES[:16])[at : at + 25] for at in (0, 5, 10))
        assert detector.detect(text).language == langdetect.detect(text)


def test_texts_that_differ_from_langdetect_are_left_to_langdetect(monkeypatch):
    """A new version of it, or of Python, may draw other random numbers."""
    detector = Langdetect(alone=0)
    expected = detector.detect(SENTENCES[0])
    monkeypatch.setattr(Trials, "probabilities", lambda self, text: np.eye(len(self.languages))[3])
    assert detector.detect(SENTENCES[0]) == expected
    assert not detector.is_compiled
    assert detector.detect(SENTENCES[0]) == expected


@pytest.mark.parametrize("documents, pays", [(2000, False), (2001, True), (None, True)])
def test_few_documents_are_left_to_langdetect(documents, pays, monkeypatch, tmp_path):
    """Each process compiled for seconds after its first 256 texts, though some hundred were all there were."""
    detector = Langdetect(alone=0)
    monkeypatch.setattr(clean, "_detector", lambda name: detector)
    hints = clean.Clean().hints(SimpleNamespace(expected_documents=lambda: documents))
    shard = tmp_path / "part-00000.jsonl"
    shard.write_text(json.dumps({"url": "http://a.org/", "text": SENTENCES[0] * 9}) + "\n")
    task = Task("part-00000", (shard,), (tmp_path / "out.jsonl",), hints=hints)
    clean.Clean(language="en").process_shard(task, Context(tmp_path, 1, lambda units: None))
    assert detector.is_compiled == pays
    detector.use_machine_code(pays=not pays)
    assert detector.detect(SENTENCES[0]) == Langdetect().detect(SENTENCES[0])


def test_after_the_first_texts_langdetect_is_not_asked(monkeypatch):
    detector = Langdetect(alone=0)
    for _ in range(COMPARED):
        expected = detector.detect(SENTENCES[0])
    monkeypatch.setattr(Langdetect, "_detect_slowly", None)
    assert detector.detect(SENTENCES[0]) == expected
    assert detector.is_compiled


def test_a_text_that_needs_more_random_numbers_is_left_to_langdetect():
    detector = Langdetect(alone=0)
    for _ in range(COMPARED + 1):
        expected = detector.detect(SENTENCES[0])
    detector._trials._numbers = detector._trials._numbers[:20]
    with pytest.raises(OverflowError):
        detector._trials.probabilities(SENTENCES[0])
    assert detector.detect(SENTENCES[0]) == expected
    assert detector.is_compiled


def test_ctrl_c_while_the_profiles_load_ends_the_command(tmp_path, monkeypatch, capsys):
    """langdetect took it for a profile that is not valid: `internal error`, and exit code 1 instead of 130."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "a.jsonl").write_text(json.dumps({"url": "http://a.org/", "text": SENTENCES[0] * 20}) + "\n")
    monkeypatch.setattr("langdetect.utils.lang_profile.LangProfile.__init__", interrupted)
    clean._detector.cache_clear()  # an earlier test's may have them
    arguments = ["--input", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "out"), "--workers", "1"]
    assert cli.main(["clean", *arguments]) == 130
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(known_detectors()))
def test_detectors_name_the_languages_of_real_texts(name):
    """300 characters of each of 54 languages; `benchmarks/languages.py` has more."""
    rows = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    detector = known_detectors()[name]()
    answers = {row["language"]: detector.detect(row["text"][:300]).language for row in rows}
    wrong = {language: answer for language, answer in answers.items() if answer[:2] != language[:2]}
    assert len(rows) == 55
    assert len(wrong) <= 2, wrong
    assert "en" not in wrong.values()


floats = st.floats(0, 1) | st.floats(1e-20, 1e-5)


@given(st.lists(floats, min_size=1, max_size=60))
def test_sums_are_those_of_python(values):
    assert _sum(np.array(values), _COMPENSATED) == sum(values)


@given(st.lists(floats, min_size=1, max_size=60))
def test_sums_with_compensation_are_those_of_python_3_12(values):
    """Neumaier's algorithm, as CPython's `sum` has it."""
    total, lost = values[0], 0.0
    for value in values[1:]:
        after = total + value
        lost += (total - after) + value if abs(total) >= abs(value) else (value - after) + total
        total = after
    assert _sum(np.array(values), True) == total + lost
