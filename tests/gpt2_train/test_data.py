"""Splits, the sample index against golden values and Megatron-core, streams, blending."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.gpt2_train import forks

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.batches import BatchReader, MicroBatches, check_vocabulary
from gpt2_train.data.corpus import PIECE_TOKENS, SPLITS, Corpus, split_ranges
from gpt2_train.data.index import IndexCache, build_sample_index, stream_seed
from gpt2_train.data.streams import BLEND_BLOCK, Blend, Stream, blend_picks, blend_split
from gpt2_train.training.setup import SharedIndexCache
from indexed_tokens import IndexedTokensError, IndexedTokensWriter
from indexed_tokens.checksums import checksum_of_file


def one_sequence_each(documents: int) -> np.ndarray:
    return np.arange(documents + 1, dtype=np.int64)


@pytest.mark.parametrize(("documents", "length"), [(40, 16), (7, 64), (2, 64)])
def test_the_sample_index_is_that_of_megatron_core(documents: int, length: int) -> None:
    """One pass; samples longer than documents; documents that are repeated to fill one sample."""
    gpt_dataset = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    from megatron.core.datasets import helpers

    sizes = np.random.default_rng(documents).integers(3, 32, documents + 5).astype(np.int32)
    chosen = np.arange(2, documents + 2, dtype=np.int32)
    tokens = int(sizes[chosen].sum())
    times = -(-(length + 1) // tokens)
    assert (times > 1) == (documents == 2)
    random = np.random.RandomState(77)
    order = gpt_dataset._build_document_index(chosen, times, random, False)
    located = helpers.build_sample_idx(sizes, order, length, times, tokens, True, 1)
    shuffle = gpt_dataset._build_shuffle_index(len(located) - 1, len(located) - 1, random)

    mine = build_sample_index(sizes, chosen, sequence_length=length, seed=77)
    assert np.array_equal(mine.documents, order)
    assert np.array_equal(mine.samples, located)
    assert np.array_equal(mine.shuffle, shuffle)


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.floats(0, 1000), min_size=3, max_size=3).filter(lambda weights: weights[0] > 0),
)
def test_no_document_is_in_two_splits_and_training_gets_one(sequences: list[int], weights: list[float]) -> None:
    """Pitfall 17: with few documents the split gave validation and test the same ones, or crashed."""
    index = np.concatenate([[0], np.cumsum(sequences)]).astype(np.int64)
    ranges = split_ranges(index, weights)
    assert len(ranges) == 3
    assert ranges[0][0] == 0 and ranges[-1][1] == index[-1]
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))
    assert all(begin <= end and begin in index and end in index for begin, end in ranges)
    assert ranges[0][1] > 0 or index[-1] == 0


def test_splits_are_megatrons_ranges_where_documents_are_many() -> None:
    assert split_ranges(one_sequence_each(1000), [949, 50, 1]) == [(0, 949), (949, 999), (999, 1000)]
    assert split_ranges(one_sequence_each(37), [8, 1, 1]) == [(0, 30), (30, 33), (33, 37)]


@pytest.mark.parametrize("damage", ["longer .bin", "shorter .bin", "lengths"])
def test_token_files_that_are_not_those_on_record_are_refused(tmp_path: Path, damage: str) -> None:
    """Training took an index with other lengths than were written, and tokens behind the last one: nothing was on
    record to compare with."""
    prefix = tmp_path / "c"
    with IndexedTokensWriter(prefix) as writer:
        for document in ([1, 2, 3, 4], [5, 6], [7, 8, 9, 10]):
            writer.add(document)
    sums = {kind: checksum_of_file(Path(f"{prefix}.{kind}"))._asdict() for kind in ("bin", "idx")}
    Path(f"{prefix}.json").write_text(json.dumps({"stage": "tokenize", "facts": {"checksums": sums}}))
    Corpus(str(prefix), [1, 0, 0])
    file = Path(f"{prefix}.idx" if damage == "lengths" else f"{prefix}.bin")
    whole = file.read_bytes()
    changed = {"longer .bin": whole + b"\0\0", "shorter .bin": whole[:-2], "lengths": whole[:34] + b"\2" + whole[35:]}
    file.write_bytes(changed[damage])
    with pytest.raises(IndexedTokensError, match=rf"{file.name}.* (cut off|damaged)"):
        Corpus(str(prefix), [1, 0, 0])
    Path(f"{prefix}.json").unlink()
    if damage != "shorter .bin":
        Corpus(str(prefix), [1, 0, 0])


def test_a_split_without_documents_says_so_in_one_line(tmp_path: Path) -> None:
    """Pitfall 17."""
    with IndexedTokensWriter(tmp_path / "few") as writer:
        for _ in range(3):
            writer.add([1, 2, 3])
    corpora = [Corpus(str(tmp_path / "few"), [949, 50, 1])]
    said: list[str] = []
    options = {"sequence_length": 2, "seed": 1, "cache": IndexCache(tmp_path), "say": said.append}
    assert blend_split(corpora, None, "train", **options) is not None
    assert blend_split(corpora, None, "valid", **options) is None
    assert len(said) == 1 and "no documents for the valid split" in said[0]


def test_a_split_that_was_given_no_share_is_not_said_to_be_too_small(tmp_path: Path) -> None:
    """With `--split 100,0,0` the line was that all documents were too few for a share of 0."""
    with IndexedTokensWriter(tmp_path / "few") as writer:
        writer.add([1, 2, 3])
    said: list[str] = []
    options = {"sequence_length": 2, "seed": 1, "cache": IndexCache(tmp_path), "say": said.append}
    assert blend_split([Corpus(str(tmp_path / "few"), [100, 0, 0])], None, "valid", **options) is None
    assert said == ["no valid split: its share in --split is 0."]


@pytest.mark.parametrize(("documents", "longest"), [(12, 3), (90, 9_000)])
def test_sampled_pieces_of_a_small_split_are_all_of_it(tmp_path: Path, documents: int, longest: int) -> None:
    lengths = np.random.default_rng(3).integers(1, longest + 1, documents)
    with IndexedTokensWriter(tmp_path / "some", dtype=np.int32) as writer:
        for end, length in zip(lengths.cumsum(), lengths, strict=True):
            writer.add(np.arange(end - length, end))
    corpus = Corpus(str(tmp_path / "some"), [8, 1, 1])
    pieces = list(corpus.sampled_pieces("valid", 1 << 30)), list(corpus.sampled_pieces("train", 1 << 30))
    assert all(len(piece) <= PIECE_TOKENS for piece in pieces[1])
    assert np.array_equal(np.concatenate(pieces[1]), np.arange(corpus.split_tokens("train")))
    begin = corpus.split_tokens("train")
    assert np.array_equal(np.concatenate(pieces[0]), np.arange(begin, begin + corpus.split_tokens("valid")))


def test_sampled_pieces_of_a_large_split_are_a_part_of_it_evenly_spaced(tmp_path: Path) -> None:
    """The whole training split was counted for a baseline: 90 seconds for 9 billion tokens."""
    with IndexedTokensWriter(tmp_path / "large", dtype=np.int32) as writer:
        for start in range(0, 8 * PIECE_TOKENS, 1000):
            writer.add(np.arange(start, min(start + 1000, 8 * PIECE_TOKENS)))
    corpus = Corpus(str(tmp_path / "large"), [1, 0, 0])
    pieces = list(corpus.sampled_pieces("train", 2 * PIECE_TOKENS + 5))
    assert [(piece[0], piece[-1]) for piece in pieces] == [
        (0, PIECE_TOKENS - 1),
        (4 * PIECE_TOKENS, 5 * PIECE_TOKENS - 1),
    ]


def make_stream(tmp_path: Path, *, documents: int = 30, length: int = 8, seed: int = 5, split: str = "train") -> Stream:
    prefix = tmp_path / "numbered"
    if not prefix.with_suffix(".idx").exists():
        with IndexedTokensWriter(prefix, dtype=np.int32) as writer:
            count = 0
            for number in range(documents):
                size = 3 + number * 7 % 11
                writer.add(np.arange(count, count + size))
                count += size
    return Stream(Corpus(str(prefix), [1, 0, 0]), split, length, seed, IndexCache(tmp_path / "cache"))


def test_each_epoch_has_every_token_once_in_a_new_order(tmp_path: Path) -> None:
    """Pitfall 18: epochs roll over by themselves, without end."""
    stream = make_stream(tmp_path)
    stream.prepare(0, 3 * stream.per_epoch - 1)
    epochs = [
        [stream[number][:-1] for number in range(epoch * stream.per_epoch, (epoch + 1) * stream.per_epoch)]
        for epoch in range(3)
    ]
    for samples in epochs:
        seen = np.concatenate(samples)
        assert len(set(seen.tolist())) == len(seen) == stream.per_epoch * 8
    orders = {tuple(np.concatenate(samples).tolist()) for samples in epochs}
    assert len(orders) == 3


def test_a_sample_follows_from_seed_and_number_alone(tmp_path: Path) -> None:
    """Pitfall 26: no state is needed to continue at any sample."""
    whole, late = make_stream(tmp_path), make_stream(tmp_path)
    whole.prepare(0, 5 * whole.per_epoch)
    late.prepare(4 * late.per_epoch + 3, 4 * late.per_epoch + 3)
    number = 4 * late.per_epoch + 3
    assert np.array_equal(make_and_read(tmp_path, number), late[number])


def make_and_read(tmp_path: Path, number: int) -> np.ndarray:
    stream = make_stream(tmp_path)
    for position in range(0, number + 1, stream.per_epoch):
        stream.prepare(position, position)
    stream.prepare(number, number)
    return stream[number]


def test_seed_and_split_decide_the_order(tmp_path: Path) -> None:
    """Pitfall 19: --seed did not change sampling, and the splits drew the same random stream."""
    seeds = {stream_seed(seed, split, epoch) for seed in (1, 2) for split in SPLITS for epoch in range(3)}
    assert len(seeds) == 18
    first, second = make_stream(tmp_path, seed=1), make_stream(tmp_path, seed=2)
    first.prepare(0, 0)
    second.prepare(0, 0)
    assert [first[n].tolist() for n in range(10)] != [second[n].tolist() for n in range(10)]


def test_a_changed_corpus_never_meets_an_old_index(tmp_path: Path) -> None:
    """Pitfall 20: a stale cache was used after the data changed."""
    old = make_stream(tmp_path)
    old.prepare(0, 0)
    with IndexedTokensWriter(tmp_path / "numbered", dtype=np.int32) as writer:
        for number in range(30):
            writer.add(np.full(3 + (number + 1) * 7 % 11, 7))
    new = make_stream(tmp_path)
    new.prepare(0, new.per_epoch - 1)
    assert all(set(new[number].tolist()) == {7} for number in range(new.per_epoch))


def test_an_index_is_built_once_and_read_again(tmp_path: Path) -> None:
    stream = make_stream(tmp_path)
    stream.prepare(0, 0)
    (folder,) = (tmp_path / "cache").iterdir()
    stamp = (folder / "samples.npy").stat().st_mtime_ns
    make_stream(tmp_path).prepare(0, 0)
    assert (folder / "samples.npy").stat().st_mtime_ns == stamp
    stream_of_other_length = make_stream(tmp_path, length=9)
    stream_of_other_length.prepare(0, 0)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    """Pitfall 20: half-written caches were read."""
    stream = make_stream(tmp_path)
    stream.prepare(0, 0)
    expected = stream[0].tolist()
    (folder,) = (tmp_path / "cache").iterdir()
    os.truncate(folder / "shuffle.npy", 20)
    again = make_stream(tmp_path)
    again.prepare(0, 0)
    assert again[0].tolist() == expected


def test_a_sample_is_read_by_its_own_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample from a cold file faulted pages of the mapping: 1.2 ms for 2 KB, where a read takes 0.07."""
    stream = make_stream(tmp_path)
    stream.prepare(0, 0)
    expected = stream[3].tolist()
    asked: list[int] = []
    plain = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: asked.append(size) or plain(file, size, start))
    monkeypatch.setattr(stream.corpus.tokens, "slice", None)
    assert stream[3].tolist() == expected
    assert sum(asked) == len(expected) * 4


