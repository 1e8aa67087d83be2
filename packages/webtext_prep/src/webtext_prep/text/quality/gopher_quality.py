"""Gopher's quality rule: is it prose in English, and of a size that prose has?"""

from __future__ import annotations

import re
from typing import ClassVar

from webtext_prep.text.quality.base import Rule, lines_of, share
from webtext_prep.text.quality.thresholds import GopherQuality as Limits


class GopherQuality(Rule):
    """Drop documents that are hardly prose: Gopher (Rae et al. 2021), section A.1.1, "Quality filtering".

    Its stop words are English: it drops all documents in other languages.
    Drops: too_few_words, too_many_words, short_words, long_words, hashes, ellipses, bullet_lines, ellipsis_lines,
    few_words_with_letters, few_stop_words.
    """

    name: ClassVar[str] = "gopher-quality"

    def __init__(self, limits: Limits | None = None) -> None:
        from webtext_prep.text.word_kernels import words_of

        self.limits = limits or Limits()
        self._words_of = words_of
        either = "|".join(map(re.escape, sorted(self.limits.stop_words)))
        self._stop_word = re.compile(rf"(?<!\S)(?:{either})(?!\S)")

    def apply(self, text: str) -> tuple[str, str | None]:
        """The reason is the first of Gopher's criteria, in the order of the paper, that is not met."""
        words = self._words_of(text)
        count = len(words.lengths)
        reason = self._size(count, int(words.lengths.sum())) or self._symbols(text, count)
        if reason is None and share(words.with_letter, count) < self.limits.min_words_with_letter:
            reason = "few_words_with_letters"
        if reason is None and not self._has_stop_words(text):
            reason = "few_stop_words"
        return text, reason

    def _size(self, words: int, characters: int) -> str | None:
        limits = self.limits
        if words < limits.min_words:
            return "too_few_words"
        if words > limits.max_words:
            return "too_many_words"
        mean = share(characters, words)
        if mean < limits.min_mean_word_length:
            return "short_words"
        return "long_words" if mean > limits.max_mean_word_length else None

    def _symbols(self, text: str, words: int) -> str | None:
        limits = self.limits
        if share(text.count("#"), words) > limits.max_symbols_per_word:
            return "hashes"
        if share(sum(map(text.count, limits.ellipses)), words) > limits.max_symbols_per_word:
            return "ellipses"
        lines = lines_of(text)
        if share(sum(line.startswith(limits.bullets) for line in lines), len(lines)) > limits.max_bullet_lines:
            return "bullet_lines"
        if share(sum(line.endswith(limits.ellipses) for line in lines), len(lines)) > limits.max_ellipsis_lines:
            return "ellipsis_lines"
        return None

    def _has_stop_words(self, text: str) -> bool:
        found: set[str] = set()
        for match in self._stop_word.finditer(text):  # most texts have enough of them in their first line
            if len(found) >= self.limits.min_stop_words:
                break
            found.add(match[0])
        return len(found) >= self.limits.min_stop_words

    def measure(self, text: str) -> dict[str, float | str]:
        """Sizes and shares, each with its limits."""
        limits, words, lines = self.limits, self._words_of(text), lines_of(text)
        count = len(words.lengths)
        bullets = share(sum(line.startswith(limits.bullets) for line in lines), len(lines))
        ends = share(sum(line.endswith(limits.ellipses) for line in lines), len(lines))
        mean, letters = share(int(words.lengths.sum()), count), share(words.with_letter, count)
        hashes, ellipses = share(text.count("#"), count), share(sum(map(text.count, limits.ellipses)), count)
        stop_words = len(set(self._stop_word.findall(text)))
        return {
            "words": f"{count:,}, needs {limits.min_words:,} to {limits.max_words:,}",
            "mean word length": f"{mean:.2f}, needs {limits.min_mean_word_length:g} to {limits.max_mean_word_length:g}",
            "hashes a word": f"{hashes:.3f}, needs at most {limits.max_symbols_per_word:g}",
            "ellipses a word": f"{ellipses:.3f}, needs at most {limits.max_symbols_per_word:g}",
            "lines with bullets": f"{bullets:.3f}, needs at most {limits.max_bullet_lines:g}",
            "lines with ellipsis": f"{ends:.3f}, needs at most {limits.max_ellipsis_lines:g}",
            "words with letters": f"{letters:.3f}, needs at least {limits.min_words_with_letter:g}",
            "stop words": f"{stop_words}, needs at least {limits.min_stop_words}",
        }
