"""A model's weights in any kind of file: names, shapes and order of rows are as in `gpt2.py`.

Tensors are read when they are asked for, one at a time, so that converting needs the memory of the tensor being
written.

PyTorch's own files (`torch.save`) are read without running anything in them. torch reads them with `weights_only=True`,
which makes tensors and plain containers and refuses everything else. Checkpoints of Megatron-LM also hold settings and
random states as objects of its own classes. Each class that the file names is therefore replaced by a plain record that
keeps what was stored in it: the class itself is never looked up.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pickle
import pickletools
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from gpt2_train.checkpoint.load import (
    EMBEDDING,
    StoredTensor,
    checked,
    is_usable,
    missing,
    parameter_shapes,
    warn_if_not_finite,
)
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import Tokenizer


@dataclasses.dataclass(frozen=True)
class ModelWeights:
    """A model that can be read.

    Attributes:
        origin: the file or folder that it lies in.
        format: the name of its format.
        config: its shape.
        tokenizer: None if the format has none, or none was found.
        assumes_tokenizer: whether it is GPT-2's because none was found and the number of token ids is GPT-2's.
        readers: for each parameter of `GPT2(config)` (tied ones once) what reads it, in the type in which it is
            stored. The embedding may have more or fewer rows than the padded vocabulary, at least the rows of the
            vocabulary.
        step: optimizer steps that it was trained for; 0 if that is not known.
        samples: training sequences that it has seen; 0 if that is not known.
        settings: what decided the weights, as the training run recorded it; empty if it did not.
        data: what the training files were; empty if that was not recorded.
        trained_with: fingerprint of the tokenizer that it was trained with; None if that is not known.
    """

    origin: Path
    format: str
    config: ModelConfig
    tokenizer: Tokenizer | None
    readers: Mapping[str, Callable[[], Tensor]]
    step: int = 0
    samples: int = 0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    assumes_tokenizer: bool = False
    trained_with: str | None = None

    _warned: set[str] = dataclasses.field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, _ in parameter_shapes(self.config):
            if name not in self.readers:
                raise missing(self.origin, name)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which its values are stored. Raises Gpt2UsageError if a file is damaged."""
        return self.read("final_norm.weight").dtype

    def read(self, name: str, *, rows: int | None = None) -> Tensor:
        """One parameter, on the CPU, contiguous.

        Args:
            name: as in `GPT2.named_parameters()`.
            rows: how many, if it is the embedding; as many as are stored without it.

        Warns once if values of the model are no finite numbers. Raises Gpt2UsageError if it has another shape than the
        model asks for, or is not floating-point.
        """
        tensor = self.readers[name]()
        checked(self.origin, name, shapes_of(self.config)[name], StoredTensor(tuple(tensor.shape), is_usable(tensor)))
        if not self._warned and warn_if_not_finite(self.origin, name, tensor):
            self._warned.add(name)
        if name == EMBEDDING and rows is not None:
            return with_rows(tensor, rows, self.config.vocabulary_size)
        return tensor.contiguous()

    def items(self, rows: int | None = None) -> Iterator[tuple[str, Tensor]]:
        """Name and values of each parameter, the embedding with `rows`, those of the vocabulary without a number.

        Raises Gpt2UsageError as `read` does.
        """
        for name in shapes_of(self.config):
            yield name, self.read(name, rows=rows or self.config.vocabulary_size)

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
        dtype: torch.dtype | None = None,
        *,
        divide: Callable[[GPT2], object] | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> GPT2:
        """The model in evaluation mode, or a part of it.

        Args:
            device: where to put the parameters.
            dtype: their type; float32 without it.
            divide: makes a model, which has no memory then, the part of one of `size` processes.
            rank: the number of that process.

        Raises Gpt2UsageError if a file is damaged.
        """
        model = GPT2.empty(self.config, device, dtype, divide)
        for name, parameter in model.named_parameters():
            whole = self.read(name, rows=len(parameter) * size)
            for dimension, length in enumerate(parameter.shape):
                if whole.size(dimension) != length:
                    whole = whole.narrow(dimension, rank * length, length)
            parameter.copy_(whole)
        return model.eval()


