"""The sample index: which tokens make up each training sample, as Megatron-LM's GPTDataset decides it, kept on disk.

Documents are shuffled and concatenated, cut into samples of the sequence length plus one token, and the samples are
shuffled. Everything follows from one `numpy.random.RandomState(seed)`: index for index the same as Megatron-LM's.
`hashed_index` is the other order, for comparisons (see `order`).
Costs 12 bytes per sample and 4 per document; 8 million documents with 9 billion tokens take 3 seconds.

On disk, so that a run that resumes does not compute it again, an index is a folder of `.npy` files (no pickles) under a
name that holds all that decides it; it appears complete or not at all, is memory-mapped when read, and is built again
if it is damaged. `IndexCache` is for one process; training has one for several.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import parse_json, write_text
from command_kit.atomic import WriteOnly, atomic_folder
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.corpus import SPLITS
from gpt2_train.data.order import Hashes, RunOrder, batches_of_run, sample_keys

EXTRA = 1
"""Tokens that a sample has more than its sequence length: its labels are its inputs moved by one."""

_AT_ONCE = 1 << 18
"""Samples that are located at a time: memory apart from the result stays the same for any number."""

INDEX_VERSION = 2
"""Part of the cache's key: raise it when the same key would give other arrays."""


@dataclasses.dataclass(frozen=True)
class SampleIndex:
    """The tokens that make up each sample.

    Attributes:
        documents: int32 (E · documents,): sequence ids in the order in which their tokens are concatenated.
        samples: int32 or int64 (n + 1, 2): position in `documents` and token offset at which each sample begins.
        shuffle: uint32 or int64 (n,): the sample that comes i-th.
    """

    documents: npt.NDArray[np.int32]
    samples: npt.NDArray[Any]
    shuffle: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.shuffle)


