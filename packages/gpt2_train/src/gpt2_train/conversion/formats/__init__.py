"""A model in any format, and the formats, in one file of this folder each.

Names, shapes and order of rows of a `ModelWeights` are as in `gpt2.py`, whatever it was read from. Tensors are read
when they are asked for, one at a time, so that converting needs the memory of the tensor being written. A path may also
be the name of a model on Hugging Face's hub (`conversion.hub`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from command_kit.plugins import find_plugins
from gpt2_train.checkpoint.info import find_checkpoint
from gpt2_train.checkpoint.load import (
    StoredTensor,
    checked,
    is_usable,
    missing,
    parameter_shapes,
    shapes_of,
    warn_if_not_finite,
)
from gpt2_train.checkpoint.names import EMBEDDING
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.hub import fetch, hub_name
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import GPT2_VOCABULARY_SIZE, Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredModel:
    """What is known of a model, besides its weights.

    Attributes:
        origin: the file or folder that it lies in.
        config: its shape.
        tokenizer: None if it has none, or none was found.
        assumes_tokenizer: whether it is GPT-2's because none was found and the number of token ids is GPT-2's.
        step: optimizer steps that it was trained for; 0 if that is not known.
        settings: what decided the weights, as the training run recorded it; empty if it did not.
        data: what the training files were, one entry per file; empty if that was not recorded.
        trained_with: fingerprint of the tokenizer that it was trained with; None if that is not known.
    """

    origin: Path
    config: ModelConfig
    tokenizer: Tokenizer | None
    step: int = 0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    assumes_tokenizer: bool = False
    trained_with: str | None = None

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises Gpt2UsageError if there is none."""
        if self.tokenizer is None:
            raise Gpt2UsageError(
                f"the checkpoint {self.origin} has no tokenizer: give the one that it was trained with by --tokenizer."
            )
        return self.tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Ids that both the model and the tokenizer know: ids at or above it have no text."""
        known = self.config.vocabulary_size
        return known if self.tokenizer is None else min(known, self.tokenizer.vocabulary_size)

    @property
    def end_of_text(self) -> int | None:
        """The id of `<|endoftext|>`; None if the tokenizer or the model has none."""
        end = self.tokenizer.document_end if self.tokenizer is not None else None
        return end if end is not None and end < self.vocabulary_size else None

    @property
    def separates_documents(self) -> bool:
        """Whether it was trained with attention inside documents alone."""
        return self.settings.get("documents") == "separate"

    @property
    def masks_end_of_text(self) -> bool:
        """Whether it was trained without predictions after the end of a text."""
        return bool(self.settings.get("mask_end_of_text"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelWeights(StoredModel):
    """A model that can be read.

    Attributes:
        format: the name of its format.
        readers: for each parameter of `GPT2(config)` (tied ones once) what reads it, in the type in which it is
            stored. The embedding may have more or fewer rows than the padded vocabulary, at least the rows of the
            vocabulary.
        samples: training sequences that it has seen; 0 if that is not known.
    """

    format: str
    readers: Mapping[str, Callable[[], Tensor]]
    samples: int = 0

    _warned: set[str] = dataclasses.field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, _ in parameter_shapes(self.config):
            if name not in self.readers:
                raise missing(self.origin, name)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which its values are stored. Raises Gpt2UsageError if a file is damaged."""
        return self.read("final_norm.weight").dtype

    def read(self, name: str) -> Tensor:
        """One parameter, on the CPU, by its name in `GPT2.named_parameters()`; the embedding with what rows are stored.

        Warns once if values of the model are no finite numbers. Raises Gpt2UsageError if it has another shape than the
        model asks for, or is not floating-point.
        """
        tensor = self.readers[name]()
        checked(self.origin, name, shapes_of(self.config)[name], StoredTensor(tuple(tensor.shape), is_usable(tensor)))
        if not self._warned and warn_if_not_finite(self.origin, name, tensor):
            self._warned.add(name)
        return tensor

    def items(self, rows: int | None = None) -> Iterator[tuple[str, Tensor]]:
        """Name and values, contiguous, of each parameter, the embedding with as many rows as the vocabulary or `rows`.

        Raises Gpt2UsageError as `read` does.
        """
        known = self.config.vocabulary_size
        for name in shapes_of(self.config):
            tensor = self.read(name)
            yield name, (with_rows(tensor, rows or known, known) if name == EMBEDDING else tensor).contiguous()

    def digest(self) -> str:
        """SHA-256 of shape and values in float32: the same for any format."""
        found = hashlib.sha256(repr(sorted(self.config.as_table().items())).encode())
        for name, tensor in self.items():
            found.update(name.encode())
            found.update(tensor.float().contiguous().numpy().data)
        return found.hexdigest()

    @torch.no_grad()
    def load(
        self,
        device: torch.device | str = "cpu",
        *,
        divide: Callable[[GPT2], object] | None = None,
        rank: int = 0,
    ) -> GPT2:
        """The model in evaluation mode, in float32, or a part of it.

        Args:
            device: where to put the parameters.
            divide: makes a model, which has no memory then, the part of one of several processes.
            rank: the number of that process.

        Raises Gpt2UsageError if a file is damaged, or a value is beyond float32.
        """
        model = GPT2.empty(self.config, device, divide)
        for name, parameter in model.named_parameters():
            whole, part = self.read(name), parameter.detach()
            if name == EMBEDDING:
                known = self.config.vocabulary_size
                own = whole[rank * len(part) : known][: len(part)]
                part[len(own) :] = whole[known - 1]  # as `with_rows`
                whole, part = own, part[: len(own)]
            for dimension, length in enumerate(part.shape):
                if whole.size(dimension) != length:
                    whole = whole.narrow(dimension, rank * length, length)
            part.copy_(cast(self.origin, name, whole, part.dtype))
        return model.eval()


