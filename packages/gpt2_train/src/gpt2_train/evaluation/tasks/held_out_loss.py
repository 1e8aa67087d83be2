"""The task `held-out-loss`: loss, perplexity and bits per byte on token files, compared with a baseline.

A loss says little by itself, so a unigram model, which knows only how frequent each token is, is scored on the same
tokens: a model that is not clearly better has not learned from context. Losses of different tokenizers do not
compare; bits per byte do. Which documents are held out follows from the split of the training run, which the
checkpoint records. The baseline follows from counts of token ids; the text is read once for it and never kept.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from command_kit import Progress, setting
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import DataSettings, parse_split
from gpt2_train.data.corpus import SPLITS, Corpus, made_with
from gpt2_train.evaluation.tasks import Task, figure, perplexity
from indexed_tokens import Tokenizer, held_out_prefix

if TYPE_CHECKING:
    from gpt2_train.conversion.formats import StoredModel
    from gpt2_train.inference.scorer import Scorer

Counts = npt.NDArray[np.int64]
"""Counts of each token id, (vocabulary,)."""


def count_tokens(pieces: Iterable[npt.NDArray[np.int64]], vocabulary_size: int, where: str) -> tuple[Counts, int]:
    """Counts of each id in `pieces`, and the first id (-1 if there is none).

    Raises Gpt2UsageError, naming `where`, for an id that the vocabulary does not have.
    """
    counts, first = np.zeros(vocabulary_size, np.int64), -1
    for piece in pieces:
        if not len(piece):
            continue
        low, high = int(piece.min()), int(piece.max())
        if low < 0 or high >= vocabulary_size:
            raise Gpt2UsageError(
                f"{where} holds the token id {high if high >= vocabulary_size else low}, but the model's vocabulary "
                f"has {vocabulary_size:,} ids: give data made with the tokenizer that the model was trained with."
            )
        counts += np.bincount(piece, minlength=vocabulary_size)
        first = int(piece[0]) if first < 0 else first
    return counts, first


def count_after(pieces: Iterable[npt.NDArray[np.int64]], token: int | None, vocabulary_size: int) -> Counts:
    """Counts of each id that follows `token` in concatenated `pieces`."""
    counts, last = np.zeros(vocabulary_size, np.int64), -1
    for piece in pieces:
        before = np.concatenate([[last], piece[:-1]])
        counts += np.bincount(piece[before == token], minlength=vocabulary_size)
        last = int(piece[-1]) if len(piece) else last
    return counts


def unigram_loss(targets: Counts, fitted: Counts | None = None) -> float:
    """The mean loss in nats of a model that knows only how frequent each token is.

    Args:
        targets: how often each token is to be predicted.
        fitted: how often each occurred where the model learned; with add-one smoothing, so that a token never seen
            has a probability, too. None for the best that such a model could do on the targets: their entropy.
    """
    seen = targets > 0
    if fitted is None:
        probabilities = targets[seen] / targets.sum()
    else:
        probabilities = (fitted[seen] + 1) / (fitted.sum() + len(fitted))
    return float(-(targets[seen] * np.log(probabilities)).sum() / targets.sum())


def text_bytes(targets: Counts, tokenizer: Tokenizer, end: int | None) -> int | None:
    """UTF-8 bytes of the text that the targets make up, without the ends of documents (`end`), which are not text.

    None if the tokenizer does not know one of the ids.
    """
    total = 0
    for number in np.flatnonzero(targets).tolist():
        if number == end:
            continue
        try:
            total += int(targets[number]) * len(tokenizer.decode_bytes([number]))
        except ValueError:
            return None
    return total


HELD_OUT = ("valid", "test")
NAMES = ("all", *SPLITS)

PIECE_TOKENS = 1 << 20
"""Tokens read at a time, about: documents are gathered until there are as many."""

BASELINE_TOKENS = 1 << 25
"""Tokens of the training split, evenly spaced, that the baseline learns from at most. Fewer tokens cost it about
vocabulary / (2 · tokens) nats, here under a thousandth; counting all of 9 billion takes a minute and a half."""


class ScoredSplit(NamedTuple):
    """A split that is to be scored.

    Attributes:
        corpus: the token files that hold it.
        split: `train`, `valid`, `test` or `all`.
        weights: shares of the documents; empty where they were held out when they were tokenized.
        tokens: to score.
        size: tokens of the split.
        bytes: of the text to score; None without a tokenizer.
        baseline: what the unigram model achieves.
    """

    corpus: Corpus
    split: str
    weights: str
    tokens: int
    size: int
    bytes: int | None
    baseline: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class HeldOutLoss(Task):
    """The loss of each token of a split of token files, once. Raises Gpt2UsageError where a setting is out of range."""

    name: ClassVar[str] = "held-out-loss"
    summary: ClassVar[str] = "loss, perplexity and bits per byte on token files"
    source: ClassVar[str] = "data"

    data: str = setting("", "token files to predict, as the prefix of .bin/.idx", metavar="PREFIX", positional=True)
    split: str | None = setting(
        None,
        "which part of the data: train, valid, test or all; valid for data that the model was trained on, else all",
        metavar="NAME",
    )
    split_weights: str | None = setting(
        None,
        "shares of the documents for training, validation and test; without it the training run's",
        metavar="A,B,C",
    )
    max_tokens: int | None = setting(None, "score only this many tokens, from the beginning of the split", ge=1)

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in NAMES:
            raise Gpt2UsageError(
                f"--split {self.split} should be one of {', '.join(NAMES)}; shares are --split-weights."
            )
        if self.split_weights is not None:
            parse_split(self.split_weights, "--split-weights")

    def read(self, model: StoredModel) -> ScoredSplit:
        """Open the token files, and score them with the baseline.

        Raises Gpt2UsageError if the data are missing, damaged, empty or made with another tokenizer.
        """
        if not self.data:
            raise Gpt2UsageError(
                "gpt2 evaluate held-out-loss needs PREFIX: give that of .bin/.idx files from `webtext tokenize`."
            )
        weights = self.split_weights or str(model.settings.get("split", DataSettings().split))
        corpus = Corpus(self.data, parse_split(weights, "--split-weights"))
        check_tokenizer(model, self.data)
        split = self._choose_split(model, corpus)
        held_in = corpus.holding(split)
        size = held_in.split_tokens(split)
        if size < 2:
            raise Gpt2UsageError(
                f"the {split} split of {self.data} holds {size} tokens ({held_in.tokens.documents:,} documents, "
                f"--split-weights {weights}), and the first can't be predicted: give it more with --split-weights, "
                "or take --split all."
            )
        is_trained_on = corpus.identity()["digest"] in [entry.get("digest") for entry in model.data]
        if model.tokenizer is not None and not is_trained_on and made_with(self.data) is None:
            told = f"nothing says what tokenizer made {self.data}: taking the model's for it."
            print(f"gpt2: {told}", file=sys.stderr)
        tokens = min(size - 1, self.max_tokens or size)
        known = model.config.vocabulary_size
        targets, first = count_tokens(split_pieces(held_in, split, most=tokens + 1), known, self.data)
        targets[first] -= 1
        if model.masks_end_of_text:
            targets -= count_after(split_pieces(held_in, split, most=tokens + 1), model.end_of_text, known)
        tokenizer = model.tokenizer
        return ScoredSplit(
            held_in,
            split,
            "" if corpus.held_out is not None else weights,
            tokens,
            size,
            bytes=text_bytes(targets, tokenizer, model.end_of_text) if tokenizer is not None else None,
            baseline=baseline_of(corpus, split, targets, known),
        )

    def measure(self, scorer: Scorer, found: ScoredSplit) -> dict[str, Any]:
        """Score the split."""
        with Progress("evaluate", "tokens", found.tokens) as progress:
            pieces = split_pieces(found.corpus, found.split, most=found.tokens + 1)
            total, scored = scorer.text_loss(pieces, progress.advance)
        loss = total / scored
        return {
            "data": self.data,
            "split": found.split,
            "split_weights": (found.weights or None) if found.split != "all" else None,
            "documents": count_documents(found.corpus, found.split),
            "tokens": scored,
            "of_tokens": found.size,
            "loss": loss,
            "perplexity": perplexity(loss),
            "bytes": found.bytes,
            "bits_per_byte": total / math.log(2) / found.bytes if found.bytes else None,
            **found.baseline,
        }

    def _choose_split(self, source: StoredModel, corpus: Corpus) -> str:
        """The split asked for; without one, `valid` of the model's own training data and all of any other.

        Says on standard error what makes a result less than it seems: text that the model was trained on.
        """
        digest = corpus.identity()["digest"]
        known = [entry for entry in source.data if entry.get("digest") == digest]
        is_training_data = bool(known)
        split = self.split or ("valid" if is_training_data else "all")
        if split in HELD_OUT and corpus.held_out is None and any("held_out" in entry for entry in known):
            raise Gpt2UsageError(
                f"the model was trained on all of {self.data}, and {held_out_prefix(self.data)}, which was held out of "
                "it, is gone: bring it back, or give other data."
            )
        trained_weights = source.settings.get("split")
        if is_training_data and split in ("train", "all"):
            print(f"gpt2: the model was trained on {self.data}: this is not a held-out loss.", file=sys.stderr)
        elif is_training_data and self.split_weights is not None and self.split_weights != trained_weights:
            print(
                f"gpt2: the model was trained on {self.data} with the shares {trained_weights}: with "
                f"{self.split_weights} the {split} split may hold documents that it has seen.",
                file=sys.stderr,
            )
        return split

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Loss, perplexity, bits per byte and baseline."""
        weights = f" of {result['split_weights']}" if result["split_weights"] else ""
        if result["split"] in HELD_OUT and not weights:
            weights = ", held out when it was tokenized"
        all_but_first = result["tokens"] == result["of_tokens"] - 1
        share = "all but the first" if all_but_first else f"the first of {result['of_tokens']:,}"
        if not all_but_first and self.max_tokens is None:
            share = "all but the first of each document"
        return [
            f"on {result['data']}, split {result['split']}{weights}: {result['documents']:,} documents, "
            f"{result['tokens']:,} tokens scored ({share})",
            f"  loss           {result['loss']:.4f} nats per token",
            f"  perplexity     {figure(result['perplexity'])}",
            f"  bits per byte  {figure(result['bits_per_byte'], 4)}",
            f"  unigram loss   {result['unigram_loss']:.4f} nats per token, perplexity "
            f"{figure(result['unigram_perplexity'])} ({result['unigram']})",
        ]


