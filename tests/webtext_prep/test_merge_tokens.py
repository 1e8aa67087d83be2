"""`webtext merge-tokens`: pairs of token files joined as Megatron-LM joins its own."""

import hashlib
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import job_of

from indexed_tokens import (
    IndexedTokens,
    IndexedTokensWriter,
    Tokenizer,
    check_token_files,
    corpus_tokenizer,
    save_corpus_tokenizer,
)
from indexed_tokens.tokenizer import byte_alphabet
from webtext_prep import storage
from webtext_prep.stages.merge_tokens import MergeTokens

BYTES = ["<|endoftext|>", *byte_alphabet()]


def tokenizer_of(tokens) -> Tokenizer:
    return Tokenizer({token: number for number, token in enumerate(tokens)}, [])


def write(prefix, documents, *, tokens=BYTES, dtype=np.uint16):
    with IndexedTokensWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document, dtype))
    if tokens:
        save_corpus_tokenizer(prefix, tokenizer_of(tokens))
    return prefix


def flip(path):
    """Another token, other sequences that are valid, or another tokenizer."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".idx":
        content[34 : 34 + 8] = content[34 + 4 : 34 + 8] + content[34 : 34 + 4]  # the lengths of two sequences
        content[34 + 12 + 8] = 2 * content[34]
    elif path.suffix == ".bin":
        content[0] ^= 2
    else:
        content = bytearray(
            content.replace(b'"<|endoftext|>": 0', b'"<|endoftext|>": 257').replace(b'"id": 0', b'"id": 257')
        )
    assert content != path.read_bytes()
    path.write_bytes(content)


def contents(prefix) -> list[bytes]:
    return [prefix.with_name(f"{prefix.name}{suffix}").read_bytes() for suffix in (".bin", ".idx", ".tokenizer.json")]


@pytest.fixture
def pairs(tmp_path):
    write(tmp_path / "a_text_document", [[1, 2, 3], [], [4]])
    write(tmp_path / "b_text_document", [[], [5, 6], []])
    write(tmp_path / "both", [[1, 2, 3], [], [4], [], [5, 6], []])
    return tmp_path / "a_text_document", tmp_path / "b_text_document"


def test_files_are_joined_one_after_another(pairs, tmp_path, webtext):
    done = webtext("merge-tokens", "--input", *pairs, "--output", tmp_path / "c", "--json").json
    assert (done["in"], done["out"], done["tokens"], done["files"]) == (6, 6, 6, 2)
    assert contents(tmp_path / "c_text_document") == contents(tmp_path / "both")
    assert corpus_tokenizer(tmp_path / "c_text_document").fingerprint == tokenizer_of(BYTES).fingerprint


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
def test_a_pair_is_named_by_its_prefix_or_a_file(pairs, tmp_path, webtext, suffix):
    named = [tmp_path / "a", f"{pairs[1]}{suffix}"]
    assert webtext("merge-tokens", "--input", *named, "--output", tmp_path / "c").code == 0
    assert contents(tmp_path / "c_text_document") == contents(tmp_path / "both")


class SmallMergeTokens(MergeTokens):
    part_bytes = 6
    part_entries = 2


@settings(max_examples=25)
@given(st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=4), min_size=1, max_size=5), min_size=1, max_size=4))
def test_parts_of_any_size_make_the_bytes_of_one_writer(tmp_path_factory, corpora):
    folder = tmp_path_factory.mktemp("pairs")
    prefixes = [write(folder / str(number), corpus, tokens=()) for number, corpus in enumerate(corpora)]
    write(folder / "expected", [document for corpus in corpora for document in corpus])
    files = [storage.location(name) for prefix in prefixes for name in MergeTokens.reads.named(str(prefix))]
    job_of(SmallMergeTokens(), files, folder / "c").run()
    assert contents(folder / "expected")[:2] == [
        (folder / f"c_text_document{suffix}").read_bytes() for suffix in (".bin", ".idx")
    ]
    assert check_token_files(folder / "c_text_document", whole=True)
    assert not (folder / "c_text_document.tokenizer.json").exists()


def test_files_of_one_golden_pair(tmp_path, webtext):
    """The formats page: documents [1,2,50256] and [3,50256]."""
    write(tmp_path / "a", [[1, 2, 50256]], tokens=())
    write(tmp_path / "b", [[3, 50256]], tokens=())
    assert webtext("merge-tokens", "--input", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "c").code == 0
    assert (tmp_path / "c_text_document.bin").read_bytes().hex() == "0100020050c4030050c4"
    index = (tmp_path / "c_text_document.idx").read_bytes()
    assert hashlib.md5(index).hexdigest() == "84717ac691928be4ab7847ab353c4089"


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"dtype": np.int32}, "stores tokens as int32 and .*a_text_document as uint16: only files of one type"),
        (
            {"tokens": ()},
            "other has no tokenizer next to it, and .*a_text_document has: if both were made with it",
        ),
        ({"tokens": [*BYTES[1:], BYTES[0]]}, "other and .*a_text_document were made with different tokenizers"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(pairs, tmp_path, webtext, other, sentence):
    write(tmp_path / "other", [[7, 8]], **other)
    done = webtext("merge-tokens", "--input", pairs[0], tmp_path / "other", "--output", tmp_path / "c")
    assert done.code == 2
    assert re.search(sentence, done.sentence)
    assert not (tmp_path / "c_text_document.idx").exists()


@pytest.mark.parametrize("file", ["bin", "idx", "tokenizer.json"])
def test_a_damaged_input_is_refused(pairs, tmp_path, webtext, file):
    """A flipped bit in token files went into what was merged of them, and on into training."""
    assert webtext("merge-tokens", "--input", *pairs, "--output", tmp_path / "c").code == 0
    flip(tmp_path / f"c_text_document.{file}")
    done = webtext("merge-tokens", "--input", tmp_path / "c", pairs[0], "--output", tmp_path / "d")
    assert done.code == 2
    assert f"c_text_document.{file} " in done.sentence and "damaged or replaced" in done.sentence
    assert not (tmp_path / "d_text_document.idx").exists()


def test_what_is_no_token_file_is_refused(pairs, tmp_path, webtext):
    done = webtext("merge-tokens", "--input", tmp_path / "absent", "--output", tmp_path / "c")
    assert (done.code, "no file or folder" in done.sentence) == (2, True)
    (tmp_path / "a_text_document.bin").unlink()
    done = webtext("merge-tokens", "--input", pairs[0], "--output", tmp_path / "c")
    assert (done.code, "a_text_document.bin" in done.sentence) == (2, True)


def test_what_is_copied_is_not_copied_again(pairs, tmp_path, webtext, monkeypatch):
    monkeypatch.setattr(MergeTokens, "part_bytes", 2)
    command = ("merge-tokens", "--input", *pairs, "--output", tmp_path / "c", "--workers", 1)
    copy, names = MergeTokens.copy, []

    def noted(self, task, context):
        if len(names) == 4:
            raise KeyboardInterrupt
        names.append(task.name)
        return copy(self, task, context)

    with monkeypatch.context() as patched:
        patched.setattr(MergeTokens, "copy", noted)
        assert webtext(*command).code == 130
        assert not list(tmp_path.glob("c_*"))
        names.append("")
        assert webtext(*command).code == 0
    assert len(names) == len(set(names)) > 6
    assert contents(tmp_path / "c_text_document") == contents(tmp_path / "both")
    assert webtext(*command, "--json").json["resumed"]
    assert len(IndexedTokens(tmp_path / "c_text_document")) == 3
    assert json.loads((tmp_path / "c_text_document.json").read_bytes())["facts"]["files"] == 2
