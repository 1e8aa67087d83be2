"""Token files and their splits: which documents are for training, which for validation and test.

A split is a contiguous range of sequences, as in Megatron-LM, moved to the end of a document so that no document is in
two splits. Where `webtext tokenize --hold-out` left PREFIX_held_out, that is the validation split, and all of PREFIX is
for training. Opening costs what `IndexedTokens` costs; no tokens are read. Nothing here knows of other processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2_train.config.errors import Gpt2UsageError
from indexed_tokens import IndexedTokens, check_token_files, corpus_tokenizer, held_out_prefix, idx_path
from indexed_tokens.checksums import recorded_facts

SPLITS = ("train", "valid", "test")

PIECE_TOKENS = 1 << 16
"""Tokens in each of the evenly spaced pieces of `Corpus.sampled_pieces`."""


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


class Corpus:
    """One pair of token files and its three splits.

    Args:
        prefix: path of the files without `.bin` and `.idx`.
        weights: shares of the documents for training, validation and test, of any sum above 0; without effect where
            documents were held out.

    Attributes:
        tokens: the files.
        held_out: the documents that were held out of them, which are the validation split; None where there are none.
        ranges: the sequences [begin, end) of each split in `tokens`.
        shares: the share of each split, as asked for.

    Raises IndexedTokensError for files that are missing or damaged, as far as sizes and the index tell (the tokens are
    not read), Gpt2UsageError for an empty one, or if held-out documents may be among the others.
    """

    def __init__(self, prefix: str, weights: Sequence[float]) -> None:
        self.prefix = prefix
        self.tokens = _opened(prefix)
        self.held_out: Corpus | None = None
        held_out = held_out_prefix(prefix)
        if idx_path(held_out).is_file():
            _check_held_out(prefix, held_out)
            self._split(train=(0, len(self.tokens)))
            self.held_out = Corpus(str(held_out), [1])
            self.held_out._split(valid=(0, len(self.held_out.tokens)))
        else:
            weights = [*weights, *[0] * (len(SPLITS) - len(weights))]
            self.ranges = dict(zip(SPLITS, split_ranges(self.tokens.document_index, weights), strict=True))
            self.shares = {split: weight / sum(weights) for split, weight in zip(SPLITS, weights, strict=True)}

    def _split(self, **ranges: tuple[int, int]) -> None:
        """Assign all sequences to one split."""
        self.ranges = {split: ranges.get(split, (0, 0)) for split in SPLITS}
        self.shares = {split: float(split in ranges) for split in SPLITS}

    def holding(self, split: str) -> Corpus:
        """The corpus whose files hold a split: this one, or of the validation split what was held out of it."""
        return self.held_out if split == "valid" and self.held_out is not None else self

    def range_of(self, split: str) -> tuple[int, int]:
        """The sequences [begin, end) of a split, or of `all`."""
        return self.ranges[split] if split != "all" else (0, len(self.tokens))

    def split_tokens(self, split: str) -> int:
        """Tokens in one split of these files, or in `all`."""
        begin, end = self.range_of(split)
        return int(self.tokens.lengths[begin:end].sum(dtype=np.int64))

    def share_bounded_by(self, token: int | None, most: int = 64) -> float:
        """The share of up to `most` evenly spaced documents that begin or end with `token`, which divides them then.

        A document is what the index says, or each of its sequences: some programs write an index of a single document.
        """
        lengths, index = self.tokens.lengths, self.tokens.document_index
        shares = [0.0]
        for bounds in (index, range(len(lengths) + 1)):
            found = []
            for number in range(0, len(bounds) - 1, max(1, -(-(len(bounds) - 1) // most))):
                first = int(bounds[number])
                filled = first + np.flatnonzero(lengths[first : int(bounds[number + 1])])
                if len(filled):
                    last = int(filled[-1])
                    begins = int(self.tokens.read(int(filled[0]), 0, 1)[0]) == token
                    found.append(begins or int(self.tokens.read(last, int(lengths[last]) - 1, 1)[0]) == token)
            shares.append(sum(found) / max(1, len(found)))
        return max(shares)

    def highest_id(self, most: int = 1 << 20) -> int:
        """The highest of about `most` evenly spaced token ids of the training split, or of all if it has less."""
        return max((int(piece.max()) for piece in self.sampled_pieces("train", most) if len(piece)), default=0)

    def sampled_pieces(self, split: str, most: int) -> Iterator[npt.NDArray[np.int64]]:
        """Tokens of a split in evenly spaced pieces of 64 k, the same every time: about `most`, or all if it has less.

        Pieces run on over the ends of documents and are in the order of the files.
        """
        begin, end = self.ranges[split]
        ends = self.tokens.lengths[begin:end].cumsum(dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        count = min(-(-total // PIECE_TOKENS), max(1, most // PIECE_TOKENS))
        starts = [total * piece // count for piece in range(count)] + [total]
        for start, following in itertools.pairwise(starts):
            length = min(PIECE_TOKENS, following - start)
            first = int(np.searchsorted(ends, start, side="right"))
            yield self._run_of_tokens(begin + first, start - (int(ends[first - 1]) if first else 0), length)

    def _run_of_tokens(self, sequence: int, offset: int, length: int) -> npt.NDArray[np.int64]:
        """`length` tokens from `offset` of a sequence on, over its end."""
        parts = []
        while length:
            part = self.tokens.read(sequence, offset, min(length, int(self.tokens.lengths[sequence]) - offset))
            parts.append(part)
            length -= len(part)
            sequence, offset = sequence + 1, 0
        return np.concatenate(parts, dtype=np.int64)

    def identity(self) -> dict[str, Any]:
        """Its identity, by which a change is noticed: sizes, and a digest of lengths and sampled tokens."""
        held_out = {"held_out": self.held_out.tokens.identity()["digest"]} if self.held_out is not None else {}
        return {**self.tokens.identity(), **held_out}


def _opened(prefix: str) -> IndexedTokens:
    tokens = IndexedTokens(prefix)
    check_token_files(prefix)
    if tokens.dtype.kind not in "iu":
        raise Gpt2UsageError(f"{prefix} stores tokens as {tokens.dtype}: token ids are whole numbers.")
    if tokens.total_tokens == 0:
        raise Gpt2UsageError(f"{prefix} holds no tokens: make it again with `webtext tokenize`, or give another.")
    return tokens


def _check_held_out(prefix: str, held_out: Path) -> None:
    """Raise Gpt2UsageError if by their records the training files may hold documents that are held out, or two
    tokenizers made them."""
    shares = [recorded_facts(path).get("hold_out", 0) for path in (prefix, held_out)]
    if shares[0] < shares[1]:
        raise Gpt2UsageError(
            f"{held_out} holds the pages of `webtext tokenize --hold-out {shares[1]:g}`, and {prefix} was made with "
            f"{shares[0]:g}, so that it may hold them, too: tokenize it again with the same share, or move the files."
        )
    known = [made_with(str(path)) for path in (prefix, held_out)]
    if None not in known and known[0] != known[1]:
        raise Gpt2UsageError(f"{prefix} and {held_out} have different tokenizers: tokenize one of them again.")


def open_corpora(
    entries: Sequence[tuple[float | None, str]], split: Sequence[float]
) -> tuple[list[Corpus], list[float] | None]:
    """The corpora of `--data` and their weights (None where they go by size). Raises as `Corpus` does."""
    corpora = [Corpus(prefix, split) for _, prefix in entries]
    weights = [weight for weight, _ in entries if weight is not None]
    return corpora, weights or None


def recorded_fingerprint(prefix: str) -> str | None:
    """The tokenizer's fingerprint in the record that `webtext tokenize` leaves next to token files; None without it."""
    found = recorded_facts(prefix).get("tokenizer")
    return found if isinstance(found, str) else None


def made_with(prefix: str) -> str | None:
    """The fingerprint of the tokenizer next to token files, else the recorded one; None if there is neither.

    Raises IndexedTokensError if the tokenizer is damaged.
    """
    beside = corpus_tokenizer(prefix)
    return beside.fingerprint if beside is not None else recorded_fingerprint(prefix)
