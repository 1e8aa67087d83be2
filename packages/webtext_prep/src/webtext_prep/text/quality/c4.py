"""C4's rule: only lines that look like sentences, and only pages with enough of them."""

from __future__ import annotations

import re
from typing import ClassVar

from webtext_prep.text.quality.base import Rule
from webtext_prep.text.quality.thresholds import C4 as Limits

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]]*(?:\s|$)")
_JAVASCRIPT = "javascript"
_PLACEHOLDER = "lorem ipsum"
_CODE = "{"


class C4(Rule):
    """Remove lines that are no sentences, drop pages without enough: C4 (Raffel et al. 2020), section 2.2.

    A line is removed if it does not end in a period, an exclamation or question mark, or a closing quotation mark; if
    it has too few words, or one that is too long; if it mentions Javascript, or cookies and terms of use. Marks of
    citations (`[1]`, `[edit]`, `[citation needed]`) are removed. As in the code that made C4, only what is left can
    drop the page. Sentences are counted by their end marks, at least one a line, not by a trained model. The paper's
    list of offensive words is not part of this rule; repeated passages are left to `webtext dedup`.
    Drops: placeholder_text (lorem ipsum), curly_bracket, too_few_sentences.
    """

    name: ClassVar[str] = "c4"

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()

    def apply(self, text: str) -> tuple[str, str | None]:
        """The lines that stay, without the white space around them."""
        page = _CITATION.sub("", text) if "[" in text else text
        lowered = page.lower()
        suspects = [phrase for phrase in (_PLACEHOLDER, _JAVASCRIPT, *self.limits.notices) if phrase in lowered]
        kept, sentences = [], 0
        for line in filter(self._is_prose, map(str.strip, page.splitlines())):
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
            if sentences < self.limits.min_sentences:
                sentences += max(1, len(_SENTENCE_END.findall(line)))
        if sentences < self.limits.min_sentences:
            return text, "too_few_sentences"
        return "\n".join(kept), None

    def measure(self, text: str) -> dict[str, float | str]:
        """How many lines are prose, before phrases and brackets are looked for."""
        lines = list(filter(self._is_prose, map(str.strip, _CITATION.sub("", text).splitlines())))
        sentences = sum(max(1, len(_SENTENCE_END.findall(line))) for line in lines)
        return {
            "lines of prose": len(lines),
            "sentences in them": f"{sentences:,}, needs at least {self.limits.min_sentences}",
        }

    def _is_prose(self, line: str) -> bool:
        """Whether a line ends like a sentence, and has words as sentences have."""
        limits = self.limits
        if not line.endswith(limits.end_marks) or line.endswith(limits.not_end_marks):
            return False
        if len(line.split(maxsplit=limits.min_words_per_line - 1)) < limits.min_words_per_line:
            return False
        return len(line) <= limits.max_word_length or max(map(len, line.split())) <= limits.max_word_length
