"""`gpt2 checkpoint verify`: whether files are what was written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train.small_models import byte_tokenizer, random_model

from gpt2_train.checkpoint import verify
from gpt2_train.checkpoint.info import list_checkpoints
from gpt2_train.checkpoint.save import Checkpointer, model_tensors
from gpt2_train.cli import main
from gpt2_train.config.settings import TrainSettings
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.adamw import make_optimizer

MODEL, OPTIMIZER = "model.safetensors", "optimizer-00000-of-00001.safetensors"
Report = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """report("verify", run): the exit code, what `--json` prints, and what is printed without it."""

    def run(*words: object) -> tuple[int, dict[str, Any], str]:
        arguments = ["checkpoint", *map(str, words)]
        capsys.readouterr()
        status = main([*arguments, "--json"])
        result = json.loads(capsys.readouterr().out or "{}")
        assert main(arguments) == status
        shown = capsys.readouterr()
        return status, result, shown.out + shown.err

    return run


def saved(
    folder: Path,
    model: GPT2 | None = None,
    *,
    step: int = 4,
    change: Callable[[dict[str, torch.Tensor]], None] | None = None,
) -> Path:
    """A run's folder with one checkpoint, its optimizer's state all ones unless `change` changes it."""
    model = model or random_model()
    tensors = model_tensors(model) | make_optimizer(model, TrainSettings(), torch.device("cpu")).tensors()
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            tensor.fill_(1)
    if change is not None:
        change(tensors)
    checkpointer = Checkpointer(folder / "checkpoints", config=model.config, tokenizer=byte_tokenizer())
    checkpointer.save(tensors, step=step, samples=0)
    return folder


# --- verify ----------------------------------------------------------------------------------------------------------


def test_whole_checkpoints_are_whole(tmp_path: Path, report: Report) -> None:
    run = saved(tmp_path)
    saved(tmp_path, step=6)
    for place, expected in ((run, 2), (run / "checkpoints", 2), (run / "checkpoints" / "step-0000006", 1)):
        status, result, text = report("verify", place)
        assert (status, result["damaged"], len(result["checkpoints"])) == (0, 0, expected)
        assert text.count(": whole (model and optimizer, 10 files") == expected


def test_a_checkpoint_that_a_run_removes_meanwhile_is_not_damaged(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path)
    saved(tmp_path, step=6)
    first, second = list_checkpoints(folder / "checkpoints")
    plain = verify.read_info

    def removed_first(path: Path) -> Any:
        shutil.rmtree(first, ignore_errors=True)
        return plain(path)

    monkeypatch.setattr(verify, "read_info", removed_first)
    status, _, text = report("verify", folder)
    assert status == 0 and f"{second}: whole" in text and "damaged" not in text


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_samples(step: Path) -> None:
    table = json.loads((step / "checkpoint.json").read_text())
    (step / "checkpoint.json").write_text(json.dumps(table | {"samples": 48}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda step: flip(step / MODEL), "model.safetensors is not what was written"),
        (lambda step: flip(step / OPTIMIZER), "optimizer-00000-of-00001.safetensors is not what was written"),
        (lambda step: (step / OPTIMIZER).unlink(), "optimizer-00000-of-00001.safetensors is missing"),
        (lambda step: (step / MODEL).write_bytes(b""), "model.safetensors has 0 bytes where"),
        (lambda step: (step / "merges.txt").write_text("#version: 0.2\na b\n"), "merges.txt has"),
        (lambda step: (step / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda step: (step / "config.json").unlink(), "config.json"),
        (lambda step: (step / "checkpoint.json").write_text("{"), "checkpoint.json can't be read"),
        (other_samples, "checkpoint.json is not what was written"),
    ],
)
def test_each_damaged_file_is_named(
    tmp_path: Path, report: Report, damage: Callable[[Path], object], said: str
) -> None:
    run = saved(tmp_path)
    saved(tmp_path, step=6)
    damage(run / "checkpoints" / "step-0000006")
    status, result, text = report("verify", run)
    assert (status, result["damaged"]) == (1, 1)
    assert [bool(entry["problems"]) for entry in result["checkpoints"]] == [False, True]
    line = next(line for line in text.splitlines() if "damaged: " in line)
    assert "step-0000006: damaged: " in line and said in line and "step-0000004: whole" in text
    assert "1 of 2 checkpoints is damaged: delete its folder" in text
