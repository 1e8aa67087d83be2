"""Continuing many sequences of token ids at once, which join and leave between any two steps (continuous batching).

Each sequence has a row of a `CachedModel`, a length, a way of sampling and random numbers of its own, so what it
becomes does not depend on its neighbours (but for the rounding of matrix products, which varies with the number of
tokens that are fed together). A step feeds the last token of every sequence that writes, and with them a piece of
the prompts that came in: a long prompt is read over several steps and holds nobody up. Sequences with the same prompt
read it once. When a row's positions are used up, it continues with the last half of them as its whole past, which it
reads again like a prompt.

Rows are shared among the clients that sequences are for, if there are several: where one has more rows than another
who waits, or has had one for long, a sequence of it gives up its row, and goes on later from what it had: it reads that
again like a prompt.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.inference.kv_cache import CachedModel, asked_of
from gpt2_train.inference.sampling import Likelihood, Likelihoods, Sampling, choose_for_each, on_device


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """How a sequence or a text is to be continued.

    Attributes:
        tokens: how many to write at most; 0 only reads the prompt.
        sampling: how to choose them.
        ignore_end: never choose `<|endoftext|>`, which ends a text early.
        logprobs: also tell how likely each token was, and this many of the most likely ones; None for neither.
        prompt_logprobs: tell the same of the prompt's tokens, too; not without `logprobs`.
        client: whom it is for: clients share the rows, whoever asks for more.
    """

    tokens: int = 100
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    ignore_end: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    client: str = ""


@dataclasses.dataclass(frozen=True)
class TokenRequest:
    """A sequence to continue.

    Attributes:
        prompt: token ids, at least one; the model sees the last `sequence_length` of them.
        random: where its random numbers come from, one per token.
        options: how to continue it.
    """

    prompt: Sequence[int]
    random: np.random.Generator
    options: WritingOptions


@dataclasses.dataclass(frozen=True)
class NewToken:
    """A token that a sequence got in a step.

    Attributes:
        number: of the sequence.
        token: its id; None where none was asked for, and the prompt has been read.
        finished: `end` if it ends the sequence, `length` if it is the last that was asked for, else None.
        logprob: natural logarithm of the probability that the model gave it, before sampling settings; None if not
            asked.
        most_likely: the most likely ids at its place with theirs, the likeliest first.
        prompt: the scores of the prompt's tokens from the second on, if asked, with the first token of a sequence.
    """

    number: int
    token: int | None
    finished: Literal["end", "length"] | None
    logprob: float | None = None
    most_likely: tuple[tuple[int, float], ...] = ()
    prompt: tuple[Likelihood, ...] | None = None


class OpenSequence:
    """A sequence that waits or is written.

    Attributes:
        seen: the ids that it consists of, as many of the last as the model can see.
        unread: the ids at its end that its row does not have yet.
        row: of the cache; -1 while it waits.
        leader: the sequence whose reading of the same prompt it waits for.
        turn: tokens that it has got since it has its row.
        scored: the scores of the prompt's tokens that have been read, the first left out.
    """

    def __init__(self, number: int, request: TokenRequest, limit: int) -> None:
        self.number, self.random, self.options = number, request.random, request.options
        self.left = request.options.tokens
        self.seen = list(request.prompt[-limit:])
        self.unread = self.seen
        self.row = -1
        self.leader: OpenSequence | None = None
        self.is_new = True
        self.turn = 0
        self.scored: list[Likelihood] = []

    @property
    def scores(self) -> int | None:
        """How many of the likeliest ids to tell for each token of a prompt that is being read; None for nothing."""
        return self.options.logprobs if self.options.prompt_logprobs and self.is_new else None

    @property
    def client(self) -> str:
        return self.options.client

    def append(self, token: int, limit: int) -> None:
        self.seen = [*self.seen, token][-limit:]
        self.unread = [token]
        self.left -= 1
        self.turn += 1
        self.is_new = False


class FairQueue:
    """Sequences that wait, each for a client; with one client alone it is a queue like any other."""

    def __init__(self) -> None:
        self._waiting: dict[str, collections.deque[OpenSequence]] = {}
        """By client, the one that has waited longest for its turn first; none of them is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def append(self, sequence: OpenSequence) -> None:
        """Put `sequence` at the end of its client's."""
        self._waiting.setdefault(sequence.client, collections.deque()).append(sequence)

    def put_back(self, sequence: OpenSequence) -> None:
        """Put `sequence`, which was taken, at the beginning of its client's."""
        self._waiting.setdefault(sequence.client, collections.deque()).appendleft(sequence)

    def remove(self, number: int) -> None:
        """Forget a sequence; nothing happens if it is not here."""
        for client, sequences in list(self._waiting.items()):
            self._keep(client, collections.deque(sequence for sequence in sequences if sequence.number != number))

    def next_client(self, rows: Mapping[str, int]) -> str:
        """Whose turn it is: of the waiting clients the one that has the fewest `rows`, of several the first."""
        return min(self._waiting, key=lambda client: rows.get(client, 0))

    def take(self, client: str) -> OpenSequence:
        """The first sequence of `client`, whose next turn comes after all others'."""
        sequences = self._waiting.pop(client)
        sequence = sequences.popleft()
        self._keep(client, sequences)
        return sequence

    def _keep(self, client: str, sequences: collections.deque[OpenSequence]) -> None:
        if sequences:
            self._waiting[client] = sequences
        else:
            self._waiting.pop(client, None)


