"""`gpt2 generate --trace`: what of its texts stands in the training data. The search itself: `test_tracer`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.gpt2_train.small_models import END, byte_tokenizer, random_model, save
from tests.indexed_tokens.naive_index import write_indexed

from gpt2_train.cli import main
from indexed_tokens import save_corpus_tokenizer


def test_the_command_that_moved_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "--data", "corpus_text_document", "--text", "a"])
    assert ended.value.code == 2
    assert "trace is gone: use `webtext trace`, with the same flags." in capsys.readouterr().err


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, str]:
    """A model, and token files that hold what it writes behind `ab` in the middle of their second document."""
    save(tmp_path / "run", random_model())
    model = str(tmp_path / "run")
    return model, str(tmp_path / "corpus")


def generated(capsys: pytest.CaptureFixture[str], model: str, *flags: str) -> str:
    command = ["generate", "--checkpoint", model, "--prompt", "ab", "--tokens", "24", "--device", "cpu", "--ignore-end"]
    assert main([*command, *flags]) == 0
    return capsys.readouterr().out


def test_generate_says_what_its_text_repeats(
    tmp_path: Path, model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, prefix = model
    text = json.loads(generated(capsys, folder, "--json"))["samples"][0]["text"]
    tokenizer = byte_tokenizer()
    documents = [[1, 2], [*b"xyz", *tokenizer.encode(f"ab{text}"), *b"end", END]]
    write_indexed(Path(prefix), documents, urls=["http://a.org/", "http://b.org/"])
    save_corpus_tokenizer(prefix, tokenizer)
    found = json.loads(generated(capsys, folder, "--trace", prefix, "--json"))["samples"][0]
    assert found["text"] == text
    trace = found["trace"]
    assert (trace["text"], trace["verbatim_tokens"]) == (text, trace["tokens"])
    (passage,) = trace["passages"]
    assert (passage["sources"][0]["url"], passage["sources"][0]["token"]) == ("http://b.org/", 5)
    for flags in ([], ["--samples", "2"]):
        shown = generated(capsys, folder, "--trace", prefix, *flags)
        assert f"of {trace['tokens']} tokens (100%) stand in the corpus word for word" in shown
        assert "http://b.org/" in shown


def test_generate_without_an_index_fails_before_it_writes(
    tmp_path: Path, model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--checkpoint", "absent", "--prompt", "a", "--trace", str(tmp_path / "absent")]) == 2
    assert "no token file" in capsys.readouterr().err
