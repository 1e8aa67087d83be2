"""Reading the tensors of a model's folder, checked before use, without running code from it.

A file of a few bytes may claim a million layers. So what the files of any model claim is compared with their tensors
one at a time, up to the first that is missing, and with their size, before a module or a tensor is made
(`check_stored`). Only the files of the tensors asked for are opened: a model is read without the optimizer's state,
which is twice its size. No process group is needed, and nothing is exchanged.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from command_kit.command import print_warning
from gpt2_train.checkpoint.hugging_face import read_table
from gpt2_train.checkpoint.info import CheckpointInfo, damaged, problem_of_size
from gpt2_train.checkpoint.names import EMBEDDING, PREFIX, from_gpt2, gpt2_name, gpt2_shape
from gpt2_train.checkpoint.tensor_files import SUFFIX, FileTensor, open_tensors
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig


class StoredTensor(NamedTuple):
    """Shape of a tensor in a file, as `gpt2.py` has it, and whether it is one of floating-point numbers."""

    shape: tuple[int, ...]
    is_float: bool


def is_usable(tensor: Tensor) -> bool:
    """Whether a tensor that a file holds has values, and floating-point ones: it may be sparse, or a shape alone."""
    return tensor.is_floating_point() and str(tensor.layout) == "torch.strided" and not tensor.is_meta


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each parameter of `GPT2(config)`, in its order, tied ones once.

    The embedding has a row for each token of the vocabulary, without padding. Each is computed when it is asked for.
    """
    hidden = config.hidden
    block = {
        "attention_norm.weight": (hidden,),
        "attention_norm.bias": (hidden,),
        "attention.qkv.weight": (3 * hidden, hidden),
        "attention.qkv.bias": (3 * hidden,),
        "attention.out.weight": (hidden, hidden),
        "attention.out.bias": (hidden,),
        "feed_forward_norm.weight": (hidden,),
        "feed_forward_norm.bias": (hidden,),
        "feed_forward.up.weight": (4 * hidden, hidden),
        "feed_forward.up.bias": (4 * hidden,),
        "feed_forward.down.weight": (hidden, 4 * hidden),
        "feed_forward.down.bias": (hidden,),
    }
    yield EMBEDDING, (config.vocabulary_size, hidden)
    yield "position_embedding.weight", (config.sequence_length, hidden)
    for layer in range(config.layers):
        for name, shape in block.items():
            yield f"blocks.{layer}.{name}", shape
    yield "final_norm.weight", (hidden,)
    yield "final_norm.bias", (hidden,)


