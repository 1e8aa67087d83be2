"""Checkpoints of Megatron-LM: `iter_0000600/mp_rank_00/model_optim_rng.pt`, of any version and tensor-parallel size.

Nothing in the files is run (see `read_pickle`). Pipeline-parallel checkpoints are refused with what to do; the
distributed ones of Megatron Core are another format (`torch_dist`). There are three layouts of names: 0, that of 2019
(one flat dictionary), 1, `language_model` (nested; checkpoint versions 1 to 3), and 2, Megatron Core's (flat again;
layer norms may be fused into the matrix after them). Splits over tensor-parallel ranks are the same in all of them; the
order of the fused rows of query, key and value is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpt2_train.checkpoint.load import StoredTensor, check_stored, is_usable
from gpt2_train.checkpoint.names import EMBEDDING, heads_first
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import MOST, PRESETS, ModelConfig
from gpt2_train.conversion.formats import (
    ModelFormat,
    ModelWeights,
    ReadOptions,
    check_is_tied,
    or_assumed,
)
from gpt2_train.conversion.pickles import UnpickledObject, read_pickle
from indexed_tokens import GPT2_VOCABULARY_SIZE, Tokenizer

TRACKER = "latest_checkpointed_iteration.txt"
FILES = ("model_optim_rng.pt", "model_rng.pt")
VOCABULARY = "vocab.json"

MOST_NESTED = 8
"""The most levels in which tables of a model are nested; three levels in all that is known."""

_RANK = re.compile(r"mp_rank_([0-9]{2,9})(?:_([0-9]{3}))?(?:_([0-9]{3}))?")

_BLOCK = {
    "attention_norm": ("input_layernorm", "input_layernorm", "input_layernorm"),
    "attention.qkv": ("attention.query_key_value", "self_attention.query_key_value", "self_attention.linear_qkv"),
    "attention.out": ("attention.dense", "self_attention.dense", "self_attention.linear_proj"),
    "feed_forward_norm": ("post_attention_layernorm", "post_attention_layernorm", "pre_mlp_layernorm"),
    "feed_forward.up": ("mlp.dense_h_to_4h", "mlp.dense_h_to_4h", "mlp.linear_fc1"),
    "feed_forward.down": ("mlp.dense_4h_to_h", "mlp.dense_4h_to_h", "mlp.linear_fc2"),
}
_WHOLE = {
    f"{ours}_embedding.weight": (f"{theirs}.weight", *2 * (f"embedding.{theirs}.weight",))
    for ours, theirs in (("token", "word_embeddings"), ("position", "position_embeddings"))
}
_STACK = ("transformer", "encoder", "decoder")
"""The name of the stack of blocks in each layout."""
_FINAL_NORM = "final_layernorm"
_FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_": "attention_norm.",
    "mlp.linear_fc1.layer_norm_": "feed_forward_norm.",
}

_IGNORED = re.compile(
    r"_extra_state$|\.inv_freq$|attention\.(bias|masked_bias)$|word_embeddings_for_head|rotary|\.attn_mask$"
)
"""Entries that hold no weight of a GPT-2: buffers, states of libraries, a second copy of the embedding."""
_OUTPUT = re.compile(r"(^|\.)(output_layer|lm_head|final_linear)\.weight$")


def canonical_name(name: str) -> str | None:
    """The name in `gpt2.py` of an entry of any layout, its prefixes left out or not; None if it is no weight.

    The output matrix, where it is stored, is `output.weight`. Raises KeyError for what no GPT-2 has.
    """
    if _IGNORED.search(name):
        return None
    if _OUTPUT.search(name):
        return "output.weight"
    name = re.sub(r"^((module|model|language_model|transformer\.embedding)\.)+", "", name)
    for canonical, names in _WHOLE.items():
        if name in names:
            return canonical
    stack, _, rest = name.partition(".")
    if stack not in _STACK:
        # The stack itself may be left out: `language_model.transformer` holds `layers...` in some versions.
        rest = name
    if rest.startswith(f"{_FINAL_NORM}."):
        return f"final_norm.{rest.removeprefix(f'{_FINAL_NORM}.')}"
    found = re.fullmatch(r"layers\.(0|[1-9][0-9]{0,8})\.(.+)", rest)
    if found is None:
        raise KeyError(name)
    block, inner = found.groups()
    for fused, norm in _FUSED_NORMS.items():
        if inner.startswith(fused):
            return f"blocks.{block}.{norm}{inner.removeprefix(fused)}"
    module, _, kind = inner.rpartition(".")
    for canonical, names in _BLOCK.items():
        if module in names and kind in ("weight", "bias"):
            return f"blocks.{block}.{canonical}.{kind}"
    raise KeyError(name)


def split_dimension(name: str) -> int | None:
    """The dimension along which tensor-parallel ranks share a parameter; None for one that each has whole."""
    if name == "token_embedding.weight" or ".attention.qkv." in name or ".feed_forward.up." in name:
        return 0
    return 1 if name.endswith((".attention.out.weight", ".feed_forward.down.weight")) else None


def join(name: str, shares: list[Tensor], *, version: float, heads: int) -> Tensor:
    """A whole parameter from the shares of all ranks, in order; qkv rows as `gpt2.py` has them.

    Args:
        name: as in `gpt2.py`.
        shares: one tensor a rank.
        version: the checkpoint's version, which decides the order of the qkv rows.
        heads: of the whole model.
    """
    if ".attention.qkv." in name:
        shares = [_reordered(share, version, heads // len(shares)) for share in shares]
    dimension = split_dimension(name)
    if dimension is None or len(shares) == 1:
        return shares[0]
    return torch.cat(shares, dim=dimension)


def _reordered(rows: Tensor, version: float, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) of one rank in the order of `gpt2.py`, [heads, 3, d].

    Version 0 has [3, heads, d], 1 [heads, d, 3], later ones ours.
    """
    if version >= 2:
        return rows
    if version < 1:
        return heads_first(rows, heads)
    return rows.view(heads, -1, 3, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class Megatron(ModelFormat):
    """A folder with `iter_...` folders, one of these, or one with the `mp_rank_...` folders."""

    name: ClassVar[str] = "megatron"
    summary: ClassVar[str] = "a Megatron-LM checkpoint (mp_rank_00/model_optim_rng.pt; read only)"

    def recognises(self, path: Path) -> bool:
        """Whether there are folders of ranks below `path`."""
        return iteration_folder(path, _has_ranks) is not None

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model of all ranks together. Raises Gpt2UsageError for missing tensors or another kind of model."""
        folder = iteration_folder(path, _has_ranks)
        if folder is None:
            raise Gpt2UsageError(f"{path} holds no mp_rank_... folders: it is no checkpoint of Megatron-LM.")
        files = _rank_files(folder)
        ranks = [_read_rank(file) for file in files]
        first = ranks[0]
        for rank in ranks[1:]:
            if _shapes(rank) != _shapes(first):
                raise Gpt2UsageError(
                    f"{rank.file} and {first.file} hold different tensors, or of different shapes: they are of "
                    "different models; copy the files of all ranks from one checkpoint."
                )
        stored = functools.partial(_stored, ranks)
        blocks = {int(name.split(".")[1]) for name in first.tensors if name.startswith("blocks.")}
        config = config_of(folder, stored, max(blocks, default=-1) + 1, first.arguments, options)
        if config.heads % len(ranks):
            raise Gpt2UsageError(
                f"{config.heads} heads can't be shared among the {len(ranks)} ranks in {folder}: give their number by "
                "--heads."
            )
        check_stored(folder, config, sum(file.stat().st_size for file in files), stored)
        readers = {
            name: functools.partial(
                join, name, [rank.tensors[name] for rank in ranks], version=first.version, heads=config.heads
            )
            for name in first.tensors
            if name != "output.weight"
        }
        tokenizer, assumes = or_assumed(read_tokenizer(folder, options), config)
        for rank in ranks:
            if (own := rank.tensors.get("output.weight")) is not None:
                check_is_tied(folder, own, rank.tensors[EMBEDDING])
        return ModelWeights(
            origin=folder,
            format=self.name,
            config=config,
            tokenizer=tokenizer,
            readers=readers,
            step=first.iteration,
            samples=samples_of(first.arguments),
            assumes_tokenizer=assumes,
        )


@dataclasses.dataclass(frozen=True)
class _Rank:
    """The file of a tensor-parallel rank, and the tensors read from it by name."""

    file: Path
    tensors: dict[str, Tensor]
    arguments: dict[str, Any]
    version: float
    iteration: int


def _shapes(rank: _Rank) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in rank.tensors.items()}


def _stored(ranks: list[_Rank], name: str) -> StoredTensor | None:
    """A parameter, whole, from the parts of all ranks."""
    share = ranks[0].tensors.get(name)
    if share is None:
        return None
    shape, dimension = list(share.shape), split_dimension(name)
    if dimension is not None and dimension < len(shape):
        shape[dimension] *= len(ranks)
    return StoredTensor(tuple(shape), all(is_usable(rank.tensors[name]) for rank in ranks))


def _has_ranks(folder: Path) -> bool:
    return any(_RANK.fullmatch(entry.name) for entry in folder.iterdir())


def iteration_folder(path: Path, is_one: Callable[[Path], bool]) -> Path | None:
    """The folder of an iteration that `path` means: itself, the one that the tracker names, else the newest."""
    if not path.is_dir():
        return None
    if is_one(path):
        return path
    try:
        named = (path / TRACKER).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    wanted = [path / f"iter_{int(named):07d}"] if re.fullmatch("[0-9]{1,18}", named) else []
    wanted += [path / "release"] if named == "release" else []
    wanted += sorted(path.glob("iter_*"), reverse=True)
    return next((entry for entry in wanted if entry.is_dir() and is_one(entry)), None)


def _rank_files(folder: Path) -> list[Path]:
    found: dict[int, Path] = {}
    for entry in sorted(folder.iterdir()):
        match = _RANK.fullmatch(entry.name)
        if match is None:
            continue
        if int(match[2] or 0) > 0:
            raise Gpt2UsageError(
                f"{folder} is split by layers, too (pipeline parallel, {entry.name}): merge these with Megatron-LM's "
                "tools/checkpoint first."
            )
        file = next((entry / name for name in FILES if (entry / name).is_file()), None)
        if file is None:
            raise Gpt2UsageError(f"{entry} has no {FILES[0]}: copy all files of the checkpoint.")
        found[int(match[1])] = file
    absent = next((rank for rank, own in enumerate([*sorted(found), None]) if rank != own), 0)
    if absent < len(found) or not found:
        raise Gpt2UsageError(f"{folder} lacks mp_rank_{absent:02d}: copy the files of all ranks.")
    return [found[rank] for rank in sorted(found)]


def _read_rank(file: Path) -> _Rank:
    whole = read_pickle(file)
    if not isinstance(whole, dict) or not isinstance(whole.get("model"), Mapping):
        raise Gpt2UsageError(f"{file} holds no `model`: it is no checkpoint of Megatron-LM.")
    tensors: dict[str, Tensor] = {}
    stored = _flat(whole["model"], file)
    for name, tensor in stored:
        try:
            canonical = canonical_name(name)
        except KeyError:
            raise Gpt2UsageError(f"{file} holds {name:.99}, which no GPT-2 has: it is another kind of model.") from None
        if canonical is not None:
            tensors[canonical] = tensor
    version = whole.get("checkpoint_version")
    if any("linear_qkv" in name for name, _ in stored):
        version = 3.0  # Megatron Core has known one order only.
    return _Rank(
        file=file,
        tensors=tensors,
        arguments=arguments_of(whole),
        version=float(version) if isinstance(version, int | float) and 0 <= version < 100 else 0.0,
        iteration=iteration_of(whole),
    )


def arguments_of(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a file of Megatron-LM's records."""
    arguments = whole.get("args")
    # Megatron Core, where it was imported, lets torch make the class itself.
    return vars(arguments) if isinstance(arguments, UnpickledObject | argparse.Namespace) else {}


def iteration_of(whole: Mapping[str, Any]) -> int:
    """Optimizer steps that it records; 0 for what is no number of steps."""
    iteration = whole.get("iteration")
    return iteration if type(iteration) is int and 0 <= iteration < 1 << 63 else 0


def samples_of(arguments: Mapping[str, Any]) -> int:
    """Training sequences that the recorded settings tell; 0 if they don't."""
    seen = arguments.get("consumed_train_samples")
    return seen if isinstance(seen, int) else 0


def _flat(table: Mapping[Any, Any], file: Path, prefix: str = "", depth: int = 0) -> list[tuple[str, Tensor]]:
    """Dotted names and tensors of nested dictionaries; other values are passed over.

    Raises Gpt2UsageError where they are nested deeper than any version of Megatron-LM nests them.
    """
    if depth > MOST_NESTED:
        raise Gpt2UsageError(f"the model in {file} is nested too deeply: it is no checkpoint of Megatron-LM.")
    found = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            found += _flat(value, file, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, Tensor):
            found.append((f"{prefix}{name}", value))
    return found


def _number(arguments: Mapping[str, Any], name: str) -> int | None:
    """One of the recorded settings, where it is a number that a shape may have."""
    value = arguments.get(name)
    return value if type(value) is int and 0 < value <= MOST else None


def config_of(
    folder: Path,
    stored: Callable[[str], StoredTensor | None],
    layers: int,
    arguments: Mapping[str, Any],
    options: ReadOptions,
) -> ModelConfig:
    """The shape of a model of so many `layers`.

    Args:
        folder: where it lies, for messages and for its tokenizer.
        stored: the stored form of a parameter, by its name in `gpt2.py`; None for nothing.
        arguments: settings that it records.
        options: what it may not tell.

    Raises Gpt2UsageError where a part of it is neither there nor given.
    """
    rows, positions = (stored(name) for name in (EMBEDDING, "position_embedding.weight"))
    for kind, found in (("token", rows), ("position", positions)):
        if found is None or len(found.shape) != 2:
            raise Gpt2UsageError(f"{folder} has no {kind} embedding: it is no GPT-2.")
    assert rows is not None and positions is not None
    hidden = rows.shape[1]
    heads = options.heads or _number(arguments, "num_attention_heads")
    if heads is None:
        heads = next((preset["heads"] for preset in PRESETS.values() if preset["hidden"] == hidden), None)
    if heads is None:
        raise Gpt2UsageError(f"{folder} does not tell the number of attention heads: give it by --heads.")
    dropout = arguments.get("hidden_dropout")
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence_length=positions.shape[0],
        vocabulary_size=_vocabulary_size(folder, rows.shape[0], arguments, options),
        dropout=float(dropout) if isinstance(dropout, int | float) and 0 <= dropout < 1 else 0.1,
    )


def _vocabulary_size(folder: Path, rows: int, arguments: Mapping[str, Any], options: ReadOptions) -> int:
    """Ids of the vocabulary among `rows` rows: as given, as the tokenizer or the file says, else GPT-2's if it fits."""
    recorded = _number(arguments, "vocab_size")
    if options.vocabulary_size is not None:
        size = options.vocabulary_size
    elif (tokenizer := read_tokenizer(folder, options)) is not None:
        size = tokenizer.vocabulary_size
    elif recorded is not None and recorded <= rows:
        size = recorded
    else:
        size = GPT2_VOCABULARY_SIZE if rows >= GPT2_VOCABULARY_SIZE else rows
    if size > rows:
        raise Gpt2UsageError(
            f"{folder} has {rows:,} rows for a vocabulary of {size:,}: give the --tokenizer it was made with."
        )
    return size


def read_tokenizer(folder: Path, options: ReadOptions) -> Tokenizer | None:
    """The tokenizer that is named, or lies in a folder of ranks or beside it; None without one."""
    if (named := options.read_tokenizer()) is not None:
        return named
    found = next((place for place in (folder, folder.parent) if (place / VOCABULARY).is_file()), None)
    return None if found is None else Tokenizer.from_path(found / VOCABULARY)
