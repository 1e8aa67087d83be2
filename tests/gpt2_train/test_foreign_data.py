"""Token files of other programs, which name no tokenizer, and documents without an end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.gpt2_train.small_models import byte_tokenizer

from gpt2_train.checkpoint.info import read_info
from gpt2_train.cli import main
from gpt2_train.data.corpus import Corpus
from indexed_tokens import IndexedTokensWriter, Tokenizer, save_corpus_tokenizer

GPT2_END = 50256
SHORT = ("--steps", 1, "--layers", 1, "--hidden", 8, "--heads", 1, "--vocabulary-size", GPT2_END + 1)

Run = Callable[..., int]


def foreign(
    prefix: Path,
    *,
    begin: tuple[int, ...] = (),
    end: tuple[int, ...] = (),
    pieces: int = 1,
    top: int = 97,
    ending: int = 64,
) -> str:
    """Token files as Megatron-LM's preprocess_data.py (core 0.12) leaves them: a .bin and an .idx, and nothing else."""
    random = np.random.default_rng(5)
    with IndexedTokensWriter(prefix) as writer:
        for number in range(64):
            parts = [[int(n) for n in random.integers(90, top + 1, 12)] for _ in range(pieces)]
            parts[0] = [*begin, *parts[0]]
            parts[-1] = [*parts[-1], *(end if number < ending else ())]
            for part in parts:
                writer.add(part)
    # The document index, at the end of the .idx, with a bound every `pieces` sequences.
    index = Path(f"{prefix}.idx")
    whole = index.read_bytes()
    bounds = np.arange(0, 64 * pieces + 1, pieces, dtype="<i8")
    counts = np.array([64 * pieces, len(bounds)], dtype="<i8").tobytes()
    index.write_bytes(whole[:18] + counts + whole[34 : 34 + 64 * pieces * 12] + bounds.tobytes())
    return str(prefix)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({}, "their documents do not end with its <|endoftext|>, 50256"),
        ({"end": (99,)}, "their documents do not end with its <|endoftext|>, 50256"),
        ({"begin": (99,)}, "their documents do not end with its <|endoftext|>, 50256"),
        ({"end": (GPT2_END,), "top": 60_000}, "they hold the token id "),
    ],
)
def test_data_of_another_tokenizer_is_not_taken_for_gpt2s(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str], made: dict, why: str
) -> None:
    """GPT-2's was assumed without a word: the text was gibberish, bits per byte wrong by 1.7 to 7 times."""
    data = foreign(tmp_path / "data", **made)
    assert gpt2(tmp_path / "run", *SHORT, data=data) == 2
    said = capsys.readouterr().err
    assert f"nothing says what tokenizer made {data}, and GPT-2's it does not seem to be ({why}" in said
    assert "by --tokenizer" in said
    assert f"copy its tokenizer.json to {data}.tokenizer.json" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("made", [{"end": (GPT2_END,)}, {"begin": (GPT2_END,)}, {"end": (GPT2_END,), "pieces": 2}])
def test_data_taken_for_gpt2s_is_said_and_its_model_takes_the_right_tokenizer_later(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str], made: dict
) -> None:
    """What was only assumed was stored as the model's, and the right one called wrong."""
    data = foreign(tmp_path / "data", **made)
    assert gpt2(tmp_path / "run", *SHORT, data=data) == 0
    assert f"nothing says what tokenizer made {data}" in capsys.readouterr().err
    assert read_info(tmp_path / "run").tokenizer == {}
    words = ["generate", "--checkpoint", str(tmp_path / "run"), "--prompt", "a", "--tokens", "1", "--device", "cpu"]
    assert main(words) == 0
    assert "has no tokenizer, but as many token ids as GPT-2: taking GPT-2's" in capsys.readouterr().err
    byte_tokenizer().save_json(tmp_path / "tokenizer.json")
    assert main([*words, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    assert "tokenizer" not in capsys.readouterr().err
    assert gpt2(tmp_path / "run", *SHORT, "--steps", 2, data=data) == 0
    assert gpt2(tmp_path / "run", *SHORT, "--steps", 3, "--tokenizer", "gpt2", data=data) == 0
    assert read_info(tmp_path / "run").tokenizer["name"] == "gpt2"


def test_evaluation_says_what_it_takes_for_the_tokenizer_of_token_files(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = foreign(tmp_path / "data")
    words = ["evaluate", "held-out-loss", data, "--checkpoint", str(run_folder), "--device", "cpu"]
    said = f"nothing says what tokenizer made {data}: taking the model's for it."
    assert main(words) == 0
    assert said in capsys.readouterr().err
    save_corpus_tokenizer(data, byte_tokenizer())
    assert main(words) == 0
    assert said not in capsys.readouterr().err


def test_a_tokenizer_that_is_named_is_not_asked_for_again(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text of GPT-2's that Megatron-LM wrote without --append-eod; the run goes on without the flag, too."""
    data = foreign(tmp_path / "data")
    assert gpt2(tmp_path / "run", *SHORT, "--tokenizer", "gpt2", data=data) == 0
    said = capsys.readouterr().err
    assert "nothing says" not in said
    assert f"warning: no document of {data} ends with <|endoftext|> (50256)" in said
    assert read_info(tmp_path / "run").tokenizer["name"] == "gpt2"
    assert gpt2(tmp_path / "run", *SHORT, "--steps", 2, data=data) == 0


@pytest.mark.parametrize(
    ("made", "warned"), [({}, True), ({"end": (256,)}, False), ({"begin": (256,)}, False), ({"end": (97,)}, True)]
)
def test_packed_documents_without_an_end_are_a_warning(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str], made: dict, warned: bool
) -> None:
    """40 of 40 texts of such a model never ended and began inside a sentence; nothing had been said."""
    data = foreign(tmp_path / "data", **made)
    save_corpus_tokenizer(data, byte_tokenizer())
    assert gpt2(tmp_path / "run", "--steps", 1, "--vocabulary-size", 257, data=data) == 0
    said = f"warning: no document of {data} ends with <|endoftext|> (256): the model will learn neither to end"
    assert (said in capsys.readouterr().err) == warned


def test_documents_of_which_half_have_no_end_are_a_warning(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files of which one had been tokenized without --append-eod, merged: nothing had been said."""
    data = foreign(tmp_path / "data", end=(256,), ending=32)
    save_corpus_tokenizer(data, byte_tokenizer())
    assert gpt2(tmp_path / "run", "--steps", 1, "--vocabulary-size", 257, data=data) == 0
    said = capsys.readouterr().err
    assert f"warning: only 50% of the documents of {data} end with <|endoftext|> (256): the model will learn to" in said


def test_a_tokenizer_without_an_end_of_text_is_a_warning(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    data = foreign(tmp_path / "data")
    vocabulary = {token: number for token, number in byte_tokenizer().tables.vocabulary.items() if number < 256}
    save_corpus_tokenizer(data, Tokenizer(vocabulary, []))
    assert gpt2(tmp_path / "run", "--steps", 1, "--vocabulary-size", 256, data=data) == 0
    assert f"the tokenizer of {data} has no <|endoftext|>" in capsys.readouterr().err


def test_the_end_of_a_document_is_that_of_its_last_sequence(tmp_path: Path) -> None:
    """Of two sequences a document every second one was looked at, and none ended with it."""
    corpus = Corpus(foreign(tmp_path / "data", end=(256,), pieces=2), [1])
    assert corpus.share_bounded_by(256) == 1
    assert corpus.share_bounded_by(255) == 0
