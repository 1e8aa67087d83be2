"""langdetect: naive Bayes on character n-grams, 55 languages (https://github.com/Mimino666/langdetect).

langdetect's own loops take 3 ms a text. langdetect-rs does the same operations in Rust, with langdetect's profiles: the
probabilities are the same to the last bit, at 50 times the speed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from command_kit import parse_json
from webtext_prep.text.languages.base import Guess, LanguageDetector, package_folder


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
