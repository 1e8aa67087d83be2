"""Tensor parallelism (Shoeybi et al. 2019, section 3), put on a plain model from outside.

Each matrix is divided over the processes of one group, qkv and up by rows, out and down by columns, the embedding,
which is the output matrix, by vocabulary; norms and positions are whole on each. The layers here keep the names of
the layers that they replace.

A parameter is a DTensor, so that checkpoints, optimizers and FSDP2 know what it is a part of. The layers compute with
this process's part as a plain tensor, and call collectives themselves: hooks that make DTensors of activations cost a
hundred microseconds an operation, and in float32 for any type of activations. Sums are of what the matrix product
gave, in bf16 under autocast to bf16, two a block, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from gpt2_train import torch_private
from gpt2_train.distributed.mesh import World
from gpt2_train.model.gpt2 import GPT2


class _Sum(torch.autograd.Function):
    """The sum over a group, by its name; its gradient is that of each term."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return torch_private.wait(torch_private.all_reduce(x.contiguous(), "sum", group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _ColumnLinear(torch.autograd.Function):
    """x·Wᵀ + b for some rows of W. The gradient of x is summed over the group while that of W is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        of_x = torch_private.all_reduce((gradient @ weight).contiguous(), "sum", ctx.group)
        rows = gradient.flatten(0, 1)
        of_weight = rows.t() @ x.flatten(0, 1)
        of_bias = rows.sum(0) if ctx.has_bias else None
        return torch_private.wait(of_x), of_weight, of_bias, None


class _Local(torch.autograd.Function):
    """This process's parts of parameters, as plain tensors.

    Gradients are added to the parameters' here: `DTensor.to_local` and autograd's own addition take a quarter of a
    millisecond for each parameter.
    """

    @staticmethod
    def forward(ctx: Any, *parameters: DTensor) -> tuple[Tensor, ...]:
        ctx.parameters = parameters
        return tuple(torch_private.local_tensor(parameter).detach() for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        for parameter, gradient in zip(ctx.parameters, gradients, strict=True):
            if parameter.grad is None:
                # Laid out as the parameter, as autograd's own addition sees to: fused kernels go by memory alone.
                parameter.grad = torch_private.as_part_of(gradient.contiguous(), parameter)
            else:
                torch_private.local_tensor(parameter.grad).add_(gradient)
        return (None,) * len(gradients)


class DividedLayer(nn.Module):
    """A layer with this process's parts of another's parameters: DTensors, or, for inference, plain tensors.

    Attributes:
        placements: of weight and bias.
        group: the name of the group of processes that have the other parts.
        rank: this process's number in it.
        here: this process's parts of its weight and its bias, as plain tensors: of the present forward pass.

    Args:
        whole: the layer, of which each process has all; nothing is sent.
        group: the processes that divide it.
        mesh: that of the DTensors; None for plain tensors.
    """

    placements: ClassVar[tuple[Placement, ...]]
    here: tuple[Tensor, Any]

    def __init__(self, whole: nn.Module, group: dist.ProcessGroup, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.group, self.rank = group.group_name, group.rank()
        for name, placement in zip(("weight", "bias"), self.placements, strict=False):
            values = getattr(whole, name)
            if values is not None and mesh is not None:
                values = distribute_tensor(values.detach(), mesh, [placement], src_data_rank=None)
            elif values is not None and isinstance(placement, Shard):
                values = values.detach().chunk(group.size(), placement.dim)[self.rank]
            self.register_parameter(name, None if values is None else nn.Parameter(values))


def take_parameters_before(module: nn.Module, layers: Sequence[DividedLayer]) -> None:
    """Make `layers` take their parameters (`here`) whenever `module` is called: after what FSDP2 gathers, and outside
    of compiled graphs."""

    def take(*_: Any) -> None:
        parts: list[Any] = [getattr(layer, name, None) for layer in layers for name in ("weight", "bias")]
        sharded = [part for part in parts if isinstance(part, DTensor)]
        plain = iter(_Local.apply(*sharded) if sharded else ())
        here = [next(plain) if isinstance(part, DTensor) else part for part in parts]
        for layer, weight, bias in zip(layers, here[::2], here[1::2], strict=True):
            layer.here = weight, bias

    module.register_forward_pre_hook(take)


def _as_computed(tensor: Tensor) -> Tensor:
    """`tensor` in the type of matrix products here, which autocast decides."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


class ColumnLinear(DividedLayer):
    """Some rows of a matrix with its bias: (B, T, in) -> (B, T, this process's share of out)."""

    placements = (Shard(0), Shard(0))

    def forward(self, x: Tensor) -> Tensor:
        """The product with this process's rows."""
        weight, bias = self.here
        bias = _as_computed(bias) if bias is not None else None
        return _ColumnLinear.apply(_as_computed(x), _as_computed(weight), bias, self.group)


