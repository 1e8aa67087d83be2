"""`gpt2 evaluate`: the loss of each token once, its parts, the unigram baseline, and the command."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.gpt2_train.small_models import BYTES, END, byte_tokenizer, constant_model, random_model, save
from tests.gpt2_train.test_generate import broken_checkpoints

from gpt2_train.checkpoint import model_tensors
from gpt2_train.checkpoint.saving import save_checkpoint
from gpt2_train.cli import main
from gpt2_train.config import ModelConfig
from gpt2_train.data import Corpus, split_ranges
from gpt2_train.errors import Gpt2Error
from gpt2_train.scoring import part_pieces, text_bytes, total_loss, unigram_loss, windows
from indexed_tokens import IndexedTokens, IndexedTokensWriter

TEXTS = [f"document {number}: " + "é, a line of text. " * (number % 5) for number in range(20)]


def write_texts(prefix: Path, texts: list[str] = TEXTS) -> str:
    with IndexedTokensWriter(prefix) as writer:
        for text in texts:
            writer.add([*text.encode(), END])
    return str(prefix)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_texts(tmp_path_factory.mktemp("data") / "texts")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("run"), random_model())


def tokens_of(data: str, begin: int = 0, end: int | None = None) -> list[int]:
    """The tokens of some documents, one after the other."""
    return [int(token) for document in list(IndexedTokens(data))[begin:end] for token in document]


@torch.no_grad()
def naive_loss(tokens: list[int], config: ModelConfig = BYTES) -> float:
    """Each token by itself, behind what its window holds before it."""
    model, length, losses = random_model(config), config.sequence_length, []
    for place in range(1, len(tokens)):
        begin = (place - 1) // length * length
        logits = model(torch.tensor([tokens[begin:place]]))[0, -1].double()
        losses.append(float(logits.logsumexp(0) - logits[tokens[place]]))
    return math.fsum(losses) / len(losses)


def report(capsys: pytest.CaptureFixture[str], *flags: object) -> dict[str, Any]:
    assert main(["evaluate", *map(str, flags), "--device", "cpu", "--threads", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# --- the parts of scoring --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 16, 17, 33, 500])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_token_but_the_first_is_a_target_once(size: int, batch: int) -> None:
    """However the tokens come in pieces, the windows are the same: full ones first, in order, then the rest."""
    tokens = np.arange(size * 3)
    found = [row for rows in windows(iter(np.split(tokens, 3)), 16, batch) for row in rows]
    assert [int(token) for row in found for token in row[1:]] == list(range(1, size * 3))
    assert all(row[0] == 16 * number for number, row in enumerate(found))
    assert {len(row) for row in found[:-1]} <= {17}
    assert max(len(rows) for rows in windows([tokens], 16, batch)) <= batch


def test_the_loss_does_not_depend_on_the_batch(data: str) -> None:
    corpus = Corpus(data, [1.0, 0.0, 0.0])
    found = [
        total_loss(random_model(), windows(part_pieces(corpus, "all", size=size), 16, batch))
        for batch, size in ((1, 1), (2, 100), (64, 1 << 20))
    ]
    for total, tokens in found:
        assert tokens == corpus.tokens.total_tokens - 1
        assert total == pytest.approx(found[0][0], rel=1e-6)


def test_a_unigram_model_counts_and_adds_one() -> None:
    targets, fitted = np.array([2, 1, 1, 0]), np.array([6, 0, 1, 1])
    naive = -(2 * math.log(7 / 12) + math.log(1 / 12) + math.log(2 / 12)) / 4
    assert unigram_loss(targets, fitted) == pytest.approx(naive)
    assert unigram_loss(targets) == pytest.approx(1.5 * math.log(2))


def test_bytes_are_those_of_the_text() -> None:
    counts = np.bincount([*"né".encode(), END], minlength=300)
    assert text_bytes(counts, byte_tokenizer(), END) == 3
    counts[280] = 1
    assert text_bytes(counts, byte_tokenizer(), END) is None


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_a_naive_computation(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, "--checkpoint", run_folder, "--data", data, "--part", "all")
    tokens = tokens_of(data)
    assert (found["part"], found["documents"], found["tokens"]) == ("all", 20, len(tokens) - 1)
    assert found["loss"] == pytest.approx(naive_loss(tokens), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    size = len("".join(TEXTS).encode()) - 1  # The first byte has no prediction.
    assert found["bytes"] == size
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * found["tokens"] / math.log(2) / size)


def test_a_model_that_knows_nothing_has_the_logarithm_of_the_vocabulary(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The padding of the embedding counts as in training: 384 rows for 257 ids."""
    save(tmp_path, constant_model({}, others=0.0))
    found = report(capsys, "--checkpoint", tmp_path, "--data", data)
    assert found["loss"] == pytest.approx(math.log(384), rel=1e-6)
    assert found["perplexity"] == pytest.approx(384, rel=1e-5)


