"""Quality rules of published corpora (`clean --rules`), their interface, and what they have in common.

A word is what white space parts, as in the reference code of C4 and Dolma: rules that count words are for languages
that are written with spaces.

A rule of your own is one file in this folder, or a class that another distribution announces under the entry-point
group `webtext.rules`:

    class NoShouting(Rule):
        name = "no-shouting"

        def apply(self, text):
            return text, "capitals" if text.isupper() else None
"""

from __future__ import annotations

import abc
import operator
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar


class Rule(abc.ABC):
    """A rule: it looks at a text alone, and drops it for a reason, or leaves it, or leaves a part of it.

    A rule is made once in each process that uses it; making it loads what it needs.
    """

    name: ClassVar[str]
    """What `--rules` calls it."""
    version: ClassVar[int] = 1
    """Raised whenever it would judge a text differently, so that old shards are made again."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions decide what it says: with another one a run is not gone on with."""

    @abc.abstractmethod
    def apply(self, text: str) -> tuple[str, str | None]:
        """The text, or its rest, and the reason to drop it, or None."""

    def measure(self, text: str) -> dict[str, float | str]:
        """What of a text that it drops was beyond its limits: the values in the receipt."""
        return {}

    def judge(self, text: str) -> tuple[str, str | None]:
        """`apply`, with the rule's name before the reason: `gopher_quality: too_few_words`."""
        text, reason = self.apply(text)
        return text, f"{self.name.replace('-', '_')}: {reason}" if reason else None


Criterion = tuple[str, float, str, float, str]
"""The name of a measure, its value, a key of `HOLDS`, the limit, and the reason to drop a text that is beyond it."""
HOLDS = {"at least": operator.ge, "at most": operator.le, "more than": operator.gt, "less than": operator.lt}


