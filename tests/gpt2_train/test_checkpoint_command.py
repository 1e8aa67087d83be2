"""`gpt2 checkpoint diff` and `verify`: where two models differ, and whether files are what was written."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train.small_models import BYTES, byte_tokenizer, random_model

from gpt2_train.checkpoint import load
from gpt2_train.checkpoint.info import list_checkpoints
from gpt2_train.checkpoint.load import model_tensors
from gpt2_train.checkpoint.save import Checkpointer
from gpt2_train.cli import main
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.conversion.weights import compare
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.adamw import make_optimizer

Report = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """report("diff", a, b): the exit code, what `--json` prints, and what is printed without it."""

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


def test_equal_models_are_equal(tmp_path: Path, report: Report) -> None:
    status, result, text = report("diff", saved(tmp_path / "a"), saved(tmp_path / "b", step=5))
    parameters = len(list(GPT2(BYTES).named_parameters()))
    assert (status, result["equal"], result["tensors"]) == (0, True, 3 * parameters)
    assert "are equal: " in text and "optimizer state: compared, too" in text and "steps: 4 and 5" in text


def test_the_first_difference_is_named_with_its_size(tmp_path: Path, report: Report) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.blocks.1.attention.out.weight"][3, 5] += 0.5
        tensors["optimizer.final_norm.bias.exp_avg"][:2] = 3

    other = saved(tmp_path / "b", change=change)
    status, result, text = report("diff", saved(tmp_path / "a"), other)
    assert status == 1 and not result["equal"]
    names = [(entry["name"], entry["differing"]) for entry in result["differences"]]
    assert names == [("model.blocks.1.attention.out.weight", 1), ("optimizer.final_norm.bias.exp_avg", 2)]
    assert result["differences"][0]["max_absolute"] == pytest.approx(0.5)
    assert result["differences"][1]["max_absolute"] == 2 and result["differences"][1]["max_relative"] == pytest.approx(
        2 / 3
    )
    assert (
        "model.blocks.1.attention.out.weight is the first tensor that differs: 1 of 1,024 values, by at most 0.5"
        in text
    )
    assert "2 of 84 tensors differ, optimizer.final_norm.bias.exp_avg the most: 2 of 32 values, by at most 2" in text


def test_states_that_have_other_tensors_are_different(tmp_path: Path, report: Report) -> None:
    """As those of two optimizers are: only what both have can be compared."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["optimizer.final_norm.bias.exp_avg"]

    status, result, text = report("diff", saved(tmp_path / "a"), saved(tmp_path / "b", change=change))
    assert (status, result["equal"], result["optimizer_only_in_one"]) == (1, False, 1)
    assert "optimizer state: compared, but for 1 tensors that only one of them has" in text


def test_models_of_different_formats_are_compared(tmp_path: Path, report: Report) -> None:
    """Rows that pad the vocabulary, and an optimizer that only one of them has, are no difference."""
    run = saved(tmp_path / "run")
    assert main(["convert", str(run), str(tmp_path / "hf")]) == 0
    status, result, text = report("diff", run, tmp_path / "hf")
    assert (status, result["optimizer"]) == (0, [True, False])
    assert f"optimizer state: only {run} has one" in text
    assert main(["convert", str(run), str(tmp_path / "half"), "--to", "hf", "--dtype", "fp16"]) == 0
    status, result, text = report("diff", tmp_path / "hf", tmp_path / "half")
    assert status == 1
    # Rounding to ten bits of the fraction, of values that are not too small for it.
    assert all(entry["max_absolute"] < 1e-3 for entry in result["differences"])


def test_models_of_different_shapes_are_different(tmp_path: Path, report: Report) -> None:
    other = GPT2(ModelConfig(**{**BYTES.as_table(), "layers": 3, "dropout": 0.5})).initialise()
    status, result, text = report("diff", saved(tmp_path / "a"), saved(tmp_path / "b", other))
    assert (status, result["shapes"]) == (1, ["layers 2 against 3"])
    assert "models of different shapes: layers 2 against 3" in text


def test_what_is_no_model_is_refused(tmp_path: Path, report: Report) -> None:
    run = saved(tmp_path / "a")
    for words in (("diff", run, tmp_path / "nothing"), ("diff", run), ("verify",), ("verify", tmp_path / "nothing")):
        status, _, text = report(*words)
        assert status == 2 and text.count("error:") == 1
    assert main(["convert", str(run), str(tmp_path / "hf")]) == 0
    status, _, text = report("verify", tmp_path / "hf")
    assert status == 2 and "holds no checkpoint" in text


def test_a_value_that_is_no_number_is_the_largest_difference(tmp_path: Path, report: Report) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.final_norm.weight"][0] = math.inf
        tensors["model.final_norm.bias"][0] += 7

    status, result, text = report("diff", saved(tmp_path / "a"), saved(tmp_path / "b", change=change))
    assert (status, [entry["max_absolute"] for entry in result["differences"]]) == (1, [None, pytest.approx(7)])
    assert "model.final_norm.weight the most: 1 of 32 values, by at most inf or NaN" in text


def test_numbers_are_compared_as_numbers() -> None:
    nan = math.nan
    found = compare("x", torch.tensor([1.0, nan, 0.0, 2.0]), torch.tensor([1.0, nan, -0.0, 4.0]))
    assert (found.differing, found.max_absolute, found.max_relative) == (1, 2.0, 0.5)
    assert compare("x", torch.tensor([0.5]), torch.tensor([0.5], dtype=torch.float16)).differing == 0
    for left, right in (([nan, 1.0], [1.0, 3.0]), ([1.0, nan], [3.0, 1.0])):
        assert math.isnan(compare("x", torch.tensor(left), torch.tensor(right)).max_absolute)


# --- verify ----------------------------------------------------------------------------------------------------------


def test_whole_checkpoints_are_whole(tmp_path: Path, report: Report) -> None:
    run = saved(tmp_path)
    saved(tmp_path, step=6)
    for place, expected in ((run, 2), (run / "checkpoints", 2), (run / "checkpoints" / "step-0000006", 1)):
        status, result, text = report("verify", place)
        assert (status, result["damaged"], len(result["checkpoints"])) == (0, 0, expected)
        assert text.count(": whole (model and optimizer, 4 files") == expected


def test_a_checkpoint_that_a_run_removes_meanwhile_is_not_damaged(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path)
    saved(tmp_path, step=6)
    first, second = list_checkpoints(folder / "checkpoints")
    plain = load.read_info

    def removed_first(path: Path) -> Any:
        shutil.rmtree(first, ignore_errors=True)
        return plain(path)

    monkeypatch.setattr(load, "read_info", removed_first)
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
        (lambda step: flip(step / "model/__0_0.distcp"), "model/__0_0.distcp is not what was written"),
        (lambda step: flip(step / "optimizer/.metadata"), "optimizer/.metadata is not what was written"),
        (lambda step: (step / "optimizer/__0_0.distcp").unlink(), "optimizer/__0_0.distcp is missing"),
        (lambda step: (step / "model/.metadata").write_bytes(b""), "model/.metadata has 0 bytes where"),
        (lambda step: (step / "tokenizer/merges.txt").write_text("#version: 0.2\na b\n"), "tokenizer"),
        (lambda step: (step / "tokenizer/vocab.json").unlink(), "vocab.json"),
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
