"""What a format of models is: one file in `formats/` with one class below `ModelFormat`."""

from __future__ import annotations

import abc
import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

import torch

from gpt2_train.conversion.weights import ModelWeights

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


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
