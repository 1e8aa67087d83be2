"""The task `text-loss`: loss, perplexity and bits per byte of a text file, as it is."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from command_kit import Progress, setting
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.tasks import Task, figure, perplexity, read_text

if TYPE_CHECKING:
    from gpt2_train.conversion.formats import StoredModel
    from gpt2_train.inference.scorer import Scorer


@dataclasses.dataclass(frozen=True)
class TextLoss(Task):
    """The loss of each token of a text, which begins a document. Raises Gpt2UsageError for an empty text."""

    name: ClassVar[str] = "text-loss"
    summary: ClassVar[str] = "loss, perplexity and bits per byte of a text file"
    source: ClassVar[str] = "text"

    text: str = setting("", "text file to predict, in UTF-8", metavar="FILE", positional=True)

    def read(self, model: StoredModel) -> tuple[npt.NDArray[np.int64], int]:
        """(token ids, bytes that are predicted) of the text. Raises Gpt2UsageError if it can't be read, or is empty."""
        text = read_text(self.text, self.name)
        if not text:
            raise Gpt2UsageError(f"{self.text} is empty: there is nothing to predict.")
        tokenizer = model.required_tokenizer
        tokens = tokenizer.encode(text)
        begin = [model.end_of_text] if model.end_of_text is not None else []
        # The bytes of the first token count only where it is predicted, after the end of another text.
        is_first_scored = bool(begin) and not model.masks_end_of_text
        unscored = [] if is_first_scored else tokens[:1]
        if len(tokens) == len(unscored):
            raise Gpt2UsageError(f"{self.text} is one token, and the first can't be predicted: give a longer text.")
        size = len(text.encode()) - len(tokenizer.decode_bytes(unscored))
        return np.array([*begin, *tokens], np.int64), size

    def measure(self, scorer: Scorer, found: tuple[npt.NDArray[np.int64], int]) -> dict[str, Any]:
        """Score the text."""
        ids, size = found
        with Progress("evaluate", "tokens", len(ids) - 1) as progress:
            total, scored = scorer.text_loss([ids], progress.advance)
        return {
            "text": self.text,
            "tokens": scored,
            "bytes": size,
            "loss": total / scored,
            "perplexity": perplexity(total / scored),
            "bits_per_byte": total / math.log(2) / size,
        }

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Loss, perplexity, bits per byte."""
        return [
            f"on {result['text']}: {result['tokens']:,} tokens, {result['bytes']:,} bytes",
            f"  loss           {result['loss']:.4f} nats per token",
            f"  perplexity     {figure(result['perplexity'])}",
            f"  bits per byte  {result['bits_per_byte']:.4f}",
        ]
