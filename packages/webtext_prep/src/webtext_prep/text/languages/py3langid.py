"""py3langid: naive Bayes on byte n-grams, 140 languages (https://github.com/adbar/py3langid)."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from webtext_prep.text.languages.base import Guess, LanguageDetector

_NO_LANGUAGE = "zxx"
"""ISO 639 for text without language: its answer to numbers and program code."""


class Py3langid(LanguageDetector):
    """langid.py's successor, with probabilities."""

    name: ClassVar[str] = "py3langid"
    libraries: ClassVar[tuple[str, ...]] = ("py3langid",)

    def __init__(self) -> None:
        self._identifier = _identifier()

    @staticmethod
    def languages() -> list[str]:
        """The labels of its model, which it has to load for that."""
        return sorted({*_identifier().labels} - {_NO_LANGUAGE})

    def detect(self, text: str) -> Guess | None:
        """The most probable language; None for text without language."""
        if not any(map(str.isalpha, text)):
            return None
        language, confidence = self._identifier.classify(text)
        return None if language == _NO_LANGUAGE else Guess(language, confidence)


@functools.lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