@functools.lru_cache(maxsize=8)
def shapes_of(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of each parameter by its name, in the model's order; the embedding's rows are the vocabulary's."""
    return types.MappingProxyType(dict(parameter_shapes(config)))


def check_is_tied(origin: Path, output: Tensor, embedding: Tensor) -> None:
    """Raise Gpt2UsageError if a stored output matrix is not the token embedding, to the type and the last bit."""
    are_usable = is_usable(output) and is_usable(embedding)
    if not (are_usable and output.dtype == embedding.dtype and torch.equal(output, embedding)):
        raise Gpt2UsageError(
            f"{origin} has an output matrix of its own, where a GPT-2 uses its token embedding: it can't be converted."
        )


def renamed(name: str, names: Mapping[str, str], blocks: str) -> str:
    """`blocks.3.attention.qkv.weight` -> `h.3.attn.c_attn.weight`, with another format's `names` of modules.

    Args:
        name: as in `gpt2.py`.
        names: the other format's, by ours without number and `weight`.
        blocks: what it calls the list of blocks (`h`).
    """
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return f"{names[module]}.{kind}"
    _, block, inner = module.split(".", 2)
    return f"{blocks}.{block}.{names[inner]}.{kind}"


def parts_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from the order of `gpt2.py`, [heads, 3, d], to [3, heads, d]."""
    rest = rows.shape[1:]
    return rows.reshape(heads, 3, -1, *rest).transpose(0, 1).reshape(rows.shape)


def heads_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from [3, heads, d] to the order of `gpt2.py`, [heads, 3, d]."""
    rest = rows.shape[1:]
    return rows.reshape(3, heads, -1, *rest).transpose(0, 1).reshape(rows.shape)


def with_rows(embedding: Tensor, rows: int, vocabulary: int) -> Tensor:
    """An embedding (any, hidden) with exactly `rows` rows (rows, hidden): the vocabulary's, then padding.

    Stored padding is not used, so that equal models become equal files: the last row of the vocabulary is
    repeated, as Megatron-LM's own converter does. No result depends on it here: ids above the vocabulary are left out
    of loss and choice.
    """
    known = embedding[:vocabulary]
    if rows <= vocabulary:
        return known[:rows].contiguous()
    return torch.cat([known, known[-1:].expand(rows - vocabulary, -1)])


_READ_BY_TORCH = ("torch.", "collections.OrderedDict", "_codecs.encode", "builtins.")
_STREAMS_BEFORE_DATA = 3
"""Pickles before the data in a file written before torch 1.6: its mark, version and machine."""


class UnpickledObject:
    """An object of any class as it was stored: its attributes, no methods."""

    def __new__(cls, *_: Any, **__: Any) -> UnpickledObject:
        """An empty record, for any arguments."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update({str(name): value for name, value in state.items()})


def read_pickle(path: Path) -> Any:
    """The content of a file of `torch.save`, tensors on the CPU and mapped into memory where the file allows it.

    Raises Gpt2UsageError if it is damaged, or holds what can't be read without running code.
    """
    try:
        with path.open("rb") as file:
            is_zip = zipfile.is_zipfile(file)
        named = [name for name in set(_named_globals(path, is_zip=is_zip)) if not name.startswith(_READ_BY_TORCH)]
        with torch.serialization.safe_globals([(UnpickledObject, name) for name in sorted(named)]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Gpt2UsageError:
        raise
    except pickle.UnpicklingError as error:
        raise Gpt2UsageError(
            f"{path} can't be read without running code from it ({_first_line(error)}): save the model's state dict "
            "with the program that made it, and convert that."
        ) from error
    except Exception as error:
        raise Gpt2UsageError(
            f"{path} can't be read ({_first_line(error)}): it is damaged, or no PyTorch file."
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    if "Unsupported" in text:
        return text[text.index("Unsupported") :].splitlines()[0].split(". ")[0]
    return text.splitlines()[0].split(". ")[0] if text else type(error).__name__


def _named_globals(path: Path, *, is_zip: bool) -> Iterator[str]:
    """Every class or function that the data of a file names, as `module.name`; nothing is imported."""
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            data = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            if archive.getinfo(data).compress_type != zipfile.ZIP_STORED:
                # torch compresses nothing: a few bytes may unpack to any number.
                raise Gpt2UsageError(f"{path} is compressed, which no file of PyTorch is: it can't be read.")
            with archive.open(data) as stream:
                yield from _globals_of(stream)
        return
    with path.open("rb") as stream:
        for _ in range(_STREAMS_BEFORE_DATA):
            for _ in pickletools.genops(stream):
                pass
        yield from _globals_of(stream)


def _globals_of(stream: IO[bytes]) -> Iterator[str]:
    texts: list[str] = []
    for operation, value, _ in pickletools.genops(stream):
        if operation.name == "GLOBAL":
            yield str(value).replace(" ", ".", 1)
        elif operation.name == "STACK_GLOBAL" and len(texts) > 1:
            yield f"{texts[-2]}.{texts[-1]}"
        if isinstance(value, str):
            texts = [*texts[-1:], value]
