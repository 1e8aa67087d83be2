"""Hugging Face GPT-2 folders: a checkpoint of a run, which is one, or one of another program.

Others may hold `pytorch_model.bin` instead of safetensors; what is written loads in `transformers` by
`AutoModelForCausalLM` and `AutoTokenizer` without a network, and has a `checkpoint.json` with what its source has seen.
"""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from command_kit.command import print_warning
from gpt2_train.checkpoint.hugging_face import CONFIG, GENERATION, read_config, read_table, read_tokenizer
from gpt2_train.checkpoint.info import check_files, checkpoint_in, load_tokenizer, read_info
from gpt2_train.checkpoint.load import check_model, is_usable, readers_of, stored_model, tensor_files
from gpt2_train.checkpoint.names import EMBEDDING, PREFIX, gpt2_name
from gpt2_train.checkpoint.tensor_files import FileTensor
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import (
    ModelFormat,
    ModelWeights,
    ReadOptions,
    WriteOptions,
    cast,
    check_is_tied,
    or_assumed,
)
from gpt2_train.conversion.pickles import read_pickle
from indexed_tokens import Tokenizer

BIN = "pytorch_model.bin"

_SAID_OTHERWISE = {
    *(f"{name}_token_id" for name in ("bos", "eos", "pad")),
    *("_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states"),
}
"""Keys of `generation_config.json` that choose no token, or that the tokenizer says."""


class HuggingFace(ModelFormat):
    """A folder of `transformers` with a GPT-2: also a run's folder, its `checkpoints`, or one step in it."""

    name: ClassVar[str] = "hf"
    summary: ClassVar[str] = "a Hugging Face folder (config.json, safetensors or pytorch_model.bin)"

    def recognises(self, path: Path) -> bool:
        """Whether `path` is a folder with a `config.json` that names a kind of model, or holds checkpoints."""
        is_model = (path / CONFIG).is_file() and "model_type" in read_table(path / CONFIG)
        return is_model or checkpoint_in(path) is not None

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model in a folder. Raises Gpt2UsageError if it is no GPT-2, or computes something else."""
        place = checkpoint_in(path)
        return _open_foreign(path, options) if place is None else _open_checkpoint(place, options)

    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """A checkpoint without the optimizer's state."""
        from gpt2_train.checkpoint.save import seal, write_model  # It takes part in exchanges between processes.

        dtype = options.dtype or weights.dtype
        tensors = (cast(weights.origin, name, tensor, dtype) for name, tensor in weights.items())
        files = write_model(path, weights.config, tensors, dtype, options.shard_bytes)
        record = {"step": weights.step, "samples": weights.samples, "settings": weights.settings, "data": weights.data}
        seal(path, weights.config, weights.tokenizer, files, dtype, **record)


def _open_checkpoint(folder: Path, options: ReadOptions) -> ModelWeights:
    """A checkpoint, with what its run recorded."""
    info = read_info(folder)
    readers = check_model(info)
    given = options.read_tokenizer()
    tokenizer, assumes = or_assumed(load_tokenizer(folder) if given is None and info.tokenizer else given, info.config)

    @functools.cache
    def check() -> None:
        check_files(info, info.names(of_optimizer=False), rank=options.rank, size=options.world_size)

    def read(name: str) -> Tensor:
        check()
        return readers[name]()

    return ModelWeights(
        origin=info.folder,
        format="checkpoint",
        config=info.config,
        tokenizer=tokenizer,
        readers={name: functools.partial(read, name) for name in readers},
        step=info.step,
        samples=info.samples,
        settings=info.settings,
        data=info.data,
        assumes_tokenizer=assumes,
        trained_with=info.tokenizer.get("fingerprint"),
    )


def _open_foreign(path: Path, options: ReadOptions) -> ModelWeights:
    """A model of another program."""
    config = read_config(path)
    size, found = stored_model(path)
    if not found:
        size, found = _of_pickles(path)
    readers = readers_of(path, config, size, found)
    if (own := found.get("lm_head.weight")) is not None:
        check_is_tied(path, own.read(), found[gpt2_name(EMBEDDING)].read())
    given = options.read_tokenizer()
    tokenizer, assumes = or_assumed(read_tokenizer(path) if given is None else given, config)
    _note_generation(path, config, tokenizer)
    return ModelWeights(
        origin=path,
        format=HuggingFace.name,
        config=config,
        tokenizer=tokenizer,
        readers=readers,
        assumes_tokenizer=assumes,
    )


def _of_pickles(path: Path) -> tuple[int, dict[str, FileTensor]]:
    """Bytes of `pytorch_model.bin`, or its parts, and the tensors in them, as `stored_model` gives them."""
    files, found = tensor_files(path, BIN), dict[str, FileTensor]()
    if not files:
        raise Gpt2UsageError(f"{path} has neither model.safetensors nor {BIN}: copy all files of the model.")
    for file in files:
        table = read_pickle(file)
        if not isinstance(table, dict):
            raise Gpt2UsageError(f"{file} holds no table of tensors: it is no {BIN}.")
        opened = types.SimpleNamespace(get_tensor=table.__getitem__)
        for name, tensor in table.items():
            if isinstance(tensor, Tensor):
                entry = FileTensor(name, tuple(tensor.shape), is_usable(tensor), opened)
                found[str(name).removeprefix(PREFIX)] = entry
    return sum(file.stat().st_size for file in files), found


def _note_generation(path: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> None:
    """Say what transformers' `generate` (5.23) takes from the folder, and nothing here does.

    That is all of `generation_config.json`; the token that ends a text is there, or else in `config.json`, whose
    default of 50256 a smaller model keeps.
    """
    own: dict[str, Any] = read_table(path / GENERATION) if (path / GENERATION).is_file() else {}
    ends = own.get("eos_token_id", read_table(path / CONFIG).get("eos_token_id"))
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
