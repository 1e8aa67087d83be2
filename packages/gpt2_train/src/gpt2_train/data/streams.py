"""Endless streams of shuffled training samples, and several of them blended in fixed proportions.

Sample i of a stream depends on the seed and on i alone, so that any number of data-parallel processes reads the same
global batch, and a run that resumes, also at another size, or that is made longer, reads on exactly where it stopped.
The index is built for one pass over the split at a time: every token is seen once before any is seen again, passes
follow each other without end, and the memory is that of one pass, memory-mapped. Lost is only the rest of a pass
that does not fill a sequence.

In a blend the corpus of each sample is the one furthest behind its share, as in Megatron-LM: a loop of a few additions
per sample, worked out for a block of samples at a time. The order depends on the weights and the position alone. The
state after each block is kept on disk, so that a run that resumes at sample n does not begin at sample 0.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.corpus import Corpus
from gpt2_train.data.index import (
    EXTRA,
    INDEX_VERSION,
    IndexCache,
    SampleIndex,
    build_sample_index,
    hashed_index,
    stream_seed,
)
from gpt2_train.data.order import RunOrder, document_keys, sequence_hashes

BLEND_BLOCK = 1 << 18
"""Samples for which the choice of corpus is worked out at a time, about a fifth of a second."""


class Stream:
    """The endless, shuffled samples of one split of one corpus.

    Args:
        corpus: the token files.
        split: `train`, `valid` or `test`; it must hold tokens.
        sequence_length: tokens in a sample, less the one extra.
        seed: the run's seed.
        cache: where the indices are kept; with a `SharedIndexCache` all processes call `prepare` together.
        order: that of a whole run by what the documents hold; None for a shuffle of each pass by position.

    A split with fewer tokens than one sample has its documents repeated to fill one.
    Call `prepare` before reading samples of a pass not read before. Raises Gpt2UsageError for an empty split.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        sequence_length: int,
        seed: int,
        cache: IndexCache,
        order: RunOrder | None = None,
    ) -> None:
        self.corpus, self.split, self.cache, self.order = corpus, split, cache, order
        self.sequence_length, self.seed = sequence_length, seed
        self.epoch_tokens = corpus.split_tokens(split)
        if self.epoch_tokens == 0:
            raise Gpt2UsageError(f"the {split} split of {corpus.prefix} holds no tokens: change --split or --data.")
        self.per_epoch = max(1, (self.epoch_tokens - EXTRA) // sequence_length)
        self._open: dict[int, SampleIndex] = {}

    def prepare(self, first: int, last: int) -> None:
        """Open the indices for samples `first` to `last`, both included; those that are missing are built."""
        oldest = self._located(first)[0]
        for epoch in range(oldest, self._located(last)[0] + 1):
            if epoch not in self._open:
                name = f"{self.split}-{self._key(epoch)}"
                self._open[epoch] = self.cache.sample_index(name, functools.partial(self._build, epoch))
        for epoch in [old for old in self._open if old < oldest - 1]:
            del self._open[epoch]

    def _located(self, number: int) -> tuple[int, int]:
        """The index in which a sample of the endless stream is, and its place there: one index holds a whole run."""
        return (0, number) if self.order is not None else divmod(number, self.per_epoch)

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
            **({"order": list(self.order)} if self.order is not None else {}),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def _build(self, epoch: int) -> SampleIndex:
        begin, end = self.corpus.ranges[self.split]
        if self.order is not None:
            hashes = sequence_hashes(self.corpus.tokens, begin, end)
            return hashed_index(
                self.corpus.tokens.lengths,
                np.arange(begin, end),
                sequence_length=self.sequence_length,
                keys=document_keys(hashes, self.seed),
                run=self.order,
            )
        return build_sample_index(
            self.corpus.tokens.lengths,
            np.arange(begin, end),
            sequence_length=self.sequence_length,
            seed=stream_seed(self.seed, self.split, epoch),
        )

    def pieces(self, number: int) -> Iterator[tuple[int, int, int]]:
        """(sequence, token offset in it, tokens) of each piece of sample `number`, in order; pieces may be empty.

        A new piece is where a sequence of the token files begins: what separate attention for documents needs.
        """
        epoch, position = self._located(number)
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
        """Numbers of the samples, of the first `count`, that hold a token of one of `sequences`, ascending.

        The other way round than `pieces`: a few passes over the index of each pass of the stream.
        """
        wanted = sequences[self.corpus.tokens.lengths[sequences] > 0]
        if self.order is not None:
            self.prepare(0, 0)
            chosen, most = set(wanted.tolist()), min(count, self.order.steps * self.order.batch)
            holding = [n for n in range(most) if any(sequence in chosen for sequence, _, _ in self.pieces(n))]
            return np.array(holding, np.int64)
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


def blend_picks(weights: Sequence[float], taken: list[int], count: int) -> npt.NDArray[np.int16]:
    """The corpus of each of the next `count` samples, after `taken[c]` samples of each; updates `taken`.

    Each step picks the corpus that is furthest behind its share: the largest `w · max(k, 1) - taken`, the first of
    equals, where k is how many samples were drawn so far. `weights` sum to 1.
    """
    picks = np.empty(count, dtype=np.int16)
    corpora = range(len(weights))
    drawn = sum(taken)
    for place in range(count):
        scale = max(drawn, 1)
        best, most = 0, -math.inf
        for corpus in corpora:
            behind = weights[corpus] * scale - taken[corpus]
            if behind > most:
                best, most = corpus, behind
        picks[place] = best
        taken[best] += 1
        drawn += 1
    return picks


class Blend:
    """Samples of several streams in fixed proportions; of a single one, just that stream.

    Args:
        streams: what to blend.
        weights: their shares, of any sum; None for shares by tokens.
        cache: where the state after each block is kept.
    """

    def __init__(self, streams: Sequence[Stream], weights: Sequence[float] | None, cache: IndexCache) -> None:
        self.streams = list(streams)
        raw = list(weights) if weights is not None else [float(stream.epoch_tokens) for stream in streams]
        self.weights = [weight / sum(raw) for weight in raw]
        self.cache = cache
        self._name = f"blend-{hashlib.sha256(json.dumps(self.weights).encode()).hexdigest()[:24]}"
        self._blocks: dict[int, tuple[npt.NDArray[np.int16], list[int]]] = {}

    @property
    def epoch_tokens(self) -> int:
        """Tokens in one pass over all streams."""
        return sum(stream.epoch_tokens for stream in self.streams)

    @property
    def epoch_samples(self) -> int:
        """Samples in one pass over all streams."""
        return sum(stream.per_epoch for stream in self.streams)

    def _block(self, number: int) -> tuple[npt.NDArray[np.int16], list[int]]:
        """The picks of one block of samples and how many of each stream were taken before it."""
        if number not in self._blocks:
            taken = [0] * len(self.streams)
            start = 0
            for earlier in range(number, 0, -1):
                kept = self.cache.blend_state(self._name, earlier)
                if kept is not None:
                    taken, start = kept, earlier
                    break
            for block in range(start, number + 1):
                before = list(taken)
                picks = blend_picks(self.weights, taken, BLEND_BLOCK)
                self.cache.keep_blend_state(self._name, block + 1, taken)
            self._blocks[number] = (picks, before)
            for old in [block for block in self._blocks if block < number - 1]:
                del self._blocks[old]
        return self._blocks[number]

    def taken(self, count: int) -> list[int]:
        """Counts of the samples of each stream among the first `count` global ones."""
        if len(self.streams) == 1:
            return [count]
        block, offset = divmod(count, BLEND_BLOCK)
        picks, before = self._block(block)
        return [taken + int((picks[:offset] == stream).sum()) for stream, taken in enumerate(before)]

    def locate(self, first: int, count: int) -> list[tuple[int, int]]:
        """(stream, sample in the stream) of the global samples `first` to `first + count - 1`."""
        if len(self.streams) == 1:
            return [(0, number) for number in range(first, first + count)]
        found: list[tuple[int, int]] = []
        while count:
            block, offset = divmod(first, BLEND_BLOCK)
            part, taken = self._block(block)[0][offset : offset + count], self.taken(first)
            for pick in part.tolist():
                found.append((pick, taken[pick]))
                taken[pick] += 1
            first, count = first + len(part), count - len(part)
        return found

    def samples_with(self, stream: int, sequences: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Numbers of the global samples, of the first `count`, with a token of a stream's `sequences`, ascending."""
        own = self.streams[stream].samples_with(sequences, count)
        if len(self.streams) == 1:
            return own
        found = [np.zeros(0, np.int64)]
        for block in range(-(-count // BLEND_BLOCK)):
            picks, before = self._block(block)
            places = np.flatnonzero(picks == stream)
            first, last = np.searchsorted(own, [before[stream], before[stream] + len(places)])
            found.append(block * BLEND_BLOCK + places[own[first:last] - before[stream]])
        every = np.concatenate(found)
        return every[every < count]

    def prepare(self, first: int, count: int) -> list[tuple[int, int]]:
        """Open what the global samples `first` to `first + count - 1` need; returns their places.

        With a `SharedIndexCache` all processes call this together.
        """
        places = self.locate(first, count)
        for number, stream in enumerate(self.streams):
            samples = [sample for pick, sample in places if pick == number]
            if samples:
                stream.prepare(samples[0], samples[-1])
        return places

    def read(self, places: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """The samples at `places`: int64 (len(places), sequence_length + 1)."""
        rows = np.empty((len(places), self.streams[0].sequence_length + EXTRA), np.int64)
        for row, (stream, sample) in zip(rows, places, strict=True):
            self.streams[stream].read(sample, row)
        return rows


def blend_split(
    corpora: Sequence[Corpus],
    weights: Sequence[float] | None,
    split: str,
    *,
    sequence_length: int,
    seed: int,
    cache: IndexCache,
    say: Callable[[str], None],
    order: RunOrder | None = None,
) -> Blend | None:
    """One split of all corpora; None, with the reason in one line, if no document falls into it.

    `say` gets that line, and one about each split that is shorter than a sequence.
    """
    corpora = [corpus.holding(split) for corpus in corpora]
    used = [number for number, corpus in enumerate(corpora) if corpus.split_tokens(split)]
    if not used and all(corpus.shares[split] == 0 for corpus in corpora):
        say(f"no {split} split: its share in --split is 0.")
        return None
    if not used:
        documents = sum(corpus.tokens.documents for corpus in corpora)
        say(f"no documents for the {split} split: {documents:,} are too few for its share; give it more with --split.")
        return None
    streams = [Stream(corpora[number], split, sequence_length, seed, cache, order) for number in used]
    for stream in streams:
        if stream.epoch_tokens < sequence_length + EXTRA:
            say(
                f"warning: the {split} split of {stream.corpus.prefix} has {stream.epoch_tokens:,} tokens, fewer than "
                f"one sequence of {sequence_length:,}: its documents repeat within a sequence; give more text, or a "
                "shorter --sequence-length."
            )
    return Blend(streams, [weights[number] for number in used] if weights is not None else None, cache)
