"""Sequences of token ids that a `Decoder` continues: what is asked, where each is, what each gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from gpt2_train.likelihoods import Likelihood
from gpt2_train.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class TokenRequest:
    """A sequence to continue.

    Attributes:
        prompt: token ids, at least one; the model sees the last `sequence_length` of them.
        random: where its random numbers come from, one per token.
        tokens: how many to write at most; 0 only reads the prompt.
        sampling: how to choose them.
        ignore_end: never choose the id that ends a text.
        logprobs: also tell how likely each token was, and this many of the most likely ones; None for neither.
        prompt_logprobs: tell the same of the prompt's tokens, too; not without `logprobs`.
        client: whom it is for; rows are shared among clients.
    """

    prompt: Sequence[int]
    random: np.random.Generator
    tokens: int
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    ignore_end: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    client: str = ""


@dataclasses.dataclass(frozen=True)
class NewToken:
    """A token that a sequence got in a step.

    Attributes:
        number: of the sequence.
        token: its id; None where none was asked for, and the prompt has been read.
        finished: `end` if it ends the sequence, `length` if it is the last that was asked for, else None.
        logprob: natural logarithm of the probability that the model gave it, whatever the sampling; None if not asked.
        most_likely: the most likely ids at its place with theirs, the likeliest first.
        prompt: what is known of the prompt's tokens from the second on, if asked, with the first token of a sequence.
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
        unread: those at its end that its row does not have yet.
        row: of the cache; None while it waits.
        leader: the sequence whose reading of the same prompt it waits for.
        turn: tokens that it has got since it has its row.
        scored: what is known of the prompt's tokens that have been read, the first left out.
    """

    def __init__(self, number: int, request: TokenRequest, limit: int) -> None:
        self.number, self.request, self.left = number, request, request.tokens
        self.seen = list(request.prompt[-limit:])
        self.unread = self.seen
        self.row: int | None = None
        self.leader: OpenSequence | None = None
        self.is_new = True
        self.turn = 0
        self.scored: list[Likelihood] = []

    @property
    def scores(self) -> int | None:
        """How many of the likeliest ids to tell for each token of a prompt that is being read; None for nothing."""
        return self.request.logprobs if self.request.prompt_logprobs and self.is_new else None

    @property
    def client(self) -> str:
        return self.request.client

    def append(self, token: int, limit: int) -> None:
        self.seen = [*self.seen, token][-limit:]
        self.unread = [token]
        self.left -= 1
        self.turn += 1
        self.is_new = False
