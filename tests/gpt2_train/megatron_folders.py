"""Checkpoints as Megatron-LM lays them out, of models of ours: names, shares and files by hand."""

from __future__ import annotations

import argparse
import collections
import io
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from gpt2_train.model.gpt2 import GPT2

NAMES = {
    "token_embedding": ("embedding.word_embeddings", 0),
    "position_embedding": ("embedding.position_embeddings", None),
    "final_norm": ("decoder.final_layernorm", None),
    "attention_norm": ("input_layernorm", None),
    "attention.qkv": ("self_attention.linear_qkv", 0),
    "attention.out": ("self_attention.linear_proj", 1),
    "feed_forward_norm": ("pre_mlp_layernorm", None),
    "feed_forward.up": ("mlp.linear_fc1", 0),
    "feed_forward.down": ("mlp.linear_fc2", 1),
}
"""Megatron Core's name of each module of ours, and the dimension of its weight that tensor-parallel ranks share."""


def core_tensors(model: GPT2) -> dict[str, tuple[Tensor, int | None]]:
    """Megatron Core's name of each parameter, its values, and the dimension along which ranks share it."""
    found = {}
    for name, parameter in model.named_parameters():
        module, _, kind = name.rpartition(".")
        stack = ""
        if module.startswith("blocks."):
            _, block, module = module.split(".", 2)
            stack = f"decoder.layers.{block}."
        theirs, dimension = NAMES[module]
        # A bias is shared as the rows of its matrix are, and whole where the columns are.
        found[f"{stack}{theirs}.{kind}"] = (
            parameter.detach(),
            None if dimension == 1 and kind == "bias" else dimension,
        )
    return found


def arguments_of(model: GPT2) -> argparse.Namespace:
    """What Megatron-LM records of its command line, as far as it says what the model is."""
    config = model.config
    return argparse.Namespace(
        num_attention_heads=config.heads,
        vocab_size=config.vocabulary_size,
        hidden_dropout=config.dropout,
        consumed_train_samples=56,
    )


def save_megatron(folder: Path, model: GPT2, size: int = 1, step: int = 7) -> Path:
    """The legacy form: a file for each of `size` tensor-parallel ranks, and the file that names the iteration."""
    for rank in range(size):
        tensors = {
            name: (tensor if dimension is None else tensor.chunk(size, dim=dimension)[rank]).contiguous().clone()
            for name, (tensor, dimension) in core_tensors(model).items()
        }
        file = folder / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
        file.parent.mkdir(parents=True)
        whole = {"args": arguments_of(model), "checkpoint_version": 3.0, "iteration": step, "model": tensors}
        torch.save(whole, file)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


class InPieces(Tensor):
    """A tensor that torch.distributed.checkpoint writes as boxes, as it does those of several processes."""

    pieces: list[tuple[tuple[int, ...], Tensor]]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self)
        boxes = [
            (MetadataIndex(name, offsets, number), ChunkStorageMetadata(torch.Size(offsets), piece.size()))
            for number, (offsets, piece) in enumerate(self.pieces)
        ]
        return [
            WriteItem(place, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, self.size()))
            for place, chunk in boxes
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(piece for offsets, piece in self.pieces if offsets == tuple(index.offset or ()))


def save_torch_dist(
    folder: Path, model: GPT2, size: int = 1, *, stacked: bool = True, fused: bool = True, newer: bool = False
) -> Path:
    """The distributed form: tensors in pieces of each layer and rank, and what lies beside them.

    Args:
        folder: gets the `iter_...` folder.
        model: its parameters.
        size: tensor-parallel ranks.
        stacked: one name for all layers, else one for each.
        fused: norms under the names of Transformer Engine, which are those of local layers with the default, too.
        newer: as megatron-core 0.19 has it: no common.pt, but an object beside the tensors.
    """
    layers, parts = model.config.layers, collections.defaultdict[str, list[tuple[int, int | None, Tensor]]](list)
    for name, (tensor, dimension) in core_tensors(model).items():
        for norm, matrix in (
            ("input_layernorm.", "self_attention.linear_qkv"),
            ("pre_mlp_layernorm.", "mlp.linear_fc1"),
        ):
            name = name.replace(norm, f"{matrix}.layer_norm_") if fused else name
        layer = int(name.split(".")[2]) if name.startswith("decoder.layers.") else 0
        key = name.replace(f".layers.{layer}.", ".layers.") if stacked else name
        parts[key].append((layer, dimension, tensor))
    state: dict[str, Any] = {"optimizer.state.exp_avg.decoder.final_layernorm.weight": torch.zeros(3, 4)}
    for key, entries in parts.items():
        is_stack = key.startswith("decoder.layers.") and stacked
        whole = torch.stack([tensor for _, _, tensor in entries]) if is_stack else entries[0][2]
        state[key] = whole.as_subclass(InPieces)
        state[key].pieces = []
        for layer, dimension, tensor in entries:
            shares = [tensor] if dimension is None else tensor.chunk(size, dim=dimension)
            for rank, share in enumerate(shares):
                offsets = [0] * tensor.dim()
                offsets[dimension or 0] = rank * share.shape[dimension or 0]
                place = (layer, *offsets) if is_stack else tuple(offsets)
                state[key].pieces.append((place, (share[None] if is_stack else share).contiguous().clone()))
    state |= {f"decoder.layers.mlp.linear_fc1._extra_state/shard_{n}_{layers}": io.BytesIO(b"x") for n in range(layers)}
    place, common = folder / "iter_0000007", {"args": arguments_of(model), "checkpoint_version": 3.0, "iteration": 7}
    state |= {"common_state/shard_0_1": [common]} if newer else {}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(place), planner=planner, no_dist=True)
    if not newer:
        torch.save(common, place / "common.pt")
    (place / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder
