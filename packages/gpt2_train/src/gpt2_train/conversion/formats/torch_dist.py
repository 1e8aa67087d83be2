"""Distributed checkpoints of Megatron Core, its format `torch_dist`: `.metadata`, `common.pt`, `__0_0.distcp`.

Every tensor lies there whole, as boxes from all ranks, under Megatron Core's names; the blocks' are stacked under one
name (`decoder.layers.mlp.linear_fc1.weight`, the default), or have one each. Pieces, types and files are checked before
memory is taken; states of optimizers and objects are passed over (`TorchDist`).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from command_kit import parse_json
from gpt2_train.checkpoint.load import StoredTensor, check_stored, shapes_of
from gpt2_train.checkpoint.names import EMBEDDING
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.conversion.formats import ModelFormat, ModelWeights, ReadOptions, check_is_tied, or_assumed
from gpt2_train.conversion.formats.megatron import (
    arguments_of,
    canonical_name,
    config_of,
    iteration_folder,
    iteration_of,
    read_tokenizer,
    samples_of,
)
from gpt2_train.conversion.pickles import INDEX, read_pickle

NAME = "torch_dist"
BACKEND, COMMON = "metadata.json", "common.pt"
COMMON_OBJECT = "common_state/shard_0_1"
"""Where megatron-core 0.19 has the content of `common.pt`."""

_STACKED = re.compile(r"((?:.*\.)?decoder\.layers)\.(?![0-9])")
_OF_OPTIMIZER = re.compile(r"(^|\.)optimizer\.")


class MegatronTorchDist(ModelFormat):
    """A folder with `iter_...` folders, or one of these."""

    name: ClassVar[str] = NAME
    summary: ClassVar[str] = (
        "a distributed checkpoint of Megatron Core (torch_dist: .metadata, __0_0.distcp; read only)"
    )

    def recognises(self, path: Path) -> bool:
        """Whether there is an index of torch.distributed.checkpoint, or the name of a backend of Megatron Core."""
        return iteration_folder(path, _is_distributed) is not None

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model. Raises Gpt2UsageError for another backend, missing tensors or another kind of model."""
        folder = iteration_folder(path, _is_distributed)
        if folder is None:
            raise Gpt2UsageError(f"{path} holds no {INDEX}: it is no distributed checkpoint.")
        _check_backend(folder)
        model = _StoredModel(folder)
        common = model.common()
        arguments = arguments_of(common)
        config = config_of(folder, model.stored, model.layers, arguments, options)
        check_stored(folder, config, sum(file.stat().st_size for file in folder.glob("*.distcp")), model.stored)
        if model.stored("output.weight") is not None:
            check_is_tied(folder, model.read("output.weight"), model.read(EMBEDDING))
        tokenizer, assumes = or_assumed(read_tokenizer(folder, options), config)
        readers = {name: functools.partial(model.read, name) for name in shapes_of(config)}
        return ModelWeights(
            origin=folder,
            format=self.name,
            config=config,
            tokenizer=tokenizer,
            readers=readers,
            step=iteration_of(common),
            samples=samples_of(arguments),
            assumes_tokenizer=assumes,
        )


def _is_distributed(folder: Path) -> bool:
    return (folder / INDEX).is_file() or "sharded_backend" in _backend_table(folder)


def _backend_table(folder: Path) -> dict[str, Any]:
    try:
        table = parse_json((folder / BACKEND).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _check_backend(folder: Path) -> None:
    """Raise Gpt2UsageError for a folder that another of Megatron-LM's formats wrote."""
    backend = _backend_table(folder).get("sharded_backend", "torch_dcp or fsdp_dtensor")
    if backend != NAME:
        raise Gpt2UsageError(
            f"{folder} is a checkpoint of Megatron-LM's format {backend!s:.40}, which is not read: load it with "
            f"Megatron-LM, and save it with --ckpt-format {NAME}."
        )
    if not (folder / INDEX).is_file():
        raise Gpt2UsageError(f"{folder} has no {INDEX}: copy all files of the checkpoint.")


class _StoredModel:
    """The parameters in a folder, by their names in `gpt2.py`. Raises Gpt2UsageError for what no GPT-2 has."""

    def __init__(self, folder: Path) -> None:
        # It needs torch.distributed, which who reads another format should not load.
        from gpt2_train.conversion.torch_dist import TorchDist

        self._tensors = TorchDist(folder, lambda name: _OF_OPTIMIZER.search(name) is None)
        self._keys: dict[str, str] = {}
        """Names there by ours; `blocks.*` for all blocks together."""
        numbers = set()
        for key in self._tensors.tensors:
            whole = _STACKED.sub(r"\1.0.", key)
            try:
                name = canonical_name(whole)
            except KeyError:
                raise Gpt2UsageError(
                    f"{folder} holds {key:.99}, which no GPT-2 has: it is another kind of model."
                ) from None
            if name is None:
                continue
            if whole != key:
                name = name.replace("blocks.0.", "blocks.*.")
            elif name.startswith("blocks."):
                numbers.add(int(name.split(".")[1]))
            self._keys[name] = key
        stacks = (self._shape(key)[0] for name, key in self._keys.items() if name.startswith("blocks.*"))
        self.layers = max([*stacks, *(number + 1 for number in numbers)], default=0)

    def common(self) -> dict[str, Any]:
        """What is stored beside tensors: settings, the number of the iteration."""
        file = self._tensors.folder / COMMON
        found = read_pickle(file) if file.is_file() else self._tensors.read_object(COMMON_OBJECT)
        found = found[0] if isinstance(found, list) and found else found
        return found if isinstance(found, dict) else {}

    def _shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._tensors.tensors[key].size)

    def _place(self, name: str) -> tuple[str | None, int | None]:
        """The name there of one of our parameters, and the number of the layer in it."""
        if (key := self._keys.get(name)) is not None:
            return key, None
        _, _, rest = name.partition("blocks.")
        layer, _, inner = rest.partition(".")
        key = self._keys.get(f"blocks.*.{inner}")
        return (None, None) if key is None or int(layer) >= self._shape(key)[0] else (key, int(layer))

    def stored(self, name: str) -> StoredTensor | None:
        """The stored form of a parameter; None for nothing."""
        key, layer = self._place(name)
        if key is None:
            return None
        shape = self._shape(key)
        return StoredTensor(
            shape if layer is None else shape[1:], self._tensors.tensors[key].properties.dtype.is_floating_point
        )

    def read(self, name: str) -> Tensor:
        """See `ModelWeights.read`."""
        key, layer = self._place(name)
        assert key is not None, name
        return self._tensors.read(key, layer)
