"""Checkpoints of format 2, tensors in the folders of torch.distributed.checkpoint, turned into today's, once.

The new one holds everything: a run goes on from it bit for bit. It is read back and compared with the old one, tensor
by tensor, before it has its name.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gpt2_train.checkpoint.info import OLD_FORMAT, OPTIMIZER, checkpoint_in, damaged, read_description, read_info
from gpt2_train.checkpoint.load import StoredTensor, check_stored, shapes_of
from gpt2_train.checkpoint.names import without_padding
from gpt2_train.checkpoint.optimizer_state import box_name, stored_boxes
from gpt2_train.checkpoint.save import seal, write_model
from gpt2_train.checkpoint.tensor_files import SUFFIX, write_tensors
from gpt2_train.checkpoint.verify import verify_checkpoint
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.conversion.torch_dist import TorchDist
from indexed_tokens import IndexedTokensError, Tokenizer
from indexed_tokens.checksums import checksum_of_file


def old_checkpoint_in(path: Path) -> Path | None:
    """The checkpoint of format 2 that `path` means; None for everything else."""
    place = checkpoint_in(path)
    return place if place is not None and read_description(place)["format"] == OLD_FORMAT else None


def renew_checkpoint(old: Path, folder: Path) -> None:
    """Write a checkpoint of format 2 into the empty `folder` in today's. Raises Gpt2UsageError if it is damaged."""
    table = read_description(old)
    try:
        _check_files(old, table["files"])
        config = ModelConfig(**table["model"])
        model = TorchDist(old / "model")
        _check_model(old, config, model, table["files"])
        names = old / "tokenizer" / "vocab.json", old / "tokenizer" / "merges.txt"
        tokenizer = Tokenizer.from_files(*names) if table["tokenizer"] else None
        weights = (model.read(f"model.{name}")[: shape[0]] for name, shape in shapes_of(config).items())
        files = write_model(folder, config, weights)
        optimizer = TorchDist(old / "optimizer") if (old / "optimizer").is_dir() else None
        if optimizer is not None:
            shapes = {name: without_padding(_parameter(name), tuple(entry.size), config)
                      for name, entry in optimizer.tensors.items()}  # fmt: skip
            stored = {box_name(name.removeprefix("optimizer."), (0,) * len(shape)): shape
                      for name, shape in shapes.items()}  # fmt: skip
            moments = (optimizer.read(name)[: shape[0]].contiguous() for name, shape in shapes.items())
            files |= write_tensors(folder / f"{OPTIMIZER}00000-of-00001{SUFFIX}", stored, moments)
        record = {key: table[key] for key in ("step", "samples", "settings", "data", "state")}
        seal(folder, config, tokenizer, files, **record)
    except (KeyError, TypeError, AttributeError, IndexedTokensError) as error:
        raise damaged(old, f"{type(error).__name__}: {error}".rstrip(".")) from error
    _check_same(folder, model, optimizer)


def _check_files(old: Path, files: dict[str, dict[str, int]]) -> None:
    for name, entry in files.items():
        if len(Path(name).parts) != 2 or ".." in name or not (old / name).is_file():
            raise damaged(old, f"{name} is missing")
        if checksum_of_file(old / name)._asdict() != entry:
            raise damaged(old, f"{name} is not what was written")


def _check_model(old: Path, config: ModelConfig, model: TorchDist, files: dict[str, dict[str, int]]) -> None:
    def stored(name: str) -> StoredTensor | None:
        entry = model.tensors.get(f"model.{name}")
        return None if entry is None else StoredTensor(tuple(entry.size), entry.properties.dtype.is_floating_point)

    check_stored(old, config, sum(entry["bytes"] for name, entry in files.items() if name.startswith("model/")), stored)


def _parameter(name: str) -> str:
    """`optimizer.final_norm.bias.exp_avg` -> `final_norm.bias`."""
    return name.removeprefix("optimizer.").rpartition(".")[0]


def _check_same(folder: Path, model: TorchDist, optimizer: TorchDist | None) -> None:
    """Raise Gpt2Error if what was written is not, to the last bit, what it was made from."""
    problems = verify_checkpoint(folder, lambda size: None).problems
    for name, tensor in open_weights(folder).items():
        problems += [] if torch.equal(tensor, model.read(f"model.{name}")[: len(tensor)]) else [name]
    if optimizer is not None:
        for name, boxes in stored_boxes(read_info(folder)).items():
            written = boxes[0].values.read()
            problems += [] if torch.equal(written, optimizer.read(f"optimizer.{name}")[: len(written)]) else [name]
    if problems:
        raise Gpt2Error(f"what was written is not what was read ({problems[0]}): start the command again.")