def test_parts_are_those_that_training_holds_out(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 17: each document is in one part, by the rule of training."""
    ranges = split_ranges(IndexedTokens(data).document_index, [70, 20, 10])
    assert ranges == [(0, 14), (14, 18), (18, 20)]
    for part, (begin, end) in zip(("train", "valid", "test"), ranges, strict=True):
        found = report(capsys, "--checkpoint", run_folder, "--data", data, "--part", part, "--split", "70,20,10")
        tokens = tokens_of(data, begin, end)
        assert (found["documents"], found["tokens"]) == (end - begin, len(tokens) - 1)
        assert found["loss"] == pytest.approx(naive_loss(tokens), rel=1e-5)


def test_the_baseline_of_a_held_out_part_learned_from_the_training_part(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--checkpoint", run_folder, "--data", data, "--split", "70,20,10"]
    learned, targets = Counter(tokens_of(data, 0, 14)), tokens_of(data, 14, 18)[1:]
    naive = [-math.log((learned[token] + 1) / (learned.total() + 257)) for token in targets]
    found = report(capsys, *base, "--part", "valid")
    assert found["unigram_loss"] == pytest.approx(math.fsum(naive) / len(naive))
    assert found["unigram"] == "fitted on the train part, add-one smoothing"
    everything = Counter(tokens_of(data)[1:])
    entropy = -math.fsum(n / everything.total() * math.log(n / everything.total()) for n in everything.values())
    found = report(capsys, *base, "--part", "all")
    assert found["unigram_loss"] == pytest.approx(entropy)
    assert found["unigram"] == "entropy of the scored text itself"


def test_text_shorter_than_a_sequence_is_scored(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = write_texts(tmp_path / "short", ["ab", ""])
    found = report(capsys, "--checkpoint", run_folder, "--data", short, "--part", "all")
    assert found["tokens"] == 3
    assert found["loss"] == pytest.approx(naive_loss([97, 98, END, END]), rel=1e-5)


def test_the_first_tokens_only(run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--checkpoint", run_folder, "--data", data, "--part", "all", "--max-tokens", 50)
    tokens = tokens_of(data)[:51]
    assert (found["tokens"], found["of_tokens"]) == (50, len(tokens_of(data)))
    assert found["loss"] == pytest.approx(naive_loss(tokens), rel=1e-5)
    more = report(capsys, "--checkpoint", run_folder, "--data", data, "--part", "all", "--max-tokens", 10**9)
    assert more["tokens"] == more["of_tokens"] - 1


def save_trained(folder: Path, data: str, split: str) -> Path:
    """A checkpoint that records `data` as its training data."""
    model = random_model()
    save_checkpoint(
        folder / "checkpoints", model_tensors(model), step=7, samples=0, config=model.config,
        tokenizer=byte_tokenizer(), settings={"split": split}, data=[Corpus(data, [1.0, 0.0, 0.0]).identity()],
    )  # fmt: skip
    return folder


def test_the_split_of_the_training_run_is_kept(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --part and --split: what that run held out of its own data, everything of other data."""
    folder = save_trained(tmp_path / "run", data, "60,30,10")
    found = report(capsys, "--checkpoint", folder, "--data", data)
    assert (found["part"], found["split"], found["documents"]) == ("valid", "60,30,10", 6)
    other = write_texts(tmp_path / "other", TEXTS[:5])
    assert report(capsys, "--checkpoint", folder, "--data", other)["part"] == "all"


def test_text_that_the_model_was_trained_on_is_pointed_out(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_trained(tmp_path / "run", data, "60,30,10")
    words = ["evaluate", "--checkpoint", str(folder), "--data", data, "--device", "cpu"]
    assert main([*words, "--part", "valid"]) == 0
    out, err = capsys.readouterr()
    assert "gpt2:" not in err
    assert "unigram loss" in out
    assert "(all but the first)" in out
    assert main([*words, "--part", "all"]) == 0
    assert "this is no held-out loss" in capsys.readouterr().err
    assert main([*words, "--split", "50,50"]) == 0
    assert "was trained on" in capsys.readouterr().err


def test_a_copy_of_the_data_is_the_same_data(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_trained(tmp_path / "run", data, "60,30,10")
    for ending in (".bin", ".idx"):
        shutil.copy(data + ending, tmp_path / f"copy{ending}")
    assert report(capsys, "--checkpoint", folder, "--data", tmp_path / "copy.idx")["part"] == "valid"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--part", "test", "--split", "90,10"], "the test part of {data} holds 0 tokens (20 documents, split 90,10)"),
        (["--split", "a,b"], "--split 'a,b' should be"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--data", "/nonexistent/x"], "no token file /nonexistent/x"),
        (["--data", ""], "no --data"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_sentence(
    flags: list[str], sentence: str, run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--checkpoint", str(run_folder), "--data", data, *flags]) == 2
    out, err = capsys.readouterr()
    assert sentence.format(data=data) in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_vocabulary_that_does_not_match_is_said(
    run_folder: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids beyond the model's are refused, padding rows or not; so is text made by another tokenizer."""
    with IndexedTokensWriter(tmp_path / "wide") as writer:
        writer.add([5, 300, 7])
    assert main(["evaluate", "--checkpoint", str(run_folder), "--data", str(tmp_path / "wide")]) == 2
    assert "holds the token id 300, but the model's vocabulary has 257 ids" in capsys.readouterr().err
    other = write_texts(tmp_path / "other")
    record = tmp_path / "other.json"
    record.write_text('{"tokenizer": "0123"}')
    assert main(["evaluate", "--checkpoint", str(run_folder), "--data", other]) == 2
    assert "was made with another tokenizer" in capsys.readouterr().err
    record.write_text(json.dumps({"tokenizer": byte_tokenizer().fingerprint}))
    assert main(["evaluate", "--checkpoint", str(run_folder), "--data", other, "--device", "cpu"]) == 0


def test_without_its_weights_nothing_is_measured(
    run_folder: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 29: evaluation of a missing or broken checkpoint is an error, not a number."""
    for folder, sentence in broken_checkpoints(run_folder, tmp_path):
        assert main(["evaluate", "--checkpoint", str(folder), "--data", data]) == 2, folder
        out, err = capsys.readouterr()
        assert sentence in err, folder
        assert out == "", folder


def test_a_loss_that_is_not_finite_is_an_error(data: str) -> None:
    model = random_model()
    with torch.no_grad():
        model.final_norm.bias[0] = torch.nan
    with pytest.raises(Gpt2Error, match="not finite"):
        total_loss(model, windows(part_pieces(Corpus(data, [1.0, 0.0, 0.0]), "all"), 16, 2))


def test_the_padded_vocabulary_of_training_loads(
    run_folder: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 30: the checkpoint's 384 rows of embedding load as they are; settings may come from a file."""
    config = tmp_path / "pipeline.toml"
    config.write_text(f'[evaluate]\ncheckpoint = "{run_folder}"\ndata = "{data}"\npart = "valid"\nsplit = "8,1,1"\n')
    assert report(capsys, "--config", config)["documents"] == 2
