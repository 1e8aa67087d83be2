"""`webtext tokenize`: every document once, in a seeded shuffle, in files that others can read."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from indexed_tokens import IndexedTokens, Tokenizer, corpus_tokenizer
from indexed_tokens.tokenizer import byte_alphabet
from webtext_prep.cli import main
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents
from webtext_prep.stages.tokenize import corpus_encoder
from webtext_prep.tokens.runs import shuffle_key


def run(capsys, *arguments: object) -> dict:
    assert main(["tokenize", "--workers", "1", *map(str, arguments), "--json"]) == 0
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


def test_order_and_end_of_document_can_be_switched_off(source, tmp_path, capsys):
    run(capsys, "--input", source, "--output", tmp_path / "c", "--no-shuffle", "--no-append-eod", "--workers", 1)
    tokens = IndexedTokens(tmp_path / "c_text_document")
    decode = Tokenizer.gpt2().decode
    assert [decode(sequence) for sequence in list(tokens)[:2]] == [
        "Document 0 0 with some text.",
        "Document 0 1 with some text.",
    ]
    assert not any((sequence == 50256).any() for sequence in tokens)


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


@pytest.fixture
def own_tokenizer(tmp_path) -> Path:
    """A folder with `vocab.json` and `merges.txt` of a tokenizer that knows few words and has ids of its own."""
    merges = [("D", "o"), ("Do", "c"), ("Ġ", "t")]
    tokens = ["<|endoftext|>", *("".join(pair) for pair in merges), *byte_alphabet()]
    own = Tokenizer({token: number for number, token in enumerate(tokens)}, merges)
    own.save(tmp_path / "own")
    own.save_json(tmp_path / "own.json")
    return tmp_path / "own"


def test_the_tokenizer_travels_with_the_corpus(source, own_tokenizer, tmp_path, capsys):
    """The token files of another tokenizer had nothing next to them that said so: they were read as GPT-2's."""
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


def test_a_vocabulary_without_an_end_of_text_encodes_what_needs_none(write_shards, tmp_path, webtext):
    """It was an internal error."""
    own = Tokenizer({token: number for number, token in enumerate(byte_alphabet())}, [])
    own.save(tmp_path / "own")
    command = ("tokenize", "--input", write_shards([["some text"]]), "--tokenizer", tmp_path / "own")
    done = webtext(*command, "--output", tmp_path / "a")
    assert (done.code, "has no token <|endoftext|>" in done.sentence) == (2, True)
    assert webtext(*command, "--output", tmp_path / "b", "--no-append-eod").code == 0
    (tokens,) = IndexedTokens(tmp_path / "b_text_document")
    assert corpus_tokenizer(tmp_path / "b_text_document").decode(tokens) == "some text"


def test_a_tokenizer_is_given_one_way_only(source, own_tokenizer, tmp_path, capsys):
    pair = ["--vocabulary", str(own_tokenizer / "vocab.json"), "--merges", str(own_tokenizer / "merges.txt")]
    command = ["tokenize", "--input", str(source), "--output", str(tmp_path / "a")]
    assert main([*command, *pair, "--tokenizer", "gpt2"]) == 2
    assert "leave these out" in capsys.readouterr().err
    assert main([*command, *pair[:2]]) == 2
    assert "belong together" in capsys.readouterr().err
    assert main([*command, "--tokenizer", str(tmp_path / "absent")]) == 2
    assert "no tokenizer" in capsys.readouterr().err


def test_another_tokenizer_on_restart_replaces_the_old_one(source, own_tokenizer, tmp_path, capsys):
    run(capsys, "--input", source, "--output", tmp_path / "a", "--tokenizer", own_tokenizer)
    run(capsys, "--input", source, "--output", tmp_path / "a", "--restart")
    assert corpus_tokenizer(tmp_path / "a_text_document") is Tokenizer.gpt2()
    (tmp_path / "a_text_document.tokenizer.json").unlink()
    assert not run(capsys, "--input", source, "--output", tmp_path / "a")["resumed"]
    assert corpus_tokenizer(tmp_path / "a_text_document") is Tokenizer.gpt2()


# The shuffle


def words(shard: int, number: int) -> str:
    return f"Document {shard} {number} " + "word " * (number * 7 % 40)


def some_documents(shards: int = 3, count: int = 40) -> list[list[Document]]:
    """Shards of documents of many lengths, some of one URL, and two that are equal."""
    return [
        [Document(f"http://a.org/{number % 30 + shard}", words(shard, number)) for number in range(count)]
        + [Document("http://same.org/", "twice")]
        for shard in range(shards)
    ]


def files(prefix: Path) -> list[bytes]:
    return [Path(f"{prefix}_text_document{suffix}").read_bytes() for suffix in (".bin", ".idx", ".tokenizer.json")]


def outputs(prefix: Path) -> list[bytes]:
    """The files of a finished run; the checksums in their record are checked."""
    found = files(prefix)
    record = json.loads(Path(f"{prefix}_text_document.json").read_bytes())
    assert record["facts"]["checksums"] == {
        kind: {"bytes": len(content), "crc32": zlib.crc32(content)}
        for kind, content in zip(("bin", "idx"), found, strict=False)
    }
    return found


