"""torch.compile: a graph for the first block, one for all others, one for the output; none for a shape that is rare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.gpt2_train.conftest import losses
from torch import Tensor

from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import apply_compile, is_compiled, parallelize
from gpt2_train.model import loss
from gpt2_train.model.attention import find_documents
from gpt2_train.model.gpt2 import GPT2

Checkpointing = Literal["none", "full", "selective"]
CPU = torch.device("cpu")
TOKENS = torch.arange(48).view(3, 16)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many graphs were compiled: forward (for a backward pass), backward, inference. No code is generated."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    found: Counter[str] = Counter()

    def counting(kind: str) -> Callable[..., Any]:
        def compiled(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            found[kind] += 1
            return make_boxed_func(graph.forward)

        return compiled

    backend = aot_autograd(
        fw_compiler=counting("forward"),
        bw_compiler=counting("backward"),
        inference_compiler=counting("inference"),
        partition_fn=min_cut_rematerialization_partition,
    )
    plain = torch.compile
    torch._dynamo.reset()
    loss._graph.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function, **options: plain(function, backend=backend, **options))
    yield found
    torch._dynamo.reset()
    loss._graph.cache_clear()


def small(dropout: float, layers: int) -> GPT2:
    config = ModelConfig(layers, 16, 2, 16, 100, dropout=dropout)
    return GPT2(config).initialise(torch.Generator().manual_seed(1)).train()


def gradients(model: GPT2, *inputs: Any) -> list[Tensor]:
    """The gradient of a loss with fixed random numbers; the model's are added to."""
    torch.manual_seed(2)
    model(TOKENS, *inputs).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    "mode", ["selective", *(pytest.param(other, marks=pytest.mark.exhaustive) for other in ("none", "full"))]
)
def test_all_blocks_but_the_first_share_one_graph(graphs: Counter[str], mode: Checkpointing) -> None:
    """Training, evaluation and training again: graphs for each of three passes, with the gradients of none at all."""
    model = parallelize(small(0.1, 4), World(CPU), activation_checkpointing=mode, compiled=True)
    torch.testing.assert_close(gradients(model), expected := gradients(small(0.1, 4)))
    with torch.no_grad():
        model.eval()(TOKENS)
    for twice, once in zip(gradients(model.train()), expected, strict=True):
        torch.testing.assert_close(twice, 2 * once)
    assert graphs == {"forward": 3, "backward": 3, "inference": 3}


def test_documents_of_any_lengths_share_the_graph(graphs: Counter[str]) -> None:
    model, expected = small(0.0, 2), small(0.0, 2)
    apply_compile(model)
    for end in (5, 9):
        inside = find_documents(TOKENS.numpy() % 10, end, "mask").with_mask()
        torch.testing.assert_close(gradients(model, inside), gradients(expected, inside))
    assert graphs == {"forward": 3, "backward": 3}


@pytest.mark.exhaustive
def test_nothing_is_compiled_again_in_a_run(tmp_path: Path, gpt2: Callable[..., int], graphs: Counter[str]) -> None:
    """Validation samples that don't fill their last micro-batch (of 2) had a shape of their own once."""
    settings = ("--steps", 6, "--eval-every", 2, "--eval-tokens", 96, "--global-batch-size", 6, "--micro-batch-size", 3)
    ragged = (*settings, "--split", "8,1,1", "--eval-tokens", 288)
    assert gpt2(tmp_path / "run", *ragged, "--compile") == 0
    # The loss has two without autograd: that of training, which has its gradient, and that of validation.
    assert graphs == {"forward": 3, "backward": 3, "inference": 5}
    assert gpt2(tmp_path / "plain", *ragged) == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (tokens,) = {row["valid_tokens"] for row in rows if "valid_tokens" in row}
    assert (tokens // 16) % 3  # otherwise nothing was ragged


def test_what_is_compiled() -> None:
    gpu = torch.device("cuda", 0)
    assert [is_compiled(None, device) for device in (CPU, gpu)] == [False, True]
    assert [is_compiled(asked, gpu) for asked in (True, False, "blocks")] == [True, False, True]
