"""Where two models differ, tensor by tensor, whatever their formats; of our own checkpoints the optimizer's state, too.

Values are compared as numbers, so that a file in half precision can be compared with one in single; rows that only pad
the vocabulary are no part of a model and left out. Two NaNs are equal. Holds one tensor of each side at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpt2_train.checkpoint.info import read_info
from gpt2_train.checkpoint.load import StoredTensors
from gpt2_train.conversion.weights import EMBEDDING, ModelWeights, shapes_of

PIECE = 1 << 22
"""Values that are compared at a time, in float64."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """How one tensor differs between two models.

    Attributes:
        name: the tensor, `model.<parameter>` or `optimizer.<parameter>.<moment>`.
        elements: values in it.
        differing: how many of them differ.
        max_absolute: the largest difference; NaN if one of two values is no number.
        max_relative: the largest difference divided by the larger of the two magnitudes.
    """

    name: str
    elements: int
    differing: int
    max_absolute: float
    max_relative: float


Pair = tuple[str, Callable[[], Tensor], Callable[[], Tensor]]
"""Name of a tensor, and what reads it on either side."""


def model_pairs(first: ModelWeights, second: ModelWeights) -> list[Pair]:
    """The parameters of two models of one shape, in the model's order."""

    def reader(weights: ModelWeights, name: str) -> Callable[[], Tensor]:
        rows = weights.config.vocabulary_size if name == EMBEDDING else None
        return lambda: weights.read(name, rows=rows)

    return [(f"model.{name}", reader(first, name), reader(second, name)) for name in shapes_of(first.config)]


def optimizer_pairs(first: StoredTensors, second: StoredTensors) -> list[Pair]:
    """The tensors that two optimizers' states have in common, by name."""

    def reader(stored: StoredTensors, name: str) -> Callable[[], Tensor]:
        return lambda: stored.read(name)

    shared = set(second.names())
    return [
        (f"optimizer.{name}", reader(first, name), reader(second, name)) for name in first.names() if name in shared
    ]


def optimizer_of(weights: ModelWeights) -> StoredTensors | None:
    """The optimizer's state that lies beside a model; None if there is none.

    Raises Gpt2UsageError if it is damaged.
    """
    if weights.format != "checkpoint":
        return None
    info = read_info(weights.origin)
    if not any(name.startswith("optimizer/") for name in info.files):
        return None
    stored = StoredTensors(info, "optimizer")
    return stored if stored.names() else None


def differences_between(pairs: list[Pair], count: Callable[[], object]) -> Iterator[Difference]:
    """The tensors that differ, in the order of `pairs`; `count` is called after each pair. Raises Gpt2UsageError."""
    for name, read_first, read_second in pairs:
        found = compare(name, read_first(), read_second())
        count()
        if found.differing:
            yield found


def compare(name: str, first: Tensor, second: Tensor) -> Difference:
    """How two tensors of one shape differ."""
    if first.dtype == second.dtype and torch.equal(first, second):
        return Difference(name, first.numel(), 0, 0.0, 0.0)
    differing, largest, relative = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    pieces = zip(first.reshape(-1).split(PIECE), second.reshape(-1).split(PIECE), strict=True)
    for left, right in ((left.double(), right.double()) for left, right in pieces):
        differs = (left != right) & ~(left.isnan() & right.isnan())
        left, right = left[differs], right[differs]
        if not left.numel():
            continue
        differing += left.numel()
        gap = (left - right).abs()
        # torch's maximum of a NaN and a number is a NaN, Python's depends on their order.
        largest = torch.maximum(largest, gap.max())
        relative = torch.maximum(relative, (gap / torch.maximum(left.abs(), right.abs())).max())
    return Difference(name, first.numel(), differing, float(largest), float(relative))
