"""Compiled fingerprints equal the readable definition, and signatures are datasketch's, whatever the text."""

import hashlib
import itertools
import re

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from tests.webtext_prep.support.plain_shingles import datasketch, shingle_hashes, shingles, signature
from tests.webtext_prep.support.plain_words import plain_words

from webtext_prep.documents.packed import PackedTexts
from webtext_prep.errors import InputError
from webtext_prep.text import fingerprint_kernels, fingerprints
from webtext_prep.text.fingerprints import Shingling

# Letters that fold to others, to several, or to some that are no part of a word; spaces; what is neither; surrogates.
AWKWARD = "aB0_ .-\n\t\x00\x1c\x85\u00a0\u3000ßẞİŉΐΰﬃΣςЖ日本語\u0301\u200b\u1fb7\ud800\udc00\udfff😀𐐀"
ANY_TEXT = (
    st.text(st.characters(exclude_categories=()), max_size=60)
    | st.text(st.sampled_from(AWKWARD), max_size=40)
    | st.text(st.sampled_from("ab .Z"), max_size=300)
)
SHINGLINGS = st.builds(Shingling, st.sampled_from(["word", "char"]), st.integers(1, 20) | st.just(100))


def defined_set(text: str, shingling: Shingling) -> np.ndarray:
    return shingle_hashes(shingles(text, shingling.kind, shingling.size))


def as_shingle(passage: str, kind: str) -> bytes:
    """A passage that is one shingle, as it is hashed."""
    folded = passage.casefold()
    if kind == "char":
        return re.sub(r"\s+", " ", folded).encode("utf-8", "surrogatepass")
    return " ".join([word for word, _, _ in plain_words(passage)] or folded.split()).encode("utf-8", "surrogatepass")


def assert_as_defined(texts: list[str], shingling: Shingling) -> None:
    """Signatures and sets of a batch are those of datasketch and of the definition."""
    signatures = fingerprints.signatures(texts, shingling)
    assert (signatures.shape, signatures.dtype) == ((len(texts), fingerprints.PERMUTATIONS), np.uint32)
    values, ends = fingerprints.shingle_sets(texts, shingling)
    assert (values.dtype, ends.dtype, len(ends)) == (np.uint64, np.int64, len(texts))
    for row, text in enumerate(texts):
        expected = shingles(text, shingling.kind, shingling.size)
        assert np.array_equal(signatures[row], signature(expected))
        assert np.array_equal(values[ends[row - 1] if row else 0 : ends[row]], shingle_hashes(expected))


def test_shinglings_are_parsed():
    assert Shingling.parse("word:5") == Shingling("word", 5)
    assert Shingling.parse("char:100") == Shingling("char", 100)
    for wrong in ("", "word", "line:5", "word:0", "word:101", "char:-1", "char:5:5"):
        with pytest.raises(InputError, match="is not known: give word:N or char:N"):
            Shingling.parse(wrong)


@pytest.mark.parametrize("kind", ["word", "char"])
def test_every_code_point_is_treated_as_python_does(kind):
    """Each between two letters: is it part of the word, a space, or punctuation, and what does it fold to?"""
    points = [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFB00, 0x10500), *range(0x1E900, 0x1E960), 0x10FFFF]
    texts = ["".join(f"x{chr(point)}y " for point in points[at : at + 50]) for at in range(0, len(points), 50)]
    values, ends = fingerprints.shingle_sets(texts, Shingling(kind, 2))
    for row, text in enumerate(texts):
        found = values[ends[row - 1] if row else 0 : ends[row]]
        assert np.array_equal(found, defined_set(text, Shingling(kind, 2))), hex(points[50 * row])


def test_case_folding_makes_no_text_longer_than_there_is_room_for():
    from webtext_prep.text.fingerprint_kernels import GROWTH

    table = fingerprint_kernels.alphabet("char")
    for point in np.flatnonzero(table.sizes == fingerprint_kernels.SEQUENCE):
        sizes = table.sequence_sizes[table.codes[point]]
        assert sum(sizes[sizes <= 4]) <= GROWTH * len(chr(point).encode())
    for point in np.flatnonzero(table.sizes <= 4):
        assert table.sizes[point] <= GROWTH * len(chr(point).encode("utf-8", "surrogatepass"))


