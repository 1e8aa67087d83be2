"""Muon: orthogonal steps for the matrices of the blocks, the same in every layout."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train.conftest import command, losses, rows, run_command_line
from tests.gpt2_train.small_models import SMALL

from gpt2_train.checkpoint.info import read_info
from gpt2_train.cli import main
from gpt2_train.config.settings import TrainSettings
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim import muon
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.optim.muon import directions, orthogonalised

RUN = ("--steps", 8, "--dropout", 0, "--save-every", 4, "--optimizer", "muon", "--activation-checkpointing", "none")


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("is_fast_in_bf16", [False, True])
@pytest.mark.parametrize("shape", [(32, 32), (128, 32), (32, 128), (3, 16, 48)])
def test_steps_are_nearly_orthogonal(
    shape: tuple[int, ...], is_fast_in_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All singular values near 1, in the directions of the matrix itself, whatever its size and the machine."""
    monkeypatch.setattr(muon, "is_fast_in_bf16", lambda device: is_fast_in_bf16)
    matrix = drawn(*shape) * 1e-4
    found = orthogonalised(matrix if matrix.dim() == 3 else matrix[None]).view(shape)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3 and values.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.nn.functional.cosine_similarity((left @ right).flatten(), found.flatten(), dim=0) > 0.97


def test_queries_keys_and_values_are_made_orthogonal_apart() -> None:
    fused = drawn(4, 3, 8, 32)
    fused[:, 2] *= 1000
    found = directions({"qkv.weight": fused.reshape(96, 32)}, 8)["qkv.weight"].view(4, 3, 8, 32)
    for part in range(3):
        alone = orthogonalised(fused[:, part].reshape(1, 32, 32)) * 0.2 * math.sqrt(32)
        torch.testing.assert_close(found[:, part].reshape(32, 32), alone[0], atol=1e-5, rtol=1e-4)


def test_matrices_in_stacks_move_as_they_do_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU all of a shape are one stack, lying or upright; the moments are there by name, too."""
    made = []
    for stack in (0, 20_000, 1 << 20):
        monkeypatch.setitem(muon.MUON_STACK, "cpu", stack)
        model = GPT2(SMALL).initialise(torch.Generator().manual_seed(1))
        optimizer = make_optimizer(model, TrainSettings(optimizer="muon", weight_decay=0.1), torch.device("cpu"))
        for step in range(2):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = drawn(*parameter.shape, seed=100 * step + number)
            optimizer.step(1e-2, torch.tensor(0.5), torch.tensor(True))
        made.append(dict(model.named_parameters()) | optimizer.tensors())
        assert len(optimizer.chunks) == {0: 8, 20_000: 2, 1 << 20: 1}[stack]
    for name, expected in made[0].items():
        for other in made[1:]:
            torch.testing.assert_close(other[name], expected, atol=1e-6, rtol=1e-5, msg=name)


def test_steps_are_those_of_torchs_muon() -> None:
    """With the scale of AdamW's steps, but for the half precision that torch's has everywhere."""
    ours, theirs = (GPT2(SMALL).initialise(torch.Generator().manual_seed(1)) for _ in range(2))
    optimizer = make_optimizer(ours, TrainSettings(optimizer="muon", weight_decay=0.1), torch.device("cpu"))
    names = [
        name for name, p in theirs.named_parameters()
        if name.startswith("blocks.") and p.dim() == 2 and "qkv" not in name
    ]  # fmt: skip
    known, others = dict(theirs.named_parameters()), dict(ours.named_parameters())
    expected = torch.optim.Muon(
        [known[name] for name in names], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(3):
        for number, parameter in enumerate(ours.parameters()):
            parameter.grad = drawn(*parameter.shape, seed=100 * step + number)
        for name in names:
            known[name].grad = others[name].grad.clone()  # type: ignore[union-attr]
        optimizer.step(1e-2, torch.tensor(1.0), torch.tensor(True))
        expected.step()
    for name in names:
        moved = (others[name] - known[name]).abs().max()
        assert moved < 2e-3, name


def test_all_but_the_matrices_of_the_blocks_have_adamw() -> None:
    model = GPT2(SMALL)
    names = set(make_optimizer(model, TrainSettings(optimizer="muon"), torch.device("cpu")).tensors())
    parameters = dict(model.named_parameters())
    matrices = {name for name in parameters if name.startswith("blocks.") and parameters[name].dim() == 2}
    assert len(matrices) == 8
    assert names == {f"optimizer.{name}.momentum" for name in matrices} | {
        f"optimizer.{name}.{part}" for name in set(parameters) - matrices for part in ("exp_avg", "exp_avg_sq")
    }


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    output = tmp_path_factory.mktemp("muon") / "run"
    assert main(command(output, *RUN, data=corpus)[3:]) == 0
    assert read_info(output).settings["optimizer"] == "muon"
    return output


def test_four_processes_take_the_steps_of_one(tmp_path: Path, corpus: str, one: Path) -> None:
    """Matrices that are sharded by rows, by columns and both ways; the momentum of one process goes on in four."""
    shutil.copytree(one, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000008")
    layout: tuple[Any, ...] = ("--tensor-parallel", 2, "--data-parallel", 2)
    done = run_command_line(tmp_path / "run", *RUN, *layout, data=corpus)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(one), abs=1e-4)
    assert rows(tmp_path / "run")[-1]["valid_loss"] == pytest.approx(rows(one)[-1]["valid_loss"], abs=1e-4)
