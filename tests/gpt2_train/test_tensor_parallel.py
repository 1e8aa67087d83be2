"""Tensor parallelism over gloo, in two and in four processes: the same numbers, and what is exchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gpt2_train import forks
from tests.gpt2_train.tensor_parallel_runs import run_tasks

TOKENS, HIDDEN, LAYERS = 64, 32, 2
"""Of the model and the micro-batch whose exchanges are recorded."""


@pytest.fixture(scope="module")
def exchanged() -> dict[str, dict[str, list[tuple[str, str, int]]]]:
    """What is exchanged in a micro-batch, by layout and precision; their numbers are checked on the way."""
    found: dict[str, Any] = json.loads(forks.in_group(2, run_tasks, "collectives:2", "layouts:2")[0].stdout)
    return {key: {when: [tuple(call) for call in calls] for when, calls in of.items()} for key, of in found.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tensor_parallelism_adds_up_activations_in_their_own_type(exchanged: dict[str, Any], precision: str) -> None:
    """The sums of the backward pass were float32 in bf16 runs, twice the bytes."""
    half = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    size = TOKENS * HIDDEN
    of_blocks = [("all_reduce", half, size)] * (2 * LAYERS)
    found = exchanged[precision]
    assert found["forward"] == [("all_reduce", "float32", size), *of_blocks]  # first the embeddings
    assert found["backward"] == [("all_reduce", half, size), *of_blocks]  # first the output matrix


@pytest.mark.exhaustive
def test_every_way_to_compute_gives_the_same_numbers() -> None:
    """Compiled, too, with dropout and activation checkpointing."""
    forks.in_group(2, run_tasks, "graphs:2")


@pytest.mark.exhaustive
def test_four_processes_compute_what_one_does() -> None:
    """All of them dividing one model, and two by two with data parallelism."""
    forks.in_group(4, run_tasks, "layouts:4", "layouts:2")
