"""Tokenizers from any file that holds one, and the one that travels with a corpus, checked against Hugging Face's."""

import hashlib
import json
import random
import shutil

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from indexed_tokens import (
    END_OF_TEXT,
    IndexedTokensError,
    Tokenizer,
    corpus_tokenizer,
    save_corpus_tokenizer,
    tokenizer_path,
)
from indexed_tokens.tokenizer import GPT2_JSON_SHA256
from indexed_tokens.tokenizer_files import PUBLISHED_WORDS, gpt2_files

WORDS = ["we ", "hello", " helm", "I'll", "  ", "\n", "\t x", "漢字", "🎉", "é", "42", "\x00", "Ã", "...", "\u2028"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tokenizers.Tokenizer:
    """A byte-level BPE that Hugging Face's own trainer learned from a little text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    source = random.Random(1)
    texts = ["".join(source.choices([*WORDS, "there", " where", " then", "ing ", "é"], k=200)) for _ in range(30)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


@pytest.fixture(scope="module")
def trained_file(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "tokenizer.json"
    trained.save(str(path))
    return path


@given(text=st.lists(st.sampled_from(WORDS) | st.text(max_size=4)).map("".join))
def test_a_hugging_face_tokenizer_gives_the_same_ids_here(trained, opened, text):
    own, _ = opened[1]
    assert own.encode(text) == trained.encode(text).ids
    assert own.end_of_text == trained.token_to_id(END_OF_TEXT)


@given(text=st.lists(st.sampled_from([*WORDS, END_OF_TEXT]) | st.text(max_size=4)).map("".join))
def test_hugging_face_opens_the_tokenizer_of_a_corpus_and_gives_the_same_ids(opened, text):
    for own, theirs in opened:
        assert theirs.encode(text).ids == own.encode(text)


@pytest.fixture(scope="module")
def opened(trained_file, tmp_path_factory) -> list[tuple[Tokenizer, tokenizers.Tokenizer]]:
    folder, found = tmp_path_factory.mktemp("corpora"), []
    for number, own in enumerate([Tokenizer.gpt2(), Tokenizer.from_path(trained_file)]):
        theirs = tokenizers.Tokenizer.from_file(str(save_corpus_tokenizer(folder / f"c{number}", own)))
        assert theirs.encode(f"a{END_OF_TEXT}").ids[-1] == own.end_of_text
        theirs.encode_special_tokens = True
        found.append((own, theirs))
    return found


def test_the_tokenizer_of_a_corpus_comes_back_equal_and_in_equal_bytes(trained_file, tmp_path):
    own = Tokenizer.from_path(trained_file)
    file = save_corpus_tokenizer(tmp_path / "corpus.bin", own)
    assert file == tokenizer_path(tmp_path / "corpus.idx") == tmp_path / "corpus.tokenizer.json"
    again = corpus_tokenizer(tmp_path / "corpus")
    assert again.fingerprint == own.fingerprint
    assert again.encode("hello where") == own.encode("hello where")
    assert save_corpus_tokenizer(tmp_path / "other", again).read_bytes() == file.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_tokenizer_of_a_corpus_made_with_gpt2s_is_gpt2s(gpt2, tmp_path):
    file = save_corpus_tokenizer(tmp_path / "corpus", gpt2)
    assert corpus_tokenizer(tmp_path / "corpus") is gpt2
    assert hashlib.sha256(file.read_bytes()).hexdigest() == GPT2_JSON_SHA256
    file.write_text(json.dumps(json.loads(file.read_bytes())), encoding="utf-8")  # the same in other bytes
    assert corpus_tokenizer(tmp_path / "corpus") is gpt2


def test_a_corpus_of_another_program_has_no_tokenizer(write_tokens):
    assert corpus_tokenizer(write_tokens([[1, 2]])) is None


def test_a_damaged_tokenizer_of_a_corpus_is_named(write_tokens):
    prefix = write_tokens([[1, 2]])
    tokenizer_path(prefix).write_text('{"model": ')
    with pytest.raises(IndexedTokensError, match=r"corpus\.tokenizer\.json"):
        corpus_tokenizer(prefix)


# Where a tokenizer is looked for


def test_gpt2_is_a_name(gpt2):
    assert Tokenizer.from_path("gpt2") is gpt2


def test_openais_own_file_names_are_known(gpt2, tmp_path):
    for source in gpt2_files():
        shutil.copy(source, tmp_path)
    assert Tokenizer.from_path(tmp_path) is gpt2
    assert Tokenizer.from_path(tmp_path / "encoder.json") is gpt2


@pytest.mark.parametrize("given_path", ["", "vocab.json", "merges.txt"])
def test_a_folder_or_either_file_of_a_pair_is_enough(own_vocabulary, given_path):
    expected = Tokenizer.from_files(*own_vocabulary).fingerprint
    assert Tokenizer.from_path(own_vocabulary[0].parent / given_path).fingerprint == expected


def test_a_pair_may_have_a_name_before_its_own(own_vocabulary):
    expected = Tokenizer.from_files(*own_vocabulary).fingerprint
    for path in own_vocabulary:
        path.rename(path.with_name(f"my-{path.name}"))
    assert Tokenizer.from_path(own_vocabulary[0].with_name("my-vocab.json")).fingerprint == expected


def test_a_folder_with_both_layouts_gives_its_tokenizer_json(own_vocabulary, trained_file):
    shutil.copy(trained_file, own_vocabulary[0].parent)
    found = Tokenizer.from_path(own_vocabulary[0].parent)
    assert found.fingerprint == Tokenizer.from_path(trained_file).fingerprint


@pytest.mark.parametrize(
    ("removed", "given_path", "sentence"),
    [
        ("merges.txt", "vocab.json", r"vocab\.json needs merges\.txt next to it"),
        ("vocab.json", "merges.txt", r"no tokenizer .*|needs vocab\.json"),
        ("merges.txt", "", "holds no tokenizer: expected tokenizer.json, or vocab.json with merges.txt"),
        ("merges.txt", "absent", "no tokenizer .*absent: give a folder or file"),
    ],
)
def test_what_is_missing_is_said(own_vocabulary, removed, given_path, sentence):
    folder = own_vocabulary[0].parent
    (folder / removed).unlink()
    with pytest.raises(IndexedTokensError, match=sentence):
        Tokenizer.from_path(folder / given_path)


# Kinds of tokenizer.json


def _changed(trained_file, tmp_path, change) -> Tokenizer:
    whole = json.loads(trained_file.read_text(encoding="utf-8"))
    change(whole)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    return Tokenizer.from_path(path)


def _split(pattern, **settings):
    step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False, **settings}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [step, byte_level]}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _template(*special):
    """A post-processor of tokenizers 0.23, which puts `special` tokens before each text."""
    before = [{"SpecialToken": {"id": token, "type_id": 0}} for token in special]
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}}


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole["model"].update(merges=[" ".join(pair) for pair in whole["model"]["merges"]]),
        lambda whole: whole.update(_split({"Regex": PUBLISHED_WORDS})),
        lambda whole: whole.update(normalizer={"type": "Sequence", "normalizers": []}),
        lambda whole: whole["model"].pop("type"),
        lambda whole: whole["model"]["vocab"].pop(END_OF_TEXT),
        lambda whole: whole.update(post_processor=BYTE_LEVEL),
        lambda whole: whole.update(post_processor=_template()),
    ],
    ids=[
        "merges as strings",
        "gpt2's split written out",
        "an empty normalizer",
        "no type",
        "end of text only added",
        "offsets after it",
        "a template that adds nothing",
    ],
)
def test_other_ways_to_write_the_same_tokenizer(trained_file, tmp_path, change):
    expected = Tokenizer.from_path(trained_file).fingerprint
    assert _changed(trained_file, tmp_path, change).fingerprint == expected


LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.update(model={"type": "WordPiece", "vocab": {"a": 0}}), "is of the type WordPiece"),
        (lambda w: w.update(model={"type": "Unigram", "vocab": [["a", 0.0]]}), "is of the type Unigram"),
        (lambda w: w.update(normalizer={"type": "NFC"}), "has the normalizer NFC"),
        (
            lambda w: w.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}),
            "has the normalizer Sequence of NFC, NFKC",
        ),
        (lambda w: w.update(_split({"Regex": LLAMA3_WORDS})), "splits text by another pattern"),
        (lambda w: w.update(_split({"Regex": PUBLISHED_WORDS}, invert=True)), "with settings of its own"),
        (lambda w: w.update(pre_tokenizer=None), "has the pre-tokenizer null, not ByteLevel"),
        (lambda w: w.update(pre_tokenizer={"type": "Metaspace"}), "has the pre-tokenizer Metaspace, not ByteLevel"),
        (lambda w: w.update(pre_tokenizer={**BYTE_LEVEL, "use_regex": False}), "with settings of its own"),
        (lambda w: w.update(pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True}), "puts a space before each text"),
        (
            lambda w: w["added_tokens"].append({**w["added_tokens"][0], "content": "<pad>", "id": 600}),
            r"has added tokens besides <\|endoftext\|> \(<pad>\)",
        ),
        (
            lambda w: w.update(post_processor=_template(END_OF_TEXT)),
            r"adds tokens to each text \(post_processor TemplateProcessing\)",
        ),
        (
            lambda w: w.update(
                post_processor={"type": "Sequence", "processors": [BYTE_LEVEL, {"type": "BertProcessing"}]}
            ),
            r"adds tokens to each text \(post_processor BertProcessing\)",
        ),
        (lambda w: w["model"].update(ignore_merges=True), "has ignore_merges = true"),
        (lambda w: w["model"].update(dropout=0.1), "has dropout = 0.1"),
        (lambda w: w["model"].update(end_of_word_suffix="</w>"), 'has end_of_word_suffix = "</w>"'),
        (lambda w: w["model"].update(vocab=["a"]), "has no vocabulary"),
        (lambda w: w["model"].update(merges=None), "has no list of merges"),
        (lambda w: w["model"]["merges"].append(["a"]), r"has the merge \['a'\]: expected two tokens"),
        (lambda w: w["added_tokens"][0].update(id=5), r"gives two ids to <\|endoftext\|>"),
        (lambda w: w.pop("model"), 'is not a tokenizer.json: it has no "model"'),
        (lambda w: w.update(added_tokens=[7]), "is not a tokenizer.json"),
        (lambda w: w.update(pre_tokenizer=[7]), "is not a tokenizer.json"),
    ],
)
def test_what_makes_a_tokenizer_json_unusable_is_said(trained_file, tmp_path, change, sentence):
    """A tokenizer that splits or normalizes text in another way gives ids that its model never saw, with no error."""
    with pytest.raises(IndexedTokensError, match=rf"changed\.json.*{sentence}"):
        _changed(trained_file, tmp_path, change)


def test_a_vocabulary_under_another_name_is_told_its_name(own_vocabulary, tmp_path):
    path = own_vocabulary[0].rename(tmp_path / "words.json")
    with pytest.raises(IndexedTokensError, match=r"a vocabulary is called vocab\.json and has merges\.txt next to it"):
        Tokenizer.from_path(path)
