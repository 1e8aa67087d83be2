"""Activation checkpointing: less memory for activations, which the backward pass computes again block by block.

What is computed again must draw the same random numbers, or dropout would drop other elements than the loss was
computed with, and the gradient would be wrong without a word. torch keeps the generator's state for CPU and CUDA
alone; for Apple's GPUs it is kept here. `full` costs a third more work, `selective` little.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2_train.device import RandomState, unkept_random_state
from gpt2_train.model import GPT2

Contexts = tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]
"""What surrounds the forward pass, and what surrounds its repetition."""

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""Saved because recomputing them is expensive: matrix products and attention."""

_KEPT_WHERE_LOADED = "torch_attn._varlen_attn.default"
"""Attention inside documents, by its name: loading it takes seconds, and few runs need it."""


def _keep_products(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_kept = operation in _KEPT or str(operation) == _KEPT_WHERE_LOADED
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def repeated_random_numbers(state: RandomState, inner: Callable[[], Contexts] | None = None) -> Contexts:
    """Contexts in which the repetition draws the random numbers of the forward pass, around those of `inner`."""
    forward, again = inner() if inner is not None else (contextlib.nullcontext(), contextlib.nullcontext())
    kept: list[Tensor] = []

    @contextlib.contextmanager
    def recorded() -> Iterator[None]:
        kept.append(state.get())
        with forward:
            yield

    @contextlib.contextmanager
    def repeated() -> Iterator[None]:
        now = state.get()
        state.set(kept[0])
        try:
            with again:
                yield
        finally:
            state.set(now)

    return recorded(), repeated()


def apply_activation_checkpointing(
    model: GPT2, mode: Literal["none", "full", "selective"], device: torch.device | None = None
) -> None:
    """Recompute activations in the backward pass; `device` is where the model will be, if it has no memory yet.

    `full` keeps each block's input only: a third more work, the least memory. `selective` keeps the outputs of matrix
    products and attention, and computes norms, GELU and dropout again.
    """
    if mode == "none":
        return
    contexts: Callable[[], Contexts] | None = None
    if mode == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    random = unkept_random_state(device or model.final_norm.weight.device)
    if random is not None and model.config.dropout > 0:
        contexts = functools.partial(repeated_random_numbers, random, contexts)
    options: dict[str, Any] = {"use_reentrant": False} | ({} if contexts is None else {"context_fn": contexts})
    for block in model.blocks:
        plain = block.forward

        def forward(x: Tensor, *rest: Any, plain: Any = plain) -> Tensor:
            return checkpoint(plain, x, *rest, **options)

        block.forward = forward
