"""Tensor parallelism (Shoeybi et al. 2019, section 3), put on a plain model from outside.

Each matrix is divided over the processes of one group, qkv and up by rows, out and down by columns, the embedding,
which is the output matrix, by vocabulary; norms and positions are whole on each. `tensor_parallel_layers` has the
layers, which keep the names of those that they replace, and says what is sent.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torch import Tensor

from gpt2_train.dropout import share_dropout
from gpt2_train.layout import check_tensor_parallel
from gpt2_train.model import GPT2, Block
from gpt2_train.tensor_parallel_layers import (
    ColumnLinear,
    DividedEmbedding,
    DividedLayer,
    Part,
    RowLinear,
    WholeEmbedding,
    WholeLayerNorm,
    take_parameters_before,
)

if TYPE_CHECKING:
    from gpt2_train.world import World


def apply_tensor_parallel(model: GPT2, world: World, *, sequence_parallel: bool = False) -> None:
    """Divide the matrices of `model` over the `tp` axis; its logits are then this process's share of the vocabulary.

    With `sequence_parallel` each process also has a share of the tokens between the matrices; gradients of parameters
    that are whole on each are then of these tokens alone, until `settle_gradients` has added them up.
    Raises Gpt2UsageError if the model can't be shared among so many.
    """
    check_tensor_parallel(model.config, world.tp_size, sequence_parallel=sequence_parallel)
    assert world.mesh is not None
    mesh = world.mesh["tp"]
    part = Part(mesh.get_group().group_name, world.tp_rank, world.tp_size, sequence_parallel)
    model.token_embedding = DividedEmbedding(model.token_embedding, mesh, part)
    model.position_embedding = WholeEmbedding(model.position_embedding, mesh)
    for block in model.blocks:
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        block.attention_norm = WholeLayerNorm(block.attention_norm, mesh)
        attention.qkv, attention.out = ColumnLinear(attention.qkv, mesh, part), RowLinear(attention.out, mesh, part)
        block.feed_forward_norm = WholeLayerNorm(block.feed_forward_norm, mesh)
        feed_forward.up = ColumnLinear(feed_forward.up, mesh, part)
        feed_forward.down = RowLinear(feed_forward.down, mesh, part)
    model.final_norm = WholeLayerNorm(model.final_norm, mesh)
    model.output = ColumnLinear(model.output, mesh, part)
    model.tie()
    for module in model.blocks:
        take_parameters_before(module, [layer for layer in module.modules() if isinstance(layer, DividedLayer)])
    take_parameters_before(model, [layer for layer in model.children() if isinstance(layer, DividedLayer)])
    if model.config.dropout > 0:
        share_dropout(model, world.device, world.tp_rank if sequence_parallel else 0)
    if sequence_parallel:
        model.embed = functools.partial(_embed_own_tokens, model, part)  # type: ignore[method-assign]


def _embed_own_tokens(model: GPT2, part: Part, tokens: Tensor, positions: Tensor) -> Tensor:
    """What `GPT2.embed` gives, of this process's share of the tokens: (B, T) -> (B, T/t, hidden)."""
    own = part.own_tokens(positions.expand(tokens.shape))
    return model.token_embedding(tokens) + model.position_embedding(own)
