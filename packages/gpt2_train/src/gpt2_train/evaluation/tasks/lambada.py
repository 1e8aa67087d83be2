"""The task `lambada`: does the model guess the last word of a passage? (Paperno et al. 2016)

Two rules are in use, and their figures differ by ten points and more; both are given, by name. The whole last word:
each of its tokens must be the most likely one after what comes before it. The last token only: what the first GPT-2
scripts measured, which is easier where a word has several tokens.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import Progress, setting
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.tasks import Task, figure, perplexity, read_rows

if TYPE_CHECKING:
    from gpt2_train.conversion.formats import StoredModel
    from gpt2_train.inference.scorer import Scorer


Pairs = list[tuple[list[int], list[int]]]
"""Contexts and what follows them, as token ids."""


@dataclasses.dataclass(frozen=True)
class Lambada(Task):
    """Last words guessed, of JSON lines with `text`."""

    name: ClassVar[str] = "lambada"
    summary: ClassVar[str] = "last words guessed"

    input: str = setting("", "passages, as JSON lines with `text`", metavar="FILE", positional=True)

    def read(self, model: StoredModel) -> tuple[Pairs, Pairs]:
        """Last words and last tokens, each after its passage. Raises Gpt2UsageError for a passage of one word."""
        passages = [row["text"] for row in read_rows(self.input, self.name, {"text": str})]
        tokenizer = model.required_tokenizer
        words, tokens = [], []
        for number, passage in enumerate(passages, 1):
            before, _, last = passage.strip().rpartition(" ")
            if not before.strip():
                raise Gpt2UsageError(f"{self.input}: passage {number:,} has no word before the last.")
            words.append((tokenizer.encode(before.strip()), tokenizer.encode(f" {last}")))
            whole = tokenizer.encode(passage.strip())
            tokens.append((whole[:-1], whole[-1:]))
        return words, tokens

    def measure(self, scorer: Scorer, found: tuple[Pairs, Pairs]) -> dict[str, Any]:
        """Guess each last word, and each last token."""
        words, tokens = found
        passages = len(words)
        with Progress(self.name, "passages", 2 * passages) as progress:
            by_word = scorer.logprobs_of(words, progress.advance)
            by_token = scorer.logprobs_of(tokens, progress.advance)
        loss = -math.fsum(word.total for word in by_word) / passages
        return {
            "input": self.input,
            "passages": passages,
            "last_word_accuracy": sum(word.is_greedy for word in by_word) / passages,
            "last_word_perplexity": perplexity(loss),
            "last_token_accuracy": sum(token.is_greedy for token in by_token) / passages,
        }

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Both accuracies, each by its rule."""
        return [
            f"lambada on {result['input']}: {result['passages']:,} passages",
            f"  whole last word  {result['last_word_accuracy']:.2%} guessed, perplexity "
            f"{figure(result['last_word_perplexity'])}",
            f"  last token only  {result['last_token_accuracy']:.2%} guessed",
        ]
