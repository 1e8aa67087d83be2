"""Text from a model: requests in, texts out, each with a length, a way of sampling and a seed of its own.

`TextSession` takes requests at any time and writes them side by side; `TextGenerator` writes a given list. Neither
knows of command lines, so that a command, a conversation, a server and a training run can all use them. What a request
becomes follows from its prompt, its sampling, its seed and its number among the samples of that prompt, and not from
the requests that are written at the same time.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from gpt2_train.config.errors import Gpt2UsageError, shortened
from gpt2_train.conversion.formats import StoredModel
from gpt2_train.inference.engine import Engine, GenerationRequest, OpenSequence, Token
from gpt2_train.inference.kv_cache import CachedModel, arrange_weights
from gpt2_train.inference.model import InferenceModel
from indexed_tokens import Tokenizer

Finished = Literal["end_of_text", "stop", "length"]
"""Why a text ended: the model ended it, a stop string came, or it has all tokens asked for."""


@dataclasses.dataclass(frozen=True)
class TextPiece:
    """The text that a request got in a step, or in several if it was held back as the beginning of a stop string.

    Attributes:
        number: of the request.
        tokens: the ones that are decided now. At the end, a stop string's are left out, and the one that it
            begins in has the text before it alone.
        written: tokens written so far, also ones held back or left out.
        finished: why the text has ended with this piece; None if it goes on.
    """

    number: int
    tokens: tuple[Token, ...]
    written: int
    finished: Finished | None = None

    @property
    def text(self) -> str:
        """The text to add; may be empty."""
        return "".join(token.text for token in self.tokens)


@dataclasses.dataclass(frozen=True)
class GeneratedText:
    """The completion of a request.

    Attributes:
        prompt: how it begins.
        sample: its number among the texts of that prompt.
        text: what was written after the prompt.
        tokens: how many tokens were written, a closing `<|endoftext|>` and a stop string's included.
        finished: `end_of_text` if the model ended it, `stop` if a stop string came, `length` if it has all tokens
            asked for.
        details: its tokens with their log-probabilities, if the request asked for them.
    """

    prompt: str
    sample: int
    text: str
    tokens: int
    finished: Finished
    details: tuple[Token, ...] | None = None


class StopStrings:
    """Holds back what may be the beginning of a stop string, and cuts the text before the one that is complete first.

    A text comes as tokens and leaves as whole tokens, so that its scores arrive together with its text.
    Which string it is does not depend on how the text is divided: the one that ends first, and of several the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Token] = []

    def add(self, token: Token) -> tuple[list[Token], bool]:
        """(the tokens that are decided now, whether a stop string came, before which the last of them is cut)."""
        self._held.append(token)
        text = "".join(held.text for held in self._held)
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            return self._cut(min(found)[1]), True
        return self._release(self._undecided(text)), False

    def close(self) -> list[Token]:
        """The tokens that are still held back, at the end of a text."""
        rest, self._held = self._held, []
        return rest

    def _undecided(self, text: str) -> int:
        """The beginning of the longest end of `text` that is the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0)
        places = range(max(0, len(text) - longest + 1), len(text))
        return next((at for at in places if any(stop.startswith(text[at:]) for stop in self._stops)), len(text))

    def _release(self, end: int) -> list[Token]:
        """The tokens that lie before `end` as a whole, but for the tokens of an unfinished character after them."""
        count = at = 0
        for number, held in enumerate(self._held, 1):
            at += len(held.text)
            if held.text and at <= end:
                count = number
        found, self._held = self._held[:count], self._held[count:]
        return found

    def _cut(self, end: int) -> list[Token]:
        """All that lies before `end`, the last token shortened if need be."""
        found, at = [], 0
        for held in self.close():
            if at >= end:
                break
            kept = held.text[: end - at]
            found.append(held if kept == held.text else dataclasses.replace(held, text=kept))
            at += len(held.text)
        return found


class Encoder:
    """Checks what a model is asked to write, without its weights.

    Raises Gpt2UsageError if the model has no tokenizer.
    """

    def __init__(self, model: StoredModel) -> None:
        self.model = model
        self.tokenizer: Tokenizer = model.required_tokenizer
        self.vocabulary_size, self.end = model.vocabulary_size, model.end_of_text

    def encode(self, prompt: str) -> list[int]:
        """The token ids of `prompt`, that of `<|endoftext|>` for an empty one.

        Raises Gpt2UsageError for a prompt that the model's vocabulary can't express.
        """
        ids = self.tokenizer.encode(prompt)
        if not ids:
            if self.end is None:
                raise Gpt2UsageError(
                    "an empty prompt begins with <|endoftext|>, which this model's vocabulary lacks: give a prompt."
                )
            return [self.end]
        if max(ids) >= self.vocabulary_size:
            raise Gpt2UsageError(
                f"the prompt {shortened(prompt)!r} has the token id {max(ids)}, but the model's vocabulary has "
                f"{self.vocabulary_size:,} ids: write it with other words, or train with the tokenizer's own "
                "vocabulary size."
            )
        return ids

    def check_tokens(self, ids: Sequence[int]) -> list[int]:
        """`ids`, if they can be a prompt. Raises Gpt2UsageError for none, or one that the model does not have."""
        size = self.vocabulary_size
        outside = next((token for token in ids if not 0 <= token < size), None)
        if outside is not None:
            raise Gpt2UsageError(f"the token id {outside} is outside the model's vocabulary: give ids below {size:,}.")
        if not ids:
            raise Gpt2UsageError("a prompt of no token ids: give at least one.")
        return list(ids)

    def encoded(self, request: GenerationRequest) -> GenerationRequest:
        """`request` with the token ids of its prompt.

        Raises Gpt2UsageError as `encode` does, and for settings out of range.
        """
        if request.tokens < 1:
            raise Gpt2UsageError(f"{request.tokens} tokens asked for: ask for at least 1.")
        if not all(request.stop):
            raise Gpt2UsageError("an empty stop string would end every text before it begins: leave it out.")
        known = request.prompt_tokens
        ids = self.encode(request.prompt) if known is None else self.check_tokens(known)
        return dataclasses.replace(request, prompt_tokens=tuple(ids))


class TextSession:
    """Writes texts side by side; requests come and go at any time.

    Args:
        source: the model; its weights are read here.
        rows: texts written at once; further ones wait in the order in which they came.
        length: positions that a text may take, prompt included; without it the model's, which are enough for
            any length: a text then goes on after the last half of them.
        arranged: for how many texts at once the weights are arranged (`arrange_weights`); not at all without it.

    Attributes:
        engine: what writes, and knows how many requests are written and waiting.
        kv_cache: of its past; its length are the positions that a text may take.

    Raises Gpt2UsageError if the model has no tokenizer or its weights are damaged.
    """

    def __init__(
        self, source: InferenceModel, rows: int = 8, length: int | None = None, *, arranged: int | None = None
    ) -> None:
        self.encoder = Encoder(source.stored)
        self.rows = rows
        model, precision = source.read_model(), source.precision
        if arranged is not None:
            arrange_weights(model, precision, arranged)
        self.kv_cache = CachedModel(model, rows, length, precision=precision, group=source.group)
        self.engine = Engine(self.kv_cache, vocabulary_size=self.encoder.vocabulary_size, end=self.encoder.end)
        self._writers: dict[int, _Writer] = {}

    def submit(self, request: GenerationRequest) -> int:
        """Take a request; returns its number.

        Raises Gpt2UsageError as `Encoder.encoded` does, and for a text too long for the session's `length`.
        """
        number = self.engine.add(self.encoder.encoded(request))
        self._writers[number] = _Writer(request.stop, self.encoder.tokenizer)
        return number

    def cancel(self, number: int) -> None:
        """Stop writing a request; nothing happens if it has ended."""
        self.engine.remove(number)
        self._writers.pop(number, None)

    def step(self) -> list[TextPiece]:
        """Write one token of each request that is being written; returns what each has got, empty pieces left out.

        Raises Gpt2Error if the model's output is not finite.
        """
        pieces = []
        for sequence, token in self.engine.step():
            piece = self._writers[sequence.number].add(sequence, token)
            if piece.finished is not None:
                self.cancel(sequence.number)  # A stop string is no end to the engine.
            if piece.tokens or piece.finished:
                pieces.append(piece)
        return pieces


class TextGenerator:
    """Writes given texts with a model and its tokenizer.

    Args:
        source: the model; its weights are read when the first text is written.
        rows: texts written at once.
        arranged: whether the weights are arranged for as many: the model can do nothing else then.

    Raises Gpt2UsageError if the model has no tokenizer.
    """

    def __init__(self, source: InferenceModel, rows: int = 8, *, arranged: bool = False) -> None:
        self.source, self.rows, self.arranged = source, rows, rows if arranged else None
        self.encoder = Encoder(source.stored)
        self._session: TextSession | None = None

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        on_begin: Callable[[], object] = lambda: None,
        on_text: Callable[[int, str], object] = lambda number, piece: None,
        on_tokens: Callable[[int], object] = lambda done: None,
        on_done: Callable[[int, GeneratedText], object] | None = None,
    ) -> list[GeneratedText]:
        """Write the texts of all `requests`, `rows` at once.

        `on_begin` is called before the first step, when all prompts are encoded and the weights are read. `on_text` is
        given the number of a request and the piece of text that was added to it, as it comes; `on_tokens` the tokens
        done so far, a text that ended early counted as whole; `on_done` the number of a request that is finished, and
        its text.
        Raises Gpt2UsageError as `Encoder.encoded` does, and Gpt2Error if the model's output is not finite.
        """
        if not requests:
            return []
        encoded = [self.encoder.encoded(request) for request in requests]
        session = self._session_for(encoded)
        self._session = None  # What an exception leaves half done is not used again.
        pieces: list[list[TextPiece]] = [[] for _ in requests]
        done = [0] * len(requests)
        places = {session.submit(request): place for place, request in enumerate(encoded)}
        on_begin()
        while session.engine.waiting or session.engine.writing:
            for piece in session.step():
                place = places[piece.number]
                request = requests[place]
                pieces[place].append(piece)
                done[place] = request.tokens if piece.finished else piece.written
                on_text(place, piece.text)
                if on_done is not None and piece.finished is not None:
                    on_done(place, _text_of(request, pieces[place]))
            on_tokens(sum(done))
        self._session = session
        return [_text_of(request, own) for request, own in zip(requests, pieces, strict=True)]

    def _session_for(self, requests: Sequence[GenerationRequest]) -> TextSession:
        """The session of before, if its cache is large enough, or a new one."""
        longest = max(len(request.prompt_tokens or ()) + request.tokens for request in requests)
        length, rows = min(longest, self.source.stored.config.sequence_length), min(self.rows, len(requests))
        if self._session is None or self._session.kv_cache.length < length or self._session.rows < rows:
            self._session = None
            self._session = TextSession(self.source, rows, length, arranged=self.arranged)
        return self._session


class _Writer:
    """A text of a session, from its tokens."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Holds the bytes of a character back until it is whole; what is no UTF-8 becomes U+FFFD, as `decode` has it.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopStrings(stops)
        self._written = 0

    def add(self, sequence: OpenSequence, token: Token) -> TextPiece:
        """The piece of text that a further token of its sequence decides."""
        self._written += 1
        data = b"" if sequence.finished == "end_of_text" else self._tokenizer.decode_bytes([token.token])
        text = self._decoder.decode(data, final=sequence.finished is not None)
        tokens, has_stopped = self._stops.add(dataclasses.replace(token, text=text))
        finished: Finished | None = "stop" if has_stopped else sequence.finished
        if finished is not None:
            tokens += self._stops.close()
        return TextPiece(sequence.number, tuple(tokens), self._written, finished)


def _text_of(request: GenerationRequest, pieces: Sequence[TextPiece]) -> GeneratedText:
    """The completion that `pieces` make, the last of which ends it."""
    finished = pieces[-1].finished
    assert finished is not None
    text, written = "".join(piece.text for piece in pieces), pieces[-1].written
    details = tuple(token for piece in pieces for token in piece.tokens) if request.logprobs is not None else None
    return GeneratedText(request.prompt, request.sample, text, written, finished, details)