class RowLinear(DividedLayer):
    """Some columns of a matrix, and all of its bias: (B, T, this process's share of in) -> (B, T, out)."""

    placements = (Shard(1), Replicate())

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the products over the group."""
        weight, bias = self.here
        product = _Sum.apply(F.linear(x, weight), self.group)
        return product + bias.to(product.dtype)


class VocabParallelEmbedding(DividedLayer):
    """Some rows of a table: int64 (B, T) -> (B, T, hidden), the embeddings of all ids."""

    placements = (Shard(0),)

    def forward(self, tokens: Tensor) -> Tensor:
        """The embeddings of this process's ids, and zeros, added up over the group."""
        rows = self.here[0].size(0)
        own = tokens - self.rank * rows
        is_other = (own < 0) | (own >= rows)
        found = F.embedding(own.masked_fill(is_other, 0), self.here[0])
        return _Sum.apply(found.masked_fill(is_other[..., None], 0.0), self.group)


class ReplicatedEmbedding(DividedLayer):
    """All of a table, on each process."""

    placements = (Replicate(),)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 (...) -> (..., hidden)."""
        return F.embedding(ids, self.here[0])


class ReplicatedLayerNorm(DividedLayer):
    """All of a norm, on each process."""

    placements = (Replicate(), Replicate())

    def __init__(self, whole: nn.Module, group: dist.ProcessGroup, mesh: DeviceMesh | None = None) -> None:
        super().__init__(whole, group, mesh)
        assert isinstance(whole, nn.LayerNorm)
        self.eps = whole.eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        return F.layer_norm(x, x.shape[-1:], *self.here, self.eps)


LAYERS: dict[str, type[DividedLayer]] = {
    "token_embedding": VocabParallelEmbedding,
    "position_embedding": ReplicatedEmbedding,
    "attention_norm": ReplicatedLayerNorm,
    "qkv": ColumnLinear,
    "out": RowLinear,
    "feed_forward_norm": ReplicatedLayerNorm,
    "up": ColumnLinear,
    "down": RowLinear,
    "final_norm": ReplicatedLayerNorm,
    "output": ColumnLinear,
}
"""The layer that takes the place of each in training, by the name of its attribute."""


class SharedDropout(nn.Module):
    """Dropout with a mask that follows from a seed tensor, the same on all tensor-parallel ranks.

    The device's generator differs between these ranks and is left alone. The seed is a tensor, so that a compiled
    graph takes it as an input, and recomputation in activation checkpointing drops the same elements again.

    Args:
        probability: of an element to be dropped.
        seed: int64 (2,), each below 2^32; whoever changes it in place changes the mask.
    """

    def __init__(self, probability: float, seed: Tensor) -> None:
        super().__init__()
        self.probability = probability
        self.seed: Tensor
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` with elements dropped and the others scaled up, in training; else `x`."""
        if not self.training:
            return x
        index = torch.arange(x.numel(), device=x.device).view(x.shape)
        bits = _mixed_bits(_mixed_bits(index ^ self.seed[0]) ^ self.seed[1])
        kept = bits >= round(self.probability * 2**32)
        return x * (kept / (1 - self.probability)).to(x.dtype)


def _mixed_bits(x: Tensor) -> Tensor:
    """A bijection of 32-bit numbers, held in int64, in which each bit of `x` changes half of the result's."""
    for _ in range(2):
        # The factor is small enough for the product to stay below 2^63.
        x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
    return (x >> 16) ^ x


def share_dropout(model: GPT2, device: torch.device | None = None) -> None:
    """Replace dropout on the residual stream by `SharedDropout`; `seed_micro_step` then seeds it.

    The seeds are on `device`, where the model will be if it has no memory yet.
    """
    places = [(module, name) for module in model.modules() for name, child in module.named_children()
              if isinstance(child, nn.Dropout)]  # fmt: skip
    seeds = torch.zeros(len(places), 2, dtype=torch.int64, device=device or model.final_norm.weight.device)
    model.register_buffer("dropout_seeds", seeds, persistent=False)
    for (module, name), seed in zip(places, seeds, strict=True):
        setattr(module, name, SharedDropout(model.config.dropout, seed))


def apply_tensor_parallel(model: GPT2, world: World) -> None:
    """Divide the matrices of `model` over the `tp` axis; its logits are then this process's share of the vocabulary.

    The model can be shared so (`config.layout.check_tensor_parallel`).
    """
    assert world.mesh is not None
    mesh = world.mesh["tp"]
    group = mesh.get_group()
    for parent in list(model.modules()):
        for name, whole in list(parent.named_children()):
            if name in LAYERS:
                parent.register_module(name, LAYERS[name](whole, group, mesh))
    model.tie()
    for block in model.blocks:
        take_parameters_before(block, [layer for layer in block.modules() if isinstance(layer, DividedLayer)])
    take_parameters_before(model, [layer for layer in model.children() if isinstance(layer, DividedLayer)])
    if model.config.dropout > 0:
        share_dropout(model, world.device)
