"""Tensor parallelism (Shoeybi et al. 2019, section 3), put on a plain model from outside.

Each matrix is divided over the processes of one group, qkv and up by rows, out and down by columns, the embedding,
which is the output matrix, by vocabulary; norms and positions are whole on each. The layers here keep the names of
the layers that they replace.

A parameter is a DTensor, so that checkpoints, optimizers and FSDP2 know what it is a part of. The layers compute with
this process's part as a plain tensor, and call collectives themselves: hooks that make DTensors of activations cost a
hundred microseconds an operation, and in float32 for any type of activations. Sums are of what the matrix product
gave, in bf16 under autocast to bf16.

Two sums a block, forward and backward (Shoeybi et al. 2019, section 3). With sequence parallelism each of them is a
reduce-scatter, and a gather before the next matrix (Korthikanti et al. 2022, section 4.2.2): between matrices a process
has a share of the tokens, and saves 1/t of norms, dropout and residual stream. The backward pass gathers the
inputs of matrices again, a quarter more bytes in all; compiled blocks keep them, and as many bytes are sent. Shares are
contiguous parts of the concatenated rows, (B, T, hidden) as (t, B, T/t, hidden), which gathers and reduce-scatters
give without a copy: with B ≥ t a process has whole sequences. Norms, biases after a sum and positions then get
gradients of these tokens alone, which are added up once a step (`optim.gradients.all_reduce_replicated_grads`).
"""

from __future__ import annotations

import dataclasses
import functools
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
from gpt2_train.model.gpt2 import GPT2, Attention, FeedForward


@dataclasses.dataclass(frozen=True)
class TPContext:
    """This process's place among the processes that divide a matrix.

    Attributes:
        group: the name of their group.
        rank, size: number of the process, and how many there are.
        of_sequences: whether tokens are divided, too, between the matrices.
    """

    group: str
    rank: int
    size: int
    of_sequences: bool = False

    @classmethod
    def of(cls, group: dist.ProcessGroup, *, of_sequences: bool = False) -> TPContext:
        """This process's place in `group`."""
        return cls(group.group_name, group.rank(), group.size(), of_sequences)


