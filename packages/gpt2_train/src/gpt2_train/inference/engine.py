"""Continuing many sequences of token ids at once, which join and leave between any two steps (continuous batching).

Each sequence has a row of a `CachedModel`, a length, a way of sampling and random numbers of its own, so what it
becomes does not depend on its neighbours (but for the rounding of matrix products, which varies with the number of
tokens that are fed together). A step feeds the last token of every sequence that writes, and with them a piece of
the prompts that came in: a long prompt is read over several steps and holds nobody up. Sequences with the same prompt
read it once. Without a free row they wait: first in, first out. When a row's positions are used up, it continues with
the last half of them as its whole past, which it reads again like a prompt.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.inference.kv_cache import CachedModel, on_device
from gpt2_train.inference.sampling import Likelihoods, Sampling, choose_for_each


@dataclasses.dataclass(frozen=True)
class GenerationRequest:
    """A text to write.

    Attributes:
        prompt: how it begins; plain text throughout, and empty for the beginning of a document.
        tokens: how many to write at most.
        sampling: how to choose them.
        ignore_end: never choose `<|endoftext|>`, which ends a text early.
        logprobs: also tell how likely each token was, and this many of the most likely ones; None for neither.
        seed: seed of all choices.
        sample: its number among the texts of the same prompt and seed, from 0: each number is another text.
        stop: strings that end the text where the first of them begins; they are not a part of it.
        prompt_tokens: the token ids of the prompt, at least one, once they are known (`Encoder.encoded`); the model
            sees the last `sequence_length` of them.

    Prompt and stop strings become `valid_text`.
    """

    prompt: str
    _: dataclasses.KW_ONLY
    tokens: int = 100
    sampling: Sampling = Sampling()  # noqa: RUF009 - it is frozen
    ignore_end: bool = False
    logprobs: int | None = None
    seed: int = 1234
    sample: int = 0
    stop: tuple[str, ...] = ()
    prompt_tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", valid_text(self.prompt))
        object.__setattr__(self, "stop", tuple(map(valid_text, self.stop)))


def valid_text(text: str) -> str:
    """`text` with U+FFFD in place of lone surrogates, which undecodable bytes of a command line become."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@dataclasses.dataclass(frozen=True)
class Token:
    """A token that was written.

    Attributes:
        token: its id.
        text: what it added to the text: empty for `<|endoftext|>` and while a character is unfinished, which then
            belongs to the token that completes it. The texts of all tokens make the text.
        logprob: natural logarithm of the probability that the model gave it, before temperature, top-k and top-p; None
            if the request did not ask.
        most_likely: ids of the most likely tokens at its place with theirs, the likeliest first.
    """

    token: int
    text: str = ""
    logprob: float | None = None
    most_likely: tuple[tuple[int, float], ...] = ()


class OpenSequence:
    """A sequence of token ids that waits or is written.

    Attributes:
        number: of the sequence.
        request: what is written; its `prompt_tokens` are known.
        random: where its random numbers come from, one per token.
        left: tokens still to be written.
        seen: the ids that it consists of, as many of the last as the model can see.
        unread: the ids at its end that its row does not have yet.
        row: of the cache; -1 while it waits.
        twin: the sequence whose reading of the same prompt it waits for.
        is_new: whether it has no token yet.
        finished: `end_of_text` if its last token ends it, `length` if that is the last that was asked for, else None.
    """

    def __init__(self, number: int, request: GenerationRequest, limit: int) -> None:
        ids = request.prompt_tokens
        assert ids is not None
        self.number, self.request, self.left = number, request, request.tokens
        self.random = np.random.default_rng([request.seed, request.sample, *ids])
        self.seen = list(ids[-limit:])
        self.unread = self.seen
        self.row = -1
        self.twin: OpenSequence | None = None
        self.is_new = True
        self.finished: Literal["end_of_text", "length"] | None = None

    def append(self, token: int, limit: int) -> None:
        self.seen = [*self.seen, token][-limit:]
        self.unread = [token]
        self.left -= 1
        self.is_new = False


PREFILL, PREFILL_BESIDE = 1 << 10, 1 << 7
"""Tokens of prompts read in one step, which bound the activations that a long prompt takes; fewer beside others."""

NOT_FINITE = "the model's output is not finite (its training diverged): give an earlier checkpoint."


