"""The form of a model's weights in which it writes fastest on its device: their type, and their order in memory.

Nearly all of the time that a token takes goes into reading the matrices. In half precision they are half as large. On
x86 the products of a few rows with a matrix are up to twice as fast if the matrix lies in memory in the blocks that
oneDNN works through (the order that torch's compiler gives frozen weights); for a single row in fp32 a matrix with
more rows than columns is read faster column by column. The embedding is then no longer the output matrix but a second
copy, a third more memory for the smallest GPT-2 and a twentieth for the largest. The model can't be trained or saved
any more.
"""

from __future__ import annotations

import dataclasses
import platform

import torch
from torch import Tensor, nn

from gpt2_train.distributed.device import default_precision, is_emulated
from gpt2_train.inference.model import InferenceModel
from gpt2_train.model.gpt2 import DTYPES, GPT2


class PackedLinear(nn.Module):
    """A linear layer whose matrix lies in oneDNN's order, for any number of rows at a time.

    Args:
        linear: the layer; its type decides in what is computed.
        rows: for how many rows at a time the order is chosen.
    """

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), rows)
        self._bias = linear.bias
        self._type = linear.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(self._type), self._weight, self._bias, "none", [], "")
        return product


def can_pack(device: torch.device, precision: str) -> bool:
    """Whether this build of torch has oneDNN's order of weights for products in `precision`: on x86 it does."""
    has_operators = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and torch.backends.mkldnn.is_available()
    is_x86 = device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")
    return has_operators and is_x86 and precision in ("fp32", "bf16") and not is_emulated(device, precision)


@torch.no_grad()
def arrange_weights(model: GPT2, precision: str, rows: int) -> GPT2:
    """Give the matrices of `model` the type of `precision`, and on CPU the order that is best for `rows` texts.

    Norms and positions stay in float32. Changes the model, or this process's part of it, in place and returns it; what
    is arranged already stays so.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module is not model.position_embedding:
            module.to(DTYPES[precision])
    if isinstance(model.output, nn.Linear):
        model.tie()
    if not can_pack(model.final_norm.weight.device, precision):
        return model
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear:  # and none that also sums over processes
                setattr(parent, name, _arranged(child, rows))
    return model


def _arranged(linear: nn.Linear, rows: int) -> nn.Module:
    weight = linear.weight
    if rows > 1 or weight.dtype != torch.float32:
        return PackedLinear(linear, rows)
    if weight.size(0) >= weight.size(1):
        linear.weight = nn.Parameter(weight.t().contiguous().t(), requires_grad=False)
    return linear


def for_writing(source: InferenceModel, rows: int, precision: str | None = None) -> InferenceModel:
    """`source` with weights that are arranged, once they are read, to write `rows` texts at once.

    Without `precision` it is what suits the device. On CUDA, products in fp32 may use TF32 from here on.
    """
    chosen = precision or default_precision(source.device)
    if source.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return dataclasses.replace(source, precision=chosen, load=lambda: arrange_weights(source.load(), chosen, rows))
