"""Weights are cast once per step, whatever the micro-batches, with the losses of autocast."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import rows
from tests.gpt2_train.counted_casts import CONFIG, TOKENS, Casts, compare, compare_here
from torch._dynamo.utils import counters

from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import HalfCopies, apply_compile, half_copies
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training import trainer as train_module

CPU = torch.device("cpu")


def small() -> GPT2:
    return GPT2(CONFIG).initialise(torch.Generator().manual_seed(1)).train()


def test_gradients_are_those_of_autocast() -> None:
    compare(World(CPU))


@pytest.mark.exhaustive
def test_two_processes_cast_what_they_have_gathered() -> None:
    forks.in_group(2, compare_here)


def test_compiled_graphs_take_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for all steps (three for blocks), with the gradients of compiled autocast."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: plain(function, backend="aot_eager", **options))
    torch._dynamo.reset()
    counters.clear()
    model, expected = small(), small()
    copies = HalfCopies(model, torch.bfloat16)
    for one in (model, expected):
        apply_compile(one)
    for _ in range(2):
        for one in (model, expected):
            torch.manual_seed(3)
            with torch.autocast("cpu", torch.bfloat16):
                logits = one(TOKENS)
            logits.float().square().mean().backward()
        with torch.no_grad():
            for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
                mine.sub_(mine.grad)
                other.sub_(other.grad)
        copies.expire()
    # With copies and without.
    assert counters["stats"]["unique_graphs"] == 6
    torch._dynamo.reset()


def test_a_run_casts_its_weights_once_per_step(
    tmp_path: Path, gpt2: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that resumes, whose copies must be of the weights that it has read."""
    words = ("--global-batch-size", 6, "--eval-batches", 1, "--precision", "bf16", "--schedule", "constant")
    with Casts.of_weights(small()) as casts:
        assert gpt2(tmp_path / "copies", *words, "--steps", 2) == 0
        assert casts.count == 9 * (2 + 1)  # For each step, and for the validation after the last.
        assert gpt2(tmp_path / "copies", *words, "--steps", 3) == 0
    monkeypatch.setattr(train_module, "half_copies", lambda *_, **__: None)
    assert gpt2(tmp_path / "autocast", *words, "--steps", 3) == 0
    copies, autocast = (
        {row["step"]: [row.get("loss"), row.get("grad_norm")] for row in rows(tmp_path / name) if "loss" in row}
        for name in ("copies", "autocast")
    )
    assert len(copies) == 3 and copies[1] == autocast[1]
    assert copies == {step: pytest.approx(row, rel=1e-6) for step, row in autocast.items()}


def test_where_there_are_none() -> None:
    """Where autocast casts nothing, or copies would cost memory that it does not."""
    assert half_copies(small(), World(CPU), "fp32", "none") is None
    assert half_copies(small(), World(CPU), "bf16", "full") is None
    assert half_copies(small(), World(CPU), "bf16", "none", reshard=True) is None
    assert half_copies(small(), dataclasses.replace(World(CPU), tp_size=2), "bf16", "none") is None
    assert half_copies(small(), World(CPU), "fp16", "none") is not None