def test_the_pieces_of_a_sample_begin_where_documents_do(tmp_path: Path) -> None:
    stream = make_stream(tmp_path)
    stream.prepare(0, 0)
    for number in range(10):
        pieces = list(stream.pieces(number))
        tokens = [stream.corpus.tokens.slice(*piece).tolist() for piece in pieces]
        assert list(itertools.chain(*tokens)) == stream[number].tolist()
        assert all(offset == 0 for _, offset, _ in pieces[1:])


@pytest.mark.parametrize("content", ["", "[1, ", '{"a": 1}'])
def test_a_damaged_state_of_a_blend_is_worked_out_again(tmp_path: Path, content: str) -> None:
    stream = make_stream(tmp_path)
    expected = Blend([stream, stream], [0.7, 0.3], IndexCache(tmp_path / "one")).locate(BLEND_BLOCK, 3)
    for state in (tmp_path / "one").glob("*/*.json"):
        state.write_text(content)
    assert Blend([stream, stream], [0.7, 0.3], IndexCache(tmp_path / "one")).locate(BLEND_BLOCK, 3) == expected


def first_sample(prefix: str, cache: str) -> list[int]:
    """The first sample by an index in a cache that processes share."""
    stream = Stream(Corpus(prefix, [1, 0, 0]), "train", 8, 5, SharedIndexCache(Path(cache)))
    stream.prepare(0, 0)
    return [int(token) for token in stream[0]]


