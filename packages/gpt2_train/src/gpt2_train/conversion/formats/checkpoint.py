"""Our own checkpoints, as `gpt2 train` writes them."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import ClassVar

from gpt2_train.checkpoint.info import checkpoint_in, load_tokenizer, read_info
from gpt2_train.checkpoint.load import StoredTensors, check_model, model_tensors
from gpt2_train.config.files import CHECKPOINTS_FOLDER
from gpt2_train.conversion.formats import ModelFormat, ReadOptions, WriteOptions
from gpt2_train.conversion.weights import ModelWeights, shapes_of


class Checkpoint(ModelFormat):
    """A run's folder, its `checkpoints` folder, or one step in it; written as one step's folder, without optimizer."""

    name: ClassVar[str] = "checkpoint"
    summary: ClassVar[str] = "a checkpoint of gpt2 train"

    def recognises(self, path: Path) -> bool:
        """Whether `path` holds a `checkpoint.json`, or a folder of checkpoints."""
        return checkpoint_in(path) is not None

    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The checkpoint, with what its run recorded."""
        info = read_info(path)
        reader = check_model(info)
        tokenizer = options.read_tokenizer()
        if tokenizer is None and info.tokenizer:
            tokenizer = load_tokenizer(info.folder)
        rank, size = options.reader
        stored = StoredTensors(info, "model", reader, rank=rank, size=size)
        return ModelWeights(
            origin=info.folder,
            format=self.name,
            config=info.config,
            tokenizer=tokenizer,
            readers={name: functools.partial(stored.read, name) for name in shapes_of(info.config)},
            step=info.step,
            samples=info.samples,
            settings=info.settings,
            data=info.data,
            trained_with=info.tokenizer.get("fingerprint"),
        )

    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """One step's folder with the model alone."""
        from gpt2_train.checkpoint.save import Checkpointer  # It takes part in exchanges between processes.

        model = weights.load(dtype=options.dtype or weights.dtype)
        saver = Checkpointer(
            path / CHECKPOINTS_FOLDER,
            config=weights.config,
            tokenizer=weights.tokenizer,
            settings=weights.settings,
            data=weights.data,
        )
        folder = saver.save(model_tensors(model), step=weights.step, samples=weights.samples)
        for entry in sorted(folder.iterdir()):
            entry.replace(path / entry.name)
        shutil.rmtree(path / CHECKPOINTS_FOLDER)
