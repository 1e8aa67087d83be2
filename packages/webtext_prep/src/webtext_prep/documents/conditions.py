"""A condition on the metadata of documents: `reddit_score >= 10`, `language == en`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(
    rf"""\s*([\w.-]+)\s*({"|".join(_COMPARISONS)})\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^'"=\s].*?))\s*"""
)
_OTHER_CONDITION = re.compile(rf"\b(?:and|or)\b|&&|\|\||{'|'.join(_COMPARISONS)}", re.IGNORECASE)
"""What a value can't hold unless it is in quotes."""


@dataclass(frozen=True)
class Condition:
    """A comparison of one key of the metadata with a number, or with a text.

    Attributes:
        key: of the metadata; `score` is also that of Reddit (`reddit_score`).
        comparison: one of `>=`, `<=`, `==`, `!=`, `>`, `<`.
        value: what it is compared with.
    """

    key: str
    comparison: str
    value: float | str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """`score >= 10` -> Condition("score", ">=", 10.0), where quotes make a text of a number. Raises InputError."""
        found = _CONDITION.fullmatch(text)
        if found is None or found["bare"] == "nan":
            raise InputError(
                f"--good-when {text!r} is no condition: give KEY, a comparison and a value, as 'score >= 10'."
            )
        value = found["bare"]
        if value is None:
            return cls(found[1], found[2], found["single"] or found["double"] or "")
        if other := _OTHER_CONDITION.search(value):
            raise InputError(
                f"--good-when {text!r}: {other[0]} is not understood: give one condition (`webtext filter "
                "--function` chooses by several), or put a text that holds the word in quotes."
            )
        try:
            return cls(found[1], found[2], float(value))
        except ValueError:
            return cls(found[1], found[2], value)

    def value_in(self, document: Document) -> Any:
        """The value of the key in a document; None where it is missing."""
        value = document.metadata.get(self.key)
        return document.metadata.get("reddit_score") if value is None and self.key == "score" else value

    def compares(self, value: Any) -> bool:
        """Whether a value of a document is of the kind that it is compared with."""
        return not isinstance(value, bool) and isinstance(value, str if isinstance(self.value, str) else (int, float))

    def holds(self, document: Document) -> bool:
        """Whether it is true of a document: never where the key is missing, or holds another kind of value."""
        value = self.value_in(document)
        return self.compares(value) and bool(_COMPARISONS[self.comparison](value, self.value))