def test_processes_share_an_index(tmp_path: Path) -> None:
    stream = make_stream(tmp_path)
    done = forks.in_group(2, first_sample, stream.corpus.prefix, tmp_path / "cache")
    stream.prepare(0, 0)
    assert [json.loads(process.stdout) for process in done] == [stream[0].tolist()] * 2


def test_reading_data_needs_no_torch() -> None:
    """Evaluation in one process depended on torch.distributed through the reader of the training samples."""
    code = (
        "import sys, gpt2_train.data.streams; "
        "sys.exit('torch' in sys.modules or 'gpt2_train.distributed.collectives' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_corpus_shorter_than_a_sequence_is_repeated(tmp_path: Path) -> None:
    with IndexedTokensWriter(tmp_path / "short") as writer:
        writer.add([1, 2, 3])
        writer.add([4, 5])
    said: list[str] = []
    blend = blend_split(
        [Corpus(str(tmp_path / "short"), [1, 0, 0])],
        None,
        "train",
        sequence_length=11,
        seed=1,
        cache=IndexCache(tmp_path / "cache"),
        say=said.append,
    )
    assert blend is not None and "fewer than one sequence" in said[0]
    # Among the lines of the run it looked like success.
    assert said[0].startswith("warning: ") and said[0].endswith("give more text, or a shorter --sequence-length.")
    (sample,) = blend.read(blend.prepare(7, 1))
    assert len(sample) == 12
    assert set(sample.tolist()) == {1, 2, 3, 4, 5}


def test_blending_picks_as_megatron_does() -> None:
    assert "".join(map(str, blend_picks([0.7, 0.3], [0, 0], 10))) == "0100100100"


@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=4), st.integers(1, 200))
def test_a_blend_stays_near_its_weights(weights: list[float], count: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    taken = [0] * len(shares)
    picks = blend_picks(shares, taken, count)
    assert [int((picks == number).sum()) for number in range(len(shares))] == taken
    assert all(abs(taken[number] - share * count) <= len(shares) for number, share in enumerate(shares))


def test_a_blend_goes_on_in_the_middle_of_a_later_block(tmp_path: Path) -> None:
    stream = make_stream(tmp_path)
    weights = [0.7, 0.3]
    across = Blend([stream, stream], weights, IndexCache(tmp_path / "one")).locate(BLEND_BLOCK - 3, 6)
    picks = blend_picks(weights, [0, 0], BLEND_BLOCK + 3)
    counts = [0, 0]
    expected = []
    for number, pick in enumerate(picks.tolist()):
        if number >= BLEND_BLOCK - 3:
            expected.append((pick, counts[pick]))
        counts[pick] += 1
    assert across == expected
    assert Blend([stream, stream], weights, IndexCache(tmp_path / "one")).taken(BLEND_BLOCK + 3) == counts
    # Another reader starts from what the first one kept on disk.
    assert Blend([stream, stream], weights, IndexCache(tmp_path / "one")).locate(BLEND_BLOCK, 3) == expected[3:]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_global_batch_is_the_same_at_any_number_of_processes(tmp_path: Path, size: int) -> None:
    """Pitfall 22: the data seen does not depend on the number of GPUs."""
    stream = make_stream(tmp_path)
    readers = [
        BatchReader(
            Blend([stream], None, IndexCache(tmp_path)),
            global_batch=4,
            rank=rank,
            size=size,
            vocabulary_size=1000,
            batches=MicroBatches(2, torch.device("cpu")),
        )
        for rank in range(size)
    ]
    batch = np.concatenate([micro.rows for reader in readers for micro in reader.take(3)[0]])
    for reader in readers:
        reader.close()
    assert np.array_equal(batch, np.stack([stream[number] for number in range(8, 12)]))


def test_a_token_outside_the_vocabulary_is_a_clear_error() -> None:
    with pytest.raises(Gpt2UsageError, match=r"token id 100, but the vocabulary has 100 ids: .* doesn't match"):
        check_vocabulary(np.array([[3, 100]]), 100, "the data")


def test_an_empty_corpus_is_a_clear_error(tmp_path: Path) -> None:
    """Pitfall 16: empty data crashed training much later."""
    with IndexedTokensWriter(tmp_path / "empty"):
        pass
    with pytest.raises(Gpt2UsageError, match="holds no tokens"):
        Corpus(str(tmp_path / "empty"), [949, 50, 1])


@pytest.fixture
def held_out_corpus(tmp_path: Path) -> Path:
    """Ten documents to train on and four held out, as their records say."""
    for name, documents, share in (("c", 10, 0.2), ("c_held_out", 4, 0.2)):
        with IndexedTokensWriter(tmp_path / f"{name}_text_document") as writer:
            for number in range(documents):
                writer.add([number + 100 * (name != "c")] * 3)
        (tmp_path / f"{name}_text_document.json").write_text(json.dumps({"facts": {"hold_out": share}}))
    return tmp_path / "c_text_document"


def test_held_out_documents_are_the_validation_split_and_all_others_are_for_training(held_out_corpus, tmp_path) -> None:
    corpus = Corpus(str(held_out_corpus), [5, 5, 0])
    assert corpus.ranges == {"train": (0, 10), "valid": (0, 0), "test": (0, 0)}
    options = {"sequence_length": 3, "seed": 1, "cache": IndexCache(tmp_path / "cache"), "say": lambda line: None}
    seen = {}
    for split in ("train", "valid"):
        blend = blend_split([corpus], None, split, **options)
        assert blend is not None
        seen[split] = set(np.unique(blend.read(blend.prepare(0, blend.epoch_samples))).tolist())
    assert seen["train"] <= set(range(10)) and len(seen["train"]) > 8
    assert seen["valid"] <= set(range(100, 104)) and len(seen["valid"]) > 2
    alone = Corpus(f"{tmp_path}/c_held_out_text_document", [1, 0, 0])
    assert corpus.identity()["held_out"] == alone.identity()["digest"] and "held_out" not in alone.identity()


def test_pages_that_may_be_on_both_sides_are_refused(held_out_corpus) -> None:
    record = Path(f"{held_out_corpus}.json")
    record.write_text(json.dumps({"facts": {}}))
    with pytest.raises(Gpt2UsageError, match=r"c_held_out_text_document holds the pages of .*--hold-out 0.2"):
        Corpus(str(held_out_corpus), [1, 0, 0])
    record.write_text(json.dumps({"facts": {"hold_out": 0.2, "tokenizer": "a"}}))
    Path(f"{held_out_corpus.parent}/c_held_out_text_document.json").write_text(
        json.dumps({"facts": {"tokenizer": "b"}})
    )
    with pytest.raises(Gpt2UsageError, match="have different tokenizers"):
        Corpus(str(held_out_corpus), [1, 0, 0])
