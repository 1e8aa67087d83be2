"""The compiled cross-entropy: the same numbers as torch's, full graphs compiled once, no copy of the logits."""

from __future__ import annotations

import ast
import functools
import math
import re
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2_train.model import loss
from gpt2_train.model.loss import backward_root, losses_and_gradient, token_losses

ROWS, WIDTH, VOCABULARY = 24, 4096, 4001
MATRIX = ROWS * WIDTH


def batch(dtype: torch.dtype, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (rows, width), targets (rows,), and the gradient of each loss (rows,)."""
    random = torch.Generator().manual_seed(seed)
    logits = (torch.randn(ROWS, WIDTH, generator=random) * 4).to(dtype)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=random)
    return logits, targets, torch.rand(ROWS, generator=random).to(torch.promote_types(dtype, torch.float32))


compiled_losses = functools.partial(token_losses, vocabulary=VOCABULARY, compiled=True)
compiled = functools.partial(losses_and_gradient, vocabulary=VOCABULARY, compiled=True)


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
    ("dtype", "backend"),
    [
        (torch.float64, "aot_eager"),
        (torch.float32, "aot_eager"),
        pytest.param(torch.bfloat16, "inductor", marks=pytest.mark.exhaustive),
    ],
)
def test_it_is_the_cross_entropy_of_the_known_columns(
    dtype: torch.dtype, backend: str, use_backend: Callable[[str], None]
) -> None:
    use_backend(backend)
    logits, targets, of_losses = batch(dtype)
    gradient, values = logits.clone(), logits.to(of_losses.dtype).requires_grad_()
    losses = compiled(gradient, targets, of_losses)
    expected = F.cross_entropy(values[:, :VOCABULARY], targets, reduction="none")
    (expected_gradient,) = torch.autograd.grad(expected, values, of_losses)
    expected = expected.detach()
    assert losses.dtype == of_losses.dtype
    assert gradient.dtype == dtype
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(compiled_losses(logits, targets), expected)
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))
    assert not gradient[:, VOCABULARY:].any()


INTERPRETED = """
import torch
from gpt2_train.model import kernels

for width, known in ((384, 384), (384, 257), (9000, 8500)):
    for dtype in (torch.float32, torch.bfloat16):
        random = torch.Generator().manual_seed(0)
        logits = (3 * torch.randn(5, width, generator=random)).to(dtype)
        targets, weights = torch.randint(0, known, (5,), generator=random), torch.rand(5, generator=random)
        values = logits.float().requires_grad_()
        expected = torch.nn.functional.cross_entropy(values[:, :known], targets, reduction="none")
        (gradient,) = torch.autograd.grad(expected, values, weights)
        torch.testing.assert_close(kernels.one_pass(logits, targets, weights, known), expected.detach())
        # In bf16 an exponential is rounded in its place, and what becomes of it once more.
        near = {} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-8}
        torch.testing.assert_close(logits.float(), gradient, **near)
        assert not logits[:, known:].any()
"""


def test_triton_s_kernel_gives_the_gradient_of_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter: one block of columns and two, with padding and without."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # Read when it is loaded, as it may be where processes are forked.
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_nothing_is_compiled_twice_and_no_shape_is_one_too_many(use_backend: Callable[[str], None]) -> None:
    """torch gives up after eight shapes of one function; here each has a graph of its own, whatever came before."""
    from torch._dynamo.utils import counters

    use_backend("eager")
    counters.clear()
    logits, targets, of_losses = batch(torch.float32)
    for rows in range(1, 11):
        for _ in range(2):
            compiled_losses(logits[:rows], targets[:rows])
            compiled(logits[:rows].clone(), targets[:rows], of_losses[:rows])
        assert counters["stats"]["unique_graphs"] == 2 * rows
    assert not counters["graph_break"]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The code that inductor generates; what runs in its place is the graph, as a C++ compiler takes seconds."""
    from torch._inductor.graph import GraphLowering

    codes: list[str] = []

    def kept(graph: GraphLowering) -> Any:
        codes.append(graph.codegen()[0].value)
        return types.SimpleNamespace(call=lambda inputs: graph.orig_gm(*inputs))

    monkeypatch.setattr(GraphLowering, "compile_to_module", kept)
    loss._graph.cache_clear()
    with torch._inductor.config.patch({"fx_graph_cache": False, "cpp.vec_isa_ok": True}):
        yield codes
    loss._graph.cache_clear()


@pytest.mark.exhaustive
def test_what_is_generated_asks_for_no_copy_of_the_logits(generated: list[str]) -> None:
    logits, targets, of_losses = batch(torch.bfloat16)
    compiled_losses(logits, targets)
    compiled(logits, targets, of_losses)
    assert len(generated) == 2
    pattern = r"= empty_strided_cpu\((\(.*?\)), "
    shapes = [ast.literal_eval(shape) for code in generated for shape in re.findall(pattern, code)]
    assert shapes and max(map(math.prod, shapes)) <= 2 * ROWS


def test_the_gradient_that_is_given_goes_on() -> None:
    """And its memory is free as soon as what made the logits has used it."""
    leaf = torch.ones(3, requires_grad=True)
    logits = leaf * 2
    gradient = torch.tensor([1.0, 2.0, 3.0])
    is_gone = weakref.ref(gradient)
    loss = backward_root(logits, gradient)
    assert loss.item() == 0.0
    del logits, gradient
    loss.backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 4.0, 6.0]
    assert is_gone() is None