def test_the_order_is_that_of_the_keys(write_shards, tmp_path, webtext):
    shards = some_documents()
    write_shards(shards)
    assert webtext("small-tokenize", "--input", tmp_path / "input", "--output", tmp_path / "c").code == 0
    everything = [document for shard in shards for document in shard]
    everything.sort(key=lambda document: shuffle_key(document, 1234))
    assert texts(tmp_path / "c_text_document") == [document.text for document in everything]
    first_ten = [document.text.split()[1] for document in everything[:10] if " " in document.text]
    assert len(set(first_ten)) > 1, "documents of different shards are mixed"


def test_a_document_more_or_less_leaves_the_order_of_all_others(write_shards, tmp_path, webtext):
    """Every document moved when one was added."""
    shards = some_documents()
    write_shards(shards, "all")
    gone = [shards[1].pop(7), shards[2].pop(0)]
    write_shards([shards[2], shards[0], shards[1]], "fewer")
    for name in ("all", "fewer"):
        assert webtext("small-tokenize", "--input", tmp_path / name, "--output", tmp_path / f"{name}.c").code == 0
    before, after = (texts(tmp_path / f"{name}.c_text_document") for name in ("all", "fewer"))
    assert len(before) == len(after) + 2
    assert [text for text in before if text not in {document.text for document in gone}] == after


@pytest.mark.parametrize("order", ["--shuffle", "--no-shuffle"])
def test_the_bytes_do_not_depend_on_workers_runs_and_parts(write_shards, tmp_path, webtext, order):
    write_shards(some_documents())
    common = ("--input", tmp_path / "input", order)
    assert webtext("tokenize", *common, "--output", tmp_path / "a", "--workers", 1).code == 0
    assert webtext("small-tokenize", *common, "--output", tmp_path / "b", "--workers", 1).code == 0
    assert webtext("small-tokenize", *common, "--output", tmp_path / "c", "--workers", 2).code == 0
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b") == outputs(tmp_path / "c")


def test_a_draft_that_is_gone_is_made_again_as_a_whole(write_shards, tmp_path, webtext, monkeypatch):
    from webtext_prep.running.job import Job

    write_shards(some_documents())
    command = ("small-tokenize", "--input", tmp_path / "input", "--output", tmp_path / "c", "--workers", 1)

    def no_end(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Job, "_record", no_end)
        assert webtext(*command).code == 130
    expected = files(tmp_path / "c")
    (draft,) = (tmp_path / ".c_text_document.state/scratch").glob("draft-*.bin")
    draft.unlink()
    assert webtext(*command).code == 0
    assert outputs(tmp_path / "c") == expected


def test_a_changed_file_of_a_trained_tokenizer_is_refused(write_shards, tmp_path, webtext):
    """A file of DIR that had changed since train-tokenizer wrote it was used without a word."""
    write_shards(some_documents())
    common = ("--input", tmp_path / "input")
    made = webtext("train-tokenizer", *common, "--output", tmp_path / "own", "--vocabulary-size", 300)
    assert made.code == 0
    command = ("tokenize", *common, "--tokenizer", tmp_path / "own", "--output", tmp_path / "c")
    place = tmp_path / "own" / "vocab.json"
    whole = place.read_bytes()
    place.write_bytes(whole.replace(b'"!": 0', b'"!": 1'))
    done = webtext(*command)
    assert (done.code, f"{place} is not what `webtext train-tokenizer` wrote" in done.sentence) == (2, True)
    assert not (tmp_path / "c_text_document.idx").exists()
    place.write_bytes(whole)
    assert webtext(*command).code == 0


# Engines


def test_the_tokens_are_those_of_tiktoken(write_shards, tmp_path, webtext):
    hard = ["a <|endoftext|> b", "\u3000\u00a0 x  \U000323b0y", "l\u2019\u00e9t\u00e9 it's " * 900]
    write_shards([*some_documents(), hard])
    assert webtext("tokenize", "--input", tmp_path / "input", "--output", tmp_path / "c", "--no-shuffle").code == 0
    found = [tokens[:-1].tolist() for tokens in IndexedTokens(tmp_path / "c_text_document")]
    given = [*(document.text for shard in some_documents() for document in shard), *hard]
    assert found == [Tokenizer.gpt2().encode(text) for text in given]


def differing(monkeypatch, text: str) -> None:
    """Have gigatoken encode one text as another."""
    from indexed_tokens.gigatoken_encoder import GigatokenEncoder

    encode = GigatokenEncoder.encode
    changed = text.replace("seven", "eight")
    monkeypatch.setattr(
        GigatokenEncoder, "encode", lambda self, given: encode(self, changed if given == text else given)
    )


@pytest.mark.parametrize("at", [0, 999])
def test_an_encoder_that_differs_from_tiktoken_is_an_error(write_shards, tmp_path, webtext, monkeypatch, at):
    """At the start if it is in the sample, and later where it is one of those that are looked at."""
    corpus_encoder.cache_clear()
    texts = ["as always"] * 1100
    texts[at] = "there are seven"
    write_shards([texts])
    command = ("tokenize", "--input", tmp_path / "input", "--output", tmp_path / "c", "--workers", 1)
    with monkeypatch.context() as patched:
        differing(patched, "there are seven")
        done = webtext(*command)
    assert done.code == 2
    assert (
        "tiktoken differ on the text 'there are seven': token 2 is 3624 (' eight'), and should be 3598 (' seven')"
        in (done.sentence)
    )
    assert "Install the gigatoken that this version was tested with: 0.10.0." in done.sentence
    assert not (tmp_path / "c_text_document.idx").exists()
    assert webtext(*command).code == 0
