"""Pieces of text as OpenAI's API tells them: one JSON object at the end, or a stream of them as they are written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gpt2_train.inference.generator import Detokenizer, GenerationRequest, TextPiece
from gpt2_train.inference.sampling import Likelihood
from gpt2_train.serving.requests import Order
from indexed_tokens import Tokenizer

FINISH_REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length"}
"""How OpenAI calls what ended a text."""


class Answer:
    """What a request is answered with.

    Args:
        order: what was asked for.
        model: the name of the model.
        tokenizer: the model's.
    """

    def __init__(self, order: Order, model: str, tokenizer: Tokenizer) -> None:
        self.order = order
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._choices = [_Choice(index, request, order.echo, tokenizer) for index, request in enumerate(order.requests)]

    @property
    def written(self) -> int:
        """Tokens written so far, in all texts."""
        return sum(choice.written for choice in self._choices)

    def add(self, index: int, piece: TextPiece) -> bytes:
        """Take a piece of text number `index`; returns the events of a stream that tell it, if anything is to tell."""
        choice = self._choices[index].add(piece)
        if not (choice["text"] or choice["logprobs"] or choice["finish_reason"]):
            return b""
        more = {"usage": None} if self.order.include_usage else {}
        return event({**self._head, "choices": [choice], **more})

    def last_events(self) -> bytes:
        """What ends a stream."""
        usage = b""
        if self.order.include_usage:
            usage = event({**self._head, "choices": [], "usage": self.usage})
        return usage + b"data: [DONE]\n\n"

    @property
    def usage(self) -> dict[str, int]:
        """The counts of tokens; those of a prompt count once however many texts continue it."""
        read = self.order.prompt_tokens
        return {"prompt_tokens": read, "completion_tokens": self.written, "total_tokens": read + self.written}

    def whole(self) -> bytes:
        """The answer at once."""
        choices = [choice.whole() for choice in self._choices]
        return msgspec.json.encode({**self._head, "choices": choices, "usage": self.usage})


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


class _Choice:
    """One text.

    Args:
        index: its number.
        request: what was asked for.
        echo: whether the text begins with its prompt.
        tokenizer: the model's.
    """

    def __init__(self, index: int, request: GenerationRequest, echo: bool, tokenizer: Tokenizer) -> None:
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.written = 0
        self._request, self._tokenizer = request, tokenizer
        self._has_logprobs = request.logprobs is not None
        self._echoed = request.prompt if echo else ""
        self._offset = len(self._echoed)

    def add(self, piece: TextPiece) -> dict[str, Any]:
        """Take a piece; returns what a stream tells of it."""
        text = self._echoed + piece.text
        self._echoed = ""
        self.texts.append(text)
        self.written = piece.written
        told = None
        if self._has_logprobs and (piece.tokens or piece.prompt is not None):
            told = joined([*self._of_prompt(piece), *self._of_text(piece)])
            self.logprobs.append(told)
        self.finish_reason = FINISH_REASONS[piece.finished] if piece.finished is not None else None
        return {"text": text, "index": self.index, "logprobs": told, "finish_reason": self.finish_reason}

    def whole(self) -> dict[str, Any]:
        """The text as one."""
        return {
            "text": "".join(self.texts),
            "index": self.index,
            "logprobs": joined(self.logprobs) if self._has_logprobs else None,
            "finish_reason": self.finish_reason,
        }

    def _of_prompt(self, piece: TextPiece) -> Iterator[dict[str, Any]]:
        """What is told of the prompt's tokens; nothing comes before the first, so it has no probability."""
        if piece.prompt is None:
            return
        detokenizer, offset = Detokenizer(self._tokenizer), 0
        for token, known in zip(self._request.prompt_tokens or (), [None, *piece.prompt], strict=True):
            yield self._entry(token, known, offset)
            offset += len(detokenizer.add(token))

    def _of_text(self, piece: TextPiece) -> Iterator[dict[str, Any]]:
        """`text_offset` is where the text of a token begins, for the later ones of a character where that does."""
        for token in piece.tokens:
            assert token.logprob is not None
            yield self._entry(token.token, (token.logprob, token.most_likely), self._offset)
            self._offset += len(token.text)

    def _entry(self, token: int, known: Likelihood | None, offset: int) -> dict[str, Any]:
        """One token; its own probability is among those of the most likely ones, whether it is one of them or not."""
        logprob, most_likely = known if known is not None else (None, ())
        likely = {self._name(other): value for other, value in (*most_likely, (token, logprob))}
        return {
            "tokens": [self._name(token)],
            "token_logprobs": [logprob],
            "top_logprobs": [likely if known is not None else None],
            "text_offset": [offset],
        }

    def _name(self, token: int) -> str:
        return token_text(self._tokenizer, token)


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The logprobs of `parts` as one table of lists."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [value for part in parts for value in part[name]] for name in names}


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""A token by its text; as `bytes:\xe2\x80` if it is no whole characters, so that no two are called the same."""
    data = tokenizer.decode_bytes([token])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
