"""Scores of a model's predictions: the loss of every token of a text once, and log-probabilities of continuations.

Every evaluation task measures through a `Scorer`. For a text, concatenated tokens are read in windows of the
model's sequence length (`windows`): they follow each other without gap and share one token, so that every token but
the very first is scored exactly once, with up to a whole window as its past (on average half of one). Sums are in
float64, so that the number of tokens does not matter to their accuracy. Costs one forward pass over the text.

Batches are handed out as many at a time as there are processes (or groups of them) to score one each, and their scores
come back in order: the sums are the same as with one process, digit for digit.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.inference.model import InferenceModel
from gpt2_train.inference.runner import Batch, BatchScores, score_batches

TOKENS_AT_ONCE = {"cpu": 1024}
"""Tokens scored at once, 8,192 on other devices: the logits of 1,024 take 200 MB for GPT-2's vocabulary."""


def windows(pieces: Iterable[npt.NDArray[np.int64]], length: int, batch: int) -> Iterator[npt.NDArray[np.int64]]:
    """Batches (at most `batch`, at most `length` + 1) of windows over concatenated `pieces`, in order.

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


@dataclasses.dataclass(frozen=True)
class Continuation:
    """The likelihood of a continuation.

    Attributes:
        logprobs: float64 (tokens,): natural logarithm of the probability of each of its tokens.
        is_greedy: whether each of its tokens is the most likely one at its place.
    """

    logprobs: npt.NDArray[np.float64]
    is_greedy: bool

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return float(self.logprobs.sum())


class Scorer:
    """Measures a model; the weights are read when the first text is scored.

    Args:
        source: the model.
        batch_size: windows scored at once; without it as many as make 8,192 tokens, or 1,024 on CPU.

    A model that was trained with attention inside documents, or without predictions after the end of a text, is
    measured in the same way. Raises Gpt2UsageError if such a model has no tokenizer that knows the end of a text.

    Attributes:
        tokens: predictions made so far.
        seconds: time spent on them, reading the weights not included.
    """

    def __init__(self, source: InferenceModel, *, batch_size: int | None = None) -> None:
        self.source = source
        self.length = source.stored.config.sequence_length
        at_once = TOKENS_AT_ONCE.get(source.device.type, 8192)
        self.batch_size = batch_size or max(1, at_once // self.length)
        self.tokens, self.seconds = 0, 0.0
        stored = source.stored
        if (stored.separates_documents or stored.masks_end_of_text) and stored.end_of_text is None:
            raise Gpt2UsageError(
                f"{stored.origin} was trained with document masking: give the tokenizer that it was trained with by "
                "--tokenizer, whose <|endoftext|> says where they begin."
            )
        self._separated_by = stored.end_of_text if stored.separates_documents else None
        self._masked = stored.end_of_text if stored.masks_end_of_text else None

    def text_loss(
        self, pieces: Iterable[npt.NDArray[np.int64]], count: Callable[[int], object] = lambda _: None
    ) -> tuple[float, int]:
        """(summed loss in nats, tokens scored) of `pieces` of token ids, int64 (n,), concatenated to one text.

        `count` gets the number of tokens that each batch read. Raises Gpt2Error if the loss is not finite.
        """
        total, tokens = 0.0, 0
        for batch, scores in self._scored(_whole(rows) for rows in windows(pieces, self.length, self.batch_size)):
            losses, scored = scores.losses, batch.tokens
            if self._masked is not None:
                counts = torch.ne(batch.rows[:, :-1], self._masked)
                losses, scored = losses * counts, int(counts.sum())
            total += float(losses.sum())
            tokens += scored
            count(batch.tokens)
        return total, tokens

    def document_losses(self, documents: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
        """Summed loss in nats of each of `documents`, token ids, one after another in one text: float64 (documents,).

        The text begins with an end of text where the tokenizer has one, so that all tokens are scored; else all but the
        first. Raises Gpt2Error if the loss is not finite.
        """
        begin = [] if self.source.stored.end_of_text is None else [self.source.stored.end_of_text]
        found = [np.zeros(1 - len(begin))]
        text = np.concatenate([np.array(begin, np.int64), *documents])
        for batch, scores in self._scored(_whole(rows) for rows in windows([text], self.length, self.batch_size)):
            counts = torch.ne(batch.rows[:, :-1], self._masked) if self._masked is not None else 1
            found.append((scores.losses * counts).numpy().ravel())
        starts = np.cumsum([0, *map(len, documents[:-1])])
        return np.add.reduceat(np.concatenate(found), starts)

    def logprobs(self, context: Sequence[int], continuation: Sequence[int]) -> Continuation:
        """The likelihood of the token ids `continuation` after the token ids `context`: `logprobs_of` a single pair."""
        return self.logprobs_of([(context, continuation)])[0]

    def logprobs_of(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], count: Callable[[int], object] = lambda _: None
    ) -> list[Continuation]:
        """The likelihood of each continuation after its context, in the order of `pairs`, both token ids.

        Pairs of like length are scored together. What does not fit into the model's sequence is left out at the
        beginning of the context; a continuation that does not fit by itself is scored piece by piece, each after the
        half sequence before it. `count` gets the number of pairs that each batch completed.
        Raises Gpt2UsageError for an empty context (give `<|endoftext|>` for the beginning of a document), and
        Gpt2Error if the loss is not finite.
        """
        pieces: list[tuple[list[int], int, int]] = []  # (token ids, how many of the last to score, number of the pair)
        for number, (context, continuation) in enumerate(pairs):
            if not context:
                raise Gpt2UsageError(
                    "a continuation needs a context of at least one token: give <|endoftext|> for none."
                )
            ids, size = [*context, *continuation], len(continuation)
            step = size if size <= self.length else max(1, self.length // 2)
            for at in range(len(context), len(ids), max(1, step)):
                end = min(at + step, len(ids))
                pieces.append((ids[max(0, end - 1 - self.length) : end], end - at, number))
        order = sorted(range(len(pieces)), key=lambda place: (len(pieces[place][0]), place), reverse=True)
        groups = []  # of places that fill one batch each, the longest pieces first
        while order:
            part = max(1, self.batch_size * self.length // (len(pieces[order[0]][0]) - 1))
            groups.append(order[:part])
            order = order[part:]
        left = collections.Counter(number for _, _, number in pieces)
        scored: dict[int, Continuation] = {}
        batches = (_filled([pieces[place][0] for place in group]) for group in groups)
        for group, (_, scores) in zip(groups, self._scored(batches), strict=True):
            assert scores.is_greedy is not None
            for row, place in enumerate(group):
                ids, size, number = pieces[place]
                asked = slice(len(ids) - 1 - size, len(ids) - 1)
                is_greedy = bool(scores.is_greedy[row, asked].all())
                scored[place] = Continuation(-scores.losses[row, asked].numpy(), is_greedy)
                left[number] -= 1
            count(sum(not left[number] for number in {pieces[place][2] for place in group}))
        found = [Continuation(np.zeros(0), is_greedy=True) for _ in pairs]
        for place, (_, _, number) in enumerate(pieces):
            before, own = found[number], scored[place]
            logprobs = np.concatenate([before.logprobs, own.logprobs])
            found[number] = Continuation(logprobs, before.is_greedy and own.is_greedy)
        return found

    def overlapping_loss(
        self, tokens: npt.NDArray[np.int64], step: int, count: Callable[[int], object] = lambda _: None
    ) -> float:
        """Summed loss in nats of all of `tokens`, int64 (n,), but the first, each after as much of the text as fits.

        The first window scores all its tokens; each further one moves on by `step` tokens and scores its last `step`
        alone, so that every token has at least `length` - `step` before it. Costs `length` / `step` times as much as
        `text_loss`. Raises Gpt2Error if the loss is not finite.
        """
        total = 0.0
        for batch, scores in self._scored(self._overlapping(tokens, step)):
            total += float(scores.losses.sum())
            count(batch.tokens)
        return total

    def _overlapping(self, tokens: npt.NDArray[np.int64], step: int) -> Iterator[Batch]:
        """The windows of `overlapping_loss`; whole windows that move on by a whole `step` are batched."""
        if len(tokens) > 1:
            yield _whole(tokens[None, : self.length + 1])
        starts = range(self.length + 1, len(tokens), step)
        whole = [at for at in starts if at + step <= len(tokens)]
        for first in range(0, len(whole), self.batch_size):
            rows = [tokens[at + step - self.length - 1 : at + step] for at in whole[first : first + self.batch_size]]
            yield Batch(torch.from_numpy(np.stack(rows)), step)
        if len(whole) < len(starts):
            yield Batch(torch.from_numpy(tokens[None, -self.length - 1 :]), len(tokens) - starts[-1])

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, BatchScores]]:
        """Each batch with its scores, in order.

        Raises Gpt2UsageError for token ids that the model lacks, which would be rows of padding, or none.
        """
        waiting = iter(batches)
        while together := list(itertools.islice(waiting, self.source.dp_size)):
            started = time.monotonic()
            for batch in together:
                self._check_ids(batch.rows)
            together = [dataclasses.replace(batch, separated_by=self._separated_by) for batch in together]
            scores = score_batches(self.source, together)
            self.tokens += sum(batch.tokens for batch in together)
            self.seconds += time.monotonic() - started
            yield from zip(together, scores, strict=True)

    def _check_ids(self, rows: torch.Tensor) -> None:
        low, high, size = int(rows.min()), int(rows.max()), self.source.stored.config.vocabulary_size
        if low < 0 or high >= size:
            raise Gpt2UsageError(
                f"the text holds the token id {high if high >= size else low}, but the model's vocabulary has "
                f"{size:,} ids: give the tokenizer that {self.source.stored.origin} was trained with by --tokenizer."
            )


def _whole(rows: npt.NDArray[np.int64]) -> Batch:
    """A batch in which every token of `rows` (B, T + 1) but the first of each is scored."""
    return Batch(torch.from_numpy(rows), rows.shape[1] - 1)


def _filled(rows: Sequence[Sequence[int]]) -> Batch:
    """`rows` of like length as one batch: shorter ones are filled up after their end.

    Attention looks back only, so what follows the end of a row changes nothing before it.
    """
    width = max(map(len, rows))
    filled = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return Batch(filled, width - 1, with_greedy=True, fill=sum(width - len(row) for row in rows))
