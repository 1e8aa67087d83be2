"""Checkpoints as Megatron-LM lays them out, of models of ours: names, shares and files by hand."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

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
