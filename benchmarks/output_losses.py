"""Output matrix and loss alone, in several ways: ours, compiled and in pieces, and torch's two.

`F.linear_cross_entropy` never holds all logits; `F.cross_entropy` is what a plain training loop has, compiled or not.
Used by `gpu.py`; the figures of one CPU are in LOG.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.device import autocast
from gpt2_train.model.loss import backward_root, losses_and_gradient

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From hidden states (N, hidden), the output matrix (padded vocabulary, hidden) and targets (N,) to a sum of losses."""


def losses(vocabulary: int) -> dict[str, tuple[Loss, torch.dtype | None]]:
    """The ways by name, each with the precision that its inputs have to be given in; None where autocast does that."""

    def ours(*, compiled: bool) -> Loss:
        def loss(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
            logits = F.linear(hidden, matrix)
            gradient, weights = logits.detach(), torch.ones(targets.shape, device=targets.device)
            root = backward_root(logits, gradient)
            found = losses_and_gradient(gradient, targets, weights, vocabulary=vocabulary, compiled=compiled)
            return root + found.sum()

        return loss

    def plain(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, matrix[:vocabulary]).float(), targets, reduction="sum")

    def fused(policy: Any) -> Loss:
        def loss(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
            options = torch.nn.LinearCrossEntropyOptions(acc_policy=policy)
            return F.linear_cross_entropy(hidden, matrix[:vocabulary], targets, reduction="sum", options=options)

        return loss

    ways: dict[str, tuple[Loss, torch.dtype | None]] = {
        "ours, in pieces": (ours(compiled=False), None),
        "ours, compiled": (ours(compiled=True), None),
        "cross_entropy": (plain, None),
        "cross_entropy, compiled": (torch.compile(plain), None),
    }
    if hasattr(F, "linear_cross_entropy"):  # from torch 2.13 on
        ways["linear_cross_entropy"] = fused("auto"), torch.bfloat16
        ways["linear_cross_entropy, gradient in float32"] = fused("balanced"), torch.bfloat16
    return ways


def steps(config: ModelConfig, sequences: int, device: str, precision: str) -> dict[str, Callable[[], Tensor]]:
    """Forward and backward of each way on the same random batch; each call returns the sum of losses."""
    random = torch.Generator().manual_seed(0)
    rows = sequences * config.sequence_length
    hidden = torch.randn(rows, config.hidden, generator=random).to(device).requires_grad_()
    matrix = (0.02 * torch.randn(config.padded_vocabulary, config.hidden, generator=random)).to(device).requires_grad_()
    targets = torch.randint(0, config.vocabulary_size, (rows,), generator=random).to(device)

    def step(loss: Loss, dtype: torch.dtype | None) -> Tensor:
        hidden.grad = matrix.grad = None
        inputs, weight = hidden, matrix
        if dtype is not None and precision == "bf16":
            inputs, weight = hidden.to(dtype), matrix.to(dtype)
        with autocast(torch.device(device), precision):
            total = loss(inputs, weight, targets)
        total.backward()
        return total.detach()

    return {name: lambda way=way: step(*way) for name, way in losses(config.vocabulary_size).items()}
