"""docs/projects.md: the road of a GPT-2 that somebody has, command by command, on a tiny model."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
from tests.gpt2_train.small_models import BYTES, random_model, save

import gpt2_train.cli
import webtext_prep.cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "projects.md").read_text(encoding="utf-8")
PROGRAMS = {"webtext": webtext_prep.cli.main, "gpt2": gpt2_train.cli.main}


def commands(heading: str) -> list[list[str]]:
    """The commands below a heading of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for line in section.splitlines() if line.startswith("    ")]


def test_a_model_that_somebody_has_is_used_measured_trained_and_taken_elsewhere(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    first = save(tmp_path / "first", random_model(dataclasses.replace(BYTES, sequence_length=64)))
    assert gpt2_train.cli.main(["convert", str(first), "my-gpt2", "--to", "hf"]) == 0
    (tmp_path / "my_texts").mkdir()
    for number in range(40):
        (tmp_path / "my_texts" / f"{number}.txt").write_text(f"Letter {number}. " + "We write. " * (5 + number))
    done = []
    for program, name, *arguments in commands("A GPT-2 of your own"):
        if name != "serve":  # which ends only when it is stopped
            capfd.readouterr()
            assert PROGRAMS[program]([name, *arguments]) == 0, capfd.readouterr().err
            done.append(name)
    assert done == [
        "generate", "merge", "tokenize", "evaluate", "train", "evaluate", "convert", "convert",
    ]  # fmt: skip
    assert json.loads((tmp_path / "hf-further" / "config.json").read_text())["n_embd"] == 32
    assert (tmp_path / "further.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("heading", ["Fifty URLs and a laptop", "A Reddit dump and eight GPUs", "A GPT-2 of your own"])
def test_each_project_reads_only_what_it_began_with_or_made(heading):
    """A name that no command before has written is a step that was left out."""
    given = {"my_urls.txt", "dumps", "my_texts", "my-gpt2", "remove.txt", "gpt2"}
    made = set(given)
    for words in commands(heading):
        for flag in ("--input", "--data", "--checkpoint", "--run", "--init-from", "--plan"):
            for name in [words[at + 1] for at, word in enumerate(words) if word == flag]:
                assert any(name == one or name.startswith((f"{one}/", f"{one}_")) for one in made), (name, words)
        made |= {words[at + 1] for at, word in enumerate(words) if word in ("--output", "--folder")}
        if words[1].endswith("run.py") or words[:3] == ["./uvw", "run", "pipelines/run.py"]:
            made.add(f"runs/{words[words.index('pipelines/run.py') + 1]}")
