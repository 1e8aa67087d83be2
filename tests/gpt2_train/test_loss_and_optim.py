"""Loss over a sharded vocabulary, learning rates, gradient scaling."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from gpt2_train.config import layout
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.model import loss
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import losses_and_gradient, token_losses
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.optim.gradients import FIRST_LOSS_SCALE, LossScale, gradient_norm
from gpt2_train.optim.schedule import learning_rate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_losses_and_gradients_are_those_of_cross_entropy(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Also with columns of padding, which get no gradient."""
    monkeypatch.setitem(layout.PIECE_ELEMENTS, "cpu", 100)  # several pieces
    logits = (torch.randn(3, 7, 33, generator=torch.Generator().manual_seed(1)) * 5).to(dtype)
    targets = torch.randint(0, 30, (3, 7), generator=torch.Generator().manual_seed(2))
    gradient, theirs = logits.clone(), logits[..., :30].clone().requires_grad_()
    weights = torch.rand(3, 7, generator=torch.Generator().manual_seed(3))
    losses = losses_and_gradient(gradient, targets, weights, vocabulary=30)
    torch.testing.assert_close(token_losses(logits, targets, vocabulary=30), losses)
    wide = theirs.flatten(0, 1).to(losses.dtype)
    expected = F.cross_entropy(wide, targets.flatten(), reduction="none").view(3, 7)
    torch.testing.assert_close(losses, expected)
    (expected * weights).sum().backward()
    torch.testing.assert_close(gradient[..., :30], theirs.grad)
    assert not gradient[..., 30:].any()


class _Ranks:
    """Stands in for a process group: threads that exchange what processes would."""

    def __init__(self, size: int) -> None:
        self.slots, self.local = [None] * size, threading.local()
        self.barrier = threading.Barrier(size)

    def size(self) -> int:
        return len(self.slots)

    def rank(self) -> int:
        return self.local.rank  # type: ignore[no-any-return]

    def all_gather(self, parts: list[torch.Tensor], mine: torch.Tensor, group: Any = None) -> None:
        self.slots[self.local.rank] = mine  # type: ignore[call-overload]
        self.barrier.wait()
        for part, other in zip(parts, self.slots, strict=True):
            part.copy_(other)  # type: ignore[arg-type]
        self.barrier.wait()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("vocabulary", [None, 27, 22])
@pytest.mark.parametrize("size", [2, 4])
def test_a_spread_vocabulary_gives_the_plain_loss(
    monkeypatch: pytest.MonkeyPatch, size: int, vocabulary: int | None, compiled: bool
) -> None:
    ranks = _Ranks(size)
    monkeypatch.setattr(dist, "all_gather", ranks.all_gather)
    plain_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda work, **options: plain_compile(work, backend="aot_eager", **options))
    loss._graph.cache_clear()
    logits = torch.randn(6, 32, generator=torch.Generator().manual_seed(1)) * 4
    targets = torch.tensor([0, 21, 8, 15, 16, 20])
    whole, weights = logits.clone(), torch.rand(6, generator=torch.Generator().manual_seed(2))
    plain = losses_and_gradient(whole, targets, weights, vocabulary=vocabulary)
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        ranks.local.rank = rank
        share = logits.chunk(size, dim=1)[rank].contiguous()
        options: Any = {"group": ranks, "vocabulary": vocabulary, "compiled": compiled}
        alone = token_losses(share, targets, **options)
        losses = losses_and_gradient(share, targets, weights, **options)
        assert torch.equal(alone, losses)
        results[rank] = (losses, share)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loss._graph.cache_clear()
    for losses, _ in results:
        torch.testing.assert_close(losses, plain)
    torch.testing.assert_close(torch.cat([gradient for _, gradient in results], dim=1), whole)


@given(
    st.sampled_from(["cosine", "linear", "constant", "wsd"]),
    st.integers(1, 300),
    st.one_of(st.just(0.0), st.floats(0.001, 0.9), st.integers(1, 400).map(float)),
)
def test_the_learning_rate_rises_once_and_never_again(schedule: Any, steps: int, warmup: float) -> None:
    """Pitfall 23: it was 0 on the first step, and rose again after the end of the decay."""
    settings = TrainSettings(lr=1e-3, min_lr=1e-4, schedule=schedule, warmup=warmup)
    rates = [learning_rate(step, steps, settings) for step in range(1, steps + 50)]
    top = rates.index(max(rates))
    assert rates[0] > 0
    assert all(left <= right for left, right in itertools.pairwise(rates[: top + 1]))
    assert all(left >= right for left, right in itertools.pairwise(rates[top:]))
    assert max(rates) <= 1e-3
    assert len(set(rates[steps - 1 :])) == 1


