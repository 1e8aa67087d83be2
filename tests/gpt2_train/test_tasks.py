"""The evaluation tasks on texts: wikitext, lambada, text-loss, against the simple definitions."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gpt2_train.small_models import BYTES, END, byte_tokenizer, constant_model, in_memory, random_model, save
from tests.gpt2_train.test_evaluate import report

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.command import evaluation_of
from gpt2_train.evaluation.tasks import Task, parse_task, read_rows
from gpt2_train.evaluation.tasks.text_loss import TextLoss
from gpt2_train.evaluation.tasks.wikitext import Wikitext, detokenized
from gpt2_train.inference.scorer import Scorer
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import Tokenizer

LENGTH = BYTES.sequence_length


@torch.no_grad()
def loss_of(token: int, before: list[int], model: GPT2) -> float:
    """-log p of one token behind what fits of the tokens before it."""
    logits = model(torch.tensor([before[-LENGTH:]]))[0, -1, : BYTES.vocabulary_size].double()
    return float(logits.logsumexp(0) - logits[token])


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["evaluate", *map(str, words)]) == 2
    return capsys.readouterr().err


# The scorer


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=7), st.integers(1, 3))
def test_many_continuations_are_scored_as_each_by_itself(sizes: list[tuple[int, int]], batch_size: int) -> None:
    random = np.random.default_rng(3)
    pairs = [tuple(random.integers(0, 256, size).tolist() for size in both) for both in sizes]
    scorer = Scorer(in_memory(random_model()), batch_size=batch_size)
    one_by_one = [scorer.logprobs(*pair) for pair in pairs]
    single = scorer.tokens
    counted: list[int] = []
    together = scorer.logprobs_of(pairs, counted.append)
    assert sum(counted) == len(pairs)
    assert single <= scorer.tokens
    for alone, batched in zip(one_by_one, together, strict=True):
        np.testing.assert_allclose(batched.logprobs, alone.logprobs, rtol=1e-4)
        assert batched.is_greedy == alone.is_greedy


@pytest.mark.parametrize("step", [1, 3, 5, 16])
@pytest.mark.parametrize("length", [2, 16, 17, 18, 40, 61])
def test_overlapping_windows_give_each_token_its_past(step: int, length: int) -> None:
    """The first window whole; from then on `step` tokens at a time, each behind what fits before the window's end."""
    model = random_model()
    tokens = np.random.default_rng(length).integers(0, 256, length)
    counted: list[int] = []
    found = Scorer(in_memory(model), batch_size=2).overlapping_loss(tokens, step, counted.append)
    expected = 0.0
    for place in range(1, length):
        end = min(length, LENGTH + 1 + max(0, math.ceil((place - LENGTH) / step)) * step)
        expected += loss_of(int(tokens[place]), tokens[max(0, end - LENGTH - 1) : place].tolist(), model)
    assert found == pytest.approx(expected, rel=1e-4)
    assert sum(counted) == length - 1


# wikitext


def test_words_are_put_together_by_known_rules() -> None:
    """Pitfall 33: LAMBADA scored the last piece; wikitext guessed its detokenizer."""
    assert detokenized("1 @,@ 000 km @-@ wide , 3 @.@ 5 : so ; it . is ! odd ? yes") == (
        "1,000 km-wide, 3.5: so; it. is! odd? yes"
    )
    assert detokenized('a " quoted part " ( in brackets ) [ x ] { y } , he \'s') == (
        'a "quoted part" (in brackets) [x] {y}, he\'s'
    )
    assert detokenized(" \n = = A heading = = \n text \n") == "\n== A heading ==\ntext\n"
    assert detokenized("20 ° C and N of them") == "20°C and 1 of them"


@pytest.mark.parametrize("overlap", [0, 4])
def test_wikitext_counts_per_token_per_word_and_per_byte(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], overlap: int
) -> None:
    raw = " The price , 1 @,@ 000 . \n It rose ."
    (tmp_path / "wiki.txt").write_text(raw)
    flags = ["--overlap", overlap] if overlap else []
    found = report(capsys, "wikitext", tmp_path / "wiki.txt", "--checkpoint", run_folder, *flags)
    text = detokenized(raw).encode()
    assert (found["tokens"], found["bytes"], found["original_words"]) == (len(text) - 1, len(text), 10)
    scorer = Scorer(in_memory(random_model()))
    ids = np.array(list(text), np.int64)
    total = scorer.overlapping_loss(ids, overlap) if overlap else scorer.text_loss([ids])[0]
    assert found["loss"] == pytest.approx(total / (len(text) - 1))
    assert found["word_perplexity"] == pytest.approx(math.exp(total / 10))
    assert found["bits_per_byte"] == pytest.approx(total / math.log(2) / len(text))
    arguments = ["wikitext", str(tmp_path / "wiki.txt"), "--checkpoint", str(run_folder)]
    assert main(["evaluate", *arguments]) == 0
    assert "per original word" in capsys.readouterr().out


