"""The compiled cross-entropy: the same numbers as torch's, full graphs compiled once, no copy of the logits."""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering

from gpt2_train.model import loss
from gpt2_train.model.loss import token_losses

ROWS, WIDTH, VOCABULARY = 24, 4096, 4001
MATRIX = ROWS * WIDTH


def batch(dtype: torch.dtype, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (rows, width), targets (rows,), and the gradient of each loss (rows,)."""
    random = torch.Generator().manual_seed(seed)
    logits = (torch.randn(ROWS, WIDTH, generator=random) * 4).to(dtype)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=random)
    return logits, targets, torch.rand(ROWS, generator=random).to(torch.promote_types(dtype, torch.float32))


def with_gradient(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    """The losses, and the gradient of the logits; these are no leaf, as in a model."""
    targets, of_losses = rest
    leaf = logits.clone().requires_grad_()
    losses = loss(leaf * 1, targets)
    losses.backward(of_losses)
    assert leaf.grad is not None
    return losses.detach(), leaf.grad


compiled_loss = functools.partial(token_losses, vocabulary=VOCABULARY, compiled=True)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has torch.compile use another backend than inductor, whose C++ takes seconds to compile."""
    plain = torch.compile

    def use(backend: str) -> None:
        monkeypatch.setattr(torch, "compile", lambda function, **options: plain(function, backend=backend, **options))

    loss._graph.cache_clear()
    yield use
    loss._graph.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "backend", "in_one_pass"),
    [
        (torch.float64, "aot_eager", False),
        (torch.float64, "aot_eager", True),
        (torch.float32, "aot_eager", False),
        (torch.float32, "aot_eager", True),
        pytest.param(torch.bfloat16, "inductor", False, marks=pytest.mark.exhaustive),
        pytest.param(torch.bfloat16, "inductor", True, marks=pytest.mark.exhaustive),
    ],
)
def test_it_is_the_cross_entropy_of_the_known_columns(
    dtype: torch.dtype, backend: str, in_one_pass: bool, use_backend: Callable[[str], None]
) -> None:
    use_backend(backend)
    logits, targets, of_losses = batch(dtype)
    loss = functools.partial(compiled_loss, gradient=of_losses) if in_one_pass else compiled_loss
    losses, gradient = with_gradient(loss, logits, targets, of_losses)

    def plain(values: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(values[:, :VOCABULARY], targets, reduction="none")

    expected, expected_gradient = with_gradient(plain, logits.to(losses.dtype), targets, of_losses)
    assert losses.dtype == of_losses.dtype
    assert gradient.dtype == dtype
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))
    assert not gradient[:, VOCABULARY:].any()


def test_nothing_is_compiled_twice_and_no_shape_is_one_too_many(use_backend: Callable[[str], None]) -> None:
    """torch gives up after eight shapes of one function; here each has a graph of its own, whatever came before."""
    use_backend("eager")
    counters.clear()
    logits, targets, of_losses = batch(torch.float32)
    for rows in range(1, 11):
        for _ in range(2):
            with_gradient(compiled_loss, logits[:rows], targets[:rows], of_losses[:rows])
        assert counters["stats"]["unique_graphs"] == 2 * rows
    assert not counters["graph_break"]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The code that inductor generates; what runs in its place is the graph, as a C++ compiler takes seconds."""
    codes: list[str] = []

    def kept(graph: GraphLowering) -> Any:
        codes.append(graph.codegen()[0].value)
        return types.SimpleNamespace(call=lambda inputs: graph.orig_gm(*inputs))

    monkeypatch.setattr(GraphLowering, "compile_to_module", kept)
    loss._graph.cache_clear()
    with torch._inductor.config.patch({"fx_graph_cache": False, "cpp.vec_isa_ok": True}):
        yield codes
    loss._graph.cache_clear()


@pytest.mark.parametrize(("in_one_pass", "graphs"), [(False, 2), (True, 1)])
def test_what_is_generated_asks_for_no_copy_of_the_logits(generated: list[str], in_one_pass: bool, graphs: int) -> None:
    logits, targets, of_losses = batch(torch.bfloat16)
    work = functools.partial(compiled_loss, gradient=of_losses) if in_one_pass else compiled_loss
    with_gradient(work, logits, targets, of_losses)
    assert len(generated) == graphs
    shapes = [eval(shape) for code in generated for shape in re.findall(r"= empty_strided_cpu\((\(.*?\)), ", code)]
    assert shapes and max(map(math.prod, shapes)) <= 2 * ROWS


def allocations(work: Callable[[], Any]) -> list[int]:
    """The bytes of each tensor that `work` asked memory for."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]


@pytest.mark.exhaustive
def test_no_copy_of_the_logits_is_made() -> None:
    """Nor one in float32; the gradient is in their place."""
    logits, targets, of_losses = batch(torch.bfloat16)
    values = logits.clone().requires_grad_() * 1
    with_gradient(compiled_loss, logits, targets, of_losses)  # compiles

    taken = allocations(lambda: torch.autograd.grad(compiled_loss(values, targets), values, of_losses))
    assert taken
    assert not [size for size in taken if size > MATRIX]
    torch_takes = allocations(lambda: F.cross_entropy(logits.float().requires_grad_(), targets).backward())
    assert max(torch_takes) == 4 * MATRIX  # what is looked for would be found


def test_a_gradient_in_the_place_of_the_logits_is_not_taken_for_them(use_backend: Callable[[str], None]) -> None:
    use_backend("aot_eager")
    logits, targets, of_losses = batch(torch.float32)
    leaf = logits.clone().requires_grad_()
    losses = compiled_loss(leaf * 1, targets)
    losses.backward(of_losses, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.backward(of_losses)
