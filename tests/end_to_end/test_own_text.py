"""`pipelines/own_text.toml`: a folder of any texts to a model that writes, with a tokenizer of its own."""

import contextlib
import csv
import inspect
import json
import re
import string
import subprocess
import sys
import textwrap
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tests.gpt2_train import forks

from gpt2_train.checkpoint.info import read_info
from indexed_tokens import Tokenizer, corpus_tokenizer
from webtext_run.command import main

RUN = Path(__file__).resolve().parents[2] / "pipelines" / "run.py"
SMALL = ["train.layers=1", "train.hidden=16", "train.heads=2", "train.sequence_length=32", "train.steps=6"]
SMALL += ["train.global_batch_size=2", "train.threads=1", "train.eval_every=0", "train.save_every=0"]
SMALL += ["train-tokenizer.vocabulary_size=512", "generate.tokens=8", "generate.threads=1", 'generate.prompt="The"']


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Real texts that come with Python, in four kinds of files."""
    folder = tmp_path_factory.mktemp("own") / "my_texts"
    (folder / "notes").mkdir(parents=True)
    pages = sorted(topics.items())
    for name, text in pages[:20]:
        (folder / f"{name}.txt").write_text(text)
    for name, text in pages[20:30]:
        (folder / "notes" / f"{name}.md").write_text(f"# {name}\n\n{text}")
    (folder / "more.jsonl").write_text("".join(json.dumps({"content": text}) + "\n" for _, text in pages[30:40]))
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows([name, inspect.getdoc(getattr(module, name)) or ""] for module, name in DOCSTRINGS)
    (folder / "copy.txt").write_text(pages[0][1])
    return folder


DOCSTRINGS = [(module, name) for module in (json, string, subprocess, textwrap) for name in module.__all__]


CHANGES = [part for change in SMALL for part in ("--set", change)]
ARGUMENTS = ["own_text", "--input", "my_texts", "--folder", "run", *CHANGES]


def play(texts: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with contextlib.chdir(texts.parent):
        return forks.run([sys.executable, RUN, *ARGUMENTS, *arguments])


def test_a_folder_of_texts_becomes_a_model_that_writes(texts):
    done = play(texts)
    assert done.returncode == 0, done.stderr
    run = texts.parent / "run"
    summaries = json.loads((run / "pipeline.json").read_text())
    assert summaries["merge"]["in"] == 41 + len(DOCSTRINGS)
    assert summaries["dedup"]["dropped"]["duplicate"] >= 1
    own = Tokenizer.from_path(run / "train-tokenizer")
    assert summaries["tokenize"]["tokenizer"] == own.fingerprint
    info = read_info(run / "model")
    assert info.config.vocabulary_size == info.config.padded_vocabulary == own.vocabulary_size == 512
    (sample, *others) = summaries["generate"]["samples"]
    assert sample["text"]
    assert len(others) == 2
    assert "What the model writes:" in done.stdout
    assert re.search(r"\n  report +run/report.html\n", done.stdout)
    page = (run / "report.html").read_text()
    assert f"{summaries['tokenize']['out']:,}" in page
    assert "held-out" in page or "loss" in page
    assert "a vocabulary of 512" in done.stdout
    assert own.decode(own.encode(sample["text"])) == sample["text"]


@pytest.mark.exhaustive
def test_a_single_text_is_trained_on_and_not_evaluated(texts):
    (texts.parent / "single").mkdir()
    (texts.parent / "single" / "all.txt").write_text("\n\n".join(topics.values()))
    done = play(texts, "--input", "single/all.txt", "--folder", "run_of_one")
    assert done.returncode == 0, done.stderr
    before, _, after = done.stderr.partition("[evaluate] is left out, as no document is held out for it")
    assert "webtext tokenize" in before
    assert "gpt2 train" not in before
    assert "gpt2 train" in after
    assert "gpt2 evaluate" not in after
    assert "What the model writes:" in done.stdout
    assert "held-out loss" not in done.stdout


def test_everything_is_checked_before_it_starts(texts, monkeypatch, capsys):
    monkeypatch.chdir(texts.parent)
    arguments = [*ARGUMENTS, "--folder", "planned", "--check"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "--tokenizer planned/train-tokenizer" in out
    assert "512 token ids" in err
    assert main([*arguments, "--set", "train.vocabulary_size=100"]) == 2
    assert "[train]: vocabulary_size is 100, and the tokenizer has 512 tokens" in capsys.readouterr().err
    assert not (texts.parent / "planned").exists()


@pytest.mark.exhaustive
def test_two_values_of_a_setting_share_what_comes_before_it_and_the_tokenizer(texts):
    """The few texts of this corpus are too few to compare: that is told when all token files are there."""
    ablation = ["--ablate", "clean.min_tokens=16,200", "--folder", "ablated", "--minutes", "1"]
    ablation += ["--set", "tokenize.hold_out=0.02"]
    done = play(texts, *ablation)
    assert done.returncode == 2
    folder = texts.parent / "ablated"
    arms = " ".join(f"{value}=ablated/ablation/{value}/corpus_text_document" for value in (16, 200))
    assert f"$ gpt2 ablate --data {arms} --output ablated/ablation/comparison --minutes 1" in done.stderr
    assert "the pool holds" in done.stderr
    assert done.stderr.count("$ webtext merge") == done.stderr.count("$ webtext train-tokenizer") == 1
    assert (folder / "merge").is_dir()
    assert not (folder / "clean").exists()
    records = [
        json.loads((folder / "ablation" / value / "clean" / "stage.json").read_text()) for value in ("16", "200")
    ]
    assert records[0]["out"] > records[1]["out"] > 0
    tokenizers = [corpus_tokenizer(folder / "ablation" / value / "corpus_text_document") for value in ("16", "200")]
    assert tokenizers[0].fingerprint == tokenizers[1].fingerprint
    assert (folder / "ablation" / "16" / "corpus_held_out_text_document.idx").is_file()


@pytest.mark.parametrize(
    ("ablate", "sentence"),
    [
        ("clean.min_tokens=16", "is not STAGE.SETTING=A,B"),
        ("train.lr=1,2", "it should be a setting of a stage before [tokenize]: merge, clean, dedup"),
        ("clean.min_tokens=none,16", "sets min_tokens in [clean]"),
        ("clean.min_tokns=1,2", "min_tokens"),
    ],
)
def test_what_cannot_be_compared_is_told(texts, monkeypatch, capsys, ablate, sentence):
    monkeypatch.chdir(texts.parent)
    assert main([*ARGUMENTS, "--ablate", ablate, "--check"]) == 2
    assert sentence in capsys.readouterr().err
