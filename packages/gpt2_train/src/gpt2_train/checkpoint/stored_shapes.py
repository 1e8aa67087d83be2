"""What the files of a model must hold before anything is built from what they claim.

A file of a few bytes may claim a million layers. So its claims are compared with its tensors one at a time, up to the
first that is missing, and with its size, before a module or a tensor is made; nothing here does either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from command_kit.command import print_warning
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor


EMBEDDING = "token_embedding.weight"
"""The matrix with a row for each token id, which is the output matrix, too."""


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
        found = stored(name)
        if found is None:
            raise missing(origin, name)
        shape = found.shape
        if name == EMBEDDING and len(shape) == 2:
            shape = (min(shape[0], expected[0]), shape[1])
        if shape != expected:
            raise other_shape(origin, name, found.shape, expected)
        if not found.is_float:
            raise whole_numbers(origin, name)
        values += math.prod(found.shape)
    # A tensor that repeats one value can claim any size.
    if values > size:
        raise Gpt2UsageError(
            f"{origin} claims {values:,} parameters, and its files have {size:,} bytes: it is damaged."
        )


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


def other_shape(origin: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> Gpt2UsageError:
    """The error for a parameter of another shape than the model asks for."""
    return Gpt2UsageError(
        f"{origin} has {name} of shape {found}, where {expected} is needed: it is damaged, or another kind of model."
    )


def whole_numbers(origin: Path, name: str) -> Gpt2UsageError:
    """The error for a parameter that is no floating-point numbers."""
    return Gpt2UsageError(
        f"{origin} has {name} in a type that is not floating-point: it is quantised, or no model; give the original."
    )
