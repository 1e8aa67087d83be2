"""PyTorch's own files (`torch.save`), read without running anything in them.

torch reads them with `weights_only=True`, which makes tensors and plain containers and refuses everything else.
Checkpoints of Megatron-LM also hold settings and random states as objects of its own classes. Each class that the file
names is therefore replaced by a plain record that keeps what was stored in it: the class itself is never looked up.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from gpt2_train.config.errors import Gpt2UsageError

INDEX = ".metadata"
"""The index of a folder of torch.distributed.checkpoint."""
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


def read_pickle(path: Path, inner: io.BytesIO | None = None) -> Any:
    """The content of a file of `torch.save`, tensors on the CPU and mapped into memory where the file allows it.

    `inner` is such a file inside of the one at `path`. Raises Gpt2UsageError if it is damaged, or holds what can't be
    read without running code.
    """
    try:
        is_zip = inner is not None or zipfile.is_zipfile(path)
        named = [
            name for name in set(_named_globals(path, inner, is_zip=is_zip)) if not name.startswith(_READ_BY_TORCH)
        ]
        with torch.serialization.safe_globals([(UnpickledObject, name) for name in sorted(named)]):
            if inner is not None:
                inner.seek(0)
                return torch.load(inner, map_location="cpu", weights_only=True)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Gpt2UsageError:
        raise
    except pickle.UnpicklingError as error:
        raise Gpt2UsageError(
            f"{path} can't be read without running code from it ({first_line(error)}): save the model's state dict "
            "with the program that made it, and convert that."
        ) from error
    except Exception as error:
        raise Gpt2UsageError(
            f"{path} can't be read ({first_line(error)}): it is damaged, or no PyTorch file."
        ) from error


def first_line(error: Exception) -> str:
    """What torch or pickle says of a file, without its advice."""
    text = str(error).strip()
    if "Unsupported" in text:
        return text[text.index("Unsupported") :].splitlines()[0].split(". ")[0]
    return text.splitlines()[0].split(". ")[0] if text else type(error).__name__


def _named_globals(path: Path, inner: io.BytesIO | None, *, is_zip: bool) -> Iterator[str]:
    """Every class or function that the data of a file names, as `module.name`; nothing is imported."""
    if is_zip:
        with zipfile.ZipFile(inner or path) as archive:
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
