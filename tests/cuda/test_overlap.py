"""Messages run while the GPU computes: what is computed at the same time, by the order that streams and events give."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest


class Work(NamedTuple):
    """What a stream runs: the `number`th, after the first so many of each other stream (`after`)."""

    stream: str
    number: int
    kind: str
    name: str
    after: Counter[str]


def works_of(path: Path) -> list[Work]:
    """Everything that the streams of a process ran, with what it waits for."""
    works: list[Work] = []
    clocks: dict[str, Counter[str]] = {}
    events: dict[str, Counter[str]] = {}
    for line in path.read_text().splitlines():
        what, stream, *rest = line.split(" ", 3)
        clock = clocks.setdefault(stream, Counter())
        if what == "record":
            events[rest[0]] = Counter(clock)
        elif what == "wait":
            clock |= events.get(rest[0], Counter())
        else:
            clock[stream] += 1
            works.append(Work(stream, clock[stream], rest[0], rest[1], Counter(clock)))
    return works


def products_beside(message: Work, works: list[Work]) -> int:
    """How many products of matrices neither the message waits for, nor wait for it."""
    return sum(
        work.kind == "product"
        and message.after[work.stream] < work.number
        and work.after[message.stream] < message.number
        for work in works
    )


LAYERS = 4
BLOCK = 4
"""Products of a block's forward pass: qkv, out, up, down. Attention is one kernel, and no product."""


@pytest.fixture
def first_step(train, tmp_path):
    """`first_step("--data-parallel 2")`: of each message of a run's first step its kind and the products beside it."""

    def run(flags: str) -> list[tuple[str, int]]:
        size = ["--steps", 1, "--layers", LAYERS, "--global-batch-size", 2, "--micro-batch-size", 2, *flags.split()]
        train(*size, gpus=2, NULL_CUDA_ORDER=str(tmp_path / "order"))
        works = works_of(min(tmp_path.glob("order.*")))
        found = [(work.name.split()[0], products_beside(work, works)) for work in works if work.kind == "nccl"]
        return found[: len(found) - 2]  # which give the last step's loss

    return run


@pytest.mark.parametrize(
    "flags", ["--data-parallel 2 --micro-batch-size 1", "--data-parallel 2 --micro-batch-size 1 --reshard"]
)
def test_parameters_are_gathered_and_gradients_shared_out_while_blocks_are_computed(first_step, flags):
    """Only the first gathers have nothing beside them, that of what is around the blocks and of the first block, and
    only the last gradients, of the same two."""
    messages = first_step(flags)
    gathers = [beside for kind, beside in messages if kind == "all_gather"][: LAYERS + 1]
    reductions = [beside for kind, beside in messages if kind == "reduce_scatter"]
    assert gathers[:2] == [0, 0] and min(gathers[2:]) >= BLOCK
    assert reductions[-2:] == [0, 0] and min(reductions[:-2]) >= 2 * BLOCK
    assert len(reductions) == LAYERS + 1


def test_blocks_are_gathered_again_while_others_are_computed_backwards(first_step):
    messages = first_step("--data-parallel 2 --micro-batch-size 1 --reshard")
    again = [beside for kind, beside in messages if kind == "all_gather"][LAYERS + 1 : 2 * LAYERS + 1]
    assert len(again) == LAYERS and min(again) >= BLOCK


def test_gradients_of_inputs_are_summed_while_those_of_weights_are_computed(first_step):
    """Two in each block and one before the output; in a forward pass each product needs the message before it."""
    messages = first_step("--tensor-parallel 2")
    assert [beside for kind, beside in messages if kind == "all_reduce" and beside] == [1] * (2 * LAYERS + 1)
