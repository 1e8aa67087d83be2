"""The kernel of attention: the first that works and is right, the same on all processes and when a run resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.attention import _cur_sdpa_kernel_backends

from gpt2_train.checkpoint.info import read_info
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.model import attention_kernels
from gpt2_train.model.attention_kernels import (
    LARGEST_DIFFERENCE,
    AttentionChoice,
    AttentionShape,
    attention_by,
    attention_difference,
    choose_attention,
)
from gpt2_train.training import plan

GPU = torch.device("cuda", 0)
ON_H100 = {"attention": {"kernel": "flash", "gpu": "H100"}}


class Trials:
    """Kernels without a GPU: those that are not named do not work, the others differ so much from plain operations."""

    def __init__(self, **differences: float) -> None:
        self.differences = differences
        self.asked: list[tuple[AttentionShape, str]] = []

    def __call__(self, shape: AttentionShape, kernel: str) -> float:
        self.asked.append((shape, kernel))
        if kernel not in self.differences:
            raise RuntimeError("No available kernel. Aborting execution.\nsecond line")
        return self.differences[kernel]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def chosen(
    trials: Trials, settings: TrainSettings | None = None, state: Any = None, device: torch.device = GPU
) -> AttentionChoice | None:
    settings = settings or TrainSettings(dropout=0.0)
    config = dataclasses.replace(ModelConfig.preset("124M"), dropout=settings.dropout)
    with mock.patch.object(attention_kernels, "gpu_trial", lambda device, *rest: trials(*rest)):
        return choose_attention(settings, config, device, micro_batch=16, precision="bf16", state=state)


@pytest.mark.parametrize(
    ("capability", "working", "expected"),
    [
        ((9, 0), {"flash": 0.004, "cudnn": 0.003}, "cudnn"),
        ((9, 0), {"flash": 0.004, "math": 0.0}, "flash"),
        ((8, 0), {"flash": 0.004, "cudnn": 0.003}, "flash"),
        ((7, 5), {"efficient": 0.003}, "efficient"),
        ((12, 1), {"efficient": 0.003, "cudnn": 0.002}, "cudnn"),
        ((9, 0), {"math": 0.0}, "math"),
    ],
)
def test_the_first_that_can_is_taken_in_an_order_for_each_kind_of_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], working: dict[str, float], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    trials = Trials(**working)
    found = chosen(trials, TrainSettings(dropout=0.1, tensor_parallel=2))
    assert found is not None and found.kernel == expected
    assert {shape for shape, _ in trials.asked} == {AttentionShape(16, 6, 1024, 64, "bf16", 0.1, masked=False)}


def test_how_far_it_is_from_plain_operations_is_said_and_much_is_an_error() -> None:
    """The fastest was taken without a look at its numbers."""
    found = chosen(Trials(cudnn=0.0123))
    assert str(found) == "attention: cudnn, at most 1.2% of the largest value from plain operations"
    for wrong in (0.9, float("nan")):
        with pytest.raises(Gpt2Error, match="attention by cudnn is wrong on H100 for 16 x 1,024 tokens"):
            chosen(Trials(cudnn=wrong, flash=0.001))


def test_a_run_that_resumes_keeps_its_kernel_on_such_a_gpu() -> None:
    trials = Trials(flash=0.001, cudnn=0.001)
    found = chosen(trials, state=ON_H100)
    assert found == AttentionChoice("flash", "H100", 0.001) and found.state() == ON_H100
    assert [kernel for _, kernel in trials.asked] == ["flash"]
    for state in (
        {"attention": {"kernel": "flash", "gpu": "A100"}},
        {},
        {"attention": {"kernel": "efficient", "gpu": "H100"}},
    ):
        found = chosen(trials, state=state)
        assert found is not None and found.kernel == "cudnn"


def test_the_one_asked_for_is_taken_or_refused() -> None:
    trials = Trials(flash=0.001, cudnn=0.001)
    assert chosen(trials, TrainSettings(attention="flash"), ON_H100) == AttentionChoice("flash", "H100", 0.001)
    with pytest.raises(Gpt2UsageError) as caught:
        chosen(trials, TrainSettings(attention="efficient"))
    assert str(caught.value) == (
        "--attention efficient does not work on H100 for 16 x 1,024 tokens, 12 heads of 64, bf16, dropout 0.1 "
        "(No available kernel. Aborting execution.): leave it out, or give another."
    )


def test_where_there_is_one_kernel_none_is_chosen() -> None:
    trials = Trials(flash=0.001)
    separate = {"documents": "separate", "dropout": 0.0}
    assert chosen(trials, device=torch.device("cpu")) is None
    assert chosen(trials, TrainSettings(**separate)) is None
    with pytest.raises(Gpt2UsageError, match="there is one kernel for cpu; leave it out"):
        chosen(trials, TrainSettings(attention="flash"), device=torch.device("cpu"))
    with pytest.raises(Gpt2UsageError, match="there is one kernel for document masking"):
        chosen(trials, TrainSettings(attention="cudnn", **separate))
    assert trials.asked == []


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_compared_is_the_models_attention(monkeypatch: pytest.MonkeyPatch, masked: bool) -> None:
    """On CPU, whose flash attention is another kernel than plain operations, too."""
    cpu, shape = torch.device("cpu"), AttentionShape(3, 3, 24, 8, "bf16", 0.0, masked)
    kernel: Any = "math" if masked else "flash"
    assert 0 < attention_difference(cpu, shape, kernel) < 0.02
    plain = attention_kernels.attend

    def wrong(fused: torch.Tensor, shape: AttentionShape) -> tuple[torch.Tensor, torch.Tensor]:
        mixed, gradient = plain(fused, shape)
        return (mixed.roll(1, dims=1), gradient) if fused.dtype == torch.bfloat16 else (mixed, gradient)

    monkeypatch.setattr(attention_kernels, "attend", wrong)
    assert attention_difference(cpu, shape, kernel) > 10 * LARGEST_DIFFERENCE


def test_the_kernel_is_preferred_and_part_of_what_is_compiled() -> None:
    """torch's cache of compiled code does not know of preferences: it gave a run the kernel of the one before it."""
    before, config = _cur_sdpa_kernel_backends(with_priority=True), torch.compiler.config
    with attention_by(AttentionChoice("efficient", "H100", 0.0)):
        inside = _cur_sdpa_kernel_backends(with_priority=True)
        assert inside[0].name == "EFFICIENT_ATTENTION" and {found.name for found in inside} >= {
            "MATH",
            "FLASH_ATTENTION",
        }
        assert config.cache_key_tag == "attention=efficient"
    assert _cur_sdpa_kernel_backends(with_priority=True) == before and config.cache_key_tag == ""
    with attention_by(None):
        assert _cur_sdpa_kernel_backends(with_priority=True) == before


def test_the_first_process_chooses_and_it_is_recorded(
    tmp_path: Path, gpt2: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    deciding: list[bool] = []
    plain = plan.from_first_rank

    def from_first_rank(work: Callable[[], Any]) -> Any:
        deciding.append(True)
        try:
            return plain(work)
        finally:
            deciding.pop()

    def choose(*arguments: Any, state: Any, **options: Any) -> AttentionChoice:
        assert deciding, "each process for itself: they may have other GPUs"
        states.append(state)
        return AttentionChoice("flash", "H100", 0.0)

    monkeypatch.setattr(plan, "choose_attention", choose)
    monkeypatch.setattr(plan, "from_first_rank", from_first_rank)
    assert gpt2(tmp_path, "--steps", 1) == 0
    assert read_info(tmp_path).state["attention"] == ON_H100["attention"]
    assert 'attention = "flash"' in (tmp_path / "config.toml").read_text()
    assert gpt2(tmp_path, "--steps", 2) == 0
    assert states[0] is None and states[1]["attention"] == ON_H100["attention"]
