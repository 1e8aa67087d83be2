"""Tensor and sequence parallelism over gloo, in two and in four processes: the same numbers, and what is exchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.tensor_parallel_runs import run_tasks

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import check_tensor_parallel
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.tensor_parallel import SharedDropout
from gpt2_train.training.memory import memory_per_rank

TOKENS, HIDDEN, LAYERS = 64, 32, 2
"""Of the model and the micro-batch whose exchanges are recorded."""


@pytest.fixture(scope="module")
def exchanged() -> dict[str, dict[str, list[tuple[str, str, int]]]]:
    """What is exchanged in a micro-batch, by layout and precision; their numbers are checked on the way."""
    found: dict[str, Any] = json.loads(forks.in_group(2, run_tasks, "collectives:2", "sequences:2")[0].stdout)
    return {key: {when: [tuple(call) for call in calls] for when, calls in of.items()} for key, of in found.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tensor_parallelism_adds_up_activations_in_their_own_type(exchanged: dict[str, Any], precision: str) -> None:
    """The sums of the backward pass were float32 in bf16 runs, twice the bytes."""
    half = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    size = TOKENS * HIDDEN
    of_blocks = [("all_reduce", half, size)] * (2 * LAYERS)
    found = exchanged[f"tensor {precision}"]
    assert found["forward"] == [("all_reduce", "float32", size), *of_blocks]  # first the embeddings
    assert found["backward"] == [("all_reduce", half, size), *of_blocks]  # first the output matrix
    assert found["step"] == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sequence_parallelism_reduces_and_gathers_instead(exchanged: dict[str, Any], precision: str) -> None:
    """What is whole on each process has its gradients added up once a step: biases, norms, positions."""
    half = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    size = TOKENS * HIDDEN
    gather, reduce = ("all_gather_into_tensor", half, size // 2), ("reduce_scatter_tensor", half, size)
    found = exchanged[f"sequence {precision}"]
    assert found["forward"] == [("reduce_scatter_tensor", "float32", size), gather, *[reduce, gather] * (2 * LAYERS)]
    # A matrix gathers its input again; behind it the gradient of its output is gathered.
    matrices = [gather, reduce] + [gather, gather, reduce] * (2 * LAYERS)
    assert found["backward"] == [*matrices, ("all_gather_into_tensor", "float32", size // 2)]
    whole = LAYERS * 6 * HIDDEN + 2 * HIDDEN + 16 * HIDDEN
    assert found["step"] == [("allreduce_", "float32", whole)]


@pytest.mark.exhaustive
def test_every_way_to_compute_gives_the_same_numbers() -> None:
    """Separate documents, dropout and activation checkpointing, compiled or not."""
    forks.in_group(2, run_tasks, "layouts:2", "graphs:2")


@pytest.mark.exhaustive
def test_four_processes_compute_what_one_does() -> None:
    """All of them dividing one model, and two by two with data parallelism."""
    forks.in_group(4, run_tasks, "sequences:4", "sequences:2")


def test_sequences_that_cannot_be_divided_are_refused() -> None:
    config = ModelConfig(2, 32, 4, 18, 100)
    check_tensor_parallel(config, 4)
    with pytest.raises(Gpt2UsageError, match=r"sequences of 18 tokens among --tensor-parallel 4"):
        check_tensor_parallel(config, 4, sequence_parallel=True)
    with pytest.raises(Gpt2UsageError, match="give both"):
        check_tensor_parallel(config, 1, sequence_parallel=True)


def test_a_share_of_the_tokens_drops_what_all_of_them_would() -> None:
    x, seed = torch.rand(8, 3, 5) + 1, torch.tensor([3, 4])
    whole = SharedDropout(0.5, seed).train()(x)
    shares = [SharedDropout(0.5, seed, part).train()(share) for part, share in enumerate(x.chunk(4))]
    assert torch.equal(torch.cat(shares), whole)


def test_sequence_parallelism_saves_less() -> None:
    """Of norms and residual stream, which tensor parallelism alone leaves whole on each process (34 → 10 + 24/t)."""
    config = ModelConfig.preset("345M", dropout=0.0)
    layout = {"micro_batch": 8, "tensor_parallel": 8, "precision": "bf16"}
    without, divided = (memory_per_rank(config, **layout, sequence_parallel=divides) for divides in (False, True))
    assert divided.activations < 0.4 * without.activations
    assert divided.peak < without.peak
