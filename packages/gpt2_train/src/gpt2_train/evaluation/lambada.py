"""The task `lambada`: does the model guess the last word of a passage? (Paperno et al. 2016)

Two rules are in use, and their figures differ by ten points and more; both are given, by name. The whole last word:
each of its tokens must be the most likely one behind what comes before it. The last token only: what the first GPT-2
scripts measured, which is easier where a word has several tokens.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import Progress
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.evaluation import Task
from gpt2_train.evaluation.held_out_loss import perplexity
from gpt2_train.evaluation.input_lines import input_setting, read_rows

if TYPE_CHECKING:
    from gpt2_train.scoring import Scorer


@dataclasses.dataclass(frozen=True)
class Lambada(Task):
    """Last words guessed, of JSON lines with `text`."""

    name: ClassVar[str] = "lambada"
    summary: ClassVar[str] = "last words guessed"

    input: str = input_setting()

    def run(self, scorer: Scorer) -> dict[str, Any]:
        """Guess each last word. Raises Gpt2UsageError for a passage of one word."""
        passages = [row["text"] for row in read_rows(self.input, self.name, {"text": str})]
        tokenizer = scorer.source.required_tokenizer
        words, tokens = [], []
        for number, passage in enumerate(passages, 1):
            before, _, last = passage.strip().rpartition(" ")
            if not before.strip():
                raise Gpt2UsageError(f"{self.input}: passage {number:,} has no word before the last.")
            words.append((tokenizer.encode(before.strip()), tokenizer.encode(f" {last}")))
            whole = tokenizer.encode(passage.strip())
            tokens.append((whole[:-1], whole[-1:]))
        with Progress(self.name, "passages", 2 * len(passages)) as progress:
            by_word = scorer.logprobs_of(words, progress.advance)
            by_token = scorer.logprobs_of(tokens, progress.advance)
        loss = -math.fsum(found.total for found in by_word) / len(passages)
        return {
            "input": self.input,
            "passages": len(passages),
            "last_word_accuracy": sum(found.is_greedy for found in by_word) / len(passages),
            "last_word_perplexity": perplexity(loss),
            "last_token_accuracy": sum(found.is_greedy for found in by_token) / len(passages),
        }

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Both accuracies, each by its rule."""
        shown = "n/a" if result["last_word_perplexity"] is None else f"{result['last_word_perplexity']:,.2f}"
        return [
            f"lambada on {result['input']}: {result['passages']:,} passages",
            f"  whole last word  {result['last_word_accuracy']:.2%} guessed, perplexity {shown}",
            f"  last token only  {result['last_token_accuracy']:.2%} guessed",
        ]
