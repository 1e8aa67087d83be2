"""The kernel of attention: the fastest that works, the same on all processes and when a run resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import _cur_sdpa_kernel_backends

from gpt2_train.checkpoint.info import read_info
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.model.attention_kernels import (
    AttentionChoice,
    AttentionShape,
    attention_by,
    attention_work,
    choose_attention,
)
from gpt2_train.training import plan

GPU = torch.device("cuda", 0)
ON_H100 = {"attention": {"kernel": "flash", "gpu": "H100"}}


class Times:
    """A timer without a GPU: kernels that are not named do not work; with dropout all take twice as long."""

    def __init__(self, **milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.asked: list[tuple[AttentionShape, str]] = []

    def __call__(self, shape: AttentionShape, kernel: str) -> float:
        self.asked.append((shape, kernel))
        if kernel not in self.milliseconds:
            raise RuntimeError("No available kernel. Aborting execution.\nsecond line")
        return self.milliseconds[kernel] * (2 if shape.dropout else 1)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def chosen(
    times: Times, settings: TrainSettings | None = None, state: Any = None, device: torch.device = GPU
) -> AttentionChoice | None:
    settings = settings or TrainSettings(dropout=0.0)
    config = dataclasses.replace(ModelConfig.preset("124M"), dropout=settings.dropout)
    return choose_attention(settings, config, device, micro_batch=16, precision="bf16", state=state, timer=times)


def test_the_fastest_that_works_is_chosen() -> None:
    times = Times(flash=1.5, cudnn=1.25, efficient=3)
    found = chosen(times, TrainSettings(dropout=0.0, tensor_parallel=2))
    assert str(found) == "attention: cudnn, 1.25 ms per block and micro-batch (flash 1.50, efficient 3.00)"
    assert {shape for shape, _ in times.asked} == {AttentionShape(16, 6, 1024, 64, "bf16", 0.0, masked=False)}
    assert str(chosen(Times(efficient=2))) == "attention: efficient, 2.00 ms per block and micro-batch"
    assert str(chosen(Times(math=9))) == "attention: math, 9.00 ms per block and micro-batch"


def test_what_dropout_costs_is_said() -> None:
    found = chosen(Times(flash=0.75), TrainSettings(dropout=0.1))
    assert str(found) == "attention: flash, 1.50 ms per block and micro-batch; 0.75 with --dropout 0"


def test_a_run_that_resumes_keeps_its_kernel_on_such_a_gpu() -> None:
    times = Times(flash=1.5, cudnn=1)
    found = chosen(times, state=ON_H100)
    assert found == AttentionChoice("flash", "H100") and str(found) == "attention: flash" and found.state() == ON_H100
    assert [kernel for _, kernel in times.asked] == ["flash"]
    for state in (
        {"attention": {"kernel": "flash", "gpu": "A100"}},
        {},
        {"attention": {"kernel": "math", "gpu": "H100"}},
    ):
        found = chosen(times, state=state)
        assert found is not None and found.kernel == "cudnn"


def test_the_one_asked_for_is_taken_or_refused() -> None:
    times = Times(flash=1.5, cudnn=1)
    assert chosen(times, TrainSettings(attention="flash"), ON_H100) == AttentionChoice("flash", "H100")
    with pytest.raises(Gpt2UsageError) as caught:
        chosen(times, TrainSettings(attention="efficient"))
    assert str(caught.value) == (
        "--attention efficient does not work on H100 for 16 x 1,024 tokens, 12 heads of 64, bf16, dropout 0.1 "
        "(No available kernel. Aborting execution.): leave it out, or give another."
    )


def test_where_there_is_one_kernel_none_is_chosen() -> None:
    times = Times(flash=1)
    separate = {"documents": "separate", "dropout": 0.0}
    assert chosen(times, device=torch.device("cpu")) is None
    assert chosen(times, TrainSettings(**separate)) is None
    with pytest.raises(Gpt2UsageError, match="there is one kernel for cpu; leave it out"):
        chosen(times, TrainSettings(attention="flash"), device=torch.device("cpu"))
    with pytest.raises(Gpt2UsageError, match="there is one kernel for documents apart"):
        chosen(times, TrainSettings(attention="cudnn", **separate))
    assert times.asked == []


def test_what_is_measured_is_the_models_attention() -> None:
    """On CPU, which has such kernels of its own."""
    for masked in (False, True):
        shape = AttentionShape(2, 3, 8, 4, "fp32", 0.0, masked)
        attention_work(shape, torch.device("cpu"))()


def test_the_kernel_is_preferred_and_part_of_what_is_compiled() -> None:
    """torch's cache of compiled code does not know of preferences: it gave a run the kernel of the one before it."""
    before, config = _cur_sdpa_kernel_backends(with_priority=True), torch.compiler.config
    with attention_by(AttentionChoice("efficient", "H100")):
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
        assert deciding, "each process for itself: their measurements differ"
        states.append(state)
        return AttentionChoice("flash", "H100", {"flash": 1.0})

    monkeypatch.setattr(plan, "choose_attention", choose)
    monkeypatch.setattr(plan, "from_first_rank", from_first_rank)
    assert gpt2(tmp_path, "--steps", 1) == 0
    assert read_info(tmp_path).state["attention"] == ON_H100["attention"]
    assert 'attention = "flash"' in (tmp_path / "config.toml").read_text()
    assert gpt2(tmp_path, "--steps", 2) == 0
    assert states[0] is None and states[1]["attention"] == ON_H100["attention"]
