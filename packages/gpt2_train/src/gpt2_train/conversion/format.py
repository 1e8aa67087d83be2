"""What a format of models is (one file in `formats/`, one class below `ModelFormat`), and which one a path is of."""

from __future__ import annotations

import abc
import dataclasses
import functools
from pathlib import Path
from typing import ClassVar, Literal

import torch

from command_kit.plugins import find_plugins
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.conversion import formats
from gpt2_train.conversion.hub import located
from gpt2_train.conversion.weights import ModelWeights


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """What a file may not tell about its model.

    Attributes:
        heads: attention heads.
        vocabulary_size: token ids; rows of the embedding above it are padding.
        tokenizer: folder or file of the tokenizer, or `gpt2`.
        reader: this process's number among those that read the same model, and how many they are: they share the work
            of checking its files.
    """

    heads: int | None = None
    vocabulary_size: int | None = None
    tokenizer: str | None = None
    reader: tuple[int, int] = (0, 1)


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """How to write a model; a format ignores what it does not know.

    Attributes:
        dtype: type of the values; None for that of the source.
        tensor_parallel: processes that each get a share.
        megatron: layout and order of Megatron-LM's tensors.
        shard_bytes: largest size of a file of tensors.
    """

    dtype: torch.dtype | None = None
    tensor_parallel: int = 1
    megatron: Literal["2019", "1", "2", "3", "core"] = "3"
    shard_bytes: int = 5 * 10**9


class ModelFormat(abc.ABC):
    """A format in which models lie on disk."""

    name: ClassVar[str]
    """Its value of `--to`."""
    summary: ClassVar[str]
    """What it is, for `--help` and messages."""
    is_file: ClassVar[bool] = False
    """Whether a model is one file; else it is a folder."""

    @abc.abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a model of this format lies at `path`. Reads no more than names and a few bytes."""

    @abc.abstractmethod
    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model at `path`; its tensors are not read yet. Raises Gpt2UsageError if it can't be used."""

    @abc.abstractmethod
    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """Write `weights` into the folder `path`, which is empty (or as the file `path`), flushed to the disk."""


@functools.lru_cache(maxsize=1)
def known_formats() -> dict[str, ModelFormat]:
    """Every format by its name: those in `formats/`, and those of the entry-point group `gpt2.formats`."""
    return {found.name: found() for found in find_plugins(formats, ModelFormat, group="gpt2.formats")}


def format_of(path: str | Path) -> ModelFormat:
    """The format of the model at `path`. Raises Gpt2UsageError if there is none."""
    place = Path(path)
    if not place.exists():
        raise Gpt2UsageError(f"no model {place}: give a folder or file that holds one.")
    found = next((known for known in known_formats().values() if known.recognises(place)), None)
    if found is None:
        kinds = "; ".join(known.summary for known in known_formats().values() if known.name != "checkpoint")
        raise Gpt2UsageError(
            f"{place} holds no checkpoint, nor a model of another format that is known here ({kinds}): check the path."
        )
    return found


def open_weights(path: str | Path, options: ReadOptions | None = None) -> ModelWeights:
    """The model at `path`, whatever its format, or of that name on the hub; its tensors are not read yet.

    Raises Gpt2UsageError, and Gpt2Error if the hub can't be reached.
    """
    place = located(path)
    return format_of(place).open(place, options or ReadOptions())
