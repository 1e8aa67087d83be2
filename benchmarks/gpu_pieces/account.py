"""What the pieces should find, and in what they differ from it.

Speeds are of one H100: measured there, or by an account of each kernel's bytes and operations (`LOG.md`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Expected:
    """A figure of a piece.

    Attributes:
        piece, part, figure: where it stands.
        low, high: between what it should lie.
        everywhere: whether that holds on every GPU and in the smallest form, too; else of an H100 or H200 alone.
    """

    piece: str
    part: str
    figure: str
    low: float
    high: float
    everywhere: bool = False


EXPECTED = (
    # Losses of the same model on CPU and GPU, in nats, as means over ten steps; texts, as shares that are equal.
    Expected("quickstart", "adamw, fp32", "largest_difference", 0, 1e-2, everywhere=True),
    Expected("quickstart", "adamw, bf16", "largest_difference", 0, 1e-2, everywhere=True),
    Expected("quickstart", "muon, bf16", "largest_difference", 0, 1e-2, everywhere=True),
    Expected("quickstart", "resume", "largest_difference", 0, 1e-2, everywhere=True),
    Expected("quickstart", "evaluate", "largest_difference", 0, 1e-2, everywhere=True),
    Expected("quickstart", "generate", "same_texts", 1, 1, everywhere=True),
    Expected("parity", "ours", "same", 1, 1, everywhere=True),
    Expected("nccl", "losses", "largest_difference", 0, 1e-2, everywhere=True),
    Expected("killed", "resume", "resumed", 1, 1, everywhere=True),
    Expected("memory", "sentence", "lines", 1, 1, everywhere=True),
    Expected("memory", "sentence", "status", 1, 1, everywhere=True),
    # One H100: 124M by the account takes 61 ms for 32,768 tokens, by the clock 67.5, compiled by blocks.
    # In steps of 512 sequences AdamW and the norm are there once in 16.
    Expected("train-124M", "blocks", "mfu", 0.42, 0.46),
    Expected("train-124M", "blocks", "estimate_over_peak", 0.9, 1.1),
    Expected("train-124M", "not compiled", "estimate_over_peak", 0.9, 1.1),
    Expected("train-345M", "blocks", "mfu", 0.455, 0.50),
    Expected("train-345M", "blocks", "estimate_over_peak", 0.9, 1.1),
    Expected("train-1.5B", "blocks", "mfu", 0.46, 0.51),
    Expected("train-1.5B", "nothing recomputed", "mfu", 0.49, 0.53),
    Expected("residual", "124M", "mfu", 0.44, 0.48),
    Expected("residual", "345M", "mfu", 0.48, 0.52),
    Expected("residual", "1.5B", "mfu", 0.52, 0.56),
    # Losses of runs from other seeds differ by more.
    Expected("courses", "bf16, from fp32", "largest_difference", 0, 3e-2),
    Expected("train-1.5B", "blocks", "estimate_over_peak", 0.9, 1.1),
    # 11.3 ms of products and 3.5 ms of memory for 32 sequences.
    Expected("loss", "ours, compiled", "ms", 11, 18),
    # One block of 124M at 32, forward and backward, measured.
    Expected("attention", "124M", "cudnn", 0.75, 1.15),
    Expected("attention", "124M", "flash", 0.9, 1.3),
    Expected("muon", "more", "ms", 4, 8),
)


def differences(piece: str, section: dict[str, Any], *, smoke: bool) -> list[str]:
    """A sentence for each figure of a piece that is not what is expected, and for each part that failed.

    Args:
        piece: its name.
        section: `machine` and `results`.
        smoke: whether figures mean nothing but where they hold everywhere.
    """
    gpu, results = section["machine"].get("gpu", ""), section["results"]
    found = [f"{part}: {row['failed']}" for part, row in results.items() if "failed" in row]
    expected = [row for row in EXPECTED if row.everywhere or (not smoke and ("H100" in gpu or "H200" in gpu))]
    return found + [line for row in expected if row.piece == piece for line in _difference(row, results)]


def _difference(expected: Expected, results: dict[str, dict[str, Any]]) -> Iterator[str]:
    row = results.get(expected.part, {})
    value = row.get(expected.figure)
    what = f"{expected.part}: {expected.figure}"
    if value is None:
        if "failed" not in row:
            yield f"{what} was not measured"
        return
    if expected.low <= value <= expected.high:
        return
    if not expected.low or expected.low == expected.high:
        yield f"{what} is {value:,.6g} and should be {'at most ' if not expected.low else ''}{expected.high:g}"
        return
    bound, side = (expected.low, "below") if value < expected.low else (expected.high, "above")
    by = f"{abs(value / bound - 1):.0%}"
    yield f"{what} is {value:,.6g}, {by} {side} the {expected.low:,g} to {expected.high:,g} that are expected"
