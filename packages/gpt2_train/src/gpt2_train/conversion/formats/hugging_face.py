"""Hugging Face GPT-2 folders: `config.json`, safetensors (one file or several) or `pytorch_model.bin`, tokenizer files.

The written folder loads in `transformers` by `AutoModelForCausalLM` and `AutoTokenizer` without a network. A model
whose settings differ from GPT-2's own in what it computes is refused, never converted wrongly.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from command_kit import parse_json, write_json
from command_kit.command import print_warning
from gpt2_train.checkpoint.load import EMBEDDING, StoredTensor, check_stored, is_usable
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import (
    ModelFormat,
    ModelWeights,
    ReadOptions,
    WriteOptions,
    cast,
    or_assumed,
    shapes_of,
)
from gpt2_train.conversion.names import check_is_tied, heads_first, parts_first, renamed
from gpt2_train.conversion.pickles import read_pickle
from gpt2_train.model.gpt2 import INIT_STD
from indexed_tokens import END_OF_TEXT, Tokenizer

CONFIG, GENERATION = "config.json", "generation_config.json"
SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"
PREFIX = "transformer."
NORM_EPSILON = 1e-5

_MODULES = {
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "final_norm": "ln_f",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_MATRICES = ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")
"""Stored as [in, out] there, [out, in] here."""

_COMPUTED_ALIKE: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (NORM_EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
"""Settings that decide the computation: the values that are GPT-2's own."""

_SAID_OTHERWISE = {
    *(f"{name}_token_id" for name in ("bos", "eos", "pad")),
    *("_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states"),
}
"""Keys of `generation_config.json` that choose no token, or that the tokenizer says."""


class HuggingFace(ModelFormat):
    """A folder of `transformers` with a GPT-2."""

    name: ClassVar[str] = "hf"
    summary: ClassVar[str] = "a Hugging Face folder (config.json, safetensors or pytorch_model.bin)"

    def recognises(self, path: Path) -> bool:
        """Whether `path` is a folder with a `config.json` that names a kind of model."""
        return (path / CONFIG).is_file() and "model_type" in _read_json(path / CONFIG)

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model in a folder. Raises Gpt2UsageError if it is no GPT-2, or computes something else."""
        table = _read_json(path / CONFIG)
        _check_is_gpt2(path, table)
        config = _config_of(path, table)
        files = _tensor_files(path)
        found = {entry.name.removeprefix(PREFIX): entry for file in files for entry in _tensors(file)}
        check_stored(path, config, sum(file.stat().st_size for file in files), functools.partial(_stored, found))
        if (own := found.get("lm_head.weight")) is not None:
            check_is_tied(path, own.read(), found[_their_name(EMBEDDING)].read())
        readers = {
            name: functools.partial(_canonical, name, found[_their_name(name)].read, config)
            for name in shapes_of(config)
        }
        has_files = (path / "tokenizer.json").is_file() or (path / "vocab.json").is_file()
        found_tokenizer = options.read_tokenizer() or (Tokenizer.from_path(path) if has_files else None)
        tokenizer, assumes = or_assumed(found_tokenizer, config)
        _note_generation(path, table, config, tokenizer)
        return ModelWeights(path, self.name, config, tokenizer, readers, assumes_tokenizer=assumes)

    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """Configuration, weights and tokenizer files."""
        dtype = options.dtype or weights.dtype
        config = weights.config
        end = weights.tokenizer.document_end if weights.tokenizer is not None else None
        write_json(path / CONFIG, _their_config(config, dtype, end))
        write_json(path / GENERATION, {"bos_token_id": end, "eos_token_id": end})
        _write_tensors(weights, path, dtype, options.shard_bytes)
        if weights.tokenizer is not None:
            weights.tokenizer.save(path)
            weights.tokenizer.save_json(path / "tokenizer.json")
            # None given at all, transformers 5.23 adds <|endoftext|> after the last id, where the model has no row.
            special = {f"{name}_token": END_OF_TEXT if end is not None else None for name in ("bos", "eos", "unk")}
            write_json(
                path / "tokenizer_config.json",
                {"tokenizer_class": "GPT2Tokenizer", "model_max_length": config.sequence_length, **special},
            )
            write_json(path / "special_tokens_map.json", {} if end is None else special)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        table = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Gpt2UsageError(f"can't read {path} ({error}): it is damaged.") from error
    return table if isinstance(table, dict) else {}


def _note_generation(path: Path, table: dict[str, Any], config: ModelConfig, tokenizer: Tokenizer | None) -> None:
    """Say what transformers' `generate` (5.23) takes from the folder, and nothing here does.

    That is all of `generation_config.json`; the token that ends a text is there, or else in `config.json`, whose
    default of 50256 a smaller model keeps.
    """
    own = _read_json(path / GENERATION) if (path / GENERATION).is_file() else {}
    ends = own.get("eos_token_id", table.get("eos_token_id"))
    known = tokenizer.document_end if tokenizer is not None else None
    others = [end for end in (ends if isinstance(ends, list) else [ends]) if end != known]
    if tokenizer is not None and (
        others := [end for end in others if type(end) is int and end < config.vocabulary_size]
    ):
        ours = "nothing ends one here" if known is None else f"here <|endoftext|> ({known}) alone does"
        told = f"{path} ends a text with the token id {', '.join(map(str, others))}, and {ours}."
        print_warning("gpt2", told)
    if taken := sorted(key for key, value in own.items() if value is not None and key not in _SAID_OTHERWISE):
        print_warning(
            "gpt2", f"{path / GENERATION} sets {', '.join(taken)}, which is not kept: give it when you write."
        )


def _check_is_gpt2(path: Path, table: dict[str, Any]) -> None:
    if table.get("model_type") != "gpt2":
        raise Gpt2UsageError(f"{path} holds a model of type {table.get('model_type')!s:.40}: only GPT-2 can be read.")
    for key, good in _COMPUTED_ALIKE.items():
        if key in table and table[key] not in good:
            raise Gpt2UsageError(
                f"{path} has {key} = {table[key]!s:.40}, where a GPT-2 has {good[0]}: it can't be converted."
            )


def _config_of(path: Path, table: dict[str, Any]) -> ModelConfig:
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
        raise Gpt2UsageError(f"{path / CONFIG} does not tell the model's shape ({why}): it is damaged.") from error
    if table.get("n_inner") not in (None, 4 * config.hidden):
        raise Gpt2UsageError(f"{path} has n_inner = {table['n_inner']!s:.40}, where a GPT-2 has four times its width.")
    return config


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor in a file: its name and shape there, and what reads it."""

    name: str
    shape: tuple[int, ...]
    is_float: bool
    read: Callable[[], Tensor]


