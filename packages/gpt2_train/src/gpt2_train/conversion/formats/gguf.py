"""GGUF files for llama.cpp and the programs built on it; written by the package `gguf`, an optional extra.

Names and order follow llama.cpp's own converter: matrices [out, in], rows of qkv [3, heads, d], norms and biases in
float32 for any type of the matrices, the output matrix left out because it is the embedding.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from command_kit.command import print_warning
from gpt2_train.checkpoint.hugging_face import NORM_EPSILON
from gpt2_train.checkpoint.load import shapes_of
from gpt2_train.checkpoint.names import parts_first, renamed
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.conversion.formats import ModelFormat, ModelWeights, ReadOptions, WriteOptions, cast
from indexed_tokens import END_OF_TEXT

SUFFIX = ".gguf"
MAGIC = b"GGUF"

_NAMES = {
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "final_norm": "output_norm",
    "attention_norm": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.out": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}


class Gguf(ModelFormat):
    """A file that llama.cpp runs; written only."""

    name: ClassVar[str] = "gguf"
    summary: ClassVar[str] = "a GGUF file for llama.cpp (written only)"
    is_file: ClassVar[bool] = True

    def recognises(self, path: Path) -> bool:
        """Whether `path` is a file that begins as GGUF does."""
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """Always raises Gpt2UsageError."""
        raise Gpt2UsageError(f"{path} is a GGUF file, which is written only: convert from what it was made from.")

    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """Settings, tokenizer and tensors, one tensor in memory at a time. Raises Gpt2UsageError without `gguf`."""
        try:
            import gguf
        except ImportError as error:
            raise Gpt2UsageError(
                "writing GGUF needs the package gguf: install webtext-gpt2[gguf], or `pip install gguf`."
            ) from error
        writer: Any = gguf.GGUFWriter(path, "gpt2")
        dtype = options.dtype or weights.dtype
        kind = {
            torch.float32: gguf.GGMLQuantizationType.F32,
            torch.float16: gguf.GGMLQuantizationType.F16,
            torch.bfloat16: gguf.GGMLQuantizationType.BF16,
        }[dtype]
        _add_settings(writer, weights, gguf, kind)
        plain = gguf.GGMLQuantizationType.F32
        for name, shape in shapes_of(weights.config).items():
            chosen = kind if len(shape) == 2 else plain
            size = math.prod(shape) * (4 if chosen == plain else 2)
            writer.add_tensor_info(renamed(name, _NAMES, "blk"), shape, np.dtype(np.float32), size, raw_dtype=chosen)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in weights.items():
            chosen = kind if tensor.dim() == 2 else plain
            if ".attention.qkv." in name:
                tensor = parts_first(tensor, weights.config.heads)
            wide = cast(weights.origin, name, tensor, torch.float32)
            if chosen != plain:
                cast(weights.origin, name, wide, dtype)  # `gguf` itself casts as numpy does, with a warning at most.
            values = wide.numpy()
            writer.write_tensor_data(gguf.quants.quantize(values, chosen))
        writer.close()


def _add_settings(writer: Any, weights: ModelWeights, gguf: Any, kind: Any) -> None:
    """Shape and tokenizer. Without an end of text llama.cpp (October 2026) ends one at token 11, in GPT-2 a comma.

    So an id that no text has stands for it where there is one; there is no key for none.
    """
    config, tokenizer = weights.config, weights.tokenizer
    writer.add_name(weights.origin.name)
    writer.add_context_length(config.sequence_length)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(4 * config.hidden)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)
    writer.add_layer_norm_eps(NORM_EPSILON)
    writer.add_file_type({0: 0, 1: 1}.get(int(kind), int(gguf.LlamaFileType.MOSTLY_BF16)))
    if tokenizer is None:
        raise Gpt2UsageError(f"{weights.origin} has no tokenizer, which a GGUF file holds: give it by --tokenizer.")
    tables = tokenizer.tables
    tokens = [f"[PAD{number}]" for number in range(config.vocabulary_size)]
    kinds = [int(gguf.TokenType.UNUSED)] * config.vocabulary_size
    for token, number in tables.vocabulary.items():
        if number < config.vocabulary_size:
            tokens[number] = token
            kinds[number] = int(gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tables.merges])
    end = tokenizer.document_end
    if end is None and (unused := int(gguf.TokenType.UNUSED)) in kinds:
        end = kinds.index(unused)
    if end is not None:
        writer.add_bos_token_id(end)
        writer.add_eos_token_id(end)
        return
    print_warning(
        "gpt2",
        f"{weights.origin} has no token that ends a text, and llama.cpp takes {tokens[11]!r} (token 11) for it: "
        "give it --ignore-eos.",
    )
