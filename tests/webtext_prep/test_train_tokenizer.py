"""`webtext train-tokenizer`: the same tokenizer from the same documents, in files that GPT-2's tools read."""

import itertools
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from indexed_tokens import END_OF_TEXT, IndexedTokens, Tokenizer, corpus_tokenizer
from indexed_tokens.tokenizer import byte_alphabet
from indexed_tokens.tokenizer_files import TokenizerTables
from webtext_prep.documents.document import Document
from webtext_prep.stages.train_tokenizer import FILES, count_words, is_held_out, learn_bpe, pieces, sample_key
from webtext_prep.tokens.runs import shuffle_key

TEXTS = [text for _, text in sorted(topics.items())]
DOCUMENTS = [Document(f"http://a.org/{number}", text) for number, text in enumerate(TEXTS)]


@pytest.fixture
def train(webtext, tmp_path):
    """`train(folder, "--vocabulary-size", 600)` trains in a folder of its own and returns it with the summary."""
    count = itertools.count()

    def run(source, *arguments, size=600):
        folder = tmp_path / f"tokenizer-{next(count)}"
        flags = ["--input", source, "--output", folder, "--vocabulary-size", size, "--json", *arguments]
        return folder, webtext("train-tokenizer", *flags).json

    return run


def files(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def words(text: str) -> list[str]:
    return [word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]


def train_bpe(texts: list[str], size: int, least: int) -> TokenizerTables:
    return learn_bpe(count_words(texts), size, least)


def simple_bpe(texts: list[str], vocabulary_size: int, min_frequency: int) -> tuple[dict, list]:
    """Sennrich et al. 2016, as simple as can be: the most frequent pair first; of equals, the one with smaller ids."""
    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    counts = Counter(tuple(word) for text in texts for word in words(text))
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < vocabulary_size - 1:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], *(vocabulary[part] for part in pair)), default=None)
        if best is None or pairs[best] < max(1, min_frequency):
            break
        merges.append(best)
        vocabulary.setdefault("".join(best), len(vocabulary))
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in counts.items():
            parts, rest = [], list(word)
            while rest:
                if tuple(rest[:2]) == best:
                    parts.append("".join(best))
                    del rest[:2]
                else:
                    parts.append(rest.pop(0))
            merged[tuple(parts)] += count
        counts = merged
    return {**vocabulary, END_OF_TEXT: len(vocabulary)}, merges


@given(
    texts=st.lists(st.text(st.sampled_from("abc \n'sé1."), max_size=60), min_size=1, max_size=6),
    size=st.integers(257, 300),
    least=st.integers(1, 3),
)
def test_what_is_learned_is_the_simple_definition_ties_included(texts, size, least):
    vocabulary, merges = train_bpe(texts, size, least)
    assert (vocabulary, merges) == simple_bpe(texts, size, least)


def test_bytes_are_numbered_as_gpt2_numbers_them_and_end_of_text_is_the_last():
    ours, theirs = Tokenizer(*train_bpe(TEXTS[:5], 400, 2)), Tokenizer.gpt2()
    assert [ours.decode_bytes([number]) for number in range(256)] == [
        theirs.decode_bytes([number]) for number in range(256)
    ]
    assert ours.end_of_text == ours.vocabulary_size - 1 == 399


@given(st.text(st.sampled_from("ab \n\t\x1c　é.!"), max_size=80), st.integers(10, 40))
def test_a_long_text_is_cut_between_words(text, size):
    found = list(pieces(text, size))
    assert "".join(found) == text
    assert all(len(piece) <= size for piece in found)
    is_forced = [piece for piece, after in itertools.pairwise(found) if after[0] != " " or piece[-1].isspace()]
    assert all(len(piece) == size for piece in is_forced)
    if not is_forced:
        assert [word for piece in found for word in words(piece)] == words(text)


def test_a_text_without_white_space_and_one_of_nothing_else_are_no_trouble():
    for text in ("語" * 200_000, " " * 200_000 + "x", "\n " * 100_000):
        assert len(train_bpe([text, "some words"], 280, 2).vocabulary) > 257


def test_it_is_used_at_once_and_read_by_others(write_shards, webtext, train, tmp_path):
    source = write_shards([DOCUMENTS[:30], DOCUMENTS[30:]])
    folder, summary = train(source)
    assert summary["vocabulary_size"] == 600
    ours = Tokenizer.from_path(folder)
    assert ours.fingerprint == Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt").fingerprint
    theirs = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (*TEXTS[:5], "Ünïcödé 語 \x00 \u2028 don't  stop\n\n"):
        assert theirs.encode(text).ids == ours.encode(text)
        assert ours.decode(ours.encode(text)) == text
    corpus = tmp_path / "corpus"
    found = webtext("tokenize", "--input", source, "--output", corpus, "--tokenizer", folder, "--json").json
    assert found["tokenizer"] == summary["tokenizer"]
    assert found["tokens"] == IndexedTokens(f"{corpus}_text_document").total_tokens
    beside = corpus_tokenizer(f"{corpus}_text_document")
    assert beside is not None
    assert beside.fingerprint == ours.fingerprint


