"""Tiny models with a known behaviour, saved as checkpoints, and a tokenizer of single bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpt2_train.checkpoint.info import find_checkpoint, table_crc
from gpt2_train.checkpoint.save import Checkpointer, model_tensors
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import StoredModel
from gpt2_train.inference.model import InferenceModel
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import END_OF_TEXT, Tokenizer

END = 256
"""The id of <|endoftext|>; every id below it is the byte of that value."""

SMALL = ModelConfig(layers=2, hidden=32, heads=4, sequence_length=16, vocabulary_size=100)
BYTES = ModelConfig(layers=2, hidden=32, heads=4, sequence_length=16, vocabulary_size=257)
"""Its embedding is padded to 384 rows."""


def byte_tokenizer() -> Tokenizer:
    """A vocabulary of the 256 bytes and <|endoftext|>, without merges."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    vocabulary |= {chr(256 + count): byte for count, byte in enumerate(others)}
    return Tokenizer(vocabulary | {END_OF_TEXT: END}, [])


def random_model(config: ModelConfig = BYTES, seed: int = 1) -> GPT2:
    """New weights, larger than usual, so that the most likely token depends on what came before."""
    model = GPT2(config).initialise(torch.Generator().manual_seed(seed)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model


def constant_model(logits: Mapping[int, float], config: ModelConfig = BYTES, others: float = -30.0) -> GPT2:
    """A model whose logits are the given ones (`others` for ids not named) whatever came before."""
    model = GPT2(config).initialise(torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():
        model.final_norm.weight.zero_()
        model.final_norm.bias.zero_()
        model.final_norm.bias[0] = 1.0
        model.token_embedding.weight[:, 0] = others
        for token, logit in logits.items():
            model.token_embedding.weight[token, 0] = logit
    return model


def in_memory(model: GPT2, **known: Any) -> InferenceModel:
    """A model that was never saved, with the tokenizer of bytes unless something else is `known` of it."""
    known = {"tokenizer": byte_tokenizer(), **known}
    stored = StoredModel(origin=Path("nowhere"), config=model.config, **known)
    return InferenceModel(stored=stored, load=lambda: model, device=torch.device("cpu"))


def save(folder: Path, model: GPT2, tokenizer: Tokenizer | None = None, step: int = 7) -> Path:
    """Save `model` as a run's checkpoint with `tokenizer` (that of bytes by default); returns the run's folder."""
    checkpointer = Checkpointer(folder / "checkpoints", config=model.config, tokenizer=tokenizer or byte_tokenizer())
    checkpointer.save(model_tensors(model), step=step, samples=0)
    return folder


def without_tokenizer(folder: Path) -> None:
    """Make the checkpoint in a run's folder one of which no tokenizer was recorded."""
    step = find_checkpoint(folder)
    table = json.loads((step / "checkpoint.json").read_text())
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"):
        del table["files"][name]
        (step / name).unlink()
    table["tokenizer"] = {}
    (step / "checkpoint.json").write_text(json.dumps(table | {"crc32": table_crc(table)}))