def _start_sum(x: Tensor, part: TPContext) -> Tensor:
    """Begin to add up `x` over the group; with sequence parallelism each process gets the sum of its tokens."""
    x = x.contiguous()
    if not part.of_sequences:
        return torch_private.all_reduce(x, "sum", part.group)
    batch, length, width = x.shape
    x = x.view(part.size * batch, length // part.size, width)
    return torch_private.reduce_scatter(x, "sum", part.size, part.group)


def _start_gather(x: Tensor, part: TPContext) -> Tensor:
    """Begin to gather all tokens, where they are divided."""
    return torch_private.all_gather(x.contiguous(), part.size, part.group) if part.of_sequences else x


def _wait_gather(x: Tensor, part: TPContext) -> Tensor:
    """(t·B, T/t, width) -> (B, T, width)."""
    if not part.of_sequences:
        return x
    rows, length, width = x.shape
    return torch_private.wait(x).view(rows // part.size, length * part.size, width)


class _Sum(torch.autograd.Function):
    """The sum over the group; its gradient is that of each term."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: TPContext) -> Tensor:
        ctx.part = part
        return torch_private.wait(_start_sum(x, part))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _wait_gather(_start_gather(gradients[0], ctx.part), ctx.part), None


class _ColumnLinear(torch.autograd.Function):
    """x·Wᵀ + b for some rows of W. The gradient of x is summed over the group while that of W is computed.

    Of divided tokens only this process's share is saved, and gathered again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, part: TPContext) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.part, ctx.has_bias = part, bias is not None
        return F.linear(_wait_gather(_start_gather(x, part), part), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        part, (gradient,) = ctx.part, gradients
        whole = _start_gather(x, part)
        of_x = _start_sum(gradient @ weight, part)
        rows = gradient.flatten(0, 1)
        of_weight = rows.t() @ _wait_gather(whole, part).flatten(0, 1)
        of_bias = rows.sum(0) if ctx.has_bias else None
        return torch_private.wait(of_x), of_weight, of_bias, None


class _Local(torch.autograd.Function):
    """This process's part of a parameter, as a plain tensor.

    The gradient is added to the parameter's here: `DTensor.to_local` and autograd's own addition take a quarter of a
    millisecond for each parameter.
    """

    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        ctx.parameter = parameter
        return torch_private.local_tensor(parameter).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        parameter, (gradient,) = ctx.parameter, gradients
        if parameter.grad is None:
            # Laid out as the parameter, as autograd's own addition sees to: fused kernels go by memory alone.
            parameter.grad = torch_private.as_part_of(gradient.contiguous(), parameter)
        else:
            torch_private.local_tensor(parameter.grad).add_(gradient)


class DividedLayer(nn.Module):
    """A layer with parameters that are DTensors, or, for inference, plain tensors: this process's parts.

    Attributes:
        placements: of weight and bias.
        part: this process's place.
        here: this process's parts of its weight and its bias, as plain tensors: of the present forward pass.
    """

    placements: ClassVar[tuple[Placement, ...]]
    part: TPContext
    here: tuple[Tensor, Any]

    @classmethod
    def divide(cls, whole: nn.Module, part: TPContext, mesh: DeviceMesh | None = None) -> None:
        """Turn `whole`, of which each process has all, into a layer of which it keeps its part; nothing is sent.

        Parameters are then DTensors, or, without a mesh, this process's part as plain tensors.
        """
        whole.__class__ = cls
        whole.part = part  # type: ignore[assignment]
        for name, placement in zip(("weight", "bias"), cls.placements, strict=False):
            parameter = getattr(whole, name, None)
            if parameter is None:
                continue
            values = parameter.detach()
            if mesh is not None:
                values = distribute_tensor(values, mesh, [placement], src_data_rank=None)
            elif isinstance(placement, Shard):
                values = values.chunk(part.size, placement.dim)[part.rank]
            whole.register_parameter(name, nn.Parameter(values))


def take_parameters_before(module: nn.Module, layers: Sequence[DividedLayer]) -> None:
    """Make `layers` take their parameters (`here`) whenever `module` is called: after what FSDP2 gathers, and outside
    of compiled graphs."""

    def take(*_: Any) -> None:
        for layer in layers:
            parts: list[Any] = [getattr(layer, name, None) for name in ("weight", "bias")]
            weight, bias = (_Local.apply(part) if isinstance(part, DTensor) else part for part in parts)
            layer.here = weight, bias

    module.register_forward_pre_hook(take)


def _as_computed(tensor: Tensor) -> Tensor:
    """`tensor` in the type of matrix products here, which autocast decides."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


class ColumnLinear(DividedLayer, nn.Linear):
    """Some rows of a matrix with its bias: (B, T or T/t, in) -> (B, T, this process's share of out)."""

    placements = (Shard(0), Shard(0))

    def forward(self, x: Tensor) -> Tensor:
        """The product with this process's rows."""
        weight, bias = self.here
        bias = _as_computed(bias) if bias is not None else None
        return _ColumnLinear.apply(_as_computed(x), _as_computed(weight), bias, self.part)


class RowLinear(DividedLayer, nn.Linear):
    """Some columns of a matrix, and all of its bias: (B, T, this process's share of in) -> (B, T or T/t, out)."""

    placements = (Shard(1), Replicate())

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the products over the group."""
        weight, bias = self.here
        product = _Sum.apply(F.linear(x, weight), self.part)
        return product + bias.to(product.dtype)


class VocabParallelEmbedding(DividedLayer, nn.Embedding):
    """Some rows of a table: int64 (B, T) -> (B, T or T/t, hidden), the embeddings of all ids."""

    placements = (Shard(0),)

    def forward(self, tokens: Tensor) -> Tensor:
        """The embeddings of this process's ids, and zeros, added up over the group."""
        rows = self.here[0].size(0)
        own = tokens - self.part.rank * rows
        is_other = (own < 0) | (own >= rows)
        found = F.embedding(own.masked_fill(is_other, 0), self.here[0])
        return _Sum.apply(found.masked_fill(is_other[..., None], 0.0), self.part)


class ReplicatedEmbedding(DividedLayer, nn.Embedding):
    """All of a table, on each process."""

    placements = (Replicate(),)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 (...) -> (..., hidden)."""
        return F.embedding(ids, self.here[0])


class ReplicatedLayerNorm(DividedLayer, nn.LayerNorm):
    """All of a norm, on each process."""

    placements = (Replicate(), Replicate())

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        return F.layer_norm(x, self.normalized_shape, *self.here, self.eps)


class SharedDropout(nn.Module):
    """Dropout with a mask that follows from a seed tensor, the same on all tensor-parallel ranks.

    The device's generator differs between these ranks and is left alone. The seed is a tensor, so that a compiled
    graph takes it as an input, and recomputation in activation checkpointing drops the same elements again.

    Args:
        probability: of an element to be dropped.
        seed: int64 (2,), each below 2^32; whoever changes it in place changes the mask.
        part: which part a process has: concatenated, the parts, all of one size, are the whole tensor.
    """

    def __init__(self, probability: float, seed: Tensor, part: int = 0) -> None:
        super().__init__()
        self.probability, self.part = probability, part
        self.seed: Tensor
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` with elements dropped and the others scaled up, in training; else `x`."""
        if not self.training:
            return x
        count = x.numel()
        index = torch.arange(self.part * count, (self.part + 1) * count, device=x.device).view(x.shape)
        bits = _mixed_bits(_mixed_bits(index ^ self.seed[0]) ^ self.seed[1])
        kept = bits >= round(self.probability * 2**32)
        return x * (kept / (1 - self.probability)).to(x.dtype)


def _mixed_bits(x: Tensor) -> Tensor:
    """A bijection of 32-bit numbers, held in int64, in which each bit of `x` changes half of the result's."""
    for _ in range(2):
        # The factor is small enough for the product to stay below 2^63.
        x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
    return (x >> 16) ^ x


def share_dropout(model: GPT2, device: torch.device | None = None, part: int = 0) -> None:
    """Replace dropout on the residual stream by `SharedDropout`; `seed_micro_step` then seeds it.

    The seeds are on `device`, where the model will be if it has no memory yet. `part` is this process's where each has
    a share of the tokens.
    """
    places = [(module, name) for module in model.modules() for name, child in module.named_children()
              if isinstance(child, nn.Dropout)]  # fmt: skip
    seeds = torch.zeros(len(places), 2, dtype=torch.int64, device=device or model.final_norm.weight.device)
    model.register_buffer("dropout_seeds", seeds, persistent=False)
    for (module, name), seed in zip(places, seeds, strict=True):
        setattr(module, name, SharedDropout(model.config.dropout, seed, part))


def apply_tensor_parallel(model: GPT2, world: World, *, sequence_parallel: bool = False) -> None:
    """Divide the matrices of `model` over the `tp` axis; its logits are then this process's share of the vocabulary.

    With `sequence_parallel` each process also has a share of the tokens between the matrices; gradients of parameters
    that are whole on each are then of these tokens alone, until `all_reduce_replicated_grads` has added them up.
    The model can be shared so (`config.layout.check_tensor_parallel`).
    """
    assert world.mesh is not None
    mesh = world.mesh["tp"]
    part = TPContext.of(mesh.get_group(), of_sequences=sequence_parallel)
    VocabParallelEmbedding.divide(model.token_embedding, part, mesh)
    ReplicatedEmbedding.divide(model.position_embedding, part, mesh)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            ReplicatedLayerNorm.divide(module, part, mesh)
        elif isinstance(module, Attention | FeedForward):
            rows, columns = module.children()  # qkv and out, or up and down
            ColumnLinear.divide(rows, part, mesh)
            RowLinear.divide(columns, part, mesh)
    ColumnLinear.divide(model.output, part, mesh)
    model.tie()
    for module in model.blocks:
        take_parameters_before(module, [layer for layer in module.modules() if isinstance(layer, DividedLayer)])
    take_parameters_before(model, [layer for layer in model.children() if isinstance(layer, DividedLayer)])
    if model.config.dropout > 0:
        share_dropout(model, world.device, world.tp_rank if sequence_parallel else 0)
    if sequence_parallel:
        model.embed = functools.partial(_embed_own_tokens, model, part)  # type: ignore[method-assign]


def _embed_own_tokens(model: GPT2, part: TPContext, tokens: Tensor, positions: Tensor) -> Tensor:
    """The result of `GPT2.embed` for this process's share of the tokens: (B, T) -> (B, T/t, hidden)."""
    batch, length = tokens.shape
    own = positions.expand(batch, length).reshape(part.size, batch, length // part.size)[part.rank]
    return model.token_embedding(tokens) + model.position_embedding(own)
