"""An order of samples that follows from what documents hold: runs on corpora that share documents read these alike.

The numbers of a shuffle by position depend on how many documents there are: leave one out, and all others come in
another order. Here each sample has its own time in the run, a hash of its document's tokens, of its number in it and of
the seed (as in a sketch by minima, Broder 1997), and the batch of a step is what falls into its part of the time. Two
runs of as many steps then have what their corpora share in the same batches, so that their comparison has common random
numbers (Law 2015, "Simulation Modeling and Analysis", section 11.2): the batches are nearly all that the seed decides.
An order that is the same but for documents left out is not enough: it soon runs ahead, and no batch is the same.

Samples begin where their document does, and every sequence length after; the last one of a document ends with it. So
they are the same in any corpus. Costs a pass over the tokens, a second for 500 MB, and 8 bytes a document.
"""

from __future__ import annotations

import collections
import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2_train.config.settings import TrainSettings
from indexed_tokens import IndexedTokens

Hashes = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ divided by the golden ratio, odd: multiples of it are far apart."""


def sequence_hash(tokens: npt.NDArray[np.integer]) -> int:
    """64 bits of BLAKE2b of token ids, the same for any type that stores them."""
    return int.from_bytes(hashlib.blake2b(tokens.astype("<u4").tobytes(), digest_size=8).digest(), "little")


def sequence_hashes(tokens: IndexedTokens, begin: int = 0, end: int | None = None) -> Hashes:
    """`sequence_hash` of each sequence from `begin` to before `end`."""
    numbers = range(begin, len(tokens) if end is None else end)
    return np.fromiter((sequence_hash(tokens[number]) for number in numbers), np.uint64, len(numbers))


def mixed(values: Hashes) -> Hashes:
    """Each value as another that looks random: the output function of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def occurrences(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Counts of the equal ones before each: copies of a document must not all come at one time."""
    order = np.argsort(hashes, kind="stable")
    begins = np.r_[True, hashes[order][1:] != hashes[order][:-1]] if len(order) else np.zeros(0, bool)
    places = np.arange(len(order))
    found = np.empty(len(order), np.int64)
    found[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return found


def numbered(keys: Hashes, numbers: npt.NDArray[np.integer]) -> Hashes:
    """A key for each pair of a key and a number."""
    return mixed(keys + (numbers.astype(np.uint64) + np.uint64(1)) * _STEP)


def document_keys(hashes: Hashes, seed: int) -> Hashes:
    """The keys that the order follows from: of each document its hash, how many copies came before it, and the seed."""
    seeded = mixed(np.full(1, seed, np.uint64) * _STEP)
    return numbered(mixed(hashes ^ seeded), occurrences(hashes))


def sample_keys(documents: Hashes, numbers: npt.NDArray[np.integer], moved: float = 0.0) -> Hashes:
    """The key of each sample, of its document's and its number in it; a share `moved` of them have others."""
    keys = numbered(documents, numbers)
    return np.where(fractions(mixed(keys ^ _STEP)) < moved, mixed(keys ^ ~_STEP), keys)


class RunOrder(NamedTuple):
    """The order of a whole run by what documents hold.

    Attributes:
        steps, batch: steps of the run, and samples in each.
        moved: share of the samples that come at other times than their documents' hashes say.
    """

    steps: int
    batch: int
    moved: float = 0.0


def run_order(settings: TrainSettings) -> RunOrder | None:
    """The order of the run's data by what documents hold; None where it is shuffled."""
    if settings.order == "shuffled" or settings.steps is None:
        return None
    return RunOrder(settings.steps, settings.global_batch_size, settings.reordered)


def fractions(keys: Hashes) -> npt.NDArray[np.float64]:
    """Each key as a number from 0 to below 1."""
    return (keys >> np.uint64(11)).astype(np.float64) / 2**53


def batches_of_run(keys: Hashes, steps: int, batch: int) -> npt.NDArray[np.int64]:
    """The sample that comes at each place of a run of `steps` batches: int64 (steps · batch,).

    Each sample comes as often as every other, but for one more of some, chosen by their keys. What a step has too many
    of comes in later steps that have too few.

    Args:
        keys: of the samples.
        steps, batch: steps of the run, and samples in each.
    """
    count = steps * batch
    whole, rest = divmod(count, len(keys))
    # By other numbers than those of the times: a part of the corpus must not come at the beginning of the run.
    once_more = np.argsort(mixed(keys), kind="stable")[:rest]
    readings = [*([np.arange(len(keys))] * whole), once_more]
    samples = np.concatenate(readings)
    times = np.concatenate([numbered(keys[part], np.full(len(part), at)) for at, part in enumerate(readings)])
    order = np.argsort(times, kind="stable")
    samples = samples[order]
    bounds = np.searchsorted(fractions(times[order]) * steps, np.arange(steps + 1))
    found = np.full((steps, batch), -1, np.int64)
    spare: collections.deque[int] = collections.deque()
    for step in range(steps):
        # Of too many, those with the lowest keys stay, which are the same in other corpora.
        own = samples[bounds[step] : bounds[step + 1]]
        own = own[np.argsort(keys[own], kind="stable")]
        taken = own[:batch].tolist()
        while len(taken) < batch and spare:
            taken.append(spare.popleft())
        found[step, : len(taken)] = taken
        spare.extend(own[batch:].tolist())
    found[found < 0] = list(spare)
    return found.ravel()
