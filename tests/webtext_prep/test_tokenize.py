"""`webtext tokenize`: every document once, in a seeded shuffle, in files that others can read."""

import json
from pathlib import Path

import numpy as np
import pytest

from indexed_tokens import IndexedTokens, Tokenizer, corpus_tokenizer
from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.shards import write_documents


def run(capsys, *arguments: object) -> dict:
    assert main(["tokenize", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    for shard in range(3):
        with write_documents(folder / f"part-{shard:05}.jsonl.zst") as writer:
            for number in range(20):
                writer.write(Document(f"http://a.org/{shard}/{number}", f"Document {shard} {number} with some text."))
    return folder


def texts(prefix: Path) -> list[str]:
    decode = Tokenizer.gpt2().decode
    return [decode(tokens[:-1]) for tokens in IndexedTokens(prefix)]


def test_every_document_is_there_once_and_ends_with_end_of_text(source, tmp_path, capsys):
    """Pitfall 16: the last shard was dropped, and tokens were saved as pickled objects."""
    summary = run(capsys, "--input", source, "--output", tmp_path / "corpus", "--workers", 2)
    tokens = IndexedTokens(tmp_path / "corpus_text_document")
    assert len(tokens) == tokens.documents == summary["out"] == 60
    assert tokens.dtype == np.uint16
    assert all(sequence[-1] == 50256 for sequence in tokens)
    assert summary["tokens"] == tokens.total_tokens
    expected = {f"Document {shard} {number} with some text." for shard in range(3) for number in range(20)}
    assert set(texts(tmp_path / "corpus_text_document")) == expected


def test_the_shuffle_follows_the_seed_and_not_the_workers(source, tmp_path, capsys):
    for name, seed, workers in (("a", 1, 1), ("b", 1, 3), ("c", 2, 1)):
        run(capsys, "--input", source, "--output", tmp_path / name, "--seed", seed, "--workers", workers)
    a, b, c = ((tmp_path / f"{name}_text_document.bin").read_bytes() for name in "abc")
    assert a == b != c
    first_ten = texts(tmp_path / "a_text_document")[:10]
    assert len({text.split()[1] for text in first_ten}) > 1  # documents of different shards are mixed


def test_order_and_end_of_document_can_be_switched_off(source, tmp_path, capsys):
    run(capsys, "--input", source, "--output", tmp_path / "c", "--no-shuffle", "--no-append-eod", "--workers", 1)
    tokens = IndexedTokens(tmp_path / "c_text_document")
    decode = Tokenizer.gpt2().decode
    assert [decode(sequence) for sequence in list(tokens)[:2]] == [
        "Document 0 0 with some text.",
        "Document 0 1 with some text.",
    ]
    assert not any((sequence == 50256).any() for sequence in tokens)


def test_end_of_text_inside_a_document_is_plain_text(tmp_path, capsys):
    with write_documents(tmp_path / "in" / "part-00000.jsonl.zst") as writer:
        writer.write(Document("http://a.org/", "before <|endoftext|> after"))
    run(capsys, "--input", tmp_path / "in", "--output", tmp_path / "c")
    (sequence,) = IndexedTokens(tmp_path / "c_text_document")
    assert (sequence == 50256).sum() == 1
    assert Tokenizer.gpt2().decode(sequence[:-1]) == "before <|endoftext|> after"


def test_documents_without_text_are_counted(tmp_path, capsys):
    with write_documents(tmp_path / "in" / "part-00000.jsonl.zst") as writer:
        writer.write(Document("http://a.org/1", "text"))
        writer.write(Document("http://a.org/2", ""))
    summary = run(capsys, "--input", tmp_path / "in", "--output", tmp_path / "c")
    assert (summary["in"], summary["out"], summary["dropped"]) == (2, 1, {"empty": 1})


def test_only_empty_documents_is_an_error_now_and_not_in_training(tmp_path, capsys):
    """Pitfall 16: empty data crashed training much later."""
    with write_documents(tmp_path / "in" / "part-00000.jsonl.zst") as writer:
        writer.write(Document("http://a.org/2", ""))
    assert main(["tokenize", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "c")]) == 1
    assert "none of the 1 documents was kept (empty 1)" in capsys.readouterr().err
    assert not (tmp_path / "c_text_document.idx").exists()


def test_a_folder_as_prefix_is_refused(source, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    assert main(["tokenize", "--input", str(source), "--output", str(tmp_path / "folder")]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_another_vocabulary_can_be_given_and_must_be_whole(source, tmp_path, capsys):
    Tokenizer.gpt2().save(tmp_path / "vocabulary")
    files = [tmp_path / "vocabulary" / "vocab.json", tmp_path / "vocabulary" / "merges.txt"]
    run(capsys, "--input", source, "--output", tmp_path / "a", "--vocabulary", files[0], "--merges", files[1])
    run(capsys, "--input", source, "--output", tmp_path / "b")
    assert (tmp_path / "a_text_document.bin").read_bytes() == (tmp_path / "b_text_document.bin").read_bytes()
    arguments = ["--input", str(source), "--output", str(tmp_path / "c"), "--vocabulary", str(files[0])]
    assert main(["tokenize", *arguments]) == 2
    assert "belong together" in capsys.readouterr().err


@pytest.fixture
def own_tokenizer(tmp_path) -> Path:
    """A folder with `vocab.json` and `merges.txt` of a tokenizer that knows few words and has ids of its own."""
    from indexed_tokens.tokenizer import _byte_alphabet

    merges = [("D", "o"), ("Do", "c"), ("Ġ", "t")]
    tokens = ["<|endoftext|>", *("".join(pair) for pair in merges), *_byte_alphabet()]
    own = Tokenizer({token: number for number, token in enumerate(tokens)}, merges)
    own.save(tmp_path / "own")
    own.save_json(tmp_path / "own.json")
    return tmp_path / "own"


def test_the_tokenizer_travels_with_the_corpus(source, own_tokenizer, tmp_path, capsys):
    """The token files of another tokenizer had nothing beside them that said so: they were read as GPT-2's."""
    run(capsys, "--input", source, "--output", tmp_path / "a")
    run(capsys, "--input", source, "--output", tmp_path / "b", "--tokenizer", own_tokenizer)
    assert corpus_tokenizer(tmp_path / "a_text_document") is Tokenizer.gpt2()
    own = corpus_tokenizer(tmp_path / "b_text_document")
    assert own.fingerprint == Tokenizer.from_path(own_tokenizer).fingerprint
    decoded = {own.decode(tokens) for tokens in IndexedTokens(tmp_path / "b_text_document")}
    assert "Document 0 0 with some text.<|endoftext|>" in decoded
    assert main(["inspect", str(tmp_path / "b_text_document"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"][0]["text"] in decoded
    assert found["tokenizer"] == own.fingerprint


@pytest.mark.parametrize("given", ["own", "own.json", "own/vocab.json"])
def test_a_tokenizer_is_a_folder_or_a_file(source, own_tokenizer, tmp_path, capsys, given):
    run(capsys, "--input", source, "--output", tmp_path / "a", "--tokenizer", tmp_path / given)
    old = ["--vocabulary", own_tokenizer / "vocab.json", "--merges", own_tokenizer / "merges.txt"]
    run(capsys, "--input", source, "--output", tmp_path / "b", *old)
    for suffix in (".bin", ".idx", ".tokenizer.json"):
        made = [(tmp_path / f"{name}_text_document{suffix}").read_bytes() for name in "ab"]
        assert made[0] == made[1]


def test_a_tokenizer_is_given_one_way_only(source, own_tokenizer, tmp_path, capsys):
    pair = ["--vocabulary", str(own_tokenizer / "vocab.json"), "--merges", str(own_tokenizer / "merges.txt")]
    command = ["tokenize", "--input", str(source), "--output", str(tmp_path / "a")]
    assert main([*command, *pair, "--tokenizer", "gpt2"]) == 2
    assert "leave these out" in capsys.readouterr().err
    assert main([*command, "--tokenizer", str(tmp_path / "absent")]) == 2
    assert "no tokenizer" in capsys.readouterr().err


def test_another_tokenizer_on_restart_replaces_the_old_one(source, own_tokenizer, tmp_path, capsys):
    run(capsys, "--input", source, "--output", tmp_path / "a", "--tokenizer", own_tokenizer)
    run(capsys, "--input", source, "--output", tmp_path / "a", "--restart")
    assert corpus_tokenizer(tmp_path / "a_text_document") is Tokenizer.gpt2()
    (tmp_path / "a_text_document.tokenizer.json").unlink()
    assert not run(capsys, "--input", source, "--output", tmp_path / "a")["resumed"]
    assert corpus_tokenizer(tmp_path / "a_text_document") is Tokenizer.gpt2()


def test_the_same_command_again_does_nothing_and_says_so(source, tmp_path, capsys):
    run(capsys, "--input", source, "--output", tmp_path / "c")
    before = (tmp_path / "c_text_document.bin").stat().st_mtime_ns
    assert run(capsys, "--input", source, "--output", tmp_path / "c")["resumed"]
    assert (tmp_path / "c_text_document.bin").stat().st_mtime_ns == before


def test_other_settings_on_the_same_prefix_are_named(source, tmp_path, capsys):
    run(capsys, "--input", source, "--output", tmp_path / "c")
    assert main(["tokenize", "--input", str(source), "--output", str(tmp_path / "c"), "--seed", "5"]) == 2
    assert "seed was 1234, now 5" in capsys.readouterr().err
    assert main(["tokenize", "--input", str(source), "--output", str(tmp_path / "c"), "--seed", "5", "--restart"]) == 0


def test_a_run_that_failed_at_once_leaves_its_settings_to_be_corrected(source, tmp_path, capsys):
    arguments = ["--input", str(source), "--output", str(tmp_path / "c")]
    assert main(["tokenize", *arguments, "--vocabulary", "absent.json", "--merges", "absent.txt"]) != 0
    assert main(["tokenize", *arguments]) == 0