def build_sample_index(
    sizes: npt.NDArray[Any], documents: npt.NDArray[Any], *, sequence_length: int, seed: int
) -> SampleIndex:
    """The index for one pass over the sequences `documents`, of which d has `sizes[d]` tokens.

    Documents with fewer tokens than one sample are repeated to fill one. One `numpy.random.RandomState(seed)` shuffles
    first the documents, then the samples. Costs one cumulated sum and one binary search for each sample; beside the
    result, 8 bytes for each document. Raises Gpt2UsageError if the documents hold no tokens.
    """
    tokens = int(sizes[documents].sum(dtype=np.int64))
    if tokens == 0:
        raise Gpt2UsageError("the documents of a split hold no tokens at all: give other --data.")
    random = np.random.RandomState(seed)
    order = np.tile(np.asarray(documents, dtype=np.int32), -(-(sequence_length + EXTRA) // tokens) or 1)
    random.shuffle(order)
    ends = np.cumsum(sizes[order], dtype=np.int64)
    count = (int(ends[-1]) - EXTRA) // sequence_length
    located = np.empty((count + 1, 2), np.int32 if len(order) < 2**31 else np.int64)
    for at in range(0, count + 1, _AT_ONCE):
        starts = np.arange(at, min(at + _AT_ONCE, count + 1), dtype=np.int64) * sequence_length
        position = np.searchsorted(ends, starts, side="right")
        position[starts == 0] = 0
        located[at : at + _AT_ONCE, 0] = position
        located[at : at + _AT_ONCE, 1] = starts - np.where(position > 0, ends[position - 1], 0)
    shuffle = np.arange(count, dtype=np.uint32 if count < np.iinfo(np.uint32).max - 1 else np.int64)
    random.shuffle(shuffle)
    return SampleIndex(order, located, shuffle)


def hashed_index(
    sizes: npt.NDArray[Any],
    documents: npt.NDArray[Any],
    *,
    sequence_length: int,
    keys: Hashes,
    run: RunOrder,
) -> SampleIndex:
    """The index of a whole `run` over the sequences `documents`, whose `keys` decide the order.

    Its samples begin with their document and every sequence length after; the last one of a document ends with it, or
    goes on in others where it is shorter. Raises Gpt2UsageError if the documents hold no tokens.
    """
    by_key = np.argsort(keys, kind="stable")
    by_key = by_key[sizes[documents[by_key]] > 0]
    if not len(by_key):
        raise Gpt2UsageError("the documents of a split hold no tokens at all: give other --data.")
    order, keys = np.asarray(documents, np.int32)[by_key], keys[by_key]
    lengths = sizes[order].astype(np.int64)
    counts = np.maximum(1, -(-(lengths - EXTRA) // sequence_length))
    places = np.repeat(np.arange(len(order)), counts)
    numbers = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    last = np.maximum(0, lengths[places] - EXTRA - sequence_length)
    starts = np.stack([places, np.minimum(numbers * sequence_length, last)], axis=1)
    # A short document at the end goes on with those at the beginning.
    times = -(-(sequence_length + EXTRA) // int(lengths.sum())) + 1
    shuffle = batches_of_run(sample_keys(keys[places], numbers, run.moved), run.steps, run.batch)
    kind = np.int32 if len(order) * times < 2**31 else np.int64
    samples = np.concatenate([starts, [[len(order), 0]]]).astype(kind)
    return SampleIndex(np.tile(order, times), samples, shuffle)


def stream_seed(seed: int, split: str, epoch: int) -> int:
    """The seed of one pass over one split: `seed` itself for the first training pass, distinct ones for all others."""
    if split == "train" and epoch == 0:
        return seed
    return int(np.random.SeedSequence([seed, SPLITS.index(split), epoch]).generate_state(1)[0])


Build = Callable[[], SampleIndex]


class IndexCache:
    """A folder of indices, used by one process.

    Args:
        folder: where they are kept; it is created when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sample_index(self, name: str, build: Build) -> SampleIndex:
        """The index `name`, from disk, or else from `build` and kept. Raises OSError if it can't be written."""
        folder = self.folder / name
        self._build_if_missing(folder, build)
        return read_index(folder)

    def blend_state(self, name: str, block: int) -> list[int] | None:
        """The samples taken from each stream before `block` of the blend `name`; None if it was not kept."""
        try:
            taken = parse_json(self._state_file(name, block).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return taken if isinstance(taken, list) and all(isinstance(count, int) for count in taken) else None

    def keep_blend_state(self, name: str, block: int, taken: list[int]) -> None:
        """Keep what `blend_state` returns, if it can be written: it only saves time."""
        with contextlib.suppress(OSError):
            write_text(self._state_file(name, block), json.dumps(taken))

    def _state_file(self, name: str, block: int) -> Path:
        return self.folder / name / f"{block}.json"

    def _build_if_missing(self, folder: Path, build: Build) -> None:
        if folder.is_dir():
            try:
                read_index(folder)
                return
            except Gpt2UsageError:
                shutil.rmtree(folder)
        write_index(folder, build())


def write_index(folder: Path, index: SampleIndex) -> None:
    """Write the arrays of `index` into a new folder, atomically. Raises OSError."""
    with atomic_folder(folder) as unfinished:
        for field in dataclasses.fields(index):
            with (unfinished / f"{field.name}.npy").open("wb") as file:
                np.save(WriteOnly(file), getattr(index, field.name), allow_pickle=False)


def read_index(folder: Path) -> SampleIndex:
    """The memory-mapped arrays in `folder`. Raises Gpt2UsageError if one is missing or damaged."""
    try:
        arrays = [
            np.load(folder / f"{field.name}.npy", mmap_mode="r", allow_pickle=False)
            for field in dataclasses.fields(SampleIndex)
        ]
    except (OSError, ValueError, EOFError) as error:
        raise Gpt2UsageError(f"the index {folder} can't be read ({error}): delete it, it is built again.") from error
    return SampleIndex(*arrays)
