"""The interface of a language detector: the name of a text's language, and how sure it is.

A detector is made once in each process that asks it; making it loads its model, so that what it needs is imported
there and not with its module. Its answer depends on the text alone, not on what it was asked before.
"""

from __future__ import annotations

import abc
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, NamedTuple


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


def is_in(language: str, wanted: str) -> bool:
    """Whether a language is the wanted one, or a regional form of it (basic filtering, RFC 4647 section 3.3.1).

    >>> is_in("zh-tw", "zh"), is_in("zh", "zh-tw"), is_in("en", "en")
    (True, False, True)
    """
    return language == wanted or language.startswith(wanted + "-")