def _tensor_files(path: Path) -> list[Path]:
    """The files with tensors in a folder. Raises Gpt2UsageError if there are none, or one of them is missing."""
    for whole in (SAFETENSORS, BIN):
        if (path / whole).is_file():
            return [path / whole]
        index = path / f"{whole}.index.json"
        if not index.is_file():
            continue
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise Gpt2UsageError(f"{index} has no weight_map of tensors to files: it is damaged.")
        for name in sorted(set(names.values())):
            if Path(name).name != name or not (path / name).is_file():
                raise Gpt2UsageError(f"{index} names {name}, which is not in {path}: copy all files of the model.")
        return [path / name for name in sorted(set(names.values()))]
    raise Gpt2UsageError(f"{path} has neither {SAFETENSORS} nor {BIN}: copy all files of the model.")


def _tensors(file: Path) -> Iterator[_Tensor]:
    """The tensors in a file. Raises Gpt2UsageError if it is damaged."""
    if file.suffix != ".safetensors":
        found = read_pickle(file)
        if not isinstance(found, dict):
            raise Gpt2UsageError(f"{file} holds no table of tensors: it is no pytorch_model.bin.")
        for name, tensor in found.items():
            if isinstance(tensor, Tensor):
                yield _Tensor(
                    str(name), tuple(tensor.shape), is_usable(tensor), functools.partial(found.__getitem__, name)
                )
        return
    try:
        opened = safe_open(file, framework="pt")
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no dictionary
        for name, part in slices.items():
            is_float = part.get_dtype().startswith(("F", "BF"))
            yield _Tensor(name, tuple(part.get_shape()), is_float, functools.partial(opened.get_tensor, name))
    except (SafetensorError, OSError) as error:
        raise Gpt2UsageError(f"{file} can't be read ({error}): it is damaged.") from error


def _stored(found: Mapping[str, _Tensor], name: str) -> StoredTensor | None:
    """The stored parameter, in the shape that `gpt2.py` has it in."""
    entry = found.get(_their_name(name))
    if entry is None:
        return None
    return StoredTensor(entry.shape[::-1] if _is_matrix(name) else entry.shape, entry.is_float)


def _their_name(name: str) -> str:
    return renamed(name, _MODULES, "h")


def _is_matrix(name: str) -> bool:
    return name.endswith(tuple(f"{module}.weight" for module in _MATRICES))


def _canonical(name: str, read: Callable[[], Tensor], config: ModelConfig) -> Tensor:
    """Their tensor as `gpt2.py` has it: matrices transposed, rows of qkv from [3, heads, d] to [heads, 3, d]."""
    tensor = read()
    if _is_matrix(name):
        tensor = tensor.t()
    if ".attention.qkv." in name and tensor.size(0) == 3 * config.hidden:
        tensor = heads_first(tensor, config.heads)
    return tensor.contiguous()


def _their_config(config: ModelConfig, dtype: torch.dtype, end: int | None) -> dict[str, Any]:
    return {
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
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _write_tensors(weights: ModelWeights, path: Path, dtype: torch.dtype, shard_bytes: int) -> None:
    """`model.safetensors`, or several files of at most `shard_bytes` and their index, each of them in memory once."""
    shapes = shapes_of(weights.config)
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    groups: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in sizes.items():
        if groups[-1] and size > room:
            groups.append([])
            room = shard_bytes
        groups[-1].append(name)
        room -= size
    names = [
        SAFETENSORS if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
        for number in range(1, len(groups) + 1)
    ]
    where: dict[str, str] = {}
    for file, group in zip(names, groups, strict=True):
        tensors = {}
        for name in group:
            tensor = weights.read(name, rows=weights.config.vocabulary_size)
            if ".attention.qkv." in name:
                tensor = parts_first(tensor, weights.config.heads)
            stored = (tensor.t() if _is_matrix(name) else tensor).contiguous()
            tensors[PREFIX + _their_name(name)] = cast(weights.origin, name, stored, dtype)
        save_file(tensors, path / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    if len(groups) > 1:
        write_json(
            path / f"{SAFETENSORS}.index.json",
            {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(where.items()))},
        )
