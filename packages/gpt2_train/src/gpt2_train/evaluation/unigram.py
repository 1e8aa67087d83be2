"""A model that knows only how frequent each token is: what a loss has to be compared with, and sizes in bytes.

All of it follows from counts of token ids; the text itself is read once and never kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gpt2_train.config.errors import Gpt2UsageError
from indexed_tokens import Tokenizer

Counts = npt.NDArray[np.int64]
"""How often each token id occurs, (vocabulary,)."""


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


def count_behind(pieces: Iterable[npt.NDArray[np.int64]], token: int | None, vocabulary_size: int) -> Counts:
    """How often each id follows `token` in `pieces` laid end to end."""
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
