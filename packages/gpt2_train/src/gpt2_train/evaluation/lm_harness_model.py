"""The model `gpt2_train` of lm-evaluation-harness: a `Scorer` and a `TextGenerator` answer what it asks of a model.

Contexts and continuations are divided into tokens as the harness does it for models of Hugging Face (a space at the end
of a context belongs to the continuation), so figures compare, but where a text holds `<|endoftext|>`: plain text here,
one token there. A context of blanks alone, at which those of Hugging Face fail (0.4.13), is none: the continuation
follows `<|endoftext|>`. What exceeds the model's sequence is cut off at the
beginning of a context; a text whose whole likelihood is asked for is read in windows that overlap as little as they
can.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from command_kit import Progress
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.tasks.wikitext import rolling_windows
from gpt2_train.inference.engine import GenerationRequest
from gpt2_train.inference.generator import TextGenerator
from gpt2_train.inference.model import InferenceSettings
from gpt2_train.inference.sampling import Sampling
from gpt2_train.inference.scorer import Scorer

MOST_TOKENS = 256
"""Tokens of a text whose task does not say how many; the harness' own default."""


@register_model("gpt2_train")
class HarnessModel(TemplateLM):
    """A model of any format that `gpt2 evaluate` takes.

    Args:
        checkpoint: the model.
        tokenizer: to use instead of its own.
        precision: of matrix products; what suits the device without it.
        device: where to compute; `auto` without it.
        threads: CPU threads of each process.
        batch_size: windows scored, and texts written at once; 1, the harness' default, or `auto` for our own choice.

    Raises Gpt2UsageError if the model can't be used, or its tokenizer has no `<|endoftext|>`, which begins a text.
    """

    def __init__(
        self,
        checkpoint: str = "",
        *,
        tokenizer: str | None = None,
        precision: str | None = None,
        device: str | None = None,
        threads: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        if others:
            raise Gpt2UsageError(
                f"gpt2_train, which runs in one process here, has no {', '.join(others)}: leave it out."
            )
        resources = contextlib.ExitStack()
        atexit.register(resources.close)
        where: Any = device or "auto"
        kind: Any = precision
        settings = InferenceSettings(checkpoint, tokenizer, 1, where, kind, threads)
        source = resources.enter_context(settings.opened())
        self.stored = source.stored
        if self.stored.end_of_text is None:
            raise Gpt2UsageError(f"the tokenizer of {self.stored.origin} has no <|endoftext|>, which tasks begin with.")
        chosen = None if batch_size in (None, 1, "1") or str(batch_size).startswith("auto") else int(str(batch_size))
        self.scorer = Scorer(source, batch_size=chosen)
        self.generator = TextGenerator(source, chosen or 8)

    @property
    def eot_token_id(self) -> int:
        """The token that begins a document."""
        assert self.stored.end_of_text is not None
        return self.stored.end_of_text

    @property
    def max_length(self) -> int:
        """Positions of the model."""
        return self.stored.config.sequence_length

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the harness' caches."""
        return f"gpt2_train-{self.stored.required_tokenizer.fingerprint}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """The token ids of a text; none are added."""
        return self.stored.required_tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context or [self.eot_token_id], continuation) for _, context, continuation in requests]
        with Progress("loglikelihood", "continuations", len(pairs)) as progress:
            found = self.scorer.logprobs_of(pairs, progress.advance)
        answers = [(continuation.total, continuation.is_greedy) for continuation in found]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, after `<|endoftext|>`."""
        windows = [
            [*rolling_windows(self.tok_encode(request.args[0]), self.eot_token_id, self.max_length)]
            for request in requests
        ]
        pairs = [pair for of_text in windows for pair in of_text]
        with Progress("loglikelihood_rolling", "windows", len(pairs)) as progress:
            found = iter([scored.total for scored in self.scorer.logprobs_of(pairs, progress.advance)])
        answers = [sum(next(found) for _ in of_text) for of_text in windows]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The completion of each context, up to the first of its stop strings."""
        orders = [_order(context, settings) for context, settings in (request.args for request in requests)]
        with Progress("generate_until", "tokens", sum(order.tokens for order in orders)) as progress:
            texts = [text.text for text in self.generator.generate(orders, on_tokens=progress.update)]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts


def _order(context: str, settings: dict[str, Any]) -> GenerationRequest:
    """The request of the harness, in our terms: greedy unless `do_sample` or a temperature says otherwise."""
    until = settings.get("until") or ()
    stop = (until,) if isinstance(until, str) else tuple(until)
    temperature = float(settings.get("temperature") or 0.0)
    if settings.get("do_sample") and "temperature" not in settings:
        temperature = 1.0
    if settings.get("do_sample") is False:
        temperature = 0.0
    top_p = settings.get("top_p")
    sampling = Sampling(temperature, int(settings.get("top_k") or 0), 1.0 if top_p is None else float(top_p))
    tokens = int(settings.get("max_gen_toks") or settings.get("max_new_tokens") or MOST_TOKENS)
    return GenerationRequest(context, tokens=tokens, sampling=sampling, stop=tuple(text for text in stop if text))