def test_the_same_bytes_whatever_the_shards_their_order_and_the_workers(write_shards, train):
    mixed = random.Random(1).sample(DOCUMENTS, len(DOCUMENTS))
    one = write_shards([DOCUMENTS], "one")
    many = write_shards([mixed[:10], mixed[10:50], mixed[50:51], mixed[51:]], "many")
    for sample in (100_000_000, 50_000):
        (a, first), (b, second), (c, _) = (
            train(one, "--sample-bytes", sample),
            train(many, "--sample-bytes", sample, "--workers", 3),
            train(many, "--sample-bytes", sample, "--workers", 1),
        )
        assert files(a) == files(b) == files(c)
        same = ("in", "out", "dropped", "sample_bytes", "tokenizer", "held_out_bytes", "bytes_per_token")
        assert {name: first[name] for name in same} == {name: second[name] for name in same}


def test_the_merges_are_those_of_hugging_face():
    """At every size, with tokens that two merges make, long runs and words, and characters of all kinds."""
    source = random.Random(1)
    letters = "abc\u00e9\u4e2d \n\t12!\u65e5\u672c\u00f1"
    corpora = {
        "topics": (TEXTS, 4000),
        "few letters": (["".join(source.choices("ab ", k=200)) for _ in range(100)], 1200),
        "runs": (["a" * count + " " + "ab" * count for count in range(1, 200)], 500),
        "scripts": (["".join(source.choices(letters, k=500)) for _ in range(50)], 1500),
    }
    for texts, size in corpora.values():
        for least in (1, 2, 5):
            learner = HuggingFaceTokenizer(BPE())
            learner.pre_tokenizer = ByteLevel(add_prefix_space=False)
            alphabet = ByteLevel.alphabet()
            learner.train_from_iterator(
                texts,
                BpeTrainer(vocab_size=size - 1, min_frequency=least, initial_alphabet=alphabet, show_progress=False),
            )
            model = json.loads(learner.to_str())["model"]
            ours = train_bpe(texts, size, least)
            assert [list(pair) for pair in ours.merges] == model["merges"]
            assert ours.vocabulary == {**model["vocab"], END_OF_TEXT: len(model["vocab"])}


@pytest.mark.exhaustive
def test_every_code_point_is_split_as_hugging_face_does():
    split = ByteLevel(add_prefix_space=False)
    shown = {byte: character for character, byte in byte_alphabet().items()}
    for point in range(sys.maxunicode + 1):
        if 0xD800 <= point < 0xE000:
            continue
        text = f"a{chr(point)}b {chr(point)}{chr(point)}1 {chr(point)}!"
        theirs = Counter(word for word, _ in split.pre_tokenize_str(text))
        assert {"".join(map(shown.get, word)): n for word, n in count_words([text]).items()} == theirs, hex(point)


def test_the_sample_is_chosen_by_hash_and_no_larger_than_wanted(write_shards, train, read_shards, monkeypatch):
    seen: list[str] = []

    def listened(texts):
        texts = list(texts)
        seen.extend(texts)
        return count_words(texts)

    monkeypatch.setattr("webtext_prep.stages.train_tokenizer.count_words", listened)
    _, summary = train(write_shards([DOCUMENTS[:40], DOCUMENTS[40:]]), "--sample-bytes", 50_000, "--workers", 1)
    ranked = sorted(DOCUMENTS, key=lambda document: sample_key(document, 1234))
    ranked = [document for document in ranked if not is_held_out(shuffle_key(document, 1234))]
    expected = [document.text for document in ranked[: len(seen)]]
    assert sorted(seen) == sorted(expected)
    sizes = [len(text.encode()) for text in expected]
    assert sum(sizes[:-1]) < 50_000 <= sum(sizes) == summary["sample_bytes"]
    assert summary["out"] == len(seen)
    held_out = len(DOCUMENTS) - len([d for d in DOCUMENTS if not is_held_out(shuffle_key(d, 1234))])
    assert summary["dropped"] == {"not_sampled": len(DOCUMENTS) - len(seen) - held_out, "held_out": held_out}
    assert held_out > 0
    assert summary["bytes_per_token"] > 1.5
    assert summary["gpt2_bytes_per_token"] > 2


def test_one_document_is_trained_on_whatever_its_hash_and_empty_ones_are_counted(write_shards, train):
    (held_out,) = itertools.islice((d for d in DOCUMENTS if is_held_out(shuffle_key(d, 1234))), 1)
    folder, summary = train(write_shards([[held_out, ""]]), size=300)
    assert (summary["in"], summary["out"], summary["dropped"]) == (2, 1, {"empty": 1})
    assert "bytes_per_token" not in summary
    assert Tokenizer.from_path(folder).vocabulary_size == 300


def test_text_that_gives_fewer_tokens_is_said(write_shards, train, webtext, tmp_path):
    folder, summary = train(write_shards([["abab abab"]]), size=1000)
    assert summary["vocabulary_size"] == Tokenizer.from_path(folder).vocabulary_size < 265
    assert "of 1,000 tokens: no other pair occurs 2 times" in summary["problems"][0]
    source = write_shards([["", ""]], "empty")
    failed = webtext("train-tokenizer", "--input", source, "--output", tmp_path / "none")
    assert failed.code == 1
    assert "none of the 2 documents was kept (empty 2)" in failed.sentence
    assert not (tmp_path / "none" / "tokenizer.json").exists()
    small = webtext("train-tokenizer", "--input", source, "--output", tmp_path / "none", "--vocabulary-size", 256)
    assert (small.code, "--vocabulary-size" in small.err) == (2, True)


def test_the_command_line_does_not_load_the_trainer():
    code = "import sys; from webtext_prep.cli import find_stages; find_stages(); print('gigatoken' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
