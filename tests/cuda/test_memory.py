"""`gpt2 estimate` against the peak of PyTorch's allocator, in the first process of a run; no kernel runs."""

import pytest

HSDP = {"data_parallel": 64, "data_parallel_replicate": 8}
EVERYDAY = [
    {"model": "124M", "micro": 8, "activation_checkpointing": "full", "precision": "fp16"},
    {"model": "124M", "micro": 8, "data_parallel": 8},
    {"model": "345M", "micro": 4, "tensor_parallel": 2},
]
OTHERS = [
    {"model": "124M", "micro": 8},
    {"model": "124M", "micro": 32, "dropout": 0.1},
    {"model": "124M", "micro": 8, "accumulation": 2, "optimizer": "muon"},
    {"model": "124M", "micro": 8, "precision": "fp32"},
    {"model": "124M", "micro": 8, "tensor_parallel": 2, "data_parallel": 2},
    {"model": "345M", "micro": 8, "activation_checkpointing": "selective"},
    {"model": "345M", "micro": 4, "data_parallel": 8, "reshard": True, "accumulation": 2},
    {"model": "774M", "micro": 4, "tensor_parallel": 2, "data_parallel": 4},
    {"model": "774M", "micro": 4, "tensor_parallel": 4, "data_parallel": 16},
    {"model": "1.5B", "micro": 1},
    {"model": "1.5B", "micro": 4, "data_parallel": 8},
    {"model": "1.5B", "micro": 4, "data_parallel": 8, "reshard": True, "activation_checkpointing": "full"},
    {"model": "1.5B", "micro": 1, "data_parallel": 8, "reshard": True, "activation_checkpointing": "full"},
    {"model": "1.5B", "micro": 4, **HSDP},
    {"model": "1.5B", "micro": 4, **HSDP, "reshard": True, "accumulation": 2},
    {"model": "124M", "micro": 8, "compile": "blocks"},
    {"model": "345M", "micro": 8, "compile": "blocks", "data_parallel": 8},
    {"model": "345M", "micro": 8, "compile": "blocks", "tensor_parallel": 2},
    {
        "model": "774M",
        "micro": 4,
        "compile": "blocks",
        "data_parallel": 8,
        "reshard": True,
        "activation_checkpointing": "full",
    },
]


def ratios(first_process, layouts) -> list[tuple[float, dict]]:
    """Estimated over true peak of each layout."""
    rows = first_process(layouts)
    return [(round(row["estimate"] / row["peak"], 3), layout) for row, layout in zip(rows, layouts, strict=True)]


def test_estimates_are_the_peaks(first_process):
    """Estimates were up to 10% too low: they left out cuBLAS's workspaces, and the loss took three copies, not two."""
    assert [row for row in ratios(first_process, EVERYDAY) if not 0.985 <= row[0] <= 1.015] == []


@pytest.mark.exhaustive
def test_estimates_are_the_peaks_of_every_layout(first_process):
    """124M to 1.5B on 1 to 64 GPUs. More was counted than is there with --reshard and where blocks are compiled, 7%."""
    assert [row for row in ratios(first_process, OTHERS) if not 0.95 <= row[0] <= 1.05] == []
