"""Which format a path is of, and opening it."""

from __future__ import annotations

import functools
from pathlib import Path

from command_kit.plugins import find_plugins
from gpt2_train.conversion import formats
from gpt2_train.conversion.base import ModelFormat, ReadOptions
from gpt2_train.conversion.hub import located
from gpt2_train.conversion.weights import ModelWeights
from gpt2_train.errors import Gpt2UsageError


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
