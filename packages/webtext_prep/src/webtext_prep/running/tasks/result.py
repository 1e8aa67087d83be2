"""What a command that only looks, and writes no documents, has found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes:
        text: for people, several lines.
        values: the same for JSON.
    """

    text: str
    values: dict[str, Any]


def show_findings(found: Findings, *, as_json: bool) -> None:
    """Print to standard output, as text or as one JSON object."""
    print(json.dumps(found.values, ensure_ascii=False) if as_json else found.text)
