"""From token files to training samples: splits by document, a shuffled sample index, blending of corpora.

Sample i of a stream depends on the seed and on i alone, so that any number of data-parallel processes reads the same
global batch, and a run that resumes, also at another size, or that is made longer, reads on exactly where it stopped.
The index is Megatron-LM's (document index, sample index, shuffle index), built for one pass over the split at a time:
every token is seen once before any is seen again, passes follow each other without end, and the memory is that of one
pass, 12 bytes a sample and 4 a document, kept on disk and memory-mapped. What is lost is the rest of a pass that does
not fill a sequence.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit.atomic import atomic_folder, write_text
from gpt2_train.collectives import agreed, rank_and_size
from gpt2_train.errors import Gpt2UsageError
from indexed_tokens import IndexedTokens

SPLITS = ("train", "valid", "test")

EXTRA = 1
"""Tokens that a sample has more than its sequence length: its labels are its inputs moved by one."""

SEPARATE_LAST_EPOCH_BELOW = 0.80
"""The last of several epochs is shuffled on its own if less than this share of it is needed (Megatron-LM)."""

INDEX_VERSION = 1
"""Part of the cache's key: raise it when the same key would give other arrays."""


# --- splits ----------------------------------------------------------------------------------------------------------


def split_ranges(document_index: npt.NDArray[np.int64], weights: Sequence[float]) -> list[tuple[int, int]]:
    """Ranges [begin, end) of sequences for each of `weights`: contiguous, and no document in two of them.

    The bounds are `round(share · S)` of S sequences, as Megatron-LM has them, moved on to the end of the document that
    they fall into. The first range always gets a document if there is one; later ones may be empty.
    """
    sequences = int(document_index[-1])
    total = sum(weights)
    shares = list(itertools.accumulate(weight / total for weight in weights))
    bounds = [0]
    for position, share in enumerate(shares):
        bound = sequences if position == len(shares) - 1 else round(share * sequences)
        bound = int(document_index[np.searchsorted(document_index, min(bound, sequences), side="left")])
        if position == 0 and bound == 0 and sequences:
            bound = int(document_index[np.searchsorted(document_index, 0, side="right")])
        bounds.append(max(bound, bounds[-1]))
    return list(itertools.pairwise(bounds))


