"""C4's rule: only lines that look like sentences, and only pages with enough of them.

The numbers are from Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", https://jmlr.org/papers/v21/20-074.html, section 2.2; what the paper does not say (marked *) is from the
code that made C4, tensorflow_datasets/text/c4_utils.py. datatrove has 3 words and 5 sentences, from an earlier version.
"""

from __future__ import annotations

import re
from typing import ClassVar

from webtext_prep.text.quality.base import Rule

MIN_WORDS_PER_LINE = 5
MIN_SENTENCES = 3
MAX_WORD_LENGTH = 1000
"""* A line with a longer word is removed."""
END_MARKS = (".", "!", "?", '"', "”")
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
    if not line.endswith(END_MARKS) or line.endswith("..."):  # *
        return False
    if len(line.split(maxsplit=MIN_WORDS_PER_LINE - 1)) < MIN_WORDS_PER_LINE:
        return False
    return len(line) <= MAX_WORD_LENGTH or max(map(len, line.split())) <= MAX_WORD_LENGTH
