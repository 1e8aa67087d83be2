"""From band keys to parts of work: buckets, components, blocks and frames are what their plain definitions say."""

import collections
import contextlib
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.dedup import candidates, decisions, kernels
from webtext_prep.dedup.candidates import DocumentBlocks, runs_of
from webtext_prep.documents.packed import PackedTexts
from webtext_prep.text.fingerprints import Shingling, shingle_sets

WORDS = Shingling("word", 2)


def buckets_of(members, ends) -> set[frozenset[int]]:
    return {frozenset(entry.tolist()) for entry in np.split(members, ends[:-1])} if len(ends) else set()


@given(st.lists(st.sampled_from([0, 1, 2, 3, 2**64 - 1])))
def test_a_bucket_is_all_that_have_a_key(keys):
    members, ends = kernels.shared_buckets(np.array(keys, dtype=np.uint64))
    expected = collections.defaultdict(set)
    for place, key in enumerate(keys):
        expected[key].add(place)
    assert buckets_of(members, ends) == {frozenset(entry) for entry in expected.values() if len(entry) > 1}


def test_documents_share_a_key_where_all_rows_of_the_band_agree():
    signatures = np.random.default_rng(1).integers(0, 2, (500, 8), dtype=np.uint32)
    keys = candidates.band_keys(signatures, 2, 3)
    for band in range(2):
        rows = [tuple(row) for row in signatures[:, 3 * band : 3 * band + 3]]
        pairs = set(zip(rows, keys[band].tolist(), strict=True))
        assert len(pairs) == len(set(rows)) == len(set(keys[band].tolist())) == 8


def simple_components(count: int, shared: list[list[int]]) -> set[frozenset[int]]:
    groups = {document: {document} for document in range(count)}
    for bucket in shared:
        whole = set().union(*(groups[document] for document in bucket))
        for document in whole:
            groups[document] = whole
    return {frozenset(group) for group in groups.values() if len(group) > 1}


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@given(st.data())
def test_parts_hold_whole_components_and_no_more_than_they_should(kind, data):
    count = data.draw(st.integers(0, 30))
    bucket = st.lists(st.integers(0, max(count - 1, 0)), min_size=2, max_size=4, unique=True)
    shared = data.draw(st.lists(bucket, max_size=12)) if count > 4 else []
    lengths = np.array(data.draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count)), dtype=np.int64)
    expected = simple_components(count, shared)
    most = data.draw(st.integers(1, 5000))
    results = []
    for order in (shared, shared[::-1]):
        parents = np.arange(count, dtype=kind)
        ends = np.cumsum([len(entry) for entry in order], dtype=np.int64)
        kernels.unite(parents, np.array([at for entry in order for at in entry], dtype=kind), ends)
        weights = np.zeros(count, np.int64)
        kernels.flatten(parents, lengths, weights)
        parts = np.zeros(count, np.int32)
        number = kernels.divide(parents, weights, most, parts)
        results.append((parts.tolist(), number))
    assert results[0] == results[1]
    parts, number = results[0]
    assert {place for place in range(count) if parts[place] >= 0} == set().union(*expected)
    assert {part for part in parts if part >= 0} == set(range(number))
    for part in range(number):
        inside = [group for group in expected if parts[min(group)] == part]
        assert all(parts[place] == part for group in inside for place in group)
        weight = sum(int(lengths[place]) + kernels.DOCUMENT_WEIGHT for group in inside for place in group)
        assert weight <= most or len(inside) == 1


@given(st.lists(st.lists(st.integers(1, 5), max_size=3), max_size=5))
def test_documents_are_numbered_through_all_shards(tmp_path_factory, counts):
    blocks = DocumentBlocks.of(counts, [shard % 2 == 0 for shard in range(len(counts))])
    folder = tmp_path_factory.mktemp("blocks")
    blocks.save(folder / "blocks.npy")
    before = (folder / "blocks.npy").stat().st_mtime_ns
    blocks.save(folder / "blocks.npy")
    assert (folder / "blocks.npy").stat().st_mtime_ns == before
    blocks = DocumentBlocks.load(folder / "blocks.npy")
    assert blocks.documents == sum(map(sum, counts))
    number = 0
    for shard, sizes in enumerate(counts):
        assert blocks.first_of(shard) == number
        assert len(blocks.in_shard(shard)) == len(sizes)
        for block, size in zip(blocks.in_shard(shard), sizes, strict=True):
            assert blocks.shards[block] == shard
            assert blocks.may_be_copied[block] == (shard % 2 == 0)
            assert blocks.numbers(block) == slice(number, number + size)
            number += size


@given(st.lists(st.integers(-1, 3)))
def test_runs_are_the_places_of_each_value(values):
    found = [(value, places.tolist()) for value, places in runs_of(np.array(values, dtype=np.int32))]
    assert found == [
        (value, [place for place, entry in enumerate(values) if entry == value])
        for value in sorted({entry for entry in values if entry >= 0})
    ]


def test_what_is_mapped_has_its_place_on_the_disk_before(tmp_path, monkeypatch):
    """In a file with holes a full disk is a signal that ends the process."""
    create, on_disk = tempfile.TemporaryFile, []

    @contextlib.contextmanager
    def seen(**given):
        with create(**given) as file:
            yield file
            on_disk.append(512 * os.fstat(file.fileno()).st_blocks)

    monkeypatch.setattr(tempfile, "TemporaryFile", seen)
    found = candidates._mapped(1 << 17, np.int64, tmp_path)
    assert found.shape == (1 << 17,)
    assert not found.any()
    assert on_disk[0] >= found.nbytes


@pytest.mark.parametrize("memory", [0, 100, 10**6])
def test_sets_are_the_same_in_memory_and_in_a_file(tmp_path, memory):
    texts = [f"a b c d {number} e f g" for number in range(20)] + ["", "x"]
    store = decisions.SetStore(tmp_path, memory)
    for first in range(0, len(texts), 3):
        store.add(*shingle_sets(texts[first : first + 3], WORDS))
    hashes, ends = store.finish()
    expected, expected_ends = shingle_sets(texts, WORDS)
    assert (hashes.tolist(), ends.tolist()) == (expected.tolist(), expected_ends.tolist())
    assert list(tmp_path.iterdir()) == []


def test_the_longest_passage_that_both_have_is_found():
    pairs = [
        ("one two three, four", "zero ONE two Three five", "one two three"),
        ("a b x c d e y", "a b q c d e", "c d e"),
        ("a b c", "d e f", ""),
        ("one", "ONE", "one"),
        ("", "", ""),
        ("é aa bb", "bb é aa bb", "é aa bb"),
    ]
    texts, others, expected = zip(*pairs, strict=True)
    sets = shingle_sets(others[::-1], WORDS)
    places = decisions.matching_passages(PackedTexts.of(texts), WORDS, sets, np.arange(len(texts))[::-1])
    assert [text[start:end] for text, (start, end) in zip(texts, places, strict=True)] == list(expected)
