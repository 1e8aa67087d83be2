"""`webtext trace`: the documents that hold a text's passages, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from tests.gpt2_train.small_models import byte_tokenizer
from tests.indexed_tokens.naive_index import make_corpus, write_indexed

from indexed_tokens import save_corpus_tokenizer
from webtext_prep.cli import main

TEXT = "The lighthouse keeper counted seventeen ships before the storm came in."


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Token files of two documents, indexed."""
    return make_corpus(tmp_path / "corpus", [TEXT, "Nobody in the village remembered who had planted the orchard."])


def test_the_command_prints_the_text_and_its_sources(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["trace", "--data", corpus, "--minimum-tokens", "4", "--check"]
    text = f"Once more: {TEXT}"
    (tmp_path / "letter.txt").write_text(text)
    assert main([*command, "--text", text]) == 0
    shown = capsys.readouterr().out
    assert "http://corpus.org/0" in shown
    assert "lighthouse keeper counted seventeen ships before the storm came in.]{1}" in shown
    assert main([*command, "--file", str(tmp_path / "letter.txt")]) == 0
    assert capsys.readouterr().out == shown
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passages"][0]["sources"][0]["url"] == "http://corpus.org/0"
    assert (found["text"], found["minimum_tokens"]) == (text, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text", "a"], "no --data"),
        (["--data", "CORPUS", "--text", "a", "--file", "b"], "leave out one"),
        (["--data", "CORPUS", "--text", " "], "the text is empty"),
        (["--data", "CORPUS", "--file", "absent.txt"], "can't read absent.txt"),
        (["--data", "absent", "--text", "a"], "no token file absent.idx"),
        (["--data", "BYTES", "--text", "a"], "has no tokenizer next to it"),
        (["--data", "CORPUS", "OTHER", "--text", "a"], "made with different tokenizers"),
        (["--data", "OTHER", "--text", "a", "--tokenizer", "gpt2"], "leave it out"),
    ],
)
def test_what_can_not_be_traced_is_said(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    for name in ("bytes", "other"):
        write_indexed(tmp_path / name, [[1, 2, 3]])
    save_corpus_tokenizer(tmp_path / "other", byte_tokenizer())
    places = {"CORPUS": corpus, "BYTES": str(tmp_path / "bytes"), "OTHER": str(tmp_path / "other")}
    assert main(["trace", *(places.get(flag, flag) for flag in flags)]) == 2
    assert message in capsys.readouterr().err