@functools.lru_cache(maxsize=8)
def shapes_of(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of each parameter by its name, in the model's order; the embedding's rows are the vocabulary's."""
    return types.MappingProxyType(dict(parameter_shapes(config)))


def check_stored(origin: Path, config: ModelConfig, size: int, stored: Callable[[str], StoredTensor | None]) -> None:
    """Raise Gpt2UsageError for the first parameter that files do not hold as `config` claims, or can't hold.

    Args:
        origin: the file or folder, for messages.
        config: what it claims.
        size: bytes of its files with tensors.
        stored: the stored form of a parameter, by its name in `gpt2.py`; None for nothing. The embedding may have more
            rows than the vocabulary.
    """
    values = 0
    for name, expected in parameter_shapes(config):
        values += math.prod(checked(origin, name, expected, stored(name)).shape)
    # A tensor that repeats one value can claim any size.
    if values > size:
        raise Gpt2UsageError(
            f"{origin} claims {values:,} parameters, and its files have {size:,} bytes: it is damaged."
        )


def checked(origin: Path, name: str, expected: tuple[int, ...], found: StoredTensor | None) -> StoredTensor:
    """The values that `origin` holds of a parameter, if it can be one of that shape; the embedding may have more rows.

    Raises Gpt2UsageError where it can't.
    """
    if found is None:
        raise missing(origin, name)
    shape = found.shape
    if name == EMBEDDING and len(shape) == 2:
        shape = (min(shape[0], expected[0]), shape[1])
    if shape != expected:
        raise Gpt2UsageError(
            f"{origin} has {name} of shape {found.shape}, where {expected} is needed: it is damaged, or another kind "
            "of model."
        )
    if not found.is_float:
        raise Gpt2UsageError(
            f"{origin} has {name} in a type that is not floating-point: it is quantised, or no model; give the "
            "original."
        )
    return found


def warn_if_not_finite(origin: Path, name: str, tensor: Tensor) -> bool:
    """Print a warning if a value of a parameter is NaN or infinite; whether one is. Costs a sum of its values."""
    values = tensor if tensor.itemsize > 1 else tensor.float()
    # A sum of finite numbers may overflow.
    if values.sum().isfinite() or values.isfinite().all():
        return False
    print_warning(
        "gpt2", f"{origin} has values that are NaN or infinite in {name}: what it computes will be no numbers, too."
    )
    return True


def missing(origin: Path, name: str) -> Gpt2UsageError:
    """The error for a model without one of its parameters."""
    return Gpt2UsageError(f"{origin} holds no {name} of a GPT-2: it is another kind of model, or damaged.")


def tensor_files(folder: Path, whole: str) -> list[Path]:
    """The files in which a model lies: `whole`, or those that its index names. None at all if there is neither.

    Raises Gpt2UsageError for a damaged index, or a file that is missing.
    """
    if (folder / whole).is_file():
        return [folder / whole]
    index = folder / f"{whole}.index.json"
    if not index.is_file():
        return []
    names = read_table(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Gpt2UsageError(f"{index} has no weight_map of tensors to files: it is damaged.")
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise Gpt2UsageError(f"{index} names {name}, which is not in {folder}: copy all files of the model.")
    return [folder / name for name in sorted(set(names.values()))]


def readers_of(
    origin: Path, config: ModelConfig, size: int, found: Mapping[str, FileTensor]
) -> dict[str, Callable[[], Tensor]]:
    """What reads each parameter of `GPT2(config)` from tensors in GPT-2's names (without prefix) and layout.

    Raises Gpt2UsageError as `check_stored` does.
    """

    def stored(name: str) -> StoredTensor | None:
        entry = found.get(gpt2_name(name))
        return None if entry is None else StoredTensor(gpt2_shape(name, entry.shape), entry.is_float)

    def read(name: str) -> Tensor:
        return from_gpt2(name, found[gpt2_name(name)].read(), config.heads)

    check_stored(origin, config, size, stored)
    return {name: functools.partial(read, name) for name, _ in parameter_shapes(config)}


def stored_model(folder: Path) -> tuple[int, dict[str, FileTensor]]:
    """Bytes of the files of a model, and the tensors in them by GPT-2's names; none where there is no such file."""
    files = tensor_files(folder, f"model{SUFFIX}")
    found = {entry.name.removeprefix(PREFIX): entry for file in files for entry in open_tensors(file)}
    return sum(file.stat().st_size for file in files), found


def check_model(info: CheckpointInfo) -> dict[str, Callable[[], Tensor]]:
    """What reads each parameter of a checkpoint, once all that its files claim was compared with their sizes.

    Raises Gpt2UsageError for a tensor that is missing or has another shape: then no model of that shape may be built.
    """
    for problem in filter(None, (problem_of_size(info, name) for name in info.names(of_optimizer=False))):
        raise damaged(info.folder, problem)
    for file in tensor_files(info.folder, f"model{SUFFIX}"):
        if problem := problem_of_size(info, file.name):
            raise damaged(info.folder, problem)
    try:
        size, found = stored_model(info.folder)
        return readers_of(info.folder, info.config, size, found)
    except Gpt2UsageError as error:
        raise damaged(info.folder, str(error).rstrip(".")) from error
