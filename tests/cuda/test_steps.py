"""What a step of training does besides computing: waits, copies and messages, in the layouts that the guide names."""

import pathlib

import pytest

COUNTED = 2
"""Steps that tests/cuda/rank_zero.py counts."""

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guide" / "layouts.md"
LAYOUTS = {
    "one GPU": {},
    "data parallel 8": {"data_parallel": 8},
    "data parallel 8, `--reshard`": {"data_parallel": 8, "reshard": True},
    "data parallel 8, `--reshard`, 2 micro-batches": {"data_parallel": 8, "reshard": True, "accumulation": 2},
    "tensor parallel 2": {"tensor_parallel": 2},
    "data parallel 64, `--data-parallel-replicate 8`": {"data_parallel": 64, "data_parallel_replicate": 8},
}
OTHERS = {"fp16": {"precision": "fp16"}, "2 micro-batches, dropout": {"accumulation": 2, "dropout": 0.1}}
OTHERS |= {"Muon": {"optimizer": "muon"}}


@pytest.fixture(scope="module")
def steps(first_process) -> dict[str, dict]:
    """What steps of 124M do, by layout."""
    layouts = LAYOUTS | OTHERS
    return dict(zip(layouts, first_process([{"micro": 8, **layout} for layout in layouts.values()]), strict=True))


def of(kind: str, row: dict) -> dict[str, list[int]]:
    """Calls of one kind: by name their number, bytes, and bytes of the largest."""
    return {name.removeprefix(f"{kind} "): found for name, found in row["counts"].items() if name.startswith(kind)}


@pytest.mark.exhaustive
def test_the_host_waits_once_a_step_for_what_came_of_the_one_before(steps):
    """The event that says so was waited for twice in each step. Nothing else is waited for, also not for memory."""
    for layout, row in steps.items():
        waits = {name: calls for name, (calls, *_) in of("wait", row).items()}
        assert waits == {"cudaEventSynchronize": COUNTED}, layout
        assert not of("memory", row), layout


def test_nothing_large_is_copied_from_memory_that_is_not_pinned(steps):
    """A copy from or to pageable memory stops the host until the GPU has come so far."""
    for layout, row in steps.items():
        copies = of("copy", row)
        assert any("pinned to device" in name for name in copies), layout  # ids of tokens
        for name, (_, _, largest) in copies.items():
            assert "pageable" not in name or largest <= 4096, (layout, name)
            assert "host waits" not in name, (layout, name)


def test_muon_takes_few_kernels(steps):
    """Matrices one by one took 1,571 for 124M; in stacks, 100 and 20 copies more than AdamW."""
    muon, adamw = (
        sum(calls for kind in ("launch", "copy") for calls, *_ in of(kind, steps[row]).values())
        for row in ("Muon", "one GPU")
    )
    assert muon - adamw <= 150 * COUNTED


def cell(messages: dict[str, list[int]], kind: str) -> str:
    """Number and bytes of the messages of a kind in a step, as the guide has them."""
    number, size = messages.get(kind, (0, 0))
    if not number:
        return ""
    return f"{number}: {size / 1e6:,.0f} MB" if size >= 1e6 else f"{number}: {size:,} bytes"


def test_the_guide_says_what_is_sent_in_a_step(steps):
    """Numbers and bytes of messages are those of the guide's table."""
    page = PAGE.read_text(encoding="utf-8")
    for layout in LAYOUTS:
        cells = [cell(steps[layout]["messages"], kind) for kind in ("all_gather", "reduce_scatter", "all_reduce")]
        assert f"| {layout} | {' | '.join(cells)} |\n" in page
