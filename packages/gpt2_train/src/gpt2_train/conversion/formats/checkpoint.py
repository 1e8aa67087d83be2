"""Our own checkpoints, as `gpt2 train` writes them."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gpt2_train.checkpoint import CheckpointInfo, load_tokenizer, model_tensors, read_info
from gpt2_train.checkpoint.folders import FOLDER, holds_checkpoint
from gpt2_train.checkpoint.reading import check_files, check_shapes, fill
from gpt2_train.checkpoint.saving import Checkpointer
from gpt2_train.checkpoint.tensor_index import TensorReader
from gpt2_train.conversion.base import ModelFormat, ReadOptions, WriteOptions
from gpt2_train.conversion.weights import EMBEDDING, ModelWeights, shapes_of
from indexed_tokens import Tokenizer


class Checkpoint(ModelFormat):
    """A run's folder, its `checkpoints` folder, or one step in it; written as one step's folder, without optimizer."""

    name: ClassVar[str] = "checkpoint"
    summary: ClassVar[str] = "a checkpoint of gpt2 train"

    def recognises(self, path: Path) -> bool:
        """Whether `path` holds a `checkpoint.json`, or a folder of checkpoints."""
        return holds_checkpoint(path)

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The checkpoint, with what its run recorded."""
        info = read_info(path)
        tokenizer = Tokenizer.from_path(options.tokenizer) if options.tokenizer else None
        if tokenizer is None and info.tokenizer:
            tokenizer = load_tokenizer(info.folder)
        reader = _Reader(info, *options.reader)
        shapes = {**shapes_of(info.config), EMBEDDING: (info.config.padded_vocabulary, info.config.hidden)}
        return ModelWeights(
            origin=info.folder,
            format=self.name,
            config=info.config,
            tokenizer=tokenizer,
            readers={name: functools.partial(reader.read, name, shape) for name, shape in shapes.items()},
            step=info.step,
            settings=info.settings,
            data=info.data,
        )

    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """One step's folder with the model alone, its values in float32 unless `options` say otherwise."""
        model = weights.load(dtype=options.dtype)
        saver = Checkpointer(
            path / FOLDER,
            config=weights.config,
            tokenizer=weights.tokenizer,
            settings=weights.settings,
            data=weights.data,
        )
        folder = saver.save(model_tensors(model), step=weights.step, samples=0)
        for entry in sorted(folder.iterdir()):
            entry.replace(path / entry.name)
        shutil.rmtree(path / FOLDER)


class _Reader:
    """Reads single tensors of one checkpoint, its files (those of this process) checked before the first."""

    def __init__(self, info: CheckpointInfo, rank: int, size: int) -> None:
        self.info, self.rank, self.size = info, rank, size
        self.part = info.part("model")

    @functools.cached_property
    def types(self) -> dict[str, torch.dtype]:
        """The type of each stored tensor."""
        check_files(self.info, [self.part], rank=self.rank, size=self.size)
        stored = TensorReader(self.info.folder, self.part).read_metadata().state_dict_metadata
        return {
            name: entry.properties.dtype for name, entry in stored.items() if isinstance(entry, TensorStorageMetadata)
        }

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One parameter as it is stored."""
        stored = f"model.{name}"
        tensor = {stored: torch.empty(shape, dtype=self.types.get(stored, torch.float32))}
        check_shapes(self.info, {self.part: tensor})
        fill(self.info, self.part, tensor, in_one_process=True)
        return tensor[stored]
