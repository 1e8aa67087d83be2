"""How well a model predicts: the loss of every token of a text once, and log-probabilities of continuations.

Every evaluation task measures through a `Scorer`. For a text, tokens laid end to end are read in windows of the
model's sequence length (`windows`): they follow each other without gap and share one token, so that every token but
the very first is scored exactly once, with up to a whole window as its past (on average half of one). Sums are in
float64, so that the number of tokens does not matter to their accuracy. Costs one forward pass over the text.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from command_kit import Progress
from gpt2_train.device import autocast, default_precision
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.inference import InferenceModel
from gpt2_train.loss import token_losses

TOKENS_AT_ONCE = {"cpu": 1024}
"""Tokens scored at once, 8,192 on other devices: the logits of 1,024 take 200 MB for GPT-2's vocabulary."""


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


@dataclasses.dataclass(frozen=True)
class Continuation:
    """How likely a continuation is.

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
        precision: `fp32`, `bf16` or `fp16` by autocast; without it what suits the device.

    Attributes:
        tokens: predictions made so far.
        seconds: time spent on them, reading the weights not included.
    """

    def __init__(self, source: InferenceModel, *, batch_size: int | None = None, precision: str | None = None) -> None:
        self.source = source
        self.length = source.config.sequence_length
        at_once = TOKENS_AT_ONCE.get(source.device.type, 8192)
        self.batch_size = batch_size or max(1, at_once // self.length)
        self.precision = precision or default_precision(source.device)
        self.tokens, self.seconds = 0, 0.0

    def progress(self, label: str, unit: str, total: int) -> Progress:
        """What shows how much of a task is done."""
        return Progress(label, unit, total)

    def text_loss(
        self, pieces: Iterable[npt.NDArray[np.int64]], count: Callable[[int], object] | None = None
    ) -> tuple[float, int]:
        """(summed loss in nats, tokens scored) of `pieces` of token ids, int64 (n,), laid end to end as one text.

        `count` is told how many tokens each batch scored. Raises Gpt2Error if the loss is not finite.
        """
        total, tokens = 0.0, 0
        for batch in windows(pieces, self.length, self.batch_size):
            losses = self._losses(torch.from_numpy(batch))
            total += float(losses.sum())
            tokens += losses.numel()
            if count is not None:
                count(losses.numel())
        return total, tokens

    def logprobs(self, context: Sequence[int], continuation: Sequence[int]) -> Continuation:
        """How likely the token ids `continuation` are behind the token ids `context`.

        What does not fit into the model's sequence is left out at the beginning of the context; a continuation that
        does not fit by itself is scored piece by piece, each behind the half sequence before it.
        Raises Gpt2UsageError for an empty context (give `<|endoftext|>` for the beginning of a document), and
        Gpt2Error if the loss is not finite.
        """
        if not context:
            raise Gpt2UsageError("a continuation needs a context of at least one token: give <|endoftext|> for none.")
        ids, begin = [*context, *continuation], len(context)
        fits = len(continuation) <= self.length
        step = len(continuation) if fits else max(1, self.length // 2)
        losses, is_greedy = [np.zeros(0)], True
        for at in range(begin, len(ids), max(1, step)):
            end = min(at + step, len(ids))
            row = torch.tensor([ids[max(0, end - 1 - self.length) : end]])
            found, greedy = self._losses_and_greedy(row, end - at)
            losses.append(found.numpy())
            is_greedy = is_greedy and greedy
        return Continuation(-np.concatenate(losses), is_greedy)

    def logprobs_of(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], count: Callable[[int], object] | None = None
    ) -> list[Continuation]:
        """`logprobs` of many (context, continuation) pairs, in their order; those of like length are scored together.

        `count` is told how many pairs each batch scored. Raises as `logprobs` does.
        """
        found: list[Continuation | None] = [None] * len(pairs)
        at_once = self.batch_size * self.length
        fitting: list[tuple[int, int]] = []  # (tokens read, number of the pair)
        for number, (context, continuation) in enumerate(pairs):
            if not context or not continuation or len(continuation) > self.length:
                found[number] = self.logprobs(context, continuation)
                if count is not None:
                    count(1)
            else:
                fitting.append((min(len(context) + len(continuation) - 1, self.length), number))
        fitting.sort(reverse=True)
        while fitting:
            width = fitting[0][0]
            part = max(1, at_once // width)
            batch, fitting = fitting[:part], fitting[part:]
            rows = [[*pairs[number][0], *pairs[number][1]][-width - 1 :] for _, number in batch]
            sizes = [len(pairs[number][1]) for _, number in batch]
            for (_, number), continuation_found in zip(batch, self._score_rows(rows, sizes), strict=True):
                found[number] = continuation_found
            if count is not None:
                count(len(batch))
        return [continuation for continuation in found if continuation is not None]

    @torch.inference_mode()
    def _score_rows(self, rows: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[Continuation]:
        """The last `sizes[i]` tokens of each row, all rows at once; shorter ones are filled up behind their end.

        Attention looks back only, so what is behind the end of a row changes nothing before it.
        """
        width = max(map(len, rows))
        filled = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        losses, logits = self._scored(filled, width - 1, [len(row) for row in rows])
        most_likely = logits[..., : self.source.config.vocabulary_size].argmax(dim=-1).cpu()
        found = []
        for number, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            places = slice(len(row) - 1 - size, len(row) - 1)
            is_greedy = bool((most_likely[number, places] == filled[number, len(row) - size : len(row)]).all())
            found.append(Continuation(-losses[number, places].numpy(), is_greedy))
        return found

    def overlapping_loss(
        self, tokens: npt.NDArray[np.int64], step: int, count: Callable[[int], object] | None = None
    ) -> float:
        """Summed loss in nats of all of `tokens`, int64 (n,), but the first, each behind as much of the text as fits.

        The first window scores all its tokens; each further one moves on by `step` tokens and scores its last `step`
        alone, so that every token has at least `length` - `step` before it. Costs `length` / `step` times as much as
        `text_loss`. Raises Gpt2Error if the loss is not finite.
        """
        total, scored = 0.0, 1
        rows: list[npt.NDArray[np.int64]] = []
        while scored < len(tokens):
            end = min(len(tokens), self.length + 1 if scored == 1 else scored + step)
            window = tokens[max(0, end - self.length - 1) : end]
            new = end - scored
            if new == step and len(window) == self.length + 1:
                rows.append(window)
            else:
                total += float(self._scored(torch.from_numpy(window[None]), new)[0].sum())
            scored = end
            if rows and (len(rows) == self.batch_size or scored == len(tokens) or new != step):
                total += float(self._scored(torch.from_numpy(np.stack(rows)), step)[0].sum())
                rows = []
            if count is not None:
                count(new)
        return total

    def _losses(self, rows: Tensor) -> Tensor:
        """Losses (B, T), float64 on CPU, of `rows` (B, T + 1)."""
        return self._scored(rows, rows.size(1) - 1)[0]

    def _losses_and_greedy(self, row: Tensor, last: int) -> tuple[Tensor, bool]:
        losses, logits = self._scored(row, last)
        # The rows that pad the embedding are never written, so they are not the most likely either.
        with torch.inference_mode():
            most_likely = logits[0, :, : self.source.config.vocabulary_size].argmax(dim=-1).cpu()
            return losses[0], bool((most_likely == row[0, -last:]).all())

    @torch.inference_mode()
    def _scored(self, rows: Tensor, last: int, lengths: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Losses (B, last), float64 on CPU, and logits (B, last, V) of the last `last` tokens of `rows` (B, T + 1).

        `lengths` says how many tokens of each row are real, where not all are: the others count for nothing.
        """
        model = self.source.model
        started = time.monotonic()
        device = self.source.device
        on_device = rows.to(device)
        with autocast(device, self.precision):
            logits = model(on_device[:, :-1])[:, -last:]
        losses = (
            token_losses(logits, on_device[:, -last:], vocabulary=self.source.config.vocabulary_size).cpu().double()
        )
        if not bool(torch.isfinite(losses).all()):
            raise Gpt2Error(
                "the model's loss is not finite: its training diverged, or --precision fp16 is too narrow for it; "
                "give an earlier checkpoint, or --precision fp32."
            )
        self.tokens += losses.numel() if lengths is None else sum(lengths) - len(lengths)
        self.seconds += time.monotonic() - started
        return losses, logits
