"""Samples and evaluation tasks during training: what they show, and that they leave no trace in the training."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import command, rows
from tests.gpt2_train.small_models import END, byte_tokenizer

from command_kit import settings_from
from command_kit.settings import as_table, make_settings
from gpt2_train.checkpoint.info import read_info
from gpt2_train.cli import main, make_parser
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import World, make_world
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.evaluation.tasks import parse_task
from gpt2_train.evaluation.tasks.held_out_loss import HeldOutLoss
from gpt2_train.evaluation.tasks.lambada import Lambada
from gpt2_train.evaluation.tasks.wikitext import Wikitext
from gpt2_train.inference.scorer import Scorer
from gpt2_train.metrics.log import line_of
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training.samples_and_tasks import inference_view
from gpt2_train.training.trainer import train
from indexed_tokens import IndexedTokensWriter, save_corpus_tokenizer

TRAINING = ("--steps", 12, "--save-every", 4, "--dropout", 0.2, "--vocabulary-size", 257)
"""The last flag replaces that of all training tests."""

TIMES = ("seconds", "took_seconds")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Token files of text, one byte a token."""
    prefix = tmp_path_factory.mktemp("text") / "letters_text_document"
    with IndexedTokensWriter(prefix) as writer:
        for number in range(40):
            writer.add([*f"In the beginning was line {number} of a text. ".encode() * 3, END])
    save_corpus_tokenizer(prefix, byte_tokenizer())
    return str(prefix)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of evaluation tasks."""
    folder = tmp_path_factory.mktemp("inputs")
    passages = ["the cat sat on the mat", "In the beginning was line", "a text of a line"]
    (folder / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in passages))
    (folder / "wiki.txt").write_text("In the beginning was line 7 . A text of lines , it was . ")
    return folder


def observed(inputs: Path) -> tuple[object, ...]:
    """Flags for two samples every 4 steps, one of them with markup, and three tasks every 6."""
    tasks = [f"lambada:{inputs / 'lambada.jsonl'}", f"text-loss:{inputs / 'wiki.txt'}",
             f"wikitext,overlap=8:{inputs / 'wiki.txt'}"]  # fmt: skip
    return (
        "--sample-every", 4, "--sample-prompt", "In the", "<b>&", "--sample-tokens", 12,
        "--eval-task", *tasks, "--eval-task-every", 6,
    )  # fmt: skip


def shown(output: Path) -> list[dict[str, Any]]:
    """The rows of samples and tasks, without times."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows(output) if "kind" in row]


def learned(output: Path) -> list[tuple[Any, ...]]:
    """Step, loss, gradient and validation of the other rows."""
    names = ("step", "loss", "grad_norm", "valid_loss")
    return [tuple(row.get(name) for name in names) for row in rows(output) if "kind" not in row]


def trained(output: Path, corpus: str, *flags: object) -> Path:
    """A run in this process."""
    assert main(command(output, *TRAINING, *flags, data=corpus)[3:]) == 0
    return output


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run", corpus)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, corpus: str, inputs: Path) -> Path:
    """The same with samples and tasks."""
    return trained(tmp_path_factory.mktemp("watched") / "run", corpus, *observed(inputs))


def test_samples_and_tasks_leave_no_trace_in_the_training(plain: Path, watched: Path) -> None:
    assert len(learned(plain)) == 13
    assert learned(watched) == learned(plain)


def test_they_are_there_before_the_first_step_every_so_many_and_after_the_last(watched: Path, inputs: Path) -> None:
    found = shown(watched)
    samples = [(row["step"], row["prompt"]) for row in found if row["kind"] == "sample"]
    assert samples == [(step, prompt) for step in (0, 4, 8, 12) for prompt in ("In the", "<b>&")]
    tasks = [(row["step"], row["task"]) for row in found if row["kind"] == "task"]
    assert tasks == [(step, name) for step in (0, 6, 12) for name in ("lambada", "text-loss", "wikitext")]
    assert all(row["tokens"] == row["step"] * 8 * 16 for row in found)
    sample = next(row for row in found if row["kind"] == "sample")
    assert sample["written"] == 12 and sample["finished"] in ("length", "end_of_text")
    wikitext = next(row for row in found if row.get("task") == "wikitext")
    assert wikitext["settings"] == {"input": str(inputs / "wiki.txt"), "overlap": 8}
    assert wikitext["result"]["loss"] == pytest.approx(math.log(257), abs=0.1)  # of new weights
    assert all(row["took_seconds"] >= 0 for row in rows(watched) if "kind" in row)
    assert not any("loss" in row for row in rows(watched) if "kind" in row), "a reader of losses would take it for one"