def with_rows(embedding: Tensor, rows: int, vocabulary: int) -> Tensor:
    """An embedding (any, hidden) with exactly `rows` rows (rows, hidden): the vocabulary's, then padding.

    Stored padding is not used, so that equal models become equal files: the last row of the vocabulary is repeated. No
    result depends on it: ids above the vocabulary are left out of loss and choice.
    """
    known = embedding[:vocabulary]
    if rows <= vocabulary:
        return known[:rows].contiguous()
    return torch.cat([known, known[-1:].expand(rows - vocabulary, -1)])


def cast(origin: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor`, the values of the parameter `name` in `origin`, as `dtype`.

    Raises Gpt2UsageError if a finite value is beyond what that type holds: torch makes it infinite without a word
    (2.13; IEEE 754 overflow), at 65,520 in fp16, and in bf16 a float32 above 3.3895e38, which rounds up.
    """
    narrow = tensor.to(dtype)
    if torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max:
        return narrow
    beyond = int((narrow.isinf() & tensor.isfinite()).sum())
    if not beyond:
        return narrow
    short = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
    wider = {"fp16": "bf16 or fp32", "bf16": "fp32"}.get(short, "another model")
    values = "1 value that is" if beyond == 1 else f"{beyond:,} values that are"
    largest = float(tensor[tensor.isfinite()].abs().max())
    raise Gpt2UsageError(
        f"{origin} has {values} beyond {short} in {name} (up to {largest:g}; {short} holds up to "
        f"{torch.finfo(dtype).max:g}): give --dtype {wider}."
    )


def check_is_tied(origin: Path, output: Tensor, embedding: Tensor) -> None:
    """Raise Gpt2UsageError if a stored output matrix is not the token embedding, to the type and the last bit."""
    are_usable = is_usable(output) and is_usable(embedding)
    if not (are_usable and output.dtype == embedding.dtype and torch.equal(output, embedding)):
        raise Gpt2UsageError(
            f"{origin} has an output matrix of its own, where a GPT-2 uses its token embedding: it can't be converted."
        )


def or_assumed(tokenizer: Tokenizer | None, config: ModelConfig) -> tuple[Tokenizer | None, bool]:
    """`tokenizer`, or without one GPT-2's for a model with as many token ids; and whether it is that assumption."""
    assumes = tokenizer is None and config.vocabulary_size == GPT2_VOCABULARY_SIZE
    return (Tokenizer.gpt2() if assumes else tokenizer), assumes


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of reading that a file may not tell about its model.

    Attributes:
        heads: attention heads.
        vocabulary_size: token ids; rows of the embedding above it are padding.
        tokenizer: folder or file of the tokenizer, or `gpt2`.
        rank, world_size: of this process among the readers of the same model: they share the work of checking its
            files.
    """

    heads: int | None = None
    vocabulary_size: int | None = None
    tokenizer: str | None = None
    rank: int = 0
    world_size: int = 1

    def read_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that is named; None without one. Raises IndexedTokensError if it is damaged."""
        return Tokenizer.from_path(self.tokenizer) if self.tokenizer else None


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """Options of writing a model; a format ignores what it does not know.

    Attributes:
        dtype: type of the values; None for that of the source.
        shard_bytes: largest size of a file of tensors.
    """

    dtype: torch.dtype | None = None
    shard_bytes: int = 5 * 10**9


class ModelFormat(abc.ABC):
    """A format in which models lie on disk."""

    name: ClassVar[str]
    """Its value of `--to`."""
    summary: ClassVar[str]
    """The name of the format, for `--help` and messages."""
    is_file: ClassVar[bool] = False
    """Whether a model is one file; else it is a folder."""

    @abc.abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a model of this format lies at `path`. Reads no more than names and a few bytes."""

    @abc.abstractmethod
    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model at `path`; its tensors are not read yet. Raises Gpt2UsageError if it can't be used."""

    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """Write `weights` into the folder `path`, which is empty (or as the file `path`), flushed to the disk.

        Raises Gpt2UsageError for a format that is read only.
        """
        raise Gpt2UsageError(f"{self.summary}: it can't be written.")


@functools.lru_cache(maxsize=1)
def known_formats() -> dict[str, ModelFormat]:
    """Every format by its name: those of `formats/`, and those of the group `gpt2.formats`."""
    formats = find_plugins(sys.modules[__name__], ModelFormat, group="gpt2.formats")
    return {found.name: found() for found in formats}


def format_of(path: str | Path) -> ModelFormat:
    """The format of the model at `path`. Raises Gpt2UsageError if there is none."""
    place = Path(path)
    if not place.exists():
        find_checkpoint(place)  # raises the sentence, with the step that is there where another is meant
    found = next((known for known in known_formats().values() if known.recognises(place)), None)
    if found is None:
        kinds = "; ".join(known.summary for known in known_formats().values())
        raise Gpt2UsageError(
            f"{place} holds no checkpoint, nor a model of another format that is known here ({kinds}): check the path."
        )
    return found


def open_weights(path: str | Path, options: ReadOptions | None = None) -> ModelWeights:
    """The model at `path`, in any known format, or of that name on the hub; its tensors are not read yet.

    Raises Gpt2UsageError, and Gpt2Error if the hub can't be reached.
    """
    place = located(path)
    return format_of(place).open(place, options or ReadOptions())


def located(path: str | Path) -> Path:
    """The place of the model at `path`; if `path` is a name of the hub, where it lies once it has been fetched.

    Raises Gpt2UsageError for no path, and for a name of the hub as `fetch` does, Gpt2Error, too.
    """
    if not path:
        raise Gpt2UsageError("no --checkpoint: give the --output folder of a `gpt2 train`, or another model.")
    name = None if Path(path).exists() else hub_name(str(path))
    return Path(path) if name is None else fetch(name)
