"""langdetect: naive Bayes on character n-grams, 55 languages (https://github.com/Mimino666/langdetect).

langdetect's own loops take 3 ms a text. In machine code, with its profiles and constants, they take 50 µs, and
the probabilities are the same to the last bit. Each process asks langdetect itself about the first texts, because
loading the machine code takes as long as some hundred of them, and then compares a few; should they ever differ (a new
version of it, or of Python's random numbers), it goes on asking langdetect.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import parse_json
from webtext_prep.text.languages.base import Guess, LanguageDetector, package_folder

if TYPE_CHECKING:
    from webtext_prep.text.bayes_kernels import Trials


ALONE = 256
"""How many texts each process asks langdetect about before it loads the machine code."""
COMPARED = 16
"""How many texts after these it asks both about."""


class Langdetect(LanguageDetector):
    """langdetect with seed 0 (without a seed, 3% of short texts change their answer from run to run).

    Its profiles are read in the order of their names. langdetect reads them in the order of the file system, on which
    the last bits of its sums depend, so that they could differ from one machine to the next.
    """

    name: ClassVar[str] = "langdetect"
    libraries: ClassVar[tuple[str, ...]] = ("langdetect",)

    def __init__(self, alone: int = ALONE) -> None:
        from langdetect.detector import Detector

        self._threshold = Detector.PROB_THRESHOLD
        self._factory: Any = load_factory()
        self._trials: Trials | None = None
        self._to_compare = COMPARED
        self._alone: float = alone
        self._pays = True

    @property
    def is_compiled(self) -> bool:
        """Whether it uses the machine code, which has not differed from langdetect."""
        return self._trials is not None

    def use_machine_code(self, *, pays: bool) -> None:
        """See `LanguageDetector`: where it does not pay, langdetect itself is asked about all texts."""
        self._pays = pays

    @staticmethod
    def languages() -> list[str]:
        """The names of its profiles, one file for each language."""
        return sorted(path.name for path in (package_folder("langdetect") / "profiles").iterdir())

    def detect(self, text: str) -> Guess | None:
        """The most probable language; None for a text without letters, or where none has a probability of 0.1."""
        if self._alone > 0 or not self._pays:
            self._alone -= 1
            return self._detect_slowly(text)
        try:
            guess = self._detect_fast(text)
        except OverflowError:
            return self._detect_slowly(text)
        if self._to_compare:
            self._to_compare -= 1
            if guess != self._detect_slowly(text):
                self._trials, self._alone = None, math.inf
                return self._detect_slowly(text)
            if not self._to_compare:
                self._factory = None  # some 50 MB
        return guess

    def _detect_fast(self, text: str) -> Guess | None:
        if self._trials is None:
            from webtext_prep.text.bayes_kernels import Trials

            self._trials = Trials(self._factory)
        found = self._trials.probabilities(text)
        if found is None:
            return None
        best = int(found.argmax())
        return self._guess(self._trials.languages[best], float(found[best]))

    def _detect_slowly(self, text: str) -> Guess | None:
        from langdetect.lang_detect_exception import LangDetectException

        if self._factory is None:
            self._factory = load_factory()
        detector = self._factory.create()
        detector.append(text)
        try:
            found = detector.get_probabilities()
        except LangDetectException:
            return None
        return self._guess(found[0].lang, found[0].prob) if found else None

    def _guess(self, language: str, probability: float) -> Guess | None:
        return Guess(language, min(probability, 1.0)) if probability > self._threshold else None


def load_factory() -> Any:
    """A `langdetect.DetectorFactory` with the package's profiles, in the order of their names, and seed 0."""
    from langdetect import DetectorFactory
    from langdetect.utils.lang_profile import LangProfile

    factory = DetectorFactory()
    factory.set_seed(0)
    paths = sorted((package_folder("langdetect") / "profiles").iterdir())
    # Its `load_json_profile` does the same, and takes Ctrl-C for a profile that is not valid.
    for number, path in enumerate(paths):
        factory.add_profile(LangProfile(**parse_json(path.read_bytes())), number, len(paths))
    return factory