def test_they_say_what_generate_and_evaluate_say_of_the_checkpoint(
    watched: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(watched / "checkpoints" / "step-0000012")
    words = ["generate", "--checkpoint", checkpoint, "--prompt", "In the", "<b>&", "--tokens", "12", "--json"]
    assert main(words) == 0
    generated = json.loads(capsys.readouterr().out)["samples"]
    samples = [row for row in shown(watched) if row["step"] == 12 and row["kind"] == "sample"]
    assert [row["text"] for row in samples] == [text["text"] for text in generated]
    words = ["evaluate", "wikitext", str(inputs / "wiki.txt"), "--checkpoint", checkpoint]
    assert main([*words, "--overlap", "8", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    result = next(row["result"] for row in shown(watched) if row["step"] == 12 and row.get("task") == "wikitext")
    assert result == {name: measured[name] for name in result}


def test_a_run_that_was_killed_between_samples_does_each_once(
    tmp_path: Path, watched: Path, corpus: str, inputs: Path
) -> None:
    """At the step that it resumes from, those that are in the log are not done again, and the others are."""
    shutil.copytree(watched, tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000012")
    lines = log.read_text().splitlines(keepends=True)
    second = next(at for at, line in enumerate(lines) if '"step": 8' in line and '"<b>&"' in line)
    log.write_text("".join(lines[:second]) + lines[second][:40])
    trained(tmp_path / "run", corpus, *observed(inputs))
    assert shown(tmp_path / "run") == shown(watched)
    assert learned(tmp_path / "run") == learned(watched)


def test_a_finished_run_does_what_was_left_or_is_asked_for_later(
    tmp_path: Path, watched: Path, plain: Path, corpus: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(plain, tmp_path / "run")
    trained(tmp_path / "run", corpus, *observed(inputs))
    assert shown(tmp_path / "run") == [row for row in shown(watched) if row["step"] == 12]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    trained(tmp_path / "run", corpus, *observed(inputs))
    assert "nothing to do" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_new_run_keeps_no_samples_of_one_that_was_killed_before_its_first_checkpoint(
    tmp_path: Path, corpus: str
) -> None:
    output = tmp_path / "run"
    output.mkdir()
    (output / "config.toml").write_text("")
    (output / "metrics.jsonl").write_text('{"step": 0, "kind": "sample", "prompt": "", "sample": 0, "text": "old"}\n')
    trained(output, corpus, "--steps", 1, "--sample-every", 0, "--sample-tokens", 2)
    assert [row["step"] for row in shown(output)] == [0, 1]
    assert "old" not in (output / "metrics.jsonl").read_text()


SHORT, SHORT_OBSERVED = ("--steps", 4, "--save-every", 2), ("--sample-every", 2, "--eval-task-every", 2)


def train_all(*runs: dict[str, Any]) -> None:
    """Train as the settings of each of `runs` say, as one of two processes."""
    for table in runs:
        settings = make_settings(TrainSettings, table, "the test")
        train(settings, make_world(torch.device("cpu"), settings.tensor_parallel), StopRequest())


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory: pytest.TempPathFactory, corpus: str, inputs: Path) -> Path:
    """Runs of two processes, with each layout, with and without samples and tasks."""
    folder = tmp_path_factory.mktemp("two")
    runs = []
    for layout in ("data_parallel", "tensor_parallel"):
        for name, flags in ((f"{layout}-plain", ()), (f"{layout}-watched", SHORT_OBSERVED)):
            given = observed(inputs) if flags else ()
            words = command(folder / name, *TRAINING, *SHORT, *given, *flags, data=corpus)[3:]
            arguments = make_parser("train").parse_args(words)
            settings = settings_from(TrainSettings, arguments, command="train")
            runs.append(as_table(dataclasses.replace(settings, **{layout: 2})))
    errors = [process.stderr for process in forks.in_group(2, train_all, *runs)]
    assert errors[0].count("step 4/4  lambada") == 2
    assert "lambada" not in errors[1], "the others show nothing"
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["data_parallel", "tensor_parallel"])
def test_two_processes_leave_no_trace_in_the_training(layout: str, of_two_processes: Path) -> None:
    """FSDP2's shards and DTensors: nothing in them is disturbed, from before the first step on."""
    found = learned(of_two_processes / f"{layout}-watched")
    assert len(found) == 5
    assert found == learned(of_two_processes / f"{layout}-plain")


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["data_parallel", "tensor_parallel"])
def test_two_processes_show_what_one_shows_of_their_model(
    layout: str, tmp_path: Path, of_two_processes: Path, corpus: str, inputs: Path
) -> None:
    shutil.copytree(of_two_processes / f"{layout}-plain", tmp_path / "one")
    trained(tmp_path / "one", corpus, *SHORT, *observed(inputs))
    ours = [row for row in shown(of_two_processes / f"{layout}-watched") if row["step"] == 4]
    assert len(ours) == 5
    for row, other in zip(ours, shown(tmp_path / "one"), strict=True):
        assert row.get("text") == other.get("text")
        for name, value in row.get("result", {}).items():
            assert value == (pytest.approx(other["result"][name]) if isinstance(value, float) else value)


def test_a_signal_during_a_task_ends_it_and_the_run_does_it_when_it_resumes(
    tmp_path: Path, corpus: str, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may take minutes; a batch system gives seconds."""
    flags = ("--eval-task", f"lambada:{inputs / 'lambada.jsonl'}", "--eval-task-every", 4)
    whole, calls = Lambada.measure, []

    def interrupted(task: Lambada, scorer: Scorer, found: Any) -> dict[str, Any]:
        calls.append(found)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(task, scorer, found)

    monkeypatch.setattr(Lambada, "measure", interrupted)
    assert main(command(tmp_path / "run", *TRAINING, *flags, data=corpus)[3:]) == 128 + signal.SIGTERM
    assert [row["step"] for row in shown(tmp_path / "run")] == [0]
    assert read_info(tmp_path / "run").step == 4
    trained(tmp_path / "run", corpus, *flags)
    assert [row["step"] for row in shown(tmp_path / "run")] == [0, 4, 8, 12]


def test_the_inference_view_holds_the_trained_tensors_themselves_and_no_compiled_block() -> None:
    """No copy of the weights, none of the wrappers of training, and the model is left as it was."""
    model = GPT2(ModelConfig(2, 32, 4, 16, 100, dropout=0.5)).initialise(torch.Generator().manual_seed(1))
    world = World(torch.device("cpu"))
    parallelize(model, world, activation_checkpointing="full", compiled=True).train()
    state, tokens = torch.get_rng_state(), torch.arange(16)[None]
    with inference_view(model, world) as view, torch.inference_mode():
        assert not view.training and view.is_tied
        assert [p.data_ptr() for p in view.parameters()] == [p.data_ptr() for p in model.parameters()]
        assert all("forward" not in vars(block) for block in view.blocks)
        torch.testing.assert_close(view(tokens), view(tokens), rtol=0, atol=0)
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


# What is asked for


def test_the_text_of_a_task_names_settings_and_file() -> None:
    assert parse_task("wikitext,overlap=32:C:/wiki,a=b.txt") == Wikitext(input="C:/wiki,a=b.txt", overlap=32)
    found = parse_task("held-out-loss,split-weights=8,1,1,split=test,max_tokens=7:corpus")
    assert found == HeldOutLoss(data="corpus", split="test", split_weights="8,1,1", max_tokens=7)


def test_settings_of_samples_and_tasks_are_no_part_of_the_run(corpus: str) -> None:
    settings = TrainSettings(data=(corpus,), output="run")
    other = dataclasses.replace(settings, sample_every=1, sample_prompt=("a",), eval_task=("lambada:x",))
    assert other.identity() == settings.identity()
    with pytest.raises(Gpt2UsageError, match="sample-tokens"):
        dataclasses.replace(settings, sample_tokens=5)


def test_lines_show_a_text_on_one_line_without_what_a_terminal_acts_on() -> None:
    row = {"step": 5, "kind": "sample", "prompt": "a\nb", "text": "\x1b[2J\x9bm\u202e" + "x" * 200}
    line = line_of(row, 10)
    assert line.startswith("step 5/10  sample  'a\\nb' '\\x1b[2J\\x9bm\\u202exxx") and len(line) < 200
    assert line.isprintable()
    counts = {
        "step": 5,
        "kind": "task",
        "task": "t",
        "settings": {"input": "a/b.txt"},
        "result": {"lines": 3, "yes": True},
        "took_seconds": 61.0,
    }
    assert line_of(counts, 10) == "step 5/10  t:b  lines 3  (1:01)"