POSITIONS_AT_ONCE = 1 << 10
"""Positions of prompts fed in one step: bounds the activations that a long prompt takes."""

POSITIONS_BESIDE = 1 << 7
"""The same while others write, who wait for it."""

NOT_FINITE = "the model's output is not finite (its training diverged): give an earlier checkpoint."

SCORED_AT_ONCE = 1 << 8
"""Positions of prompts that are scored in one step: their logits take 50 MB for GPT-2's vocabulary."""

TURN = 128
"""Tokens after which a row goes to another client, where more of them want one than there are rows."""


class Engine:
    """Writes sequences; without a free row they wait in the order in which they came, and clients take turns.

    Args:
        model: what predicts, and how many sequences are written at once.
        vocabulary_size: ids from here on are never chosen.
        end: the id at which a sequence ends; it is its last token.

    No id in a prompt ends a sequence: only a token that was chosen ends a sequence.
    """

    def __init__(self, model: CachedModel, *, vocabulary_size: int, end: int | None = None) -> None:
        self.model, self.vocabulary_size, self.end = model, vocabulary_size, end
        self._numbers = itertools.count()
        self._waiting = FairQueue()
        self._sequences: dict[int, OpenSequence] = {}
        """The sequences that have a row, in the order in which they got it."""
        self._free = list(range(model.rows))
        self._until_turn = 0
        """Steps until a row may change hands between clients that have as many."""

    @property
    def waiting(self) -> int:
        """Sequences that wait for a row."""
        return len(self._waiting)

    @property
    def writing(self) -> int:
        """Sequences that have a row."""
        return len(self._sequences)

    def add(self, request: TokenRequest) -> int:
        """Take a sequence; returns its number. It is written from the next step on, or once a row is free.

        Raises Gpt2UsageError if the rows are shorter than the model's positions and too short for it.
        """
        positions, limit = self.model.model.config.sequence_length, self.model.length
        needed = min(len(request.prompt), positions) + request.options.tokens - 1
        if limit < min(needed, positions):
            raise Gpt2UsageError(f"{needed} positions asked of rows of {limit}: shorten prompt or output.")
        number = next(self._numbers)
        self._waiting.append(OpenSequence(number, request, limit))
        return number

    def remove(self, number: int) -> None:
        """Forget a sequence; nothing happens if it has ended."""
        self._waiting.remove(number)
        gone = self._sequences.pop(number, None)
        if gone is not None:
            self._leave(gone)

    def _leave(self, gone: OpenSequence) -> None:
        """Free the row of `gone`."""
        followers = [other for other in self._sequences.values() if other.leader is gone]
        if followers:
            # The first of them takes over the row with what was read so far.
            first = followers[0]
            gone.row, first.row = first.row, gone.row
            first.unread, first.scored, first.leader = gone.unread, gone.scored, None
            for other in followers[1:]:
                other.leader = first
        self._release(gone)

    @torch.inference_mode()
    def step(self) -> list[NewToken]:
        """Advance all sequences: the new token of each whose prompt has been read.

        Raises Gpt2Error if the model's output is not finite.
        """
        self._admit()
        fed = self._next_pieces()
        if not fed:
            return []
        scoring = [place for place, (sequence, _) in enumerate(fed) if sequence.scores is not None]
        rows, pieces = [sequence.row for sequence, _ in fed], [piece for _, piece in fed]
        logits = self.model.feed(rows, pieces, scoring) if scoring else self.model.feed(rows, pieces)
        if scoring:
            self._score(logits, fed, scoring)
            lasts = [end - 1 for end in itertools.accumulate(asked_of(pieces, scoring))]
            logits = logits.index_select(0, on_device(lasts, logits.device))
        ready, places = [], []
        for place, (sequence, piece) in enumerate(fed):
            sequence.unread = sequence.unread[len(piece) :]
            if not sequence.unread:
                for other in [sequence, *self._followers(sequence)]:
                    ready.append(other)
                    places.append(place)
        if not ready:
            return []
        if places != list(range(len(fed))):
            logits = logits.index_select(0, on_device(places, logits.device))
        new = self._choose(logits[:, : self.vocabulary_size], ready)
        for sequence, found in zip(ready, new, strict=True):
            self._advance(sequence, found)
        return new

    def _admit(self) -> None:
        self._until_turn = max(0, self._until_turn - 1)
        while self._waiting:
            rows = collections.Counter(sequence.client for sequence in self._sequences.values())
            client = self._waiting.next_client(rows)
            if not self._free and not self._make_room(client, rows):
                return
            sequence = self._waiting.take(client)
            sequence.row = heapq.heappop(self._free)
            sequence.leader = next(
                (other for other in self._sequences.values()
                 if sequence.is_new and other.is_new and other.leader is None
                 and (other.seen, other.scores) == (sequence.seen, sequence.scores)),
                None,
            )  # fmt: skip
            self._sequences[sequence.number] = sequence

    def _make_room(self, client: str, rows: collections.Counter[str]) -> bool:
        """Take a row from one who has more than `client`, which waits; False if nobody has."""
        most = max(rows.values())
        if most <= rows[client]:
            return False
        theirs = [sequence for sequence in self._sequences.values() if rows[sequence.client] == most]
        if most > rows[client] + 1:
            self._pause(theirs[-1])
            return True
        served = next((sequence for sequence in theirs if sequence.turn >= TURN), None)
        if served is None or self._until_turn:
            return False
        self._until_turn = max(1, TURN // self.model.rows)  # One after the other, and not back again at once.
        self._pause(served)
        return True

    def _pause(self, sequence: OpenSequence) -> None:
        """Take a row from its sequence, which waits for another, to read there what this row has."""
        read = self.model.lengths[sequence.row] if sequence.leader is None else 0
        again = sequence.seen[-(read + len(sequence.unread)) :]
        del self._sequences[sequence.number]
        self._leave(sequence)
        sequence.unread, sequence.scored, sequence.turn = again, [], 0
        sequence.row, sequence.leader = -1, None
        self._waiting.put_back(sequence)

    def _next_pieces(self) -> list[tuple[OpenSequence, list[int]]]:
        """What to feed in this step: the last token of each sequence that writes, and pieces of prompts to be read."""
        reading = _in_turn([sequence for sequence in self._sequences.values() if sequence.leader is None])
        is_writing = any(len(sequence.unread) == 1 for sequence in reading)
        left = POSITIONS_BESIDE if is_writing else POSITIONS_AT_ONCE
        scored = SCORED_AT_ONCE
        pieces = []
        for sequence in reading:
            piece = sequence.unread
            if len(piece) > 1:
                piece = piece[: left if sequence.scores is None else min(left, scored)]
                left -= len(piece)
                scored -= len(piece) if sequence.scores is not None else 0
            if piece:
                pieces.append((sequence, piece))
        return sorted(pieces, key=lambda pair: pair[0].row)

    def _followers(self, leader: OpenSequence) -> list[OpenSequence]:
        """The sequences that waited for the reading of the same prompt, which they now have read, too."""
        found = [other for other in self._sequences.values() if other.leader is leader]
        for other in found:
            self.model.copy(leader.row, other.row)
            other.leader = None
            other.unread, other.scored = [], leader.scored
        return found

    def _score(self, logits: Tensor, fed: list[tuple[OpenSequence, list[int]]], scoring: list[int]) -> None:
        """Note what `logits` say of the tokens of prompts, of which all are there at the places `scoring` of `fed`."""
        counts = asked_of([piece for _, piece in fed], scoring)
        owners: dict[int, OpenSequence] = {}
        chosen, wanted = torch.zeros(len(logits), dtype=torch.int64), [0] * len(logits)
        for end, place in zip(itertools.accumulate(counts), range(len(fed)), strict=True):
            sequence, piece = fed[place]
            following = sequence.unread[1 : len(piece) + 1] if sequence.scores is not None else []
            for row, token in enumerate(following, end - counts[place]):
                owners[row], chosen[row], wanted[row] = sequence, token, sequence.scores or 0
        if not owners:
            return
        known = Likelihoods(logits[:, : self.vocabulary_size], list(owners))
        for row, likelihood in known.of(chosen.to(logits.device), wanted).items():
            if not math.isfinite(likelihood[0]):
                raise Gpt2Error(NOT_FINITE)
            owners[row].scored.append(likelihood)

    def _choose(self, logits: Tensor, sequences: Sequence[OpenSequence]) -> list[NewToken]:
        """The next token of each sequence. The host waits for the device once, or twice for log-probabilities."""
        options = [sequence.options for sequence in sequences]
        asked = [place for place, wanted in enumerate(options) if wanted.logprobs is not None]
        likelihoods = Likelihoods(logits, asked) if asked else None
        # A sum is finite if all of its parts are, and needs no tensor of its own.
        is_finite = logits.sum(dim=1).isfinite()
        ignoring = [place for place, wanted in enumerate(options) if wanted.ignore_end]
        if self.end is not None and ignoring:
            logits[:, self.end].index_fill_(0, on_device(ignoring, logits.device), -torch.inf)
        uniform = torch.tensor([sequence.random.random() for sequence in sequences], dtype=torch.float64)
        chosen = choose_for_each(logits, uniform, [wanted.sampling for wanted in options])
        chosen = self.model.agreed(torch.where(is_finite, chosen, -1))
        tokens = chosen.tolist()
        if -1 in tokens:
            raise Gpt2Error(NOT_FINITE)
        likely = {} if likelihoods is None else likelihoods.of(chosen, [wanted.logprobs or 0 for wanted in options])
        return [
            self._new(sequence, token, *likely.get(place, (None, ())))
            for place, (sequence, token) in enumerate(zip(sequences, tokens, strict=True))
        ]

    def _new(
        self, sequence: OpenSequence, token: int, logprob: float | None, most_likely: tuple[tuple[int, float], ...]
    ) -> NewToken:
        prompt = tuple(sequence.scored) if sequence.scores is not None else None
        if not sequence.options.tokens:
            return NewToken(sequence.number, None, "length", prompt=prompt)
        finished: Literal["end", "length"] | None = "length" if sequence.left == 1 else None
        if token == self.end:
            finished = "end"
        return NewToken(sequence.number, token, finished, logprob, most_likely, prompt)

    def _advance(self, sequence: OpenSequence, new: NewToken) -> None:
        if new.finished is not None:
            del self._sequences[sequence.number]
            self._release(sequence)
            return
        assert new.token is not None
        sequence.append(new.token, self.model.length)
        row = sequence.row
        if self.model.lengths[row] == self.model.length:
            self.model.forget(row)
            sequence.unread = sequence.seen[-max(1, self.model.length // 2) :]

    def _release(self, sequence: OpenSequence) -> None:
        self.model.forget(sequence.row)
        heapq.heappush(self._free, sequence.row)


def _in_turn(sequences: list[OpenSequence]) -> list[OpenSequence]:
    """The first sequence of each client, then the second of each, and so on."""
    before: collections.Counter[str] = collections.Counter()
    places = []
    for sequence in sequences:
        places.append(before[sequence.client])
        before[sequence.client] += 1
    return [sequence for _, sequence in sorted(zip(places, sequences, strict=True), key=lambda pair: pair[0])]
