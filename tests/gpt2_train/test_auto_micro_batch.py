"""`--micro-batch-size auto`: what fits a GPU, kept by a run that resumes, lowered where it was too much."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train.conftest import losses

from gpt2_train.config.layout import choose_data_parallel, plan_batches
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.training import plan
from gpt2_train.training.memory import GIB, MARGIN, fitting_micro_batch, memory_per_rank
from gpt2_train.training.trainer import Trainer

PRESET = ModelConfig.preset("124M", dropout=0.0)
BF16: dict[str, Any] = {"precision": "bf16", "compiled": True}
AUTO = ("--steps", 3, "--schedule", "constant", "--dropout", 0, "--save-every", 1, "--micro-batch-size", "auto")


def test_it_is_the_largest_divisor_of_the_share_that_fits() -> None:
    for gib in (2, 4, 8, 16, 24):
        chosen = fitting_micro_batch(PRESET, 24, gib * GIB, **BF16)
        fitting = [
            size
            for size in range(1, 25)
            if 24 % size == 0
            and memory_per_rank(PRESET, micro_batch=size, accumulation=24 // size, **BF16).peak
            <= gib * GIB * (1 - MARGIN)
        ]
        assert chosen == max(fitting, default=1)
    assert fitting_micro_batch(PRESET, 24, 2 * GIB, **BF16) < fitting_micro_batch(PRESET, 24, 8 * GIB, **BF16) < 24


def test_more_than_keeps_a_gpu_busy_is_not_taken() -> None:
    """Nor more logits than 32 bits can count."""
    assert fitting_micro_batch(PRESET, 512, 1000 * GIB, **BF16) == 32
    assert fitting_micro_batch(PRESET, None, 1000 * GIB, **BF16) == 32
    assert 32 * 1024 * PRESET.padded_vocabulary < 2**31
    assert fitting_micro_batch(PRESET, 7, 1000 * GIB, **BF16) == 7
    assert fitting_micro_batch(PRESET, 512, 0, **BF16) == 1


def test_without_a_gpus_memory_it_is_what_it_was() -> None:
    assert plan_batches(24, "auto", 1, on_cpu=False) == (8, 3)
    assert plan_batches(24, "auto", 1, on_cpu=True) == (2, 12)
    assert choose_data_parallel(TrainSettings(global_batch_size=8), 6) == 4


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The largest micro-batch for which there is memory, and from which step on; all GPUs are said to be large."""
    limits: dict[str, Any] = {"sequences": 2, "step": 0}
    plain = Trainer.forward_backward

    def limited(trainer: Trainer, batches: Any) -> torch.Tensor:
        if trainer.run.plan.micro_batch > limits["sequences"] and trainer.state.step >= limits["step"]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(trainer, batches)

    monkeypatch.setattr(plan, "free_memory", lambda device: 80 * GIB)
    monkeypatch.setattr(Trainer, "forward_backward", limited)
    return limits


def recorded(run: Path) -> int:
    """The micro-batch in a run's settings."""
    return int(tomllib.loads((run / "config.toml").read_text())["train"]["micro_batch_size"])


def test_a_first_step_without_memory_is_taken_with_less(
    tmp_path: Path, gpt2: Callable[..., int], largest: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Until it fits; a run that resumes begins with that, and what is learned is the same."""
    assert gpt2(tmp_path / "run", *AUTO) == 0
    err = capsys.readouterr().err
    assert "out of memory with a micro-batch of 8: beginning again with 4" in err
    assert "out of memory with a micro-batch of 4: beginning again with 2" in err
    assert recorded(tmp_path / "run") == 2

    assert gpt2(tmp_path / "run", *AUTO[2:], "--steps", 4) == 0
    assert "out of memory" not in capsys.readouterr().err
    assert recorded(tmp_path / "run") == 2

    largest["sequences"] = 8
    assert gpt2(tmp_path / "plain", *AUTO[2:], "--steps", 4) == 0
    assert recorded(tmp_path / "plain") == 8
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)


def test_memory_that_runs_out_later_lowers_it_for_the_next_start(
    tmp_path: Path, gpt2: Callable[..., int], largest: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    largest["step"] = 2
    assert gpt2(tmp_path / "run", *AUTO) == 1
    assert "out of memory with the micro-batch of 8 that --micro-batch-size auto chose" in capsys.readouterr().err
    assert recorded(tmp_path / "run") == 4
    largest["sequences"] = 4
    assert gpt2(tmp_path / "run", *AUTO) == 0
    assert "resuming" in capsys.readouterr().err


def test_a_size_that_was_asked_for_is_not_changed(
    tmp_path: Path, gpt2: Callable[..., int], largest: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpt2(tmp_path / "run", *AUTO[:-2], "--micro-batch-size", 4) == 1
    assert "out of memory: lower --micro-batch-size" in capsys.readouterr().err
