"""How well a model predicts a text: the loss of each of its tokens once, and what a model without context would reach.

The documents of a part are laid end to end and read in windows of the model's sequence length. Windows follow each
other without gap and share one token, the last target of one being the first input of the next: every token of the
part but the very first, which has nothing before it, is scored exactly once, with up to a whole window as its past
(on average half of one). Sums are in float64, so that the number of tokens does not matter to their accuracy. The
rows that pad the embedding are part of the softmax, as in training. Costs one forward pass over
the part, and one pass over its tokens beforehand that counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from gpt2_train.data import Corpus
from gpt2_train.device import autocast
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.loss import token_losses
from gpt2_train.model import GPT2
from indexed_tokens import Tokenizer

PIECE_TOKENS = 1 << 20
"""Tokens read at a time, about: documents are gathered until there are so many."""

Counts = npt.NDArray[np.int64]
"""How often each token id occurs, (vocabulary,)."""


def part_range(corpus: Corpus, part: str) -> tuple[int, int]:
    """The sequences [begin, end) of a part: `train`, `valid`, `test`, or `all`."""
    return corpus.ranges[part] if part != "all" else (0, len(corpus.tokens))


def count_documents(corpus: Corpus, part: str) -> int:
    """The documents of a part that hold tokens."""
    begin, end = part_range(corpus, part)
    index = corpus.tokens.document_index
    starts = index[:-1][np.diff(index) > 0]
    return int(((starts >= begin) & (starts < end)).sum())


def part_pieces(
    corpus: Corpus, part: str, *, most: int | None = None, size: int = PIECE_TOKENS
) -> Iterator[npt.NDArray[np.int64]]:
    """The tokens of a part in the order of the file, its first `most` only.

    Pieces are of at least `size` tokens but for the last, longer by at most one document.
    """
    begin, end = part_range(corpus, part)
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


def count_tokens(pieces: Iterable[npt.NDArray[np.int64]], vocabulary_size: int, where: str) -> tuple[Counts, int]:
    """How often each id occurs in `pieces`, and the first id (-1 if there is none).

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


def unigram_loss(targets: Counts, fitted: Counts | None = None) -> float:
    """The mean loss, in nats, of a model that knows only how frequent each token is.

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
    """UTF-8 bytes of the text that the targets are, without the ends of documents (`end`), which are no text.

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


def windows(pieces: Iterable[npt.NDArray[np.int64]], length: int, batch: int) -> Iterator[npt.NDArray[np.int64]]:
    """Batches (at most `batch`, at most `length` + 1) of windows over `pieces` laid end to end, in order.

    Neighbours share one token; the last window, if it is shorter, comes by itself, at least 2 tokens long.
    """
    rest = np.zeros(0, np.int64)
    for piece in pieces:
        rest = np.concatenate([rest, piece])
        whole = (len(rest) - 1) // length
        starts = np.arange(0, whole // batch * batch) * length
        for at in range(0, len(starts), batch):
            yield rest[starts[at : at + batch, None] + np.arange(length + 1)]
        rest = rest[len(starts) * length :]
    whole = (len(rest) - 1) // length if len(rest) else 0
    if whole:
        yield rest[np.arange(whole)[:, None] * length + np.arange(length + 1)]
    if len(rest) - whole * length > 1:
        yield rest[None, whole * length :]


@torch.inference_mode()
def total_loss(
    model: GPT2,
    batches: Iterable[npt.NDArray[np.int64]],
    *,
    precision: str = "fp32",
    count: Callable[[int], object] | None = None,
) -> tuple[float, int]:
    """(summed loss in nats, tokens scored) of `model`, in evaluation mode, over `batches` of windows.

    `count` is told how many tokens each batch scored. Raises Gpt2Error if the loss is not finite.
    """
    device = model.token_embedding.weight.device
    total, tokens = 0.0, 0
    for batch in batches:
        rows = torch.from_numpy(batch).to(device)
        with autocast(device, precision):
            logits = model(rows[:, :-1])
        losses = token_losses(logits, rows[:, 1:])
        total += float(losses.cpu().double().sum())
        tokens += losses.numel()
        del logits
        if not math.isfinite(total):
            raise Gpt2Error(
                "the model's loss is not finite: its training diverged, or --precision fp16 is too narrow for it; "
                "give an earlier checkpoint, or --precision fp32."
            )
        if count is not None:
            count(losses.numel())
    return total, tokens
