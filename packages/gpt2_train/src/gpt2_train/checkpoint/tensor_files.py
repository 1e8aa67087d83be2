"""Tensor files: safetensors, written with their sizes and CRCs, and read without a step outside of them.

A file is an 8-byte length, a JSON header with type, shape and place of each tensor, and the tensors' bytes. What is
written is known from the shapes before the first tensor is: one tensor is in memory at a time. No file is read back for
its CRC, which costs 0.25 s of one core per gigabyte. The reader is the package safetensors, which compares the header
with the file's size before it makes anything.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpt2_train.config.errors import Gpt2UsageError

PIECE = 1 << 22
"""Bytes whose CRC is computed and which are then written at a time: few enough to stay in a core's cache."""

SUFFIX = ".safetensors"

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""The types of what is written, and their names in the header."""

Files = dict[str, dict[str, int]]
"""Size (`bytes`) and CRC-32 (`crc32`) of files by their names."""


class _CountedFile(io.FileIO):
    """A file that is written from its beginning to its end, with size and CRC-32 of what went into it."""

    bytes = crc32 = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), PIECE):
            piece = view[begin : begin + PIECE]
            self.crc32 = zlib.crc32(piece, self.crc32)
            while piece:
                piece = piece[super().write(piece) :]
        self.bytes += len(view)
        return len(view)


def write_tensors(
    path: Path, shapes: Mapping[str, Sequence[int]], tensors: Iterable[Tensor], dtype: torch.dtype = torch.float32
) -> Files:
    """Write a file of the tensors of some names and shapes, which come in the same order, flushed to the disk.

    Takes as many of `tensors`, contiguous and on the CPU, as there are shapes. Raises OSError.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype], "shape": [*shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with _CountedFile(path, "w") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=False):
            assert tensor.shape == tuple(shape) and tensor.dtype == dtype, name
            if tensor.numel():
                file.write(tensor.view(-1).view(torch.uint8).numpy())
        assert file.bytes == 8 + len(text) + end, "a tensor is missing"
        os.fsync(file.fileno())
    return {path.name: {"bytes": file.bytes, "crc32": file.crc32}}


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """A tensor in a file.

    Attributes:
        name, shape: as they are stored.
        is_float: whether its values are floating-point numbers.
        file: the open file; slices of it are read when they are asked for.
    """

    name: str
    shape: tuple[int, ...]
    is_float: bool
    file: Any

    def read(self) -> Tensor:
        """All of it."""
        found: Tensor = self.file.get_tensor(self.name)
        return found

    def part(self, sides: Sequence[slice]) -> Tensor:
        """A part of it."""
        found: Tensor = self.file.get_slice(self.name)[tuple(sides)]
        return found


def open_tensors(file: Path) -> Iterator[FileTensor]:
    """The tensors in a file. Raises Gpt2UsageError if it is damaged."""
    try:
        opened = safe_open(file, framework="pt")
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no dictionary
        for name, part in slices.items():
            yield FileTensor(name, tuple(part.get_shape()), part.get_dtype().startswith(("F", "BF")), opened)
    except (SafetensorError, OSError) as error:
        raise Gpt2UsageError(f"{file} can't be read ({error}): it is damaged.") from error


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""A part of a tensor: where it begins in each dimension, and how long it is there."""

MOST_DIMENSIONS = 4
"""Dimensions of a stored tensor, at most: GPT-2 has two, and what is checked doubles with each."""


def boxes_fill(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether boxes fill a tensor of `shape` without an overlap.

    They do if they lie in it, have its volume, and each corner but its own belongs to an even number of them: then an
    odd number of boxes, so at least one, is at each place of it, and the volume leaves room for no second one.
    """
    if len(shape) > MOST_DIMENSIONS or sum(math.prod(sizes) for _, sizes in boxes) != math.prod(shape):
        return False
    odd: set[tuple[int, ...]] = set()
    for offsets, sizes in [*boxes, ((0,) * len(shape), shape)] if boxes else ():
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return False
        sides = [(begin, begin + length) for begin, length in zip(offsets, sizes, strict=True)]
        if any(not 0 <= begin < end <= most for (begin, end), most in zip(sides, shape, strict=True)):
            return False
        for corner in itertools.product(*sides):
            odd ^= {corner}
    return not odd
