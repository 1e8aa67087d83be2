"""The sample index: which tokens make up each training sample, as Megatron-LM's GPTDataset decides it.

Documents are shuffled and laid end to end, cut into samples of the sequence length plus one token, and the samples are
shuffled. Everything follows from one `numpy.random.RandomState(seed)`: index for index the same as Megatron-LM's.
Costs 12 bytes per sample and 4 per document; 8 million documents with 9 billion tokens take 3 seconds. Pure functions
of arrays; `index_cache.py` keeps the result on disk.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2_train.data.splits import SPLITS
from gpt2_train.errors import Gpt2UsageError

EXTRA = 1
"""Tokens that a sample has more than its sequence length: its labels are its inputs moved by one."""

SEPARATE_LAST_EPOCH_BELOW = 0.80
"""The last of several epochs is shuffled on its own if less than this share of it is needed (Megatron-LM)."""

_AT_ONCE = 1 << 18
"""Samples that are located at a time: memory beside the result stays the same for any number."""

INDEX_VERSION = 1
"""Part of the cache's key: raise it when the same key would give other arrays."""


@dataclasses.dataclass(frozen=True)
class SampleIndex:
    """Which tokens make up each sample.

    Attributes:
        documents: int32 (E · documents,): sequence ids in the order in which their tokens are laid end to end.
        samples: int32 or int64 (n + 1, 2): position in `documents` and token offset at which each sample begins.
        shuffle: uint32 or int64 (n,): the sample that comes i-th.
    """

    documents: npt.NDArray[np.int32]
    samples: npt.NDArray[Any]
    shuffle: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.shuffle)


def epochs_needed(epoch_tokens: int, samples: int, sequence_length: int, extra: int = EXTRA) -> int:
    """The smallest E with E · `epoch_tokens` ≥ `samples` · `sequence_length` + `extra`."""
    return max(1, -(-(samples * sequence_length + extra) // epoch_tokens))


def last_epoch_is_separate(
    epochs: int, epoch_tokens: int, samples: int, sequence_length: int, extra: int = EXTRA
) -> bool:
    """Whether the last epoch is shuffled on its own: there are several, and under 80% of the last one is needed."""
    if epochs == 1:
        return False
    before = ((epochs - 1) * epoch_tokens - extra) // sequence_length
    in_one = (epoch_tokens - extra) // sequence_length
    return samples - before < int(SEPARATE_LAST_EPOCH_BELOW * in_one)


def locate_samples(
    sizes: npt.NDArray[Any], documents: npt.NDArray[Any], sequence_length: int, extra: int = EXTRA
) -> npt.NDArray[Any]:
    """Where each sample begins in `documents` laid end to end: shape (n + 1, 2), position and token offset.

    `sizes[d]` are the tokens of sequence d. n = (tokens - extra) // sequence_length; samples advance by
    `sequence_length` and overlap by `extra`. A sample that begins where a document does is put at the end of the one
    before if `extra` is 0, as Megatron-LM does. Costs one cumulated sum and one binary search for each sample; beside
    the result, 8 bytes for each document.
    """
    ends = np.cumsum(sizes[documents], dtype=np.int64)
    count = max(0, (int(ends[-1]) - extra) // sequence_length)
    located = np.empty((count + 1, 2), np.int32 if len(documents) < 2**31 else np.int64)
    for at in range(0, count + 1, _AT_ONCE):
        starts = np.arange(at, min(at + _AT_ONCE, count + 1), dtype=np.int64) * sequence_length
        position = np.searchsorted(ends, starts + (extra - 1), side="right")
        position[starts == 0] = 0
        located[at : at + _AT_ONCE, 0] = position
        located[at : at + _AT_ONCE, 1] = starts - np.where(position > 0, ends[position - 1], 0)
    return located


def build_sample_index(
    sizes: npt.NDArray[Any],
    documents: npt.NDArray[Any],
    *,
    sequence_length: int,
    samples: int,
    seed: int,
    extra: int = EXTRA,
) -> SampleIndex:
    """The index for at least `samples` samples of the sequences `documents`, whose tokens number `sizes[documents]`.

    One `numpy.random.RandomState(seed)` shuffles first the documents, then the samples. Raises Gpt2UsageError if the
    documents hold no tokens.
    """
    epoch_tokens = int(sizes[documents].sum(dtype=np.int64))
    if epoch_tokens == 0:
        raise Gpt2UsageError("the documents of a split hold no tokens at all: give other --data.")
    epochs = epochs_needed(epoch_tokens, samples, sequence_length, extra)
    separate = last_epoch_is_separate(epochs, epoch_tokens, samples, sequence_length, extra)
    random = np.random.RandomState(seed)

    def shuffled_documents(times: int) -> npt.NDArray[np.int32]:
        order = np.tile(np.asarray(documents, dtype=np.int32), times)
        random.shuffle(order)
        return order

    if separate:
        order = np.concatenate([shuffled_documents(epochs - 1), shuffled_documents(1)])
    else:
        order = shuffled_documents(epochs)
    located = locate_samples(sizes, order, sequence_length, extra)
    count = len(located) - 1
    first = ((epochs - 1) * epoch_tokens - extra) // sequence_length if separate else count
    dtype = np.uint32 if count < np.iinfo(np.uint32).max - 1 else np.int64
    parts = [np.arange(0, first, dtype=dtype)]
    if separate:
        parts.append(np.arange(first, count, dtype=dtype))
    for part in parts:
        random.shuffle(part)
    return SampleIndex(order, located, np.concatenate(parts))


def stream_seed(seed: int, split: str, epoch: int) -> int:
    """The seed of one pass over one split: `seed` itself for the first training pass, distinct ones for all others."""
    if split == "train" and epoch == 0:
        return seed
    return int(np.random.SeedSequence([seed, SPLITS.index(split), epoch]).generate_state(1)[0])
