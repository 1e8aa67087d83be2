"""Samples of several corpora in fixed proportions, in an order that depends on the weights and the position alone.

The corpus of each sample is the one furthest behind its share, as in Megatron-LM: a loop of a few additions per
sample, worked out for a block of samples at a time. The state after each block is kept on disk, so that a run that
resumes at sample n does not begin at sample 0.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gpt2_train.data.corpus import Corpus
from gpt2_train.data.index import EXTRA, IndexCache
from gpt2_train.data.streams import Stream

BLEND_BLOCK = 1 << 18
"""Samples for which the choice of corpus is worked out at a time, about a fifth of a second."""


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

    def locate(self, first: int, count: int) -> list[tuple[int, int]]:
        """(stream, sample in the stream) of the global samples `first` to `first + count - 1`."""
        if len(self.streams) == 1:
            return [(0, number) for number in range(first, first + count)]
        found: list[tuple[int, int]] = []
        while count:
            block, offset = divmod(first, BLEND_BLOCK)
            picks, before = self._block(block)
            part = picks[offset : offset + count]
            taken = [before[stream] + int((picks[:offset] == stream).sum()) for stream in range(len(self.streams))]
            for pick in part.tolist():
                found.append((pick, taken[pick]))
                taken[pick] += 1
            first, count = first + len(part), count - len(part)
        return found

    def samples_with(self, stream: int, sequences: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Which of the first `count` global samples hold a token of one of the `sequences` of a stream, ascending."""
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

    def epochs_ended(self, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """(stream, epochs finished) for each stream whose last sample of an epoch is among `places`."""
        return [
            (stream, sample // self.streams[stream].per_epoch + 1)
            for stream, sample in places
            if (sample + 1) % self.streams[stream].per_epoch == 0
        ]

    def read(
        self, places: Sequence[tuple[int, int]], out: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.int64]:
        """The samples at `places`: int64 (len(places), sequence_length + 1), in `out` if that is given."""
        rows = np.empty((len(places), self.streams[0].sequence_length + EXTRA), np.int64) if out is None else out
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
) -> Blend | None:
    """One split of all corpora; None, with the reason in one line, if no document falls into it.

    `say` gets that line, and one about each split that is shorter than a sequence.
    """
    used = [number for number, corpus in enumerate(corpora) if corpus.split_tokens(split)]
    if not used and all(corpus.shares[split] == 0 for corpus in corpora):
        say(f"no {split} split: its share in --split is 0.")
        return None
    if not used:
        documents = sum(corpus.tokens.documents for corpus in corpora)
        say(f"no documents for the {split} split: {documents:,} are too few for its share; give it more with --split.")
        return None
    streams = [Stream(corpora[number], split, sequence_length, seed, cache) for number in used]
    for stream in streams:
        if stream.is_shorter_than_a_sample:
            say(
                f"warning: the {split} split of {stream.corpus.prefix} has {stream.epoch_tokens:,} tokens, fewer than "
                f"one sequence of {sequence_length:,}: its documents repeat within a sequence; give more text, or a "
                "shorter --sequence-length."
            )
    return Blend(streams, [weights[number] for number in used] if weights is not None else None, cache)
