"""Tensor parallelism (Shoeybi et al. 2019, section 3), put on a plain model from outside.

Each matrix is split over the processes of one group, qkv and up by rows, out and down by columns, the embedding by
vocabulary; two sums over the group a block, forward and backward. Norms and positions stay whole but become DTensors
like the rest, since clipping needs all parameters of one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpt2_train.dropout import share_dropout
from gpt2_train.errors import Gpt2Error
from gpt2_train.layout import check_tensor_parallel
from gpt2_train.model import GPT2

if TYPE_CHECKING:
    from gpt2_train.world import World


def _replicate(module: nn.Module, mesh: DeviceMesh) -> None:
    """Make the parameters of `module` replicated DTensors, while plain tensors go in and come out."""

    def wrap(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return tuple(DTensor.from_local(value, mesh, [Replicate()], run_check=False) for value in inputs)

    def unwrap(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
        return output.to_local()

    # The type stubs know only of older signatures of the two hooks.
    distribute_module(module, mesh, input_fn=wrap, output_fn=unwrap)  # type: ignore[arg-type]


def apply_tensor_parallel(model: GPT2, world: World) -> None:
    """Split the matrices of `model` over the `tp` axis; its logits are then this process's share of the vocabulary.

    Raises Gpt2UsageError if the model can't be shared among so many.
    """
    check_tensor_parallel(model.config, world.tp_size)
    assert world.mesh is not None
    mesh = world.mesh["tp"]
    parallelize_module(
        model,
        mesh,
        {
            "token_embedding": RowwiseParallel(input_layouts=Replicate()),
            "blocks.*.attention.qkv": ColwiseParallel(),
            "blocks.*.attention.out": RowwiseParallel(),
            "blocks.*.feed_forward.up": ColwiseParallel(),
            "blocks.*.feed_forward.down": RowwiseParallel(),
            "output": ColwiseParallel(output_layouts=Shard(-1)),
        },
    )
    # Splitting makes new parameters, each for itself: without this the two copies would drift apart without an error.
    model.tie()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) or module is model.position_embedding:
            _replicate(module, mesh)
    if not model.is_tied or any(not isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Gpt2Error("tensor parallelism left a parameter untied or whole: this version of torch is not supported.")
    if model.config.dropout > 0:
        share_dropout(model, world.device)