class CriteriaRule(Rule):
    """A rule that compares figures of a text with limits; the first that is not met is the reason to drop it."""

    @abc.abstractmethod
    def criteria(self, text: str) -> Iterator[Criterion]:
        """The figures, one after the other: none is computed if one before it drops the text."""

    def apply(self, text: str) -> tuple[str, str | None]:
        """See `Rule`."""
        for _, value, needs, limit, reason in self.criteria(text):
            if not HOLDS[needs](value, limit):
                return text, reason
        return text, None

    def measure(self, text: str) -> dict[str, float | str]:
        """The first figure that is beyond its limit, and this."""
        for name, value, needs, limit, _ in self.criteria(text):
            if not HOLDS[needs](value, limit):
                shown = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
                return {name: f"{shown}, needs {needs} {limit:,g}"}
        return {}


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not blank, without the white space around them."""
    return [line for line in map(str.strip, text.split("\n")) if line]


def share(part: float, whole: float) -> float:
    """`part / whole`, and 0 of nothing: a division, so that a share that is exactly a threshold is one."""
    return part / whole if whole else 0.0


def repeated(parts: Sequence[str]) -> tuple[int, int]:
    """How many of `parts` repeat an earlier one, and the sum of their lengths in characters."""
    distinct = set(parts)
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))


# C4: only lines that look like sentences, and only pages with enough of them. The numbers are from Raffel et al. 2020,
# "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
# https://jmlr.org/papers/v21/20-074.html, section 2.2; what the paper does not say (marked *) is from the code of C4,
# tensorflow_datasets/text/c4_utils.py. datatrove has 3 words and 5 sentences, from an earlier version.

MIN_WORDS_PER_LINE = 5
MIN_SENTENCES = 3
MAX_WORD_LENGTH = 1000
"""* A line with a longer word is removed."""
C4_END_MARKS = (".", "!", "?", '"', "”")
NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
"""* Lines that contain one of these, in upper or lower case, are removed, as are lines with Javascript."""
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]]*(?:\s|$)")
_JAVASCRIPT = "javascript"
_PLACEHOLDER = "lorem ipsum"
_CODE = "{"


class C4(Rule):
    """Remove lines that are no sentences, drop pages without enough: C4 (Raffel et al. 2020), section 2.2.

    A line is removed if it does not end in a period, an exclamation or question mark, or a closing quotation mark; if
    it has too few words, or one that is too long; if it mentions Javascript, or cookies and terms of use. Marks of
    citations (`[1]`, `[edit]`, `[citation needed]`) are removed. As in the code that made C4, only the rest can
    drop the page. Sentences are counted by their end marks, at least one a line, not by a trained model. The paper's
    list of offensive words is not part of this rule; repeated passages are left to `webtext dedup`.
    Drops: placeholder_text (lorem ipsum), curly_bracket, too_few_sentences.
    """

    name: ClassVar[str] = "c4"

    def apply(self, text: str) -> tuple[str, str | None]:
        """The lines that stay, without the white space around them."""
        page = _CITATION.sub("", text) if "[" in text else text
        lowered = page.lower()
        suspects = [phrase for phrase in (_PLACEHOLDER, _JAVASCRIPT, *NOTICES) if phrase in lowered]
        kept, sentences = [], 0
        for line in filter(_is_prose, map(str.strip, page.splitlines())):
            found = [phrase for phrase in suspects if phrase in line.lower()] if suspects else suspects
            if _PLACEHOLDER in found:
                return text, "placeholder_text"
            if _JAVASCRIPT in found:
                continue
            if _CODE in line:
                return text, "curly_bracket"
            if found:
                continue
            kept.append(line)
            if sentences < MIN_SENTENCES:
                sentences += max(1, len(_SENTENCE_END.findall(line)))
        if sentences < MIN_SENTENCES:
            return text, "too_few_sentences"
        return "\n".join(kept), None

    def measure(self, text: str) -> dict[str, float | str]:
        """How many lines are prose, before phrases and brackets are looked for."""
        lines = list(filter(_is_prose, map(str.strip, _CITATION.sub("", text).splitlines())))
        sentences = sum(max(1, len(_SENTENCE_END.findall(line))) for line in lines)
        return {
            "lines of prose": len(lines),
            "sentences in them": f"{sentences:,}, needs at least {MIN_SENTENCES}",
        }


def _is_prose(line: str) -> bool:
    """Whether a line ends like a sentence, and has words as sentences have."""
    if not line.endswith(C4_END_MARKS) or line.endswith("..."):  # *
        return False
    if len(line.split(maxsplit=MIN_WORDS_PER_LINE - 1)) < MIN_WORDS_PER_LINE:
        return False
    return len(line) <= MAX_WORD_LENGTH or max(map(len, line.split())) <= MAX_WORD_LENGTH


# FineWeb: lines that end like sentences, are long enough, and do not repeat. The numbers are from Penedo et al. 2024,
# "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale", https://arxiv.org/abs/2406.17557, section
# 3.6. datatrove's defaults differ: .01 of characters in repeated lines, and .3 lines a word.

MIN_LINES_WITH_END_MARK = 0.12
MAX_SHORT_LINES = 0.67
MAX_DUPLICATE_LINE_CHARACTERS = 0.1
"""A document is dropped that has at most the first, or at least one of the others."""
SHORT_LINE = 30
"""A line with fewer characters is short."""
SENTENCE_TERMINALS = frozenset(
    "!.?։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕៖៙៚᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿․‼‽⁇⁈⁉⳹⳺⳻⸮⸼⹓⹔⹠⹡。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉"
    "꩝꩞꩟꫰꫱꯫︒︕︖﹒﹖﹗！．？｡𐩖𐩗𐽕𐽖𐽗𐽘𐽙𐾆𐾇𐾈𐾉𑁇𑁈𑂾𑂿𑃀𑃁𑅁𑅂𑅃𑇅𑇆𑇍𑇞𑇟𑈸𑈹𑈻𑈼𑊩𑏔𑏕𑑋𑑌𑗂𑗃𑗉𑗊𑗋𑗌𑗍𑗎𑗏𑗐𑗑𑗒𑗓𑗔𑗕𑗖𑗗𑙁𑙂𑜼𑜽𑜾𑥄𑥆𑩂𑩃𑪛𑪜𑱁𑱂"
    "𑻷𑻸𑽃𑽄𖩮𖩯𖫵𖬷𖬸𖭄𖵮𖵯𖺘𛲟𝪈"
)
"""Unicode's Sentence_Terminal, and three marks of Khmer."""


class FineWeb(CriteriaRule):
    """Drop documents made of fragments: FineWeb (Penedo et al. 2024), section 3.6.

    Blank lines don't count. FineWeb applies it after Gopher's rules and part of C4's.
    Drops: few_lines_with_end_mark, short_lines, duplicate_line_characters.
    """

    name: ClassVar[str] = "fineweb"

    def criteria(self, text: str) -> Iterator[Criterion]:
        """Three shares."""
        lines = lines_of(text)
        ended = share(sum(line[-1] in SENTENCE_TERMINALS for line in lines), len(lines))
        yield "lines with end mark", ended, "more than", MIN_LINES_WITH_END_MARK, "few_lines_with_end_mark"
        short = share(sum(len(line) < SHORT_LINE for line in lines), len(lines))
        yield "short lines", short, "less than", MAX_SHORT_LINES, "short_lines"
        repeats = share(repeated(lines)[1], sum(map(len, lines)))
        name = "characters in repeated lines"
        yield name, repeats, "less than", MAX_DUPLICATE_LINE_CHARACTERS, "duplicate_line_characters"


# Gopher: prose in English, of a size that prose has, which does not repeat itself. The numbers are from Rae et al.
# 2021, "Scaling Language Models: Methods, Analysis & Insights from Training Gopher", https://arxiv.org/abs/2112.11446,
# section A.1.1 and table A1.

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
