"""Gopher's repetition rule: lines, paragraphs and n-grams that come again and again."""

from __future__ import annotations

import re
from typing import ClassVar

from webtext_prep.text.quality.base import Rule, lines_of, repeated, share
from webtext_prep.text.quality.thresholds import GopherRepetition as Limits

_PARAGRAPHS = re.compile(r"\n\s*\n")


class GopherRepetition(Rule):
    """Drop documents that repeat themselves: Gopher (Rae et al. 2021), section A.1.1, "Repetition removal", table A1.

    Shares are of the characters of the text, or of its lines or paragraphs. As in datatrove, a repeat is what was seen
    before: the first occurrence does not count. The most frequent n-gram counts with the spaces between its words.
    Drops: duplicate_lines, duplicate_paragraphs, duplicate_line_characters, duplicate_paragraph_characters,
    top_N_gram (2 to 4), duplicate_N_grams (5 to 10).
    """

    name: ClassVar[str] = "gopher-repetition"

    def __init__(self, limits: Limits | None = None) -> None:
        import numpy as np

        from webtext_prep.text.word_kernels import repetition, words_of

        self.limits = limits or Limits()
        self._repetition, self._words_of = repetition, words_of
        self._top = np.array(self.limits.top_ngram_characters, np.float64)
        self._duplicate = np.array(self.limits.duplicate_ngram_characters, np.float64)

    def apply(self, text: str) -> tuple[str, str | None]:
        """Parts first, n-grams then: the reason is the first limit that is passed."""
        return text, self._parts(text) or self._ngrams(text)

    def _parts(self, text: str) -> str | None:
        limits = self.limits
        paragraphs = [part for part in map(str.strip, _PARAGRAPHS.split(text)) if part]
        count, characters = repeated(paragraphs)
        if share(count, len(paragraphs)) > limits.duplicate_paragraphs:
            return "duplicate_paragraphs"
        if share(characters, len(text)) > limits.duplicate_paragraph_characters:
            return "duplicate_paragraph_characters"
        lines = lines_of(text)
        count, characters = repeated(lines)
        if share(count, len(lines)) > limits.duplicate_lines:
            return "duplicate_lines"
        if share(characters, len(text)) > limits.duplicate_line_characters:
            return "duplicate_line_characters"
        return None

    def measure(self, text: str) -> dict[str, float | str]:
        """The shares of repeated lines and paragraphs, each with its limit; of n-grams the first that repeats."""
        limits, found = self.limits, {}
        paragraphs = [part for part in map(str.strip, _PARAGRAPHS.split(text)) if part]
        for name, parts, most, most_characters in (
            ("paragraphs", paragraphs, limits.duplicate_paragraphs, limits.duplicate_paragraph_characters),
            ("lines", lines_of(text), limits.duplicate_lines, limits.duplicate_line_characters),
        ):
            count, characters = repeated(parts)
            found[f"repeated {name}"] = f"{share(count, len(parts)):.3f}, needs at most {most:g}"
            within = share(characters, len(text))
            found[f"characters in repeated {name}"] = f"{within:.3f}, needs at most {most_characters:g}"
        return {**found, "n-grams": self._ngrams(text) or "within their limits"}

    def _ngrams(self, text: str) -> str | None:
        words = self._words_of(text)
        found = self._repetition(words.numbers, words.lengths, len(text), self._top, self._duplicate)
        if found == 0:
            return None
        return f"duplicate_{found}_grams" if found in self._duplicate[:, 0] else f"top_{found}_gram"
