"""The task `wikitext`: perplexity of a text that was split into words, per token and per original word.

WikiText is distributed as words with spaces between them ("1 @,@ 000 , he said ."), which GPT-2 never saw: the text is
first put back together. Perplexities of different tokenizers don't compare; per original word they do, and so do bits
per byte. Rules and measure are those of Megatron-LM's evaluation, so that its published figures compare.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import setting
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.evaluation import Task
from gpt2_train.evaluation.held_out_loss import perplexity
from gpt2_train.evaluation.input_lines import input_setting, read_text

if TYPE_CHECKING:
    from gpt2_train.inference import InferenceModel
    from gpt2_train.scoring import Scorer

_REPLACED = (
    ("s '", "s'"),
    (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."),
    (" : ", ": "), (" ; ", "; "), (" . ", ". "), (" ! ", "! "), (" ? ", "? "), (" , ", ", "),
)  # fmt: skip
_CLOSED_UP = (
    (re.compile(r"\(\s*([^\)]*?)\s*\)"), r"(\1)"),
    (re.compile(r"\[\s*([^\]]*?)\s*\]"), r"[\1]"),
    (re.compile(r"{\s*([^}]*?)\s*}"), r"{\1}"),
    (re.compile(r"\"\s*([^\"]*?)\s*\""), r'"\1"'),
    (re.compile(r"'\s*([^']*?)\s*'"), r"'\1'"),
)
_REPLACED_LAST = (
    ("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0"),
    (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s"),
)  # fmt: skip


def detokenized(text: str) -> str:
    """The text as it was before it was split into words, as far as rules can tell.

    >>> detokenized('He said : " 1 @,@ 000 , ( or so ) . "')
    'He said: "1,000, (or so)."'
    """
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for pattern, replacement in _CLOSED_UP:
        text = pattern.sub(replacement, text)
    for old, new in _REPLACED_LAST:
        text = text.replace(old, new)
    return text


@dataclasses.dataclass(frozen=True)
class Wikitext(Task):
    """Perplexity on WikiText, as raw words. Raises Gpt2UsageError where a setting is out of range."""

    name: ClassVar[str] = "wikitext"
    summary: ClassVar[str] = "perplexity per token and per original word"

    input: str = input_setting()
    overlap: int = setting(
        0,
        "windows move on by this many tokens and score only these, so that each has the rest of the window before it "
        "(Megatron-LM's --overlapping-eval, 32 there); 0 for windows side by side, which cost a thirtieth",
    )

    def __post_init__(self) -> None:
        if self.overlap < 0:
            raise Gpt2UsageError(f"--overlap is {self.overlap}: it should be at least 0.")

    def read(self, model: InferenceModel) -> tuple[npt.NDArray[np.int64], int, int]:
        """(token ids, words as distributed, bytes) of the text. Raises Gpt2UsageError if it is missing or too short."""
        raw = read_text(self.input, self.name)
        text = detokenized(raw)
        words = len(raw.strip().split(" "))
        tokens = np.array(model.required_tokenizer.encode(text), np.int64)
        if len(tokens) < 2 or words < 2:
            raise Gpt2UsageError(f"{self.input} holds {len(tokens)} tokens: there is nothing to predict.")
        positions = model.config.sequence_length
        if self.overlap > positions:
            raise Gpt2UsageError(f"--overlap {self.overlap} is more than the model's {positions} positions.")
        return tokens, words, len(text.encode())

    def measure(self, scorer: Scorer, found: tuple[npt.NDArray[np.int64], int, int]) -> dict[str, Any]:
        """Score the text."""
        tokens, words, size = found
        with scorer.progress(self.name, "tokens", len(tokens) - 1) as progress:
            if self.overlap:
                total = scorer.overlapping_loss(tokens, self.overlap, progress.advance)
            else:
                total, _ = scorer.text_loss([tokens], progress.advance)
        return {
            "input": self.input,
            "overlap": self.overlap,
            "tokens": len(tokens) - 1,
            "original_words": words - 1,
            "bytes": size,
            "loss": total / (len(tokens) - 1),
            "perplexity": perplexity(total / (len(tokens) - 1)),
            "word_perplexity": perplexity(total / (words - 1)),
            "bits_per_byte": total / math.log(2) / size,
        }

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Perplexities, and bits per byte."""
        how = f"windows that move on by {result['overlap']} tokens" if result["overlap"] else "windows side by side"
        return [
            f"wikitext on {result['input']}: {result['tokens']:,} tokens, {result['original_words']:,} original words, "
            f"{how}",
            f"  loss             {result['loss']:.4f} nats per token",
            f"  perplexity       {_shown(result['perplexity'])} per token",
            f"  word perplexity  {_shown(result['word_perplexity'])} per original word",
            f"  bits per byte    {result['bits_per_byte']:.4f} of the text put back together",
        ]


def _shown(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.2f}"