def check_tokenizer(source: StoredModel, data: str) -> None:
    """Raise Gpt2UsageError if token files are known to be made with another tokenizer than the model's."""
    expected = source.tokenizer.fingerprint if source.tokenizer is not None else source.trained_with
    found = made_with(data)
    if found is not None and expected is not None and found != expected:
        raise Gpt2UsageError(
            f"{data} was made with another tokenizer than the model's: tokenize the text again with the tokenizer "
            f"in {source.origin}."
        )


def count_documents(corpus: Corpus, split: str) -> int:
    """The documents of a split that hold tokens."""
    begin, end = corpus.range_of(split)
    index = corpus.tokens.document_index
    starts = index[:-1][np.diff(index) > 0]
    return int(((starts >= begin) & (starts < end)).sum())


def split_pieces(
    corpus: Corpus, split: str, *, most: int | None = None, size: int = PIECE_TOKENS
) -> Iterator[npt.NDArray[np.int64]]:
    """The tokens of a split in the order of the file, its first `most` only.

    Pieces are of at least `size` tokens but for the last, longer by at most one document.
    """
    begin, end = corpus.range_of(split)
    left = math.inf if most is None else most
    gathered: list[npt.NDArray[np.int64]] = []
    waiting = 0
    for sequence in range(begin, end):
        if left <= 0:
            break
        tokens = corpus.tokens[sequence]
        gathered.append(tokens[: int(min(left, len(tokens)))].astype(np.int64))
        left -= len(tokens)
        waiting += len(gathered[-1])
        if waiting >= size:
            yield np.concatenate(gathered)
            gathered, waiting = [], 0
    if gathered:
        yield np.concatenate(gathered)


def baseline_of(corpus: Corpus, split: str, targets: npt.NDArray[np.int64], known: int) -> dict[str, Any]:
    """The unigram model's part of a result: learned from the training split for held-out text, else from the text."""
    how, fitted = "entropy of the scored text itself", None
    if split in HELD_OUT:
        fitted = count_tokens(corpus.sampled_pieces("train", BASELINE_TOKENS), known, corpus.prefix)[0]
        is_all = int(fitted.sum()) == corpus.split_tokens("train")
        source = "the train split" if is_all else f"{fitted.sum():,} evenly spaced tokens of the train split"
        how = f"fitted on {source}, add-one smoothing"
    loss = unigram_loss(targets, fitted)
    return {"unigram": how, "unigram_loss": loss, "unigram_perplexity": perplexity(loss)}
