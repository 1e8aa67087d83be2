"""An endless stream of shuffled training samples from one split of one corpus.

Sample i depends on the seed and on i alone, so that any number of data-parallel processes reads the same global batch,
and a run that resumes, also at another size, or that is made longer, reads on exactly where it stopped. The index is
built for one pass over the split at a time: every token is seen once before any is seen again, passes follow each
other without end, and the memory is that of one pass, memory-mapped. What is lost is the rest of a pass that does not
fill a sequence.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.corpus import Corpus
from gpt2_train.data.index import EXTRA, INDEX_VERSION, IndexCache, SampleIndex, build_sample_index, stream_seed


class Stream:
    """The endless, shuffled samples of one split of one corpus.

    Args:
        corpus: the token files.
        split: `train`, `valid` or `test`; it must hold tokens.
        sequence_length: tokens in a sample, less the one extra.
        seed: the run's seed.
        cache: where the indices are kept; with a `SharedIndexCache` all processes call `prepare` together.

    A split with fewer tokens than one sample has its documents repeated to fill one.
    Call `prepare` before reading samples of a pass not read before. Raises Gpt2UsageError for an empty split.
    """

    def __init__(self, corpus: Corpus, split: str, sequence_length: int, seed: int, cache: IndexCache) -> None:
        self.corpus = corpus
        self.split = split
        self.sequence_length = sequence_length
        self.seed = seed
        self.cache = cache
        self.epoch_tokens = corpus.split_tokens(split)
        if self.epoch_tokens == 0:
            raise Gpt2UsageError(f"the {split} split of {corpus.prefix} holds no tokens: change --split or --data.")
        self.per_epoch = max(1, (self.epoch_tokens - EXTRA) // sequence_length)
        self._open: dict[int, SampleIndex] = {}

    @property
    def is_shorter_than_a_sample(self) -> bool:
        """Whether documents repeat within a sample."""
        return self.epoch_tokens < self.sequence_length + EXTRA

    def prepare(self, first: int, last: int) -> None:
        """Open the indices for samples `first` to `last`, both included; those that are missing are built."""
        for epoch in range(first // self.per_epoch, last // self.per_epoch + 1):
            if epoch not in self._open:
                name = f"{self.split}-{self._key(epoch)}"
                self._open[epoch] = self.cache.sample_index(name, functools.partial(self._build, epoch))
        for epoch in [old for old in self._open if old < first // self.per_epoch - 1]:
            del self._open[epoch]

    def _key(self, epoch: int) -> str:
        parts = {
            "version": INDEX_VERSION,
            "corpus": self.corpus.tokens.fingerprint(),
            "prefix": str(Path(self.corpus.prefix).resolve()),
            "range": self.corpus.ranges[self.split],
            "sequence_length": self.sequence_length,
            "extra": EXTRA,
            "samples": self.per_epoch,
            "seed": stream_seed(self.seed, self.split, epoch),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def _build(self, epoch: int) -> SampleIndex:
        begin, end = self.corpus.ranges[self.split]
        return build_sample_index(
            self.corpus.tokens.lengths,
            np.arange(begin, end),
            sequence_length=self.sequence_length,
            samples=self.per_epoch,
            seed=stream_seed(self.seed, self.split, epoch),
        )

    def pieces(self, number: int) -> Iterator[tuple[int, int, int]]:
        """(sequence, token offset in it, tokens) of each piece of sample `number`, in order; pieces may be empty.

        A new piece is where a sequence of the token files begins: what separate attention for documents needs.
        """
        epoch, position = divmod(number, self.per_epoch)
        index = self._open[epoch]
        place, offset = (int(value) for value in index.samples[int(index.shuffle[position])])
        wanted = self.sequence_length + EXTRA
        while wanted:
            sequence = int(index.documents[place])
            length = min(wanted, int(self.corpus.tokens.lengths[sequence]) - offset)
            yield sequence, offset, length
            wanted -= length
            place, offset = place + 1, 0

    def samples_with(self, sequences: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Which of the first `count` samples of the endless stream hold a token of one of `sequences`, ascending.

        The other way round than `pieces`: a few passes over the index of each pass of the stream.
        """
        wanted = sequences[self.corpus.tokens.lengths[sequences] > 0]
        found = [np.zeros(0, np.int64)]
        for epoch in range(-(-count // self.per_epoch)):
            self.prepare(epoch * self.per_epoch, epoch * self.per_epoch)
            index = self._open[epoch]
            places = np.flatnonzero(np.isin(index.documents, wanted))
            # A sample goes from where it begins to the token with which the next one begins, which is its last label.
            first = np.searchsorted(index.samples[1:, 0], places, side="left")
            last = np.searchsorted(index.samples[:-1, 0], places, side="right")
            ranges = [np.arange(begin, end) for begin, end in zip(first.tolist(), last.tolist(), strict=True)]
            samples = np.concatenate(ranges) if ranges else found[0]
            numbers = np.flatnonzero(np.isin(index.shuffle[: self.per_epoch], samples))
            found.append(epoch * self.per_epoch + numbers)
        every = np.concatenate(found)
        return every[every < count]

    def read(self, number: int, row: npt.NDArray[np.int64]) -> None:
        """Fill `row`, int64 (sequence_length + 1,), with sample `number` of the endless stream."""
        filled = 0
        for sequence, offset, length in self.pieces(number):
            row[filled : filled + length] = self.corpus.tokens.read(sequence, offset, length)
            filled += length

    def __getitem__(self, number: int) -> npt.NDArray[np.int64]:
        """Sample `number` of the endless stream: int64 (sequence_length + 1,)."""
        row = np.empty(self.sequence_length + EXTRA, np.int64)
        self.read(number, row)
        return row
