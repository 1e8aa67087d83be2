"""A request for completions, as OpenAI's API has it: its body, checked, as texts to write, and their pieces as answers.

Parameters, defaults and limits are the API's where the model can do what they mean; what it can't do is refused
by name, never ignored: a client that asks for a penalty and gets none would not notice. An answer is one JSON object at
the end, or a stream of them as the texts are written.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.inference.engine import GenerationRequest, Token
from gpt2_train.inference.generator import Encoder, TextPiece
from gpt2_train.inference.sampling import Sampling
from gpt2_train.serving.middleware import ApiError, wrong
from indexed_tokens import Tokenizer

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens`."""
MOST_LOGPROBS = 20
MOST_STOPS = 16
LONGEST_STOP = 256
"""Characters."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Further events that a stream should have."""

    include_usage: bool | None = None


class CompletionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/completions`; null is the default everywhere. The last three are not OpenAI's, but known
    from other servers."""

    model: str | None = None
    prompt: str | list[Any] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    user: str | None = None
    best_of: int | None = None
    suffix: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=1)] | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request.

    Attributes:
        tokens: the most tokens to write for a text.
        request_tokens: the most tokens to write for all its texts.
        positions: the model's: the most tokens of a prompt.
        texts: the most texts.
    """

    tokens: int
    request_tokens: int
    positions: int
    texts: int


def read_request(body: bytes, encoder: Encoder, model: str, limits: Limits) -> Answer:
    """The answer, still empty, to the request in `body`, the JSON that a client sent for the model of that name.

    Raises ApiError: 400 with the parameter that is wrong, 404 for another model.
    """
    asked = _decoded(body)
    if asked.model is not None and asked.model != model:
        raise ApiError(
            404, f"the model {asked.model!r} does not exist: this server has {model!r}.",
            param="model", code="model_not_found",
        )  # fmt: skip
    _refuse_unsupported(asked)
    tokens = _or(asked.max_tokens, DEFAULT_TOKENS)
    if tokens > limits.tokens:
        raise wrong("max_tokens", f"max_tokens is {tokens}: this server writes at most {limits.tokens:,} tokens.")
    prompts = _prompts(asked, encoder, limits)
    texts = len(prompts) * _or(asked.n, 1)
    if texts > limits.texts:
        raise wrong(
            "n" if len(prompts) <= limits.texts else "prompt",
            f"{texts} texts in one request: this server takes at most {limits.texts:,}.",
        )
    if texts * tokens > limits.request_tokens:
        raise wrong(
            "max_tokens",
            f"{texts:,} times {tokens:,} tokens: this server writes at most {limits.request_tokens:,} tokens for one "
            "request; ask for fewer, or in several requests.",
        )
    sampling = Sampling(_or(asked.temperature, 1.0), _or(asked.top_k, 0), _or(asked.top_p, 1.0))
    seed = secrets.randbelow(2**63) if asked.seed is None else asked.seed
    stops = _stops(asked.stop)
    numbers: dict[tuple[int, ...], Iterator[int]] = collections.defaultdict(itertools.count)
    requests = [
        GenerationRequest(
            prompt=prompt,
            tokens=tokens,
            sampling=sampling,
            seed=seed,
            sample=next(numbers[ids]),
            ignore_end=bool(asked.ignore_eos),
            stop=stops,
            logprobs=asked.logprobs,
            prompt_tokens=ids,
        )
        for prompt, ids in prompts
        for _ in range(_or(asked.n, 1))
    ]
    return Answer(
        model,
        encoder.tokenizer,
        requests,
        prompt_tokens=sum(len(ids) for _, ids in prompts),
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        echo=bool(asked.echo),
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _decoded(body: bytes) -> CompletionBody:
    try:
        return msgspec.json.decode(body, type=CompletionBody)
    except msgspec.ValidationError as error:
        message = str(error)
        found = re.search(r"`\$\.(\w+)[^`]*`$", message) or re.search(r"unknown field `(.+)`", message)
        reason = message.partition(" - at `")[0]
        if found is None:
            raise ApiError(400, f"the body should be a JSON object with parameters: {_plain(reason)}.") from None
        param = found[1]
        if "unknown field" in message:
            raise wrong(param, f"unknown parameter {param!r}: leave it out.", "unknown_parameter") from None
        raise wrong(param, f"{param}: {_plain(reason)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON ({error}): correct it.") from None


def _plain(reason: str) -> str:
    """msgspec's reason in JSON's words: "Expected `int | null`, got `str`" -> "expected integer, got string"."""
    reason = reason.replace(" | null`", "`").replace("`", "")
    for python, json in _JSON_NAMES.items():
        reason = re.sub(rf"\b{python}\b", json, reason)
    return reason[:1].lower() + reason[1:]


_JSON_NAMES = {"int": "integer", "float": "number", "str": "string", "bool": "true or false"}


def _refuse_unsupported(asked: CompletionBody) -> None:
    if asked.best_of is not None and asked.best_of != _or(asked.n, 1):
        raise wrong("best_of", "best_of is not served: ask for n texts with logprobs, and choose among them.")
    if asked.suffix:
        raise wrong("suffix", "suffix is not served: GPT-2 writes onwards only.")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(asked, name):
            raise wrong(name, f"{name} is not served: leave it out, or give 0.")
    if asked.logit_bias:
        raise wrong("logit_bias", "logit_bias is not served: leave it out.")
    if asked.echo and asked.logprobs is not None:
        raise wrong("echo", "echo with logprobs is not served: `gpt2 evaluate` says how likely a text is.")
    if asked.stream_options is not None and not asked.stream:
        raise wrong("stream_options", "stream_options is for streams: give stream true, or leave it out.")


def _stops(asked: str | list[str] | None) -> tuple[str, ...]:
    stops = (asked,) if isinstance(asked, str) else tuple(asked or ())
    if len(stops) > MOST_STOPS:
        raise wrong("stop", f"{len(stops)} stop sequences: give at most {MOST_STOPS}.")
    if any(not 1 <= len(stop) <= LONGEST_STOP for stop in stops):
        raise wrong("stop", f"each stop sequence should have 1 to {LONGEST_STOP} characters.")
    return stops


def _prompts(asked: CompletionBody, encoder: Encoder, limits: Limits) -> list[tuple[str, tuple[int, ...]]]:
    """Each prompt as text and as token ids; no prompt at all is an empty one."""
    given: Any = "" if asked.prompt is None else asked.prompt
    if isinstance(given, str) or (given and all(_is_id(entry) for entry in given)):
        given = [given]
    if not given:
        raise wrong("prompt", 'prompt is an empty list: give a text; "" begins a new document.')
    if len(given) > limits.texts:
        raise wrong("prompt", f"{len(given)} prompts in one request: this server takes at most {limits.texts:,}.")
    return [_prompt(entry, encoder, limits, asked.truncate_prompt_tokens) for entry in given]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt(given: Any, encoder: Encoder, limits: Limits, most: int | None) -> tuple[str, tuple[int, ...]]:
    if not (isinstance(given, str) or (isinstance(given, list) and given and all(_is_id(entry) for entry in given))):
        raise wrong("prompt", "prompt should be a text, a list of texts, token ids, or a list of lists of token ids.")
    _check_size(given, encoder, limits)
    try:
        ids = tuple(encoder.encode(given) if isinstance(given, str) else encoder.check_tokens(given))
    except Gpt2UsageError as error:
        raise wrong("prompt", str(error)) from None
    text = given if isinstance(given, str) else None
    if most is not None and len(ids) > most:
        ids, text = ids[-most:], None
    text = encoder.tokenizer.decode(ids) if text is None else text
    if len(ids) > limits.positions:
        raise _too_long(f"{len(ids):,} tokens", limits)
    return text, ids


def _check_size(given: str | list[int], encoder: Encoder, limits: Limits) -> None:
    """Refuse, before the seconds that its tokens may take, a prompt of more bytes than the model's positions hold.

    That is also what is taken of a prompt that is to be truncated.
    """
    size = len(given.encode(errors="surrogatepass")) if isinstance(given, str) else len(given)
    if size > limits.positions * encoder.tokenizer.longest_token:
        raise _too_long(f"{size:,} {'bytes' if isinstance(given, str) else 'tokens'}", limits)


def _too_long(size: str, limits: Limits) -> ApiError:
    return wrong(
        "prompt",
        f"the prompt has {size}, but the model sees at most {limits.positions:,} tokens: shorten it.",
        "context_length_exceeded",
    )


FINISH_REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length"}
"""OpenAI's names of what ended a text."""


class Answer:
    """A request that was checked, and the answer to it.

    Args:
        model: the name of the model.
        tokenizer: the model's.
        requests: the texts to write: `n` for each prompt, in order.
        prompt_tokens: tokens of all prompts, each counted once.
        stream: whether to answer piece by piece.
        include_usage: whether a stream ends with the counts of tokens.
        echo: whether a text begins with its prompt.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        requests: Sequence[GenerationRequest],
        *,
        prompt_tokens: int,
        stream: bool,
        include_usage: bool,
        echo: bool,
    ) -> None:
        self.requests, self.prompt_tokens, self.stream = requests, prompt_tokens, stream
        self._tokenizer, self._includes_usage, self._echoes = tokenizer, include_usage, echo
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._told: list[list[dict[str, Any]]] = [[] for _ in requests]
        """The pieces of each text."""
        self._characters, self._written = [0] * len(requests), [0] * len(requests)

    @property
    def written(self) -> int:
        """Tokens written so far, in all texts."""
        return sum(self._written)

    def add(self, index: int, piece: TextPiece) -> bytes:
        """Take a piece of text number `index`; returns the events of a stream that tell it, if anything is to tell."""
        request, told = self.requests[index], self._told[index]
        echoed = request.prompt if self._echoes and not told else ""
        logprobs = None
        if request.logprobs is not None and piece.tokens:
            logprobs = self._logprobs(piece.tokens, self._characters[index] + len(echoed))
        choice = {
            "text": echoed + piece.text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": FINISH_REASONS[piece.finished] if piece.finished is not None else None,
        }
        told.append(choice)
        self._characters[index] += len(echoed) + len(piece.text)
        self._written[index] = piece.written
        if not (choice["text"] or choice["logprobs"] or choice["finish_reason"]):
            return b""
        more = {"usage": None} if self._includes_usage else {}
        return event({**self._head, "choices": [choice], **more})

    def last_events(self) -> bytes:
        """The end of a stream."""
        usage = b""
        if self._includes_usage:
            usage = event({**self._head, "choices": [], "usage": self.usage})
        return usage + b"data: [DONE]\n\n"

    @property
    def usage(self) -> dict[str, int]:
        """The counts of tokens; a prompt's count once however many texts continue it."""
        read = self.prompt_tokens
        return {"prompt_tokens": read, "completion_tokens": self.written, "total_tokens": read + self.written}

    def whole(self) -> bytes:
        """The answer at once."""
        choices = [
            {
                "text": "".join(choice["text"] for choice in told),
                "index": index,
                "logprobs": joined([choice["logprobs"] for choice in told if choice["logprobs"]])
                if request.logprobs is not None
                else None,
                "finish_reason": told[-1]["finish_reason"],
            }
            for index, (request, told) in enumerate(zip(self.requests, self._told, strict=True))
        ]
        return msgspec.json.encode({**self._head, "choices": choices, "usage": self.usage})

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        """The probabilities of `tokens`, each one's own also among the most likely ones.

        `text_offset` is where the text of a token begins, for the later ones of a character where that does.
        """
        entries = []
        for token in tokens:
            likely = (*token.most_likely, (token.token, token.logprob))
            entries.append(
                {
                    "tokens": [token_text(self._tokenizer, token.token)],
                    "token_logprobs": [token.logprob],
                    "top_logprobs": [{token_text(self._tokenizer, other): value for other, value in likely}],
                    "text_offset": [offset],
                }
            )
            offset += len(token.text)
        return joined(entries)


def event(content: dict[str, Any]) -> bytes:
    """`content` as JSON in a server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


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
