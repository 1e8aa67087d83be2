"""Every example that a `--help` of `gpt2` shows is run as it stands there."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gpt2_train.small_models import END, byte_tokenizer, random_model, save
from tests.indexed_tokens.naive_index import write_index

from gpt2_train.cli import COMMANDS, main
from gpt2_train.config import settings
from gpt2_train.serving import command as serve
from gpt2_train.training import launch
from indexed_tokens import IndexedTokensWriter, save_corpus_tokenizer
from webtext_run.ablation import comparison

ROOT = Path(__file__).parents[2]
CORPORA = ("runs/quickstart/corpus_text_document", "work/corpus_text_document", "other_text_document")
MODELS = ("runs/quickstart/model", "work/model")


def examples(command: str | None, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The command lines under `example:` in a command's --help, or that of `gpt2` itself."""
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    shown = capsys.readouterr().out.partition("example:\n")[2]
    # What stands far behind a command explains it.
    return [re.split(r"\s{3,}", line.strip())[0] for line in shown.splitlines() if line.startswith("  gpt2 ")]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples name: token files, the pipelines, and presets that train in a moment."""
    random_texts = [f"In the beginning was line {number} of a text. " * 30 for number in range(60)]
    for name in CORPORA:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with IndexedTokensWriter(tmp_path / name) as writer:
            for text in random_texts:
                writer.add([*text.encode(), END])
        save_corpus_tokenizer(tmp_path / name, byte_tokenizer())
    byte_tokenizer().save(tmp_path / "tokenizer")
    (tmp_path / "letter.txt").write_text("Dear reader, this is a letter.")
    (tmp_path / "lambada_test.jsonl").write_text('{"text": "the cat sat on the mat"}\n')
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A prompt\n")))
    return tmp_path


# Comparing corpora takes 21 runs, however short; test_ablate.py has an ordinary test of it.
MANY_RUNS = {"ablate": pytest.mark.exhaustive}


@pytest.mark.parametrize(
    "command", [None, *COMMANDS, *(pytest.param(name, marks=marks) for name, marks in MANY_RUNS.items())]
)
def test_the_examples_of_help_work(
    command: str | None, sandbox: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example in `gpt2 estimate --help` ended in an error. Runs are cut short, and their models are tiny."""
    found = examples(command, capsys)
    assert found
    if not any(line.startswith("gpt2 train") for line in found):
        for name in MODELS:
            save(sandbox / name, random_model())
    for name in MODELS if command == "plot" else ():
        rows = [{"step": step, "tokens": 64 * step, "loss": 5.0 / step, "valid_loss": 4.0} for step in (1, 2, 3)]
        (sandbox / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if any("gpt2-medium" in line.split() for line in found):
        assert main(["convert", MODELS[0], "gpt2-medium"]) == 0
    if command == "generate":
        for name in CORPORA:
            write_index(sandbox / name)
    if command != "estimate":
        for name in settings.PRESETS:
            monkeypatch.setitem(settings.PRESETS, name, {"layers": 1, "hidden": 16, "heads": 2})
    real_launch = launch.launch

    def short_launch(settings: settings.TrainSettings, **options: Any) -> int:
        short = dataclasses.replace(
            settings, steps=1, tokens=None, epochs=None, global_batch_size=1, eval_tokens=1, tokenizer="tokenizer"
        )
        return real_launch(short, **options)

    monkeypatch.setattr(launch, "launch", short_launch)
    if command == "ablate":
        for name in ("a", "b"):
            with IndexedTokensWriter(sandbox / "work" / f"{name}_text_document") as writer:
                for number in range(40):
                    writer.add([*f"Text {name} {number} of a corpus, ".encode() * 9, END])
            save_corpus_tokenizer(sandbox / "work" / f"{name}_text_document", byte_tokenizer())
        (sandbox / "texts_i_like").mkdir()
        for number in range(12):
            (sandbox / "texts_i_like" / f"{number}.txt").write_text(f"The text {number} that I like. " * 9)
        real_ablate, tiny = comparison.ablate, {"layers": 1, "hidden": 16, "heads": 2, "steps": 2, "seeds": 2}
        monkeypatch.setattr(
            comparison, "ablate", lambda asked, **more: real_ablate(dataclasses.replace(asked, **tiny), **more)
        )
    if command == "seen":
        shutil.rmtree(sandbox / MODELS[0])
        words = f"train --data {CORPORA[0]} --output {MODELS[0]} --sequence-length 64 --device cpu"
        assert main(words.split()) == 0
    if command == "serve":
        # A server is stopped as soon as it answers.
        monkeypatch.setattr(serve, "announce", lambda *_: signal.raise_signal(signal.SIGTERM))
    for line in found:
        assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