def test_wikitext_gives_the_figures_of_both_programs_that_measure_it(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of Megatron-LM's kind alone were told: they don't compare with lm-evaluation-harness', which are quoted.

    Its rules: each page by itself behind <|endoftext|>, in windows of the model's length, the last of them with as much
    before it as fits; words and bytes of the page as it is distributed.
    """
    pages = [
        " = First = \n \n The price , 1 @,@ 000 , of it . \n = = Part = = \n It rose . ",
        " = Second = \n An end . \n",
    ]
    (tmp_path / "wiki.txt").write_text(" \n" + "\n".join(pages))
    flags = ["wikitext", tmp_path / "wiki.txt", "--checkpoint", run_folder]
    found = report(capsys, *flags)
    model, length, nats = random_model(), 16, 0.0
    for page in pages:
        tokens = list(detokenized(page).encode())
        assert len(tokens) % length  # so that the last window reaches back
        for begin in range(0, len(tokens), length):
            wanted = tokens[begin : begin + length]
            read = [END, *tokens][max(0, begin + len(wanted) - length) : begin + len(wanted)]
            with torch.no_grad():
                logprobs = model(torch.tensor([read]))[0, -len(wanted) :, :257].log_softmax(-1)
            nats -= float(logprobs[range(len(wanted)), wanted].sum())
    words, size = sum(len(re.split(r"\s+", page)) for page in pages), sum(len(page.encode()) for page in pages)
    assert (found["lm_eval_words"], found["lm_eval_bytes"]) == (words, size)
    assert found["lm_eval_word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-4)
    assert found["lm_eval_byte_perplexity"] == pytest.approx(math.exp(nats / size), rel=1e-4)
    assert found["lm_eval_bits_per_byte"] == pytest.approx(nats / size / math.log(2), rel=1e-4)
    assert main(["evaluate", *map(str, flags)]) == 0
    said = capsys.readouterr().out
    assert said.index("as Megatron-LM measures it") < said.index("as lm-evaluation-harness measures it")


class Plain(Wikitext):
    """A task without lines of its own for people."""

    name = "plain"
    describe = Task.describe


def test_a_task_without_lines_of_its_own_shows_rounded_figures() -> None:
    """`seconds 0.11931382799957646`."""
    shown = Plain().describe({"seconds": 0.11931382799957646, "loss": 3.0, "tokens": 1234567, "text": "a.txt"})
    assert [line.split()[1] for line in shown] == ["0.11931", "3", "1234567", "a.txt"]


# lambada


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_lambada_counts_whole_words_and_last_tokens_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that always writes `a` guesses the last token of `a banana`, and the whole word of none but ` a`."""
    run = save(tmp_path / "run", constant_model({97: 0.0}))
    rows = write_rows(tmp_path / "l.jsonl", [{"text": "she ate a banana"}, {"text": "an old dog"}, {"text": " x a "}])
    found = report(capsys, "lambada", rows, "--checkpoint", run)
    assert (found["passages"], found["last_word_accuracy"]) == (3, 0.0)
    assert found["last_token_accuracy"] == pytest.approx(2 / 3)
    spaces = save(tmp_path / "spaces", constant_model({32: 0.0}))
    rows = write_rows(tmp_path / "m.jsonl", [{"text": "b  "}, {"text": "she ate a "}])
    assert "passage 1 has no word before the last" in refusal(capsys, "lambada", rows, "--checkpoint", spaces)


def test_lambada_is_the_probability_of_the_last_word(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = ["the cat sat on the mat", "to be or not to be"]
    rows = write_rows(tmp_path / "l.jsonl", [{"text": text} for text in passages])
    found = report(capsys, "lambada", rows, "--checkpoint", run_folder)
    scorer = Scorer(in_memory(random_model()))
    totals = []
    for text in passages:
        before, _, last = text.rpartition(" ")
        totals.append(scorer.logprobs(list(before.encode()), list(f" {last}".encode())).total)
    assert found["last_word_perplexity"] == pytest.approx(math.exp(-sum(totals) / 2), rel=1e-4)


# text-loss, and which task is meant


def test_a_text_file_is_scored_from_its_first_token(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("né.")
    found = report(capsys, "text-loss", tmp_path / "text.txt", "--checkpoint", run_folder)
    ids, model = [END, *"né.".encode()], random_model()
    expected = sum(loss_of(ids[place], ids[:place], model) for place in range(1, 5))
    assert (found["task"], found["tokens"], found["bytes"]) == ("text-loss", 4, 4)
    assert found["loss"] == pytest.approx(expected / 4, rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(expected / 4 / math.log(2), rel=1e-4)


def test_bytes_of_a_first_token_that_is_not_scored_do_not_count(tmp_path: Path) -> None:
    """Behind an end of text that training masked, and where the tokenizer has none."""
    (tmp_path / "text.txt").write_text("né.")
    (tmp_path / "short.txt").write_text("n")
    model, ids = random_model(), [*"né.".encode()]
    no_end = Tokenizer(
        {name: number for name, number in byte_tokenizer().tables.vocabulary.items() if number != END}, []
    )
    masked = in_memory(model, settings={"mask_end_of_text": True})
    without = in_memory(model, tokenizer=no_end)
    for source, begin in ((masked, [END]), (without, [])):
        task = TextLoss(text=str(tmp_path / "text.txt"))
        found = task.measure(Scorer(source), task.read(source.stored))
        expected = sum(loss_of(ids[place], [*begin, *ids[:place]], model) for place in range(1, 4))
        assert (found["tokens"], found["bytes"]) == (3, 3)
        assert found["bits_per_byte"] == pytest.approx(expected / 3 / math.log(2), rel=1e-4)
        with pytest.raises(Gpt2UsageError, match="is one token"):
            TextLoss(text=str(tmp_path / "short.txt")).read(source.stored)


def test_rows_end_at_line_feeds_alone(tmp_path: Path) -> None:
    """Not at the other separators of lines, which a JSON string may hold as they are."""
    rows = [{"text": "a\u2028b\u2029c\x85d"}, {"text": "e"}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "rows").write_bytes("\r\n".join([lines[0], "", lines[1], ""]).encode())
    assert read_rows(str(tmp_path / "rows"), "lambada", {"text": str}) == rows


def test_mistakes_of_tasks_are_named(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--checkpoint", run_folder]
    assert "gpt2 evaluate lambada needs FILE" in refusal(capsys, "lambada", *base)
    assert "can't read" in refusal(capsys, "wikitext", tmp_path / "absent", *base)
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refusal(capsys, "text-loss", tmp_path / "bad", *base)
    (tmp_path / "empty").write_text("")
    assert "is empty" in refusal(capsys, "text-loss", tmp_path / "empty", *base)
    assert "is empty" in refusal(capsys, "lambada", tmp_path / "empty", *base)
    for line, sentence in (("{", "line 1: not JSON"), ('{"a": 1}', "line 1: no text"), ("[]", "line 1: no text")):
        (tmp_path / "rows").write_text(line)
        assert sentence in refusal(capsys, "lambada", tmp_path / "rows", *base)
    assert "--overlap is -1" in refusal(capsys, "wikitext", *base, "--overlap", -1)
    (tmp_path / "c.toml").write_text("overlap = 1")
    assert "unknown setting overlap" in refusal(capsys, "lambada", *base, "--config", tmp_path / "c.toml")
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "hellaswag", "FILE.jsonl"])
    assert "hellaswag is gone: lm-evaluation-harness measures it" in capsys.readouterr().err
    with pytest.raises(Gpt2UsageError, match="--eval-task arc-easy:FILE: arc-easy is gone"):
        parse_task("arc-easy:FILE")
    with pytest.raises(Gpt2UsageError, match=r"p.toml \[evaluate\]: no task perplexity; known are held-out-loss, "):
        evaluation_of({"task": "perplexity"}, "p.toml [evaluate]")


# Token ids that the model lacks

STRANGE = "a \U0001f600 b"
"""Its bytes go up to 240."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 200 ids with a tokenizer of 257; its embedding is padded to 256 rows."""
    shape = dataclasses.replace(BYTES, vocabulary_size=200)
    return save(tmp_path_factory.mktemp("narrow") / "run", random_model(shape))


TEXTS_OF_TASKS = {
    "text-loss": STRANGE,
    "wikitext": f" = {STRANGE} = \n\n {STRANGE} \n",
    "lambada": json.dumps({"text": f"some words {STRANGE} end"}),
}


@pytest.mark.parametrize("task", TEXTS_OF_TASKS)
def test_ids_that_the_model_lacks_are_refused_by_every_task(
    narrow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    """Rows of padding were scored, a made-up figure with exit 0; beyond them it was an internal error."""
    file = tmp_path / ("text.txt" if task in ("text-loss", "wikitext") else "rows.jsonl")
    file.write_text(TEXTS_OF_TASKS[task], encoding="utf-8")
    said = refusal(capsys, task, file, "--checkpoint", narrow, "--device", "cpu")
    assert "holds the token id 240, but the model's vocabulary has 200 ids" in said
    assert "--tokenizer" in said


@pytest.mark.parametrize("wrong", [200, 255, 256, 5000, -1])
def test_no_way_of_scoring_takes_ids_that_the_model_lacks(wrong: int) -> None:
    scorer = Scorer(in_memory(random_model(dataclasses.replace(BYTES, vocabulary_size=200))))
    ids = np.array([1, wrong, 3])
    for score in (
        lambda: scorer.text_loss([ids]),
        lambda: scorer.document_losses([ids]),
        lambda: scorer.logprobs([1], ids.tolist()),
        lambda: scorer.overlapping_loss(ids, 1),
    ):
        with pytest.raises(Gpt2UsageError, match=f"holds the token id {wrong}"):
            score()
    assert scorer.text_loss([np.array([1, 199, 3])])[1] == 2
