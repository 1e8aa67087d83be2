"""`webtext clean`: repair the text, keep the wanted language, drop texts that are too short or, by rules, of poor
quality.

ftfy repairs text that was decoded wrongly, a detector names the language from the beginning of the text, and GPT-2's
own tokenizer counts tokens. Each is asked only where the answer is in doubt: plain ASCII needs no repair, and a text
with fewer bytes, or more words, than the wanted tokens needs no tokenizer. The results are as if all were asked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from command_kit import setting
from command_kit.errors import meant
from command_kit.plugins import find_plugins
from command_kit.settings import check_choices
from indexed_tokens import Tokenizer
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.running.stage import DocumentStage
from webtext_prep.running.tasks import Tally
from webtext_prep.text import quality
from webtext_prep.text.languages import LanguageDetector, detect_language, is_in, is_surely, known_detectors
from webtext_prep.text.masks import MASKS
from webtext_prep.text.provenance_marks import has_credentials, without_marks
from webtext_prep.text.quality import Rule
from webtext_prep.text.repair import repair, repair_all, without_places_to_break


def known_rules() -> dict[str, type[Rule]]:
    """Every quality rule by its name: from `quality/`, and from the entry-point group `webtext.rules`."""
    return {found.name: found for found in find_plugins(quality, Rule, group="webtext.rules")}


@functools.lru_cache(maxsize=1)
def _rules(names: tuple[str, ...]) -> list[Rule]:
    known = known_rules()
    return [known[name]() for name in names]


def has_tokens(text: str, least: int, tokenizer: Tokenizer) -> bool:
    """Whether `text` has at least `least` tokens, counted only where that is not plain from its length.

    A token is at least one byte, and GPT-2 never joins what white space parts, so that tokens lie between the words
    and the bytes of a text.
    """
    if len(text) < least and len(text.encode("utf-8", "surrogatepass")) < least:
        return False
    if len(text.split(maxsplit=least)) >= least:
        return True
    return len(tokenizer.encode(text)) >= least


@dataclass(frozen=True)
class Clean(DocumentStage):
    """Repair text with ftfy, keep documents in the wanted language with at least --min-tokens GPT-2 tokens, and
    apply quality rules in the order given.

    Reads and writes document shards. Drops: empty, too_short, language_unknown, language_XX, language_uncertain, and
    the reasons of the rules."""

    name: ClassVar[str] = "clean"
    order: ClassVar[int] = 50
    version: ClassVar[int] = 6
    summary: ClassVar[str] = "documents -> repaired documents in one language, long enough"

    language: str = setting("en", "the language to keep, as ISO 639-1 code; 'any' keeps all", metavar="CODE")
    language_detector: str = setting("langdetect", "what names the language of a text", choices=known_detectors)
    min_language_confidence: float = setting(0.0, "drop documents whose language is less certain than this", ge=0, le=1)
    min_tokens: int = setting(128, "drop documents with fewer GPT-2 tokens")
    fix_text: Literal["full"] | bool = setting(
        True,
        "repair wrongly decoded text with ftfy, and remove soft hyphens and zero-width spaces; full: all that ftfy "
        "changes by default instead, such as quotes and full-width punctuation",
    )
    mask: tuple[str, ...] = setting(
        (), "what to replace by placeholders: addresses of people, of machines", choices=lambda: MASKS
    )
    rules: tuple[str, ...] = setting((), "quality rules, applied in this order", choices=known_rules)

    def __post_init__(self) -> None:
        if self.min_tokens < 0:
            raise InputError(f"--min-tokens must not be negative, but is {self.min_tokens}.")
        check_choices(self)
        if self.language != "any":
            self._check_language()

    def _check_language(self) -> None:
        known = known_detectors()
        if self.language_detector not in known:
            raise InputError(
                f"--language-detector {self.language_detector} is not known: {meant(self.language_detector, known)}"
                f"choose one of {', '.join(known)}."
            )
        names = known[self.language_detector].languages()
        if not any(is_in(name, self.language) for name in names):
            raise InputError(
                f"--language {self.language} is not known to {self.language_detector}: "
                f"choose any or one of {', '.join(names)}."
            )

    def identity(self) -> dict[str, Any]:
        """The versions of the rules."""
        known = known_rules() if self.rules else {}
        return {"rule_versions": {name: known[name].version for name in self.rules}} if self.rules else {}

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries of the repair, the tokenizer, the detector, the masks and the rules."""
        asked: list[type[LanguageDetector] | type[Rule]] = [known_rules()[name] for name in self.rules]
        if self.language != "any":
            asked.append(known_detectors()[self.language_detector])
        own = ("tiktoken", *(["ftfy"] if self.fix_text else []), *(["tldextract"] if "email" in self.mask else []))
        return (*own, *(library for one in asked for library in one.libraries))

    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the repaired documents that are kept, with their language in the metadata."""
        tokenizer = Tokenizer.gpt2()
        for document in documents:
            # Titles were written by people: addresses in them are masked, too.
            for name in ("title", "reddit_title") if self.mask else ():
                if isinstance(title := document.metadata.get(name), str):
                    document.metadata[name] = self._masked(title, tally)
            values: dict[str, Any] = {}
            reason = self._clean(document, tokenizer, tally, values)
            if reason is None:
                yield document
            else:
                tally.drop(document, reason, **values)

    def _clean(self, document: Document, tokenizer: Tokenizer, tally: Tally, values: dict[str, Any]) -> str | None:
        """Repair `document` in place and say why it is dropped, or None; the cheap questions come first.

        `values` takes what decided.
        """
        text, changes = self._repaired(document.text)
        for name, number in changes.items():
            if number:
                tally.notes[name] += number
        if changes.get("marks_removed") and has_credentials(document.text):
            document.metadata["content_credentials"] = True
        text = document.text = self._masked(text, tally)
        if not text.strip():
            return "empty"
        reason = self._judge_length(text, tokenizer, values)
        if reason is None and self.language != "any":
            reason = self._judge_language(document, values)
        return reason or self._apply_rules(document, tokenizer, tally, values)

    def _judge_length(self, text: str, tokenizer: Tokenizer, values: dict[str, Any]) -> str | None:
        if has_tokens(text, self.min_tokens, tokenizer):
            return None
        values |= {"tokens": len(tokenizer.encode(text)), "min_tokens": self.min_tokens}
        return "too_short"

    def _repaired(self, text: str) -> tuple[str, dict[str, int]]:
        """`text` as `fix_text` wants it, and what has been changed: whether, or how often."""
        if not self.fix_text:
            return text, {}
        text, marks = without_marks(text)
        decoded = repair(text)
        changes = {"marks_removed": marks, "repaired_decoding": int(decoded != text)}
        if self.fix_text == "full":
            full = repair_all(text)
            return full, changes | {"changed_characters": int(full != decoded)}
        text, hyphens, spaces = without_places_to_break(decoded)
        return text, changes | {"removed_soft_hyphens": hyphens, "removed_zero_width_spaces": spaces}

    def _masked(self, text: str, tally: Tally) -> str:
        """`text` with placeholders for what `mask` names; each is counted."""
        for name in self.mask:
            text, number = MASKS[name](text)
            if number:
                tally.notes[f"masked_{name}"] += number
        return text

    def _apply_rules(
        self, document: Document, tokenizer: Tokenizer, tally: Tally, values: dict[str, Any]
    ) -> str | None:
        for rule in _rules(self.rules):
            text, reason = rule.judge(document.text)
            if reason is not None:
                values |= {f"{rule.name}: {name}": value for name, value in rule.measure(document.text).items()}
                return reason
            if text != document.text:
                tally.notes[f"shortened_by_{rule.name}"] += 1
                document.text = text
                reason = self._judge_length(text, tokenizer, values)
                if reason is not None:
                    values["shortened_by"] = rule.name
                    return reason
        return None

    def _judge_language(self, document: Document, values: dict[str, Any]) -> str | None:
        if not self.min_language_confidence and is_surely(document.text, self.language, self.language_detector):
            document.metadata["language"] = self.language
            return None
        guess = detect_language(document.text, self.language_detector)
        if guess is None:
            return "language_unknown"
        is_wanted = is_in(guess.language, self.language)
        if is_wanted and guess.confidence >= self.min_language_confidence:
            document.metadata["language"] = guess.language
            return None
        values |= {"language": guess.language, "confidence": round(guess.confidence, 4)}
        values |= {"wanted_language": self.language, "min_language_confidence": self.min_language_confidence}
        return "language_uncertain" if is_wanted else f"language_{guess.language}"
