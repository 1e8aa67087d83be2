"""Text from a model: requests in, texts out, each with a length, a way of sampling and a seed of its own.

`TextGenerator` knows nothing of command lines, so that a command, a conversation and a server can all use it. What a
request becomes follows from its prompt, its sampling, its seed and its number among the samples of that prompt, and
not from the requests that it is written beside.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from gpt2_train.errors import Gpt2UsageError
from gpt2_train.inference import InferenceModel
from gpt2_train.prompts import shortened
from gpt2_train.sampling import Sampling, TokenRequest, continue_tokens
from indexed_tokens import Tokenizer

MOST_UNEVEN = 32
"""Tokens by which prompts of one batch may differ: the longer ones are fed one token at a time behind the shortest."""


@dataclasses.dataclass(frozen=True)
class GenerationRequest:
    """A text to write.

    Attributes:
        prompt: how it begins; plain text throughout, and empty for the beginning of a document.
        tokens: how many tokens to write at most.
        sampling: how each is chosen.
        seed: seed of all choices.
        sample: its number among the texts of the same prompt and seed, from 0: each number is another text.
        ignore_end: never choose `<|endoftext|>`, which ends a text early.
    """

    prompt: str
    tokens: int = 100
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    seed: int = 1234
    sample: int = 0
    ignore_end: bool = False


@dataclasses.dataclass(frozen=True)
class GeneratedText:
    """What became of a request.

    Attributes:
        prompt: how it begins.
        sample: its number among the texts of that prompt.
        text: what was written behind the prompt.
        tokens: how many tokens were written, a closing `<|endoftext|>` included.
        finished: `end_of_text` if the model ended it, `length` if it has all tokens asked for.
    """

    prompt: str
    sample: int
    text: str
    tokens: int
    finished: Literal["end_of_text", "length"]


class TextStream:
    """Token ids to text as they come: the bytes of a character are held back until it is whole.

    What does not make valid UTF-8 becomes U+FFFD, as `Tokenizer.decode` has it: all pieces together are its text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished."""
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def close(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


class TextGenerator:
    """Writes texts with a model and its tokenizer.

    Raises Gpt2UsageError if the model has no tokenizer.
    """

    def __init__(self, source: InferenceModel) -> None:
        self.source = source
        self.tokenizer = source.required_tokenizer

    def encode(self, prompt: str) -> list[int]:
        """The token ids of `prompt`, that of `<|endoftext|>` for an empty one.

        Raises Gpt2UsageError for a prompt that the model's vocabulary can't express.
        """
        ids, end = self.tokenizer.encode(prompt), self.source.end_of_text
        if not ids:
            if end is None:
                raise Gpt2UsageError(
                    "an empty prompt begins with <|endoftext|>, which this model's vocabulary lacks: give a prompt."
                )
            return [end]
        if max(ids) >= self.source.vocabulary_size:
            raise Gpt2UsageError(
                f"the prompt {shortened(prompt)!r} has the token id {max(ids)}, but the model's vocabulary has "
                f"{self.source.vocabulary_size:,} ids: write it with other words, or train with the tokenizer's own "
                "vocabulary size."
            )
        return ids

    def batches(self, requests: Sequence[GenerationRequest], size: int) -> list[list[GenerationRequest]]:
        """`requests` in order, in batches of at most `size` whose prompts are about as long.

        Raises Gpt2UsageError as `encode` does.
        """
        found: list[list[GenerationRequest]] = []
        lengths: list[int] = []
        for request in requests:
            length = len(self.encode(request.prompt))
            together = [*lengths, length]
            if not found or len(lengths) == size or max(together) - min(together) > MOST_UNEVEN:
                found.append([])
                lengths = []
            found[-1].append(request)
            lengths.append(length)
        return found

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        on_text: Callable[[int, str], object] | None = None,
        on_tokens: Callable[[int], object] | None = None,
    ) -> list[GeneratedText]:
        """Write the texts of all `requests` at once; `batches` divides a longer list.

        `on_text` is given the number of a request and the piece of text that was added to it, as it comes;
        `on_tokens` the tokens done so far, a text that ended early counted as whole.
        Raises Gpt2UsageError as `encode` does, and Gpt2Error if the model's output is not finite.
        """
        writers = [_Writer(request, TextStream(self.tokenizer)) for request in requests]
        steps = continue_tokens(
            self.source.model,
            [self._token_request(request) for request in requests],
            vocabulary_size=self.source.vocabulary_size,
            end=self.source.end_of_text,
        )
        for step in steps:
            for number, (writer, token) in enumerate(zip(writers, step, strict=True)):
                if token is None:
                    continue
                piece = writer.add(token, is_end=token == self.source.end_of_text)
                if on_text is not None:
                    on_text(number, piece)
            if on_tokens is not None:
                on_tokens(sum(writer.progress for writer in writers))
        return [writer.result() for writer in writers]

    def _token_request(self, request: GenerationRequest) -> TokenRequest:
        ids = self.encode(request.prompt)
        random = np.random.default_rng([request.seed, request.sample, *ids])
        return TokenRequest(ids, random, request.tokens, request.sampling, request.ignore_end)


class _Writer:
    """One text while it is being written."""

    def __init__(self, request: GenerationRequest, stream: TextStream) -> None:
        self.request, self.stream = request, stream
        self.text, self.tokens, self.has_ended = "", 0, False

    def add(self, token: int, *, is_end: bool) -> str:
        """Count a token; returns the text that it completes."""
        self.tokens += 1
        self.has_ended = is_end
        piece = "" if is_end else self.stream.add(token)
        if is_end or self.tokens == self.request.tokens:
            piece += self.stream.close()
        self.text += piece
        return piece

    @property
    def progress(self) -> int:
        return self.request.tokens if self.has_ended else self.tokens

    def result(self) -> GeneratedText:
        finished: Literal["end_of_text", "length"] = "end_of_text" if self.has_ended else "length"
        return GeneratedText(self.request.prompt, self.request.sample, self.text, self.tokens, finished)