class Engine:
    """Writes sequences; without a free row they wait in the order in which they came.

    Args:
        kv_cache: the model, and how many sequences are written at once.
        vocabulary_size: ids from here on are never chosen.
        end: the id at which a sequence ends; it is its last token.
        prefill: tokens of prompts read in one step.
        beside: the same in a step in which others write, who wait for it.

    No id in a prompt ends a sequence: only a token that was chosen ends a sequence.
    """

    def __init__(
        self,
        kv_cache: CachedModel,
        *,
        vocabulary_size: int,
        end: int | None = None,
        prefill: int = PREFILL,
        beside: int = PREFILL_BESIDE,
    ) -> None:
        self.kv_cache, self.vocabulary_size, self.end = kv_cache, vocabulary_size, end
        self.prefill, self.beside = prefill, beside
        self._numbers = itertools.count()
        self._waiting: collections.deque[OpenSequence] = collections.deque()
        self._sequences: dict[int, OpenSequence] = {}
        """The sequences that have a row, in the order in which they got it."""
        self._free = list(range(kv_cache.rows))

    @property
    def waiting(self) -> int:
        """Sequences that wait for a row."""
        return len(self._waiting)

    @property
    def writing(self) -> int:
        """Sequences that have a row."""
        return len(self._sequences)

    def add(self, request: GenerationRequest) -> int:
        """Take a request whose tokens are known; returns its number.

        It is written from the next step on, or once a row is free.

        Raises Gpt2UsageError if the rows are shorter than the model's positions and too short for it.
        """
        positions, limit = self.kv_cache.model.config.sequence_length, self.kv_cache.length
        sequence = OpenSequence(next(self._numbers), request, limit)
        needed = min(len(request.prompt_tokens or ()), positions) + request.tokens - 1
        if limit < min(needed, positions):
            raise Gpt2UsageError(f"{needed} positions asked of rows of {limit}: shorten prompt or output.")
        self._waiting.append(sequence)
        return sequence.number

    def remove(self, number: int) -> None:
        """Forget a sequence; nothing happens if it has ended."""
        self._waiting = collections.deque(sequence for sequence in self._waiting if sequence.number != number)
        gone = self._sequences.pop(number, None)
        if gone is None:
            return
        self._release(gone)
        first, *others = self._followers(gone) or (None,)
        if first is not None:
            first.twin = None  # It reads the prompt itself.
        for other in others:
            other.twin = first

    @torch.inference_mode()
    def step(self) -> list[tuple[OpenSequence, Token]]:
        """Advance all sequences: the new token, without its text, of each whose prompt has been read.

        Raises Gpt2Error if the model's output is not finite.
        """
        self._admit()
        fed = self._next_pieces()
        if not fed:
            return []
        logits = self.kv_cache.feed([sequence.row for sequence, _ in fed], [piece for _, piece in fed])
        ready, places = [], []
        for place, (sequence, piece) in enumerate(fed):
            sequence.unread = sequence.unread[len(piece) :]
            if sequence.unread:
                continue
            followers = self._followers(sequence)
            for other in followers:
                self.kv_cache.copy(sequence.row, other.row)
                other.twin, other.unread = None, []
            ready += [sequence, *followers]
            places += [place] * (1 + len(followers))
        if not ready:
            return []
        if places != list(range(len(fed))):
            logits = logits.index_select(0, on_device(places, logits.device))
        new = self._choose(logits[:, : self.vocabulary_size], ready)
        for sequence, found in zip(ready, new, strict=True):
            self._advance(sequence, found.token)
        return list(zip(ready, new, strict=True))

    def _admit(self) -> None:
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.row = heapq.heappop(self._free)
            reading = (other for other in self._sequences.values() if other.is_new and other.twin is None)
            sequence.twin = next((other for other in reading if other.seen == sequence.seen), None)
            self._sequences[sequence.number] = sequence

    def _next_pieces(self) -> list[tuple[OpenSequence, list[int]]]:
        """Tokens of this step: the last token of each sequence that writes, and pieces of prompts to be read."""
        reading = [sequence for sequence in self._sequences.values() if sequence.twin is None]
        is_writing = any(len(sequence.unread) == 1 for sequence in reading)
        left = self.beside if is_writing else self.prefill
        pieces = []
        for sequence in reading:
            piece = sequence.unread
            if len(piece) > 1:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                pieces.append((sequence, piece))
        return sorted(pieces, key=lambda pair: pair[0].row)

    def _followers(self, sequence: OpenSequence) -> list[OpenSequence]:
        """The sequences that wait for the reading of the same prompt."""
        return [other for other in self._sequences.values() if other.twin is sequence]

    def _choose(self, logits: Tensor, sequences: Sequence[OpenSequence]) -> list[Token]:
        """The next token of each sequence. The host waits for the device once, or twice for log-probabilities."""
        requests = [sequence.request for sequence in sequences]
        asked = [place for place, wanted in enumerate(requests) if wanted.logprobs is not None]
        likelihoods = Likelihoods(logits, asked) if asked else None
        # A sum is finite if all of its parts are, and needs no tensor of its own.
        is_finite = logits.sum(dim=1).isfinite()
        ignoring = [place for place, wanted in enumerate(requests) if wanted.ignore_end]
        if self.end is not None and ignoring:
            logits[:, self.end].index_fill_(0, on_device(ignoring, logits.device), -torch.inf)
        uniform = torch.tensor([sequence.random.random() for sequence in sequences], dtype=torch.float64)
        chosen = choose_for_each(logits, uniform, [wanted.sampling for wanted in requests])
        chosen = self.kv_cache.from_first_rank(torch.where(is_finite, chosen, -1))
        tokens = chosen.tolist()
        if -1 in tokens:
            raise Gpt2Error(NOT_FINITE)
        likely = {} if likelihoods is None else likelihoods.of(chosen, [wanted.logprobs or 0 for wanted in requests])
        return [Token(token, "", *likely.get(place, (None, ()))) for place, token in enumerate(tokens)]

    def _advance(self, sequence: OpenSequence, token: int) -> None:
        if token == self.end or sequence.left == 1:
            sequence.finished = "end_of_text" if token == self.end else "length"
            del self._sequences[sequence.number]
            self._release(sequence)
            return
        sequence.append(token, self.kv_cache.length)
        row = sequence.row
        if self.kv_cache.lengths[row] == self.kv_cache.length:
            self.kv_cache.clear(row)
            sequence.unread = sequence.seen[-max(1, self.kv_cache.length // 2) :]

    def _release(self, sequence: OpenSequence) -> None:
        self.kv_cache.clear(sequence.row)
        heapq.heappush(self._free, sequence.row)
