"""A condition on the metadata of a document: `reddit_score >= 10`, `language == en`."""

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
_CONDITION = re.compile(rf"\s*([\w.-]+)\s*({'|'.join(_COMPARISONS)})\s*(.*?)\s*")


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
    def parse(cls, text: str, flag: str) -> Condition:
        """`score >= 10` -> Condition("score", ">=", 10.0). Raises InputError, which names the flag."""
        found = _CONDITION.fullmatch(text)
        if found is None or not found[3]:
            raise InputError(f"{flag} {text!r} is no condition: give KEY, a comparison and a value, as 'score >= 10'.")
        try:
            value: float | str = float(found[3])
        except ValueError:
            value = found[3]
        return cls(found[1], found[2], value)

    def holds(self, document: Document) -> bool:
        """Whether it is true of a document: never where the key is missing, or holds another kind of value."""
        known = document.metadata.get(self.key)
        if known is None and self.key == "score":
            known = document.metadata.get("reddit_score")
        if isinstance(known, bool) or not isinstance(known, str if isinstance(self.value, str) else (int, float)):
            return False
        return bool(_COMPARISONS[self.comparison](known, self.value))
