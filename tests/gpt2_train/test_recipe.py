"""What recipes of today add to the one of 2019: each option does what it says, also after an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.gpt2_train.conftest import command
from tests.gpt2_train.small_models import SMALL
from tests.gpt2_train.test_train import assert_same_bits, weights

from gpt2_train.checkpoint.info import read_info
from gpt2_train.cli import main
from gpt2_train.config.layout import choose_data_parallel
from gpt2_train.config.settings import TrainSettings
from gpt2_train.conversion.formats import open_weights
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.adamw import AdamW, decay_cautiously
from gpt2_train.optim.muon import Muon

Run = Callable[..., int]
AVERAGED = ("--steps", 8, "--save-every", 1, "--keep-checkpoints", 0, "--average-tail", 0.5)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    output = tmp_path_factory.mktemp("averaged") / "run"
    torch.set_num_threads(1)
    assert main(command(output, *AVERAGED, data=corpus)[3:]) == 0
    return output


def checkpoint(output: Path, step: int) -> Path:
    return output / "checkpoints" / f"step-{step:07}"


def test_the_average_is_the_mean_of_the_last_weights(averaged: Path) -> None:
    each = [weights(checkpoint(averaged, step)) for step in range(5, 9)]
    found = weights(averaged / "average")
    for name, values in found.items():
        assert torch.allclose(values, torch.stack([one[name] for one in each]).mean(0), atol=1e-6)
    assert not torch.equal(found["token_embedding.weight"], each[-1]["token_embedding.weight"])
    assert read_info(averaged / "average").step == 8


def test_a_run_resumes_with_its_average(averaged: Path, tmp_path: Path, gpt2: Run) -> None:
    again = tmp_path / "again"
    shutil.copytree(averaged, again)
    shutil.rmtree(again / "average")
    for step in (7, 8):
        shutil.rmtree(checkpoint(again, step))
    (again / "checkpoints" / "latest").write_text("step-0000006\n")
    assert gpt2(again, *AVERAGED) == 0
    assert_same_bits(averaged, again, parts=["average", "model", "optimizer"])
    left, right = weights(averaged / "average"), weights(again / "average")
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_made_longer_averages_its_new_end(averaged: Path, tmp_path: Path, gpt2: Run) -> None:
    longer, flat = tmp_path / "longer", ("--schedule", "constant", "--warmup", 0)
    assert gpt2(longer, *AVERAGED, *flat) == 0
    assert gpt2(longer, *AVERAGED, *flat, "--steps", 20) == 0
    assert gpt2(tmp_path / "whole", *AVERAGED, *flat, "--steps", 20) == 0
    left, right = weights(longer / "average"), weights(tmp_path / "whole" / "average")
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_made_a_little_longer_averages_no_step_before_its_new_tail(
    averaged: Path, tmp_path: Path, gpt2: Run
) -> None:
    """Its tail are steps 7 to 12; the mean that it resumes with has steps 5 and 6, too."""
    shutil.copytree(averaged, tmp_path / "run")
    assert gpt2(tmp_path / "run", *AVERAGED, "--steps", 12) == 0
    each = [weights(checkpoint(tmp_path / "run", step)) for step in range(9, 13)]
    for name, values in weights(tmp_path / "run" / "average").items():
        assert torch.allclose(values, torch.stack([one[name] for one in each]).mean(0), atol=1e-6)


def test_the_average_is_a_model_for_every_command(
    averaged: Path, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--checkpoint", str(averaged / "average"), "--data", corpus, "--device", "cpu"]) == 0
    assert "at step 8" in capsys.readouterr().out


def test_blocks_begin_as_the_identity() -> None:
    model = GPT2(SMALL).initialise(torch.Generator().manual_seed(1), residual="zero").eval()
    usual = GPT2(SMALL).initialise(torch.Generator().manual_seed(1))
    tokens = torch.arange(6)[None]
    expected = model.output(model.final_norm(model.embed(tokens, torch.arange(6))))
    assert torch.allclose(model(tokens), expected)
    differ = {
        name
        for name, values in usual.named_parameters()
        if not torch.equal(values, dict(model.named_parameters())[name])
    }
    assert {name.rpartition(".")[0].split(".", 2)[-1] for name in differ} >= {"attention.out", "feed_forward.down"}


def test_only_weights_that_move_towards_0_decay() -> None:
    weights, update = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([0.5, -0.5, -0.5, 0.5])
    decay_cautiously(weights, update, torch.tensor(0.1))
    assert weights.tolist() == pytest.approx([0.9, -0.9, 1.0, -1.0])


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_cautious_step_is_a_step_and_the_masked_decay(kind: str) -> None:
    """Against plain steps without decay and with all of it."""
    random = torch.Generator().manual_seed(2)
    start, gradient = (torch.randn(6, 4, generator=random) for _ in range(2))
    found = {}
    for decay, is_cautious in ((0.0, False), (0.5, False), (0.5, True)):
        weight = torch.nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        one = {"w": weight}
        rest = AdamW({} if kind == "muon" else one, (0.9, 0.99), decay, torch.device("cpu"), is_cautious=is_cautious)
        optimizer = rest if kind == "adamw" else Muon(one, decay, 4, rest, is_cautious=is_cautious)
        optimizer.step(0.1, torch.tensor(1.0), torch.tensor(True))
        found[decay, is_cautious] = weight.detach()
    moved = found[0.0, False]
    towards_0 = (start - moved) * (start if kind == "muon" else moved) > 0
    assert 0 < int(towards_0.sum()) < towards_0.numel()
    decayed = moved - 0.1 * 0.5 * towards_0 * (start if kind == "muon" else moved)
    assert torch.allclose(found[0.5, True], decayed, atol=1e-6)


def test_a_batch_in_tokens_is_one_in_sequences(tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpt2(tmp_path / "tokens", "--steps", 2, "--batch-tokens", 64) == 0
    assert gpt2(tmp_path / "sequences", "--steps", 2, "--global-batch-size", 4) == 0
    assert_same_bits(tmp_path / "tokens", tmp_path / "sequences")
    capsys.readouterr()
    assert gpt2(tmp_path / "other", "--batch-tokens", 70) == 2
    assert "--batch-tokens 70 is no multiple of --sequence-length 16" in capsys.readouterr().err


ALL_TOGETHER = (
    "--optimizer", "muon", "--cautious-decay", "--weight-decay", 0.5, "--init-residual", "zero", "--schedule", "wsd",
    "--average-tail", 0.5, "--batch-tokens", 64, "--order", "hashed", "--dropout", 0.1, "--steps", 8, "--save-every", 3,
)  # fmt: skip


def test_all_options_together_resume_bit_for_bit_and_convert(tmp_path: Path, gpt2: Run) -> None:
    """Interrupted inside the tail that is averaged; both models give the same logits in transformers' format."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert gpt2(unbroken, *ALL_TOGETHER) == 0
    assert gpt2(broken, *ALL_TOGETHER) == 0
    shutil.rmtree(broken / "average")
    shutil.rmtree(checkpoint(broken, 8))
    (broken / "checkpoints" / "latest").write_text("step-0000006\n")
    assert gpt2(broken, *ALL_TOGETHER) == 0
    assert_same_bits(unbroken, broken, parts=["average", "model", "optimizer"])
    tokens = torch.arange(12)[None]
    for name in ("", "average"):
        ours = open_weights(broken / name).load().eval()
        assert main(["convert", str(broken / name), str(tmp_path / f"hf{name}")]) == 0
        theirs = open_weights(tmp_path / f"hf{name}").load().eval()
        assert torch.equal(ours(tokens)[..., :100], theirs(tokens)[..., :100])
        assert all(torch.equal(values, weights(unbroken / name)[key]) for key, values in weights(broken / name).items())


def test_settings_that_came_later_are_no_part_of_a_run_without_them() -> None:
    """So that a run that was begun before there were these options resumes."""
    later = {"average_tail", "cautious_decay", "init_residual", "optimizer", "order"}
    assert not later & TrainSettings().identity().keys()
    assert later <= TrainSettings(
        average_tail=0.1, cautious_decay=True, init_residual="zero", optimizer="muon", order="hashed", steps=1
    ).identity().keys()  # fmt: skip


def test_the_batch_in_tokens_decides_the_layout(tmp_path: Path, gpt2: Run) -> None:
    """GPUs were chosen, and micro-batches refused, by the default of 8 sequences."""
    settings = TrainSettings(batch_tokens=24 * 1024)
    assert settings.global_batch_size == 24
    assert choose_data_parallel(settings, 12) == 12
    assert gpt2(tmp_path / "run", "--steps", 1, "--batch-tokens", 256, "--micro-batch-size", 16) == 0
