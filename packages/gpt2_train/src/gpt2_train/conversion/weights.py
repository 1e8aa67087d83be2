"""A model's weights whatever file they lie in: names, shapes and order of rows are those of `model.py`.

Tensors are read when they are asked for, one at a time, so that converting needs the memory of what is being written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2_train.config import ModelConfig
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.model import GPT2
from indexed_tokens import Tokenizer

EMBEDDING = "token_embedding.weight"
"""The matrix with a row for each token id, which is the output matrix, too."""


@dataclasses.dataclass(frozen=True)
class ModelWeights:
    """A model that can be read.

    Attributes:
        origin: the file or folder that it lies in.
        format: the name of its format.
        config: its shape.
        tokenizer: None if the format has none, or none was found.
        readers: for each parameter of `GPT2(config)` (tied ones once) what reads it, in the type in which it is
            stored. The embedding may have more or fewer rows than the padded vocabulary, at least those of the
            vocabulary.
        step: optimizer steps that it was trained for; 0 if that is not known.
        settings: what decided the weights, as the training run recorded it; empty if it did not.
        data: what the training files were; empty if that was not recorded.
    """

    origin: Path
    format: str
    config: ModelConfig
    tokenizer: Tokenizer | None
    readers: Mapping[str, Callable[[], Tensor]]
    step: int = 0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        for name in shapes_of(self.config):
            if name not in self.readers:
                raise Gpt2UsageError(
                    f"{self.origin} holds no {name} of a GPT-2: it is another kind of model, or damaged."
                )

    def read(self, name: str, *, rows: int | None = None) -> Tensor:
        """One parameter, on the CPU, contiguous.

        Args:
            name: as in `GPT2.named_parameters()`.
            rows: of the embedding, how many rows; as many as are stored without it.

        Raises Gpt2UsageError if it has another shape than the model asks for.
        """
        tensor = self.readers[name]()
        expected = shapes_of(self.config)[name]
        found = tuple(tensor.shape)
        if name == EMBEDDING:
            found = (min(found[0], expected[0]), *found[1:])
        if found != expected:
            raise Gpt2UsageError(
                f"{self.origin} has {name} of shape {tuple(tensor.shape)}, where {expected} is needed: it is damaged, "
                "or another kind of model."
            )
        return with_rows(tensor, rows, self.config.vocabulary_size) if rows is not None else tensor.contiguous()

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Name and values of each parameter, the embedding with the rows of the vocabulary alone."""
        for name in shapes_of(self.config):
            yield name, self.read(name, rows=self.config.vocabulary_size if name == EMBEDDING else None)

    def digest(self) -> str:
        """SHA-256 of shape and values in float32: the same whatever the format."""
        found = hashlib.sha256(repr(sorted(self.config.as_table().items())).encode())
        for name, tensor in self.items():
            found.update(name.encode())
            found.update(tensor.float().contiguous().numpy().data)
        return found.hexdigest()

    def padded(self) -> Iterator[tuple[str, Tensor]]:
        """Name and values of each parameter as a model of this shape has it, the embedding with its padding.

        Raises Gpt2UsageError.
        """
        for name in shapes_of(self.config):
            yield name, self.read(name, rows=self.config.padded_vocabulary if name == EMBEDDING else None)

    @torch.no_grad()
    def load_into(self, model: GPT2) -> GPT2:
        """Copy the weights into a model of this shape; returns it. Raises Gpt2UsageError."""
        parameters = dict(model.named_parameters())
        for name, values in self.padded():
            parameters[name].copy_(values)
        return model

    def load(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> GPT2:
        """The model in evaluation mode, in float32 unless `dtype` says otherwise. Raises Gpt2UsageError."""
        with torch.device("meta"):
            model = GPT2(self.config)
        if dtype is not None:
            model = model.to(dtype)
        model.tie()
        return self.load_into(model.materialise(device)).eval()


@functools.lru_cache(maxsize=8)
def shapes_of(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of each parameter by its name, in the model's order; the embedding's rows are the vocabulary's."""
    with torch.device("meta"):
        model = GPT2(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return types.MappingProxyType({**shapes, EMBEDDING: (config.vocabulary_size, config.hidden)})


def parts_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from the order of `model.py`, [heads, 3, d], to [3, heads, d]."""
    rest = rows.shape[1:]
    return rows.reshape(heads, 3, -1, *rest).transpose(0, 1).reshape(rows.shape)


def heads_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from [3, heads, d] to the order of `model.py`, [heads, 3, d]."""
    rest = rows.shape[1:]
    return rows.reshape(3, heads, -1, *rest).transpose(0, 1).reshape(rows.shape)


def with_rows(embedding: Tensor, rows: int, vocabulary: int) -> Tensor:
    """An embedding (any, hidden) with exactly `rows` rows (rows, hidden): the vocabulary's, then padding.

    What is stored as padding is not used, so that equal models become equal files: the last row of the vocabulary is
    repeated, as Megatron-LM's own converter does. No result depends on it here: ids above the vocabulary are left out
    of loss and choice.
    """
    known = embedding[:vocabulary]
    if rows <= vocabulary:
        return known[:rows].contiguous()
    return torch.cat([known, known[-1:].expand(rows - vocabulary, -1)])