@given(st.lists(ANY_TEXT, max_size=4), SHINGLINGS)
@example(["", " ", "..", "a", "a b", "!? ..."], Shingling("word", 2))
@example(["ŉ\u0345 ß\u1fb7 x", "ΐ ΐ", " \u0390\n\n\ta"], Shingling("char", 2))
def test_batches_are_what_the_definition_says(texts, shingling):
    assert_as_defined(texts, shingling)


@pytest.mark.parametrize("shingling", [Shingling("word", 5), Shingling("char", 5), Shingling("char", 16)])
def test_batches_and_long_texts_change_nothing(shingling, monkeypatch):
    """More shingles than are hashed at a time, and more texts than are read at a time."""
    long = " ".join(f"Word{number}" for number in range(3000))
    texts = ["", long, "short", long + " é", long[:5000], "é " * 1500, "x"]
    assert_as_defined(texts, shingling)
    monkeypatch.setattr(fingerprints, "_BATCH", 7)
    assert_as_defined(texts, shingling)


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 3), st.sampled_from("aé"))
def test_shingles_of_all_lengths_are_hashed_alike(lengths, size, letter):
    """Around the stripes of XXH32, of one and more bytes."""
    assert_as_defined([" ".join(letter * length + "x" for length in lengths)], Shingling("word", size))


def test_signatures_stay_what_they_are():
    """Golden values: `datasketch.MinHash(128, seed=1, hashfunc=xxhash.xxh32_intdigest)` of version 2.0.0."""
    texts = ["The quick brown fox jumps over the lazy dog", "Der schnelle Fuchs, STRASSE und Straße"]
    found = fingerprints.signatures(texts, Shingling("word", 2))
    assert found[0, :4].tolist() == [173066774, 437212599, 197786035, 435021120]
    assert (
        hashlib.sha256(found.astype("<u4").tobytes()).hexdigest()
        == "aaf428ba2bbfb1990eeff990eec9b82b2cb2918f55d896bcbddb7b195f5e78a5"
    )
    sketch = datasketch.MinHash(128, seed=1, hashfunc=xxhash.xxh32_intdigest, scheme="affine32")
    words = texts[0].lower().split()
    for pair in itertools.pairwise(words):
        sketch.update(" ".join(pair).encode())
    assert found[0].tolist() == sketch.hashvalues.tolist()


@pytest.mark.parametrize(
    "text",
    ["a " * (1 << 18), "x" * 1_000_000, ("ab" * 50_000 + " ") * 6, "." * 500_000, " \n" * 300_000, "ΐ" * 200_000],
    ids=["letters", "one word", "long words", "punctuation", "spaces", "growing"],
)
@pytest.mark.parametrize("kind", ["word", "char"])
def test_unusual_texts_take_linear_time(text, kind):
    """A quadratic step would take hours for each."""
    (found,) = fingerprints.signatures([text], Shingling(kind, 5))
    values, ends = fingerprints.shingle_sets([text], Shingling(kind, 5))
    expected = shingles(text, kind, 5)
    assert np.array_equal(found, signature(expected))
    assert np.array_equal(values, shingle_hashes(expected))
    assert ends.tolist() == [len(values)]


@given(ANY_TEXT, SHINGLINGS)
def test_spans_are_where_the_shingles_lie(text, shingling):
    values, starts, ends, _ = fingerprints.shingle_spans(PackedTexts.of([text]), shingling)
    assert (values.dtype, starts.dtype, ends.dtype) == (np.uint64, np.int64, np.int64)
    assert len(values) == len(starts) == len(ends)
    assert np.array_equal(np.unique(values), defined_set(text, shingling))
    assert (np.diff(starts) >= 0).all()
    for value, start, end in zip(values, starts, ends, strict=True):
        assert 0 <= start < end <= len(text)
        # Of "ß", which folds to "ss", one s may be a shingle: more is shown than was hashed.
        if all(len(character.casefold()) == 1 for character in text) and len(values) > 1:
            assert value == xxhash.xxh3_64_intdigest(as_shingle(text[start:end], shingling.kind))


def test_spans_of_a_text_that_case_folding_lengthens():
    text = PackedTexts.of(["Straße, nach ŉord"])
    _, starts, ends, _ = fingerprints.shingle_spans(text, Shingling("word", 2))
    # U+0149 folds to an apostrophe, which is a letter to Python, and n.
    assert [("Straße, nach ŉord"[s:e]) for s, e in zip(starts, ends, strict=True)] == ["Straße, nach", "nach ŉord"]
