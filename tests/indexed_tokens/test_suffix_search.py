"""Longest matches and occurrences in indexed token files, against looking at every place of every document."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed_tokens.naive_index import write_index, write_indexed

from indexed_tokens import IndexedTokensError, IndexedTokensWriter
from indexed_tokens.suffix_index import (
    SEAL,
    URLS,
    SuffixIndex,
    divide,
    documents_with,
    index_folder,
    longest_matches,
    occurrences,
    part_name,
)

TOKENS = st.integers(0, 3)
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=12), min_size=1, max_size=8)
"""Few different tokens, so that documents repeat themselves and each other."""


def places_of(documents, query):
    """(document, place in it) of each occurrence, by its definition."""
    size = len(query)
    return [
        (number, at)
        for number, document in enumerate(documents)
        for at in range(len(document) - size + 1)
        if document[at : at + size] == query
    ]


def longest(documents, query, at):
    return max(size for size in range(len(query) - at + 1) if not size or places_of(documents, query[at : at + size]))


@given(DOCUMENTS, DOCUMENTS, st.lists(TOKENS, max_size=20), st.integers(1, 20), st.sampled_from([np.uint16, np.int32]))
def test_longest_matches_are_those_of_the_definition(tmp_path_factory, one, other, query, part_tokens, dtype):
    folder = tmp_path_factory.mktemp("index")
    indices = [
        SuffixIndex(write_indexed(folder / name, documents, dtype=dtype, part_tokens=part_tokens))
        for name, documents in (("one", one), ("other", other))
    ]
    assert longest_matches(indices, query).tolist() == [longest(one + other, query, at) for at in range(len(query))]


@given(DOCUMENTS, st.lists(TOKENS, min_size=1, max_size=4), st.integers(1, 20), st.integers(0, 3))
def test_occurrences_are_those_of_the_definition(tmp_path_factory, documents, query, part_tokens, most):
    folder = tmp_path_factory.mktemp("index")
    index = SuffixIndex(write_indexed(folder / "tokens", documents, part_tokens=part_tokens))
    found, expected = occurrences(index, query), places_of(documents, query)
    assert sum(len(entries) for _, entries in found) == len(expected)
    first = dict(reversed(expected))
    count, named = documents_with(index, found, most)
    assert count == len(first)
    assert [(number, place - index.begins[number]) for number, place in named] == sorted(first.items())[:most]


@pytest.mark.parametrize("part_tokens", [1, 1000, 100_000])
def test_a_passage_longer_than_all_steps_is_found_whole(tmp_path, part_tokens):
    """Positions between two that end at one place are not searched: all of these do."""
    page = np.random.default_rng(1).integers(0, 500, 700).tolist()
    index = SuffixIndex(write_indexed(tmp_path / "t", [[7, *page, 9], [3] * 50, page[:300]], part_tokens=part_tokens))
    lengths = longest_matches([index], [8, 600, *page, 8])
    assert lengths.tolist() == [1 if 8 in page else 0, 0, *range(700, 0, -1), 1 if 8 in page else 0]
    assert documents_with(index, occurrences(index, page), 5) == (1, [(0, 1)])
    assert documents_with(index, occurrences(index, page[5:200]), 5) == (2, [(0, 6), (2, 702 + 50 + 5)])


def test_occurrences_of_many_are_looked_at_some_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("indexed_tokens.suffix_index.RANGE_AT_ONCE", 3)
    index = SuffixIndex(write_indexed(tmp_path / "t", [[5, 1, 1], [1, 5], [], [5, 5, 5]]))
    assert documents_with(index, occurrences(index, [5]), 2) == (3, [(0, 0), (1, 4)])


def test_nothing_is_found_in_nothing(tmp_path):
    index = SuffixIndex(write_indexed(tmp_path / "t", [[], []]))
    assert longest_matches([index], [1, 2]).tolist() == [0, 0]
    assert longest_matches([index], []).tolist() == []
    assert occurrences(index, [1]) == []


def test_parts_are_whole_documents():
    begins = np.cumsum([0, 3, 0, 4, 20, 1, 0])
    assert [part.documents for part in divide(begins, 7)] == [(0, 3), (3, 4), (4, 6)]
    assert [part.tokens for part in divide(begins, 7)] == [(0, 7), (7, 27), (27, 28)]
    assert divide(np.array([0]), 7) == []


def test_each_document_has_its_url(tmp_path):
    urls = ["http://a.org/", "http://b.org/ä", ""]
    index = SuffixIndex(write_indexed(tmp_path / "t", [[1], [], [2, 2]], urls=urls))
    assert [index.url(number) for number in range(3)] == urls
    with pytest.raises(IndexError):
        index.url(3)
    assert index.document_of([0, 1, 2]).tolist() == [0, 2, 2]


def rewrite(prefix, documents):
    with IndexedTokensWriter(prefix) as writer:
        for document in documents:
            writer.add(document)


def test_an_index_of_other_token_files_is_refused(tmp_path):
    prefix = write_indexed(tmp_path / "t", [[1, 2, 3], [4]])
    rewrite(prefix, [[1, 2, 3], [4]])
    SuffixIndex(prefix)  # the same files, written again
    for documents in ([[1, 2, 4], [4]], [[1, 2], [3, 4]], [[1, 2, 3], [4], []]):
        rewrite(prefix, documents)
        with pytest.raises(IndexedTokensError, match=r"t\.suffixes was made from other token files than .* again"):
            SuffixIndex(prefix)


def test_a_missing_or_damaged_index_is_refused(tmp_path):
    prefix = tmp_path / "t"
    rewrite(prefix, [[1, 2, 3], [4]])
    with pytest.raises(IndexedTokensError, match=r"has no index: run `webtext index-tokens .*t` first"):
        SuffixIndex(prefix)
    write_index(prefix, urls=["a", "b"])
    folder = index_folder(prefix)
    SuffixIndex(prefix).check()
    seal, part = (folder / SEAL).read_text(), (folder / part_name(0)).read_bytes()
    for damaged, message in (("{", "is damaged"), (seal.replace('"format": 1', '"format": 2'), "newer program")):
        (folder / SEAL).write_text(damaged)
        with pytest.raises(IndexedTokensError, match=message):
            SuffixIndex(prefix)
    (folder / SEAL).write_text(seal)
    (folder / part_name(0)).write_bytes(part[:-1])
    with pytest.raises(IndexedTokensError, match="has 15 bytes where 16 belong"):
        SuffixIndex(prefix)
    (folder / part_name(0)).write_bytes(b"\xff" * 16)
    with pytest.raises(IndexedTokensError, match=re.escape(f"{part_name(0)} is damaged")):
        longest_matches([SuffixIndex(prefix)], [1])
    with pytest.raises(IndexedTokensError, match=re.escape(f"{part_name(0)} is damaged")):
        SuffixIndex(prefix).check()
    (folder / part_name(0)).write_bytes(part)
    (folder / URLS).write_bytes(b"a\nc\n")
    with pytest.raises(IndexedTokensError, match=f"{URLS} is damaged"):
        SuffixIndex(prefix).check()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("parts", 0, "tokens"), [1]),
        (("parts", 0, "tokens"), [0, "3"]),
        (("parts", 0, "tokens", 0), [0]),
        (("parts", 0, "tokens"), [2**40, 2**40 + 3]),
        (("parts", 0, "tokens"), [-3, 0]),
        (("parts", 0, "documents"), [0, 2]),
        (("parts", 1, "documents"), [0, 2]),
        (("parts", 1, "documents", 1), 2**63),
        (("parts", 1, "tokens"), [3, 4.0]),
        (("parts", 1), None),
        (("parts",), []),
        (("parts",), 3),
        (("urls",), [1]),
        (("urls",), "ab"),
        (("more",), 1),
    ],
)
def test_parts_that_are_not_the_documents_are_refused(tmp_path, place, value):
    """Also where their sizes add up to all tokens."""
    prefix = tmp_path / "t"
    rewrite(prefix, [[1, 2, 3], [4]])
    write_index(prefix, part_tokens=3, urls=["a", "b"])
    path = index_folder(prefix) / SEAL
    seal = target = json.loads(path.read_text())
    for step in place[:-1]:
        target = target[step]
    assert len(seal["parts"]) == 2
    target[place[-1]] = value
    path.write_text(json.dumps(seal))
    with pytest.raises(IndexedTokensError, match=r"is damaged|does not cover all tokens"):
        SuffixIndex(prefix)


def test_sequences_with_gaps_are_refused(tmp_path):
    from indexed_tokens.writer import PairDraft

    draft = PairDraft(tmp_path / "t.bin", tmp_path / "t.idx", "<u2", 1, 1, 8)
    draft.create()
    draft.write_index(0, [2], [4])
    draft.write_documents(0, [0, 1])
    with pytest.raises(IndexedTokensError, match="do not lie back to back"):
        write_index(tmp_path / "t")
