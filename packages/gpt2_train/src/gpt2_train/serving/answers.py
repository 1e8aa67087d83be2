"""Pieces of text as OpenAI's API tells them: one JSON object at the end, or a stream of them as they are written."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from gpt2_train.generator import TextPiece
from gpt2_train.serving.orders import Order
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
        self._choices = [
            _Choice(index, request.prompt if order.echo else "", request.logprobs is not None, tokenizer)
            for index, request in enumerate(order.requests)
        ]

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
    """One text."""

    def __init__(self, index: int, echoed: str, has_logprobs: bool, tokenizer: Tokenizer) -> None:
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self._echoed, self._has_logprobs, self._tokenizer = echoed, has_logprobs, tokenizer
        self._offset = len(echoed)
        self.written = 0

    def add(self, piece: TextPiece) -> dict[str, Any]:
        """Take a piece; returns what a stream tells of it."""
        text = self._echoed + piece.text
        self._echoed = ""
        self.texts.append(text)
        self.written = piece.written
        told = self._logprobs(piece) if self._has_logprobs and piece.tokens else None
        if told is not None:
            self.logprobs.append(told)
        self.finish_reason = FINISH_REASONS[piece.finished] if piece.finished is not None else None
        return {"text": text, "index": self.index, "logprobs": told, "finish_reason": self.finish_reason}

    def whole(self) -> dict[str, Any]:
        """The text as one."""
        logprobs = None
        if self._has_logprobs:
            names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            logprobs = {name: [value for part in self.logprobs for value in part[name]] for name in names}
        return {
            "text": "".join(self.texts),
            "index": self.index,
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
        }

    def _logprobs(self, piece: TextPiece) -> dict[str, Any]:
        """`text_offset` is where the text of a token begins, for the later ones of a character where that does."""
        offsets = []
        for token in piece.tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        likely = [{self._name(other): logprob for other, logprob in token.most_likely} for token in piece.tokens]
        return {
            "tokens": [self._name(token.token) for token in piece.tokens],
            "token_logprobs": [token.logprob for token in piece.tokens],
            "top_logprobs": likely,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return token_text(self._tokenizer, token)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""A token by its text; as `bytes:\xe2\x80` if it is no whole characters, so that no two are called the same."""
    data = tokenizer.decode_bytes([token])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
