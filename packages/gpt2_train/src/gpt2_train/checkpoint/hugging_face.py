"""What a Hugging Face folder says of a GPT-2 besides its tensors: `config.json` and the tokenizer's files.

Needs no torch. A model whose settings differ from GPT-2's own in what it computes is refused, never read wrongly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_kit import parse_json, write_json
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from indexed_tokens import END_OF_TEXT, Tokenizer

CONFIG, GENERATION = "config.json", "generation_config.json"
NORM_EPSILON = 1e-5

_COMPUTED_ALIKE: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (NORM_EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "quantization_config": (None,),
}
"""Settings that decide the computation: the values that are GPT-2's own."""


def read_table(path: Path) -> dict[str, Any]:
    """The table in a JSON file of a model; an empty one for any other value. Raises Gpt2UsageError if it is damaged."""
    try:
        table = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Gpt2UsageError(f"can't read {path} ({error}): it is damaged.") from error
    return table if isinstance(table, dict) else {}


def read_config(folder: Path) -> ModelConfig:
    """The shape that `config.json` claims. Raises Gpt2UsageError if it is no GPT-2, or computes something else."""
    table = read_table(folder / CONFIG)
    if table.get("model_type") != "gpt2":
        raise Gpt2UsageError(f"{folder} holds a model of type {table.get('model_type')!s:.40}: only GPT-2 can be read.")
    for key, good in _COMPUTED_ALIKE.items():
        if key in table and table[key] not in good:
            raise Gpt2UsageError(
                f"{folder} has {key} = {table[key]!s:.40}, where a GPT-2 has {good[0]}: it can't be converted."
            )
    dropout = table.get("resid_pdrop", 0.1)
    try:
        config = ModelConfig(
            layers=table["n_layer"],
            hidden=table["n_embd"],
            heads=table["n_head"],
            sequence_length=table["n_positions"],
            vocabulary_size=table["vocab_size"],
            dropout=0.0 if dropout == 0 else dropout,
        )
    except (KeyError, Gpt2UsageError) as error:
        why = str(error).rstrip(".")
        raise Gpt2UsageError(f"{folder / CONFIG} does not tell the model's shape ({why}): it is damaged.") from error
    if table.get("n_inner") not in (None, 4 * config.hidden):
        raise Gpt2UsageError(
            f"{folder} has n_inner = {table['n_inner']!s:.40}, where a GPT-2 has four times its width."
        )
    return config


def write_config(folder: Path, config: ModelConfig, tokenizer: Tokenizer | None, dtype: str) -> None:
    """Write all but the tensors (`dtype`, as torch names it): `AutoModelForCausalLM` and `AutoTokenizer` load them."""
    from gpt2_train.model.gpt2 import INIT_STD

    end = tokenizer.document_end if tokenizer is not None else None
    table = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": config.layers,
        "n_embd": config.hidden,
        "n_head": config.heads,
        "n_positions": config.sequence_length,
        "n_ctx": config.sequence_length,
        "n_inner": None,
        "vocab_size": config.vocabulary_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": NORM_EPSILON,
        "initializer_range": INIT_STD,
        **{f"{where}_pdrop": config.dropout for where in ("resid", "embd", "attn")},
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": dtype,
    }
    write_json(folder / CONFIG, table)
    write_json(folder / GENERATION, {"bos_token_id": end, "eos_token_id": end})
    if tokenizer is None:
        return
    tokenizer.save(folder)
    tokenizer.save_json(folder / "tokenizer.json")
    # None given at all, transformers 5.23 adds <|endoftext|> after the last id, where the model has no row.
    special = {f"{name}_token": END_OF_TEXT if end is not None else None for name in ("bos", "eos", "unk")}
    settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": config.sequence_length, **special}
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", {} if end is None else special)


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder; None without one. Raises IndexedTokensError if it is damaged."""
    has_files = (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
    return Tokenizer.from_path(folder) if has_files else None
