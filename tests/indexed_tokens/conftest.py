"""Small helpers: a pair of token files, and a tiny tokenizer whose ids are in no order."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from indexed_tokens import IndexedTokensWriter, Tokenizer
from indexed_tokens.tokenizer import byte_alphabet


@pytest.fixture
def write_tokens(tmp_path) -> Callable[..., Path]:
    """`write_tokens(documents, name="corpus", dtype="u2")` writes a pair and returns its prefix."""

    def write(documents: Sequence[Sequence[int]], name: str = "corpus", dtype: str = "u2") -> Path:
        with IndexedTokensWriter(tmp_path / name, dtype) as writer:
            for document in documents:
                writer.add(document)
        return tmp_path / name

    return write


@pytest.fixture
def own_vocabulary(tmp_path) -> tuple[Path, Path]:
    """`vocab.json` and `merges.txt` of a small tokenizer: all bytes, four merges, ids counted down from the end."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    tokens = ["<|endoftext|>", *byte_alphabet(), *("".join(pair) for pair in merges)]
    vocabulary = {token: len(tokens) - 1 - number for number, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "vocab.json", tmp_path / "merges.txt"


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    """GPT-2's tokenizer."""
    return Tokenizer.gpt2()
