"""Gopher's rules: prose in English, of a size that prose has, which does not repeat itself.

The numbers are from Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training Gopher",
https://arxiv.org/abs/2112.11446, section A.1.1 and table A1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from webtext_prep.text.quality.base import CriteriaRule, Criterion, lines_of, repeated, share

MIN_WORDS, MAX_WORDS = 50, 100_000
MIN_MEAN_WORD_LENGTH, MAX_MEAN_WORD_LENGTH = 3, 10
MAX_SYMBOLS_PER_WORD = 0.1
"""For each of `#` and the ellipsis."""
ELLIPSES = ("...", "…")
BULLETS = ("•", "‣", "●", "▪", "-", "–", "*")
"""What a line in a list begins with."""
MAX_BULLET_LINES, MAX_ELLIPSIS_LINES = 0.9, 0.3
MIN_WORDS_WITH_LETTER = 0.8
MIN_STOP_WORDS = 2
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

DUPLICATE_LINES = DUPLICATE_PARAGRAPHS = 0.30
DUPLICATE_LINE_CHARACTERS = DUPLICATE_PARAGRAPH_CHARACTERS = 0.20
TOP_NGRAM_CHARACTERS = ((2, 0.20), (3, 0.18), (4, 0.16))
DUPLICATE_NGRAM_CHARACTERS = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
"""Table A1: a document with more than one of these shares is dropped; for n-grams their sizes, each with its share."""

_STOP_WORD = re.compile(rf"(?<!\S)(?:{'|'.join(STOP_WORDS)})(?!\S)")
_PARAGRAPHS = re.compile(r"\n\s*\n")


class GopherQuality(CriteriaRule):
    """Drop documents that are hardly prose: Gopher (Rae et al. 2021), section A.1.1, "Quality filtering".

    Its stop words are English: it drops all documents in other languages.
    Drops: too_few_words, too_many_words, short_words, long_words, hashes, ellipses, bullet_lines, ellipsis_lines,
    few_words_with_letters, few_stop_words.
    """

    name: ClassVar[str] = "gopher-quality"

    def __init__(self) -> None:
        from webtext_prep.text.word_kernels import words_of

        self._words_of = words_of

    def criteria(self, text: str) -> Iterator[Criterion]:
        """Gopher's criteria, in the order of the paper."""
        words = self._words_of(text)
        count = len(words.lengths)
        yield "words", count, "at least", MIN_WORDS, "too_few_words"
        yield "words", count, "at most", MAX_WORDS, "too_many_words"
        mean = share(int(words.lengths.sum()), count)
        yield "mean word length", mean, "at least", MIN_MEAN_WORD_LENGTH, "short_words"
        yield "mean word length", mean, "at most", MAX_MEAN_WORD_LENGTH, "long_words"
        yield "hashes a word", share(text.count("#"), count), "at most", MAX_SYMBOLS_PER_WORD, "hashes"
        ellipses = share(sum(map(text.count, ELLIPSES)), count)
        yield "ellipses a word", ellipses, "at most", MAX_SYMBOLS_PER_WORD, "ellipses"
        lines = lines_of(text)
        bullets = share(sum(line.startswith(BULLETS) for line in lines), len(lines))
        yield "lines with bullets", bullets, "at most", MAX_BULLET_LINES, "bullet_lines"
        ends = share(sum(line.endswith(ELLIPSES) for line in lines), len(lines))
        yield "lines with ellipsis", ends, "at most", MAX_ELLIPSIS_LINES, "ellipsis_lines"
        letters = share(words.with_letter, count)
        yield "words with letters", letters, "at least", MIN_WORDS_WITH_LETTER, "few_words_with_letters"
        found: set[str] = set()
        for match in _STOP_WORD.finditer(text):  # most texts have enough of them in their first line
            found.add(match[0])
            if len(found) >= MIN_STOP_WORDS:
                break
        yield "different stop words", len(found), "at least", MIN_STOP_WORDS, "few_stop_words"


class GopherRepetition(CriteriaRule):
    """Drop documents that repeat themselves: Gopher (Rae et al. 2021), section A.1.1, "Repetition removal", table A1.

    Shares are of the characters of the text, or of its lines or paragraphs. As in datatrove, a repeat is what was seen
    before: the first occurrence does not count. The most frequent n-gram counts with the spaces between its words.
    Drops: duplicate_lines, duplicate_paragraphs, duplicate_line_characters, duplicate_paragraph_characters,
    top_N_gram (2 to 4), duplicate_N_grams (5 to 10).
    """

    name: ClassVar[str] = "gopher-repetition"

    def __init__(self) -> None:
        import numpy as np

        from webtext_prep.text.word_kernels import repetition, words_of

        self._repetition, self._words_of = repetition, words_of
        self._top = np.array(TOP_NGRAM_CHARACTERS, np.float64)
        self._duplicate = np.array(DUPLICATE_NGRAM_CHARACTERS, np.float64)

    def criteria(self, text: str) -> Iterator[Criterion]:
        """The shares of repeated paragraphs and lines, and whether n-grams of one length pass their limit."""
        paragraphs = [part for part in map(str.strip, _PARAGRAPHS.split(text)) if part]
        for name, parts, most, most_characters in (
            ("paragraph", paragraphs, DUPLICATE_PARAGRAPHS, DUPLICATE_PARAGRAPH_CHARACTERS),
            ("line", lines_of(text), DUPLICATE_LINES, DUPLICATE_LINE_CHARACTERS),
        ):
            count, characters = repeated(parts)
            yield f"repeated {name}s", share(count, len(parts)), "at most", most, f"duplicate_{name}s"
            within = share(characters, len(text))
            reason = f"duplicate_{name}_characters"
            yield f"characters in repeated {name}s", within, "at most", most_characters, reason
        words = self._words_of(text)
        size = self._repetition(words.numbers, words.lengths, len(text), self._top, self._duplicate)
        reason = f"duplicate_{size}_grams" if size >= DUPLICATE_NGRAM_CHARACTERS[0][0] else f"top_{size}_gram"
        yield "lengths of n-grams beyond their limits", int(size > 0), "at most", 0, reason