def test_the_cosine_runs_from_the_peak_to_the_minimum() -> None:
    settings = TrainSettings(lr=1e-3, min_lr=1e-4, warmup=0.1)
    assert learning_rate(1, 100, settings) == pytest.approx(1e-4)
    assert learning_rate(10, 100, settings) == pytest.approx(1e-3)
    assert learning_rate(55, 100, settings) == pytest.approx((1e-3 + 1e-4) / 2)
    assert learning_rate(100, 100, settings) == pytest.approx(1e-4)


def test_wsd_is_constant_until_its_cooldown() -> None:
    settings = TrainSettings(lr=1e-3, min_lr=0.0, warmup=5, schedule="wsd", cooldown=0.2)
    assert learning_rate(80, 100, settings) == 1e-3
    assert learning_rate(90, 100, settings) == pytest.approx(5e-4)
    assert learning_rate(100, 100, settings) == 0.0


def test_weight_decay_touches_matrices_only() -> None:
    model = GPT2(ModelConfig(2, 32, 4, 16, 100)).initialise()
    optimizer = make_optimizer(model, TrainSettings(weight_decay=0.5), torch.device("cpu"))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(1e-2, torch.tensor(1.0), torch.tensor(True))
    for name, parameter in model.named_parameters():
        is_matrix = not name.endswith("bias") and "norm" not in name
        assert torch.allclose(parameter, before[name] * ((1 - 1e-2 * 0.5) if is_matrix else 1), atol=1e-7), name
        assert torch.equal(parameter, before[name]) == (not is_matrix), name


def test_the_fp16_scale_starts_at_65536_and_reacts_to_overflows() -> None:
    """Pitfall 24: it began at 2^32 and wasted the first steps."""
    scale = LossScale.for_precision("fp16")
    assert scale.scale == FIRST_LOSS_SCALE == 2**16
    scale.after_overflow()
    assert (scale.scale, scale.skipped) == (2**15, 1)
    for _ in range(2000):
        scale.after_step()
    assert scale.scale == 2**16
    restored = LossScale.for_precision("fp16")
    restored.restore(scale.state())
    assert restored == scale


def test_an_endless_overflow_ends() -> None:
    scale = LossScale.for_precision("fp16")
    assert [scale.after_overflow() for _ in range(18)] == [True] * 16 + [False] * 2


def test_other_precisions_are_not_scaled() -> None:
    scale = LossScale.for_precision("bf16")
    for _ in range(5000):
        scale.after_step()
    assert scale.scale == 1.0


def test_the_gradient_norm_is_over_all_parameters() -> None:
    parameters = [torch.zeros(3, requires_grad=True), torch.zeros(2, 2, requires_grad=True)]
    parameters[0].grad = torch.tensor([1.0, 2.0, 2.0])
    parameters[1].grad = torch.full((2, 2), 2.0)
    assert gradient_norm(parameters).item() == pytest.approx(5.0)
    parameters[1].grad[0, 0] = math.inf
    assert not torch.isfinite(gradient_norm(parameters))


@pytest.mark.parametrize("factor", [1.0, 0.37])
def test_a_step_is_that_of_torchs_adamw_on_scaled_gradients(factor: float) -> None:
    settings = TrainSettings(weight_decay=0.1)
    ours, theirs = (GPT2(ModelConfig(2, 32, 4, 16, 100)).initialise(torch.Generator().manual_seed(1)) for _ in range(2))
    optimizer = make_optimizer(ours, settings, torch.device("cpu"))
    matrices = [p for p in theirs.parameters() if p.dim() >= 2]
    rest = [p for p in theirs.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    expected = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    random = torch.Generator().manual_seed(2)
    for _ in range(3):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=random)
            other.grad = one.grad * factor
        optimizer.step(1e-2, torch.tensor(factor, dtype=torch.float64), torch.tensor(True))
        expected.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_gradient_that_is_not_finite_changes_nothing(kind: Any) -> None:
    """Nobody has asked whether it is: the kernel itself leaves weights, moments and the count of steps alone."""
    model = GPT2(ModelConfig(2, 32, 4, 16, 100)).initialise()
    optimizer = make_optimizer(model, TrainSettings(optimizer=kind), torch.device("cpu"))
    random = torch.Generator().manual_seed(1)
    for finite in (True, False, True):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=random) * (1.0 if finite else math.nan)
        before = [tensor.clone() for tensor in [*model.parameters(), *optimizer.tensors().values()]]
        norm = gradient_norm(model.parameters())
        optimizer.step(1e-2, 1 / norm, torch.isfinite(norm))
        after = [*model.parameters(), *optimizer.tensors().values()]
        assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)].count(False) == (
            len(after) if finite else 0
        )
