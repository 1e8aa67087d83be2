"""The files between the phases of tokenize, and the parts of its output: equal to sorting all documents at once."""

import errno
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexed_tokens import IndexedTokens, IndexedTokensWriter, bin_path, idx_path
from indexed_tokens.writer import PairDraft
from webtext_prep.documents.document import Document
from webtext_prep.errors import WebtextError
from webtext_prep.tokens.runs import (
    EncodedShard,
    RunWriter,
    ShufflePlan,
    parts_by_key,
    parts_in_order,
    read_plan,
    read_sorted,
    shuffle_key,
)

DTYPE = np.dtype("<u2")
KEY = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
SHARDS = st.lists(
    # Runs of documents, each a key and its tokens.
    st.lists(st.lists(st.tuples(KEY, st.lists(st.integers(0, 65535), min_size=1, max_size=5)), max_size=6), max_size=3),
    min_size=1,
    max_size=4,
)


def encoded(folder, shards) -> list[EncodedShard]:
    found = []
    for number, runs in enumerate(shards):
        tokens, table = folder / f"{number}.tokens", folder / f"{number}.table"
        with RunWriter(tokens, table, DTYPE) as writer:
            for run in runs:
                for key, ids in run:
                    writer.add(key, ids)
                writer.flush()
        found.append(EncodedShard(tokens, table, writer.runs))
    return found


@pytest.mark.parametrize("full", ["tokens", "table"])
def test_a_full_disk_is_what_a_run_says_it_is(tmp_path, full):
    """numpy's own writing says how many bytes were written, and has no `errno`."""
    places = {"tokens": tmp_path / "tokens", "table": tmp_path / "table", full: Path("/dev/full")}
    with pytest.raises(OSError, match="No space left") as caught, RunWriter(**places, dtype=DTYPE) as writer:
        for key in range(20_000):
            writer.add(key, [1, 2])
        writer.flush()
    assert caught.value.errno == errno.ENOSPC


def written(folder, shards, parts, order) -> IndexedTokens:
    """The token files that the parts make, in whatever order they are written; their checksums are checked."""
    documents = sum(sum(shard.runs) for shard in shards)
    size = 2 * sum(shard.count_tokens() for shard in shards)
    draft = PairDraft(bin_path(folder / "out"), idx_path(folder / "out"), "<u2", documents, documents, size)
    draft.create()
    ShufflePlan(shards, parts, draft).write(folder / "plan.json")
    plan = read_plan(folder / "plan.json")
    checksums = {number: plan.write_part(number, *plan.read_part(number)) for number in order}
    for kind, found in draft.checksums(checksums[number] for number in range(len(parts))).items():
        content = (folder / f"out.{kind}").read_bytes()
        assert found == {"bytes": len(content), "crc32": zlib.crc32(content)}
    return IndexedTokens(folder / "out")


@given(shards=SHARDS, part_bytes=st.integers(1, 300), reverse=st.booleans())
def test_parts_are_the_documents_sorted_by_key(tmp_path_factory, shards, part_bytes, reverse):
    folder = tmp_path_factory.mktemp("runs")
    files = encoded(folder, shards)
    parts = list(parts_by_key(files, 2, part_bytes))
    everything = [document for shard in shards for run in shard for document in run]
    in_order = [ids for _, ids in sorted(everything, key=lambda document: document[0])]
    with IndexedTokensWriter(folder / "expected") as writer:
        for ids in in_order:
            writer.add(ids)
    order = range(len(parts))
    found = written(folder, files, parts, reversed(order) if reverse else order)
    assert [tokens.tolist() for tokens in found] == in_order
    for path_of in (bin_path, idx_path):
        assert path_of(folder / "out").read_bytes() == path_of(folder / "expected").read_bytes()


@given(lengths=st.lists(st.lists(st.integers(1, 4), max_size=9), min_size=1, max_size=4), every=st.integers(1, 4))
def test_in_the_order_of_the_input_each_run_is_a_part(tmp_path_factory, lengths, every):
    folder = tmp_path_factory.mktemp("runs")
    shards = [[(number, [number] * n) for number, n in enumerate(shard, 1)] for shard in lengths]
    files = encoded(folder, [[shard[at : at + every] for at in range(0, len(shard), every)] for shard in shards])
    parts = list(parts_in_order(files))
    found = written(folder, files, parts, range(len(parts)))
    assert [tokens.tolist() for tokens in found] == [ids for shard in shards for _, ids in shard]


def test_parts_are_about_equal_and_follow_from_the_corpus(tmp_path):
    rows = [(shuffle_key(Document(f"http://a.org/{n}", "x"), 1), [1] * 100) for n in range(4000)]
    one = encoded(tmp_path, [[rows]])
    (tmp_path / "b").mkdir()
    many = encoded(tmp_path / "b", [[rows[at : at + 50] for at in range(0, 4000, 50)]])
    parts = list(parts_by_key(one, 2, 120_000))
    assert parts == list(parts_by_key(many, 2, 120_000))
    counts = np.diff([part.document for part in parts] + [4000])
    assert len(parts) == 8
    assert counts.min() > 400
    assert counts.max() < 600


def test_a_file_that_was_cut_off_is_an_error(tmp_path):
    (shard,) = encoded(tmp_path, [[[(5, [1, 2]), (6, [3])]]])
    shard.tokens.write_bytes(shard.tokens.read_bytes()[:-1])
    with pytest.raises(WebtextError, match="cut off"):
        read_sorted([shard], DTYPE, 0, 9)


@given(st.integers(0, 2**70), st.text(max_size=5), st.text(max_size=5))
def test_a_key_follows_from_seed_url_and_text(seed, url, text):
    key = shuffle_key(Document(url, text), seed)
    assert 0 <= key < 2**64
    assert key == shuffle_key(Document(url, text, {"title": "T"}), seed)
    others = {shuffle_key(Document(url + "x", text), seed), shuffle_key(Document(url, text + "x"), seed)}
    assert key not in others | {shuffle_key(Document(url, text), seed + 1)}
    assert len(others) == 2


def test_the_port_of_a_server_does_not_decide_the_order():
    """A pipeline that serves its own pages has another port in each run: its tokens came in another order."""
    keys = {shuffle_key(Document(f"http://127.0.0.1{port}/a:1", "x"), 1) for port in ("", ":80", ":43210")}
    assert len(keys) == 1
    assert keys != {shuffle_key(Document("http://127.0.0.1/a:2", "x"), 1)}
