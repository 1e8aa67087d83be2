"""Fingerprints of whole batches are those of the readable definition, and signatures are datasketch's."""

import re

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.near_duplicates import fingerprints
from webtext_prep.near_duplicates.fingerprints import Shingling

ANY_TEXT = st.text(st.characters(), max_size=60) | st.text(st.sampled_from("aB ß\u0390İ.\n\u3000\ud800"), max_size=40)
SHINGLINGS = st.builds(Shingling, st.sampled_from(["word", "char"]), st.integers(1, 7))


def defined_set(text: str, shingling: Shingling) -> np.ndarray:
    return fingerprints.shingle_hashes(fingerprints.shingles(text, shingling.kind, shingling.size))


def as_shingle(passage: str, kind: str) -> bytes:
    """A passage that is one shingle, as it is hashed."""
    folded = passage.casefold()
    if kind == "char":
        return re.sub(r"\s+", " ", folded).encode("utf-8", "surrogatepass")
    return " ".join(re.findall(r"\w+", folded) or folded.split()).encode("utf-8", "surrogatepass")


def test_shinglings_are_parsed():
    assert Shingling.parse("word:5") == Shingling("word", 5)
    assert Shingling.parse("char:100") == Shingling("char", 100)


@given(st.lists(ANY_TEXT, max_size=4), SHINGLINGS)
def test_batches_are_what_the_definition_says(texts, shingling):
    signatures = fingerprints.signatures(texts, shingling)
    assert (signatures.shape, signatures.dtype) == ((len(texts), fingerprints.PERMUTATIONS), np.uint32)
    hashes, ends = fingerprints.shingle_sets(texts, shingling)
    assert (hashes.dtype, ends.dtype, len(ends)) == (np.uint64, np.int64, len(texts))
    for row, text in enumerate(texts):
        expected = fingerprints.shingles(text, shingling.kind, shingling.size)
        assert np.array_equal(signatures[row], fingerprints.signature(expected))
        assert np.array_equal(hashes[ends[row - 1] if row else 0 : ends[row]], defined_set(text, shingling))


@given(ANY_TEXT, SHINGLINGS)
def test_spans_are_where_the_shingles_lie(text, shingling):
    hashes, starts, ends = fingerprints.shingle_spans(text, shingling)
    assert (hashes.dtype, starts.dtype, ends.dtype) == (np.uint64, np.int64, np.int64)
    assert len(hashes) == len(starts) == len(ends)
    assert np.array_equal(np.unique(hashes), defined_set(text, shingling))
    assert (np.diff(starts) >= 0).all()
    for value, start, end in zip(hashes, starts, ends, strict=True):
        assert 0 <= start < end <= len(text)
        # Of "ß", which folds to "ss", one s may be a shingle: more is shown than was hashed.
        if len(text) == len(text.casefold()) and len(hashes) > 1:
            assert value == xxhash.xxh3_64_intdigest(as_shingle(text[start:end], shingling.kind))


def test_a_difference_from_datasketch_is_an_error(monkeypatch):
    texts, shingling = ["one two three four five six"], Shingling("word", 5)
    fingerprints.check_against_datasketch(texts, shingling)
    fingerprints.check_against_datasketch([], shingling)
    monkeypatch.setattr(fingerprints, "PERMUTATIONS", 128)
    wrong = fingerprints.signatures(texts, shingling) + np.uint32(1)
    monkeypatch.setattr(fingerprints, "signatures", lambda *_: wrong)
    with pytest.raises(fingerprints.WebtextError, match="internal error: compiled fingerprints"):
        fingerprints.check_against_datasketch(texts, shingling)