# --- the sample index, as Megatron-LM's GPTDataset builds it ---------------------------------------------------------


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
    before if `extra` is 0, as Megatron-LM does. Costs one cumulated sum and one binary search for each sample.
    """
    ends = np.cumsum(sizes[documents], dtype=np.int64)
    count = max(0, (int(ends[-1]) - extra) // sequence_length)
    starts = np.arange(count + 1, dtype=np.int64) * sequence_length
    position = np.searchsorted(ends, starts + (extra - 1), side="right")
    position[0] = 0
    offset = starts - np.where(position > 0, ends[position - 1], 0)
    dtype = np.int32 if len(documents) < 2**31 else np.int64
    return np.stack([position, offset], axis=1).astype(dtype)


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


# --- corpora ---------------------------------------------------------------------------------------------------------


class Corpus:
    """One pair of token files and its three splits.

    Raises IndexedTokensError for files that are missing or damaged, Gpt2UsageError for an empty one.
    """

    def __init__(self, prefix: str, weights: Sequence[float]) -> None:
        self.prefix = prefix
        self.tokens = IndexedTokens(prefix)
        if self.tokens.dtype.kind not in "iu":
            raise Gpt2UsageError(f"{prefix} stores tokens as {self.tokens.dtype}: token ids are whole numbers.")
        if self.tokens.total_tokens == 0:
            raise Gpt2UsageError(f"{prefix} holds no tokens: make it again with `webtext tokenize`, or give another.")
        ranges = split_ranges(self.tokens.document_index, weights)
        self.ranges = dict(zip(SPLITS, ranges, strict=True))

    def split_tokens(self, split: str) -> int:
        """Tokens in one split."""
        begin, end = self.ranges[split]
        return int(self.tokens.lengths[begin:end].sum(dtype=np.int64))

    def identity(self) -> dict[str, Any]:
        """What this corpus is, so that a changed one is noticed: sizes, and a digest of lengths and sampled tokens.

        The digest covers all lengths and up to 64 evenly spaced pieces of 4 kB of the tokens: a copy of the files is
        the same corpus, an edited one hardly ever is.
        """
        digest = hashlib.sha256(self.tokens.lengths.tobytes())
        digest.update(self.tokens.document_index.tobytes())
        with Path(f"{self.tokens.prefix}.bin").open("rb") as file:
            size = file.seek(0, 2)
            for place in sorted({size * piece // 64 for piece in range(64)} | {max(0, size - 4096)}):
                file.seek(place)
                digest.update(file.read(4096))
        fingerprint = self.tokens.fingerprint()
        return {
            "bin_bytes": fingerprint["bin_bytes"],
            "idx_bytes": fingerprint["idx_bytes"],
            "digest": digest.hexdigest()[:32],
        }


class Stream:
    """The endless, shuffled samples of one split of one corpus.

    Args:
        corpus: the token files.
        split: `train`, `valid` or `test`; it must hold tokens.
        sequence_length: tokens in a sample, less the one extra.
        seed: the run's seed.
        cache: folder for the indices; they are keyed by all that decides them.

    A split with fewer tokens than one sample has its documents repeated to fill one.
    Call `prepare` on all processes together before reading samples of a pass not read before.
    """

    def __init__(self, corpus: Corpus, split: str, sequence_length: int, seed: int, cache: Path) -> None:
        self.corpus, self.split, self.sequence_length, self.seed, self.cache = (
            corpus,
            split,
            sequence_length,
            seed,
            cache,
        )
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
        """Open the indices for samples `first` to `last`, both included; the first process builds what is missing."""
        for epoch in range(first // self.per_epoch, last // self.per_epoch + 1):
            if epoch not in self._open:
                self._open[epoch] = self._opened(epoch)
        for epoch in [old for old in self._open if old < first // self.per_epoch - 1]:
            del self._open[epoch]

    def _opened(self, epoch: int) -> SampleIndex:
        folder = self.cache / f"{self.split}-{self._key(epoch)}"
        rank = rank_and_size()[0]

        def build() -> None:
            if rank == 0:
                self._build(folder, epoch)

        agreed(build)
        # The index itself stays here: what is exchanged is only whether everyone could read it.
        index: list[SampleIndex] = []
        agreed(lambda: index.append(_read_index(folder)))
        return index[0]

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

    def _build(self, folder: Path, epoch: int) -> None:
        if folder.is_dir():
            try:
                _read_index(folder)
                return
            except Gpt2UsageError:
                shutil.rmtree(folder)
        begin, end = self.corpus.ranges[self.split]
        index = build_sample_index(
            self.corpus.tokens.lengths,
            np.arange(begin, end),
            sequence_length=self.sequence_length,
            samples=self.per_epoch,
            seed=stream_seed(self.seed, self.split, epoch),
        )
        with atomic_folder(folder) as unfinished:
            for field in dataclasses.fields(index):
                np.save(unfinished / f"{field.name}.npy", getattr(index, field.name), allow_pickle=False)

    def __getitem__(self, number: int) -> npt.NDArray[np.int64]:
        """Sample `number` of the endless stream: int64 (sequence_length + 1,)."""
        epoch, position = divmod(number, self.per_epoch)
        index = self._open[epoch]
        sample = int(index.shuffle[position])
        at, offset = (int(value) for value in index.samples[sample])
        wanted = self.sequence_length + EXTRA
        parts = []
        while wanted:
            piece = self.corpus.tokens[int(index.documents[at])][offset : offset + wanted]
            parts.append(piece)
            wanted -= len(piece)
            at, offset = at + 1, 0
        return np.concatenate(parts, dtype=np.int64)


def _read_index(folder: Path) -> SampleIndex:
    try:
        arrays = [
            np.load(folder / f"{field.name}.npy", mmap_mode="r", allow_pickle=False)
            for field in dataclasses.fields(SampleIndex)
        ]
    except (OSError, ValueError, EOFError) as error:
        raise Gpt2UsageError(f"the index {folder} can't be read ({error}): delete it, it is made again.") from error
    return SampleIndex(*arrays)


# --- blending --------------------------------------------------------------------------------------------------------

BLEND_BLOCK = 1 << 18
"""Samples for which the choice of corpus is worked out at a time, about a fifth of a second."""


def blend_picks(weights: Sequence[float], taken: list[int], count: int) -> npt.NDArray[np.int16]:
    """The corpus of each of the next `count` samples, after `taken[c]` samples of each; `taken` moves on.

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
        cache: folder that keeps the order once it was worked out.
    """

    def __init__(self, streams: Sequence[Stream], weights: Sequence[float] | None, cache: Path) -> None:
        self.streams = list(streams)
        raw = list(weights) if weights is not None else [float(stream.epoch_tokens) for stream in streams]
        self.weights = [weight / sum(raw) for weight in raw]
        key = hashlib.sha256(json.dumps(self.weights).encode()).hexdigest()[:24]
        self._cache = cache / f"blend-{key}"
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
            # The state after each block is kept, so that a run that resumes need not begin at the first sample.
            for earlier in range(number, 0, -1):
                state = self._cache / f"{earlier}.json"
                if state.is_file():
                    taken, start = json.loads(state.read_text()), earlier
                    break
            for current in range(start, number + 1):
                before = list(taken)
                picks = blend_picks(self.weights, taken, BLEND_BLOCK)
                if rank_and_size()[0] == 0:
                    write_text(self._cache / f"{current + 1}.json", json.dumps(taken))
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

    def prepare(self, first: int, count: int) -> list[tuple[int, int]]:
        """Open what the global samples `first` to `first + count - 1` need, on all processes; return their places."""
        places = self.locate(first, count)
        for number, stream in enumerate(self.streams):
            mine = [sample for pick, sample in places if pick == number]
            if mine:
                stream.prepare(mine[0], mine[-1])
        return places

    def epochs_ended(self, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """(stream, epochs finished) for each stream whose last sample of an epoch is among `places`."""
        return [
            (stream, sample // self.streams[stream].per_epoch + 1)
            for stream, sample in places
            if (sample + 1) % self.streams[stream].per_epoch == 0
        ]

    def read(self, places: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """The samples at `places`: int64 (len(places), sequence_length + 1)."""
        return np.stack([self.streams[stream][sample] for stream, sample in places])


class BatchReader:
    """Reads a process's share of each global batch, one step ahead of the training loop, in a thread.

    The global batch of step s (the first is 1) is samples (s - 1) · `global_batch` and on; process `rank` of `size`
    takes its contiguous share of the rows, so that the batch is the same at any number of processes.
    """

    def __init__(self, blend: Blend, *, global_batch: int, rank: int, size: int, vocabulary_size: int) -> None:
        self.blend, self.global_batch, self.vocabulary_size = blend, global_batch, vocabulary_size
        self.rows = slice(rank * (global_batch // size), (rank + 1) * (global_batch // size))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batch-reader")
        self._step = 0
        self._batch: concurrent.futures.Future[npt.NDArray[np.int64]] | None = None
        self._places: list[tuple[int, int]] = []

    def request(self, step: int) -> None:
        """Begin to read the batch of `step`; all processes call this together."""
        self._step = step
        self._places = self.blend.prepare((step - 1) * self.global_batch, self.global_batch)
        self._batch = self._thread.submit(self._read, self._places[self.rows])

    def take(self, step: int) -> tuple[npt.NDArray[np.int64], list[tuple[int, int]]]:
        """This process's rows of the batch of `step`, (rows, sequence_length + 1), and the epochs that end in it.

        The second value lists (stream, epochs finished). Raises Gpt2UsageError for token ids that the vocabulary lacks.
        """
        if self._step != step or self._batch is None:
            self.request(step)
        assert self._batch is not None
        return self._batch.result(), self.blend.epochs_ended(self._places)

    def _read(self, places: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
        samples = self.blend.read(places)
        check_vocabulary(samples, self.vocabulary_size, "the training data")
        return samples

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


def check_vocabulary(samples: npt.NDArray[np.int64], vocabulary_size: int, where: str) -> None:
    """Raise Gpt2UsageError if `samples` hold a token id that the vocabulary does not."""
    low, high = int(samples.min()), int(samples.max())
    if low < 0 or high >= vocabulary_size:
        raise Gpt2UsageError(
            f"{where} holds the token id {high if high >= vocabulary_size else low}, but the vocabulary has "
            f"{vocabulary_size:,} ids: the data was made with a tokenizer whose vocabulary doesn't match; "
            "give --tokenizer or --vocabulary-size, or tokenize again."
        )


def open_corpora(
    entries: Sequence[tuple[float | None, str]], split: Sequence[float]
) -> tuple[list[Corpus], list[float] | None]:
    """The corpora of `--data` and their weights (None where they go by size). Raises as `Corpus` does."""
    corpora = [Corpus(prefix, split) for _, prefix in entries]
    weights = [weight for weight, _ in entries if weight is not None]
    return corpora, weights or None


def blend_split(
    corpora: Sequence[Corpus],
    weights: Sequence[float] | None,
    split: str,
    *,
    sequence_length: int,
    seed: int,
    cache: Path,
    say: Callable[[str], None],
) -> Blend | None:
    """One split of all corpora; None, said in one line, if no document fell to it.

    `say` gets that line, and one about each split that is shorter than a sequence.
    """
    used = [number for number, corpus in enumerate(corpora) if corpus.split_tokens(split)]
    if not used:
        documents = sum(corpus.tokens.documents for corpus in corpora)
        say(f"no documents for the {split} split: {documents:,} are too few for its share; give it more with --split.")
        return None
    streams = [Stream(corpora[number], split, sequence_length, seed, cache) for number in used]
    for stream in streams:
        if stream.is_shorter_than_a_sample:
            say(
                f"the {split} split of {stream.corpus.prefix} has {stream.epoch_tokens:,} tokens, fewer than one "
                f"sequence of {sequence_length:,}: its documents repeat within a sequence."
            )
    return Blend(streams, [weights[number] for number in used] if weights is not None else None, cache)
