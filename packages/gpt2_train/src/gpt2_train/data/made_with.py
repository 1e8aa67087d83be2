"""Which tokenizer token files were made with, as far as the files beside them tell."""

from __future__ import annotations

import json
from pathlib import Path

from indexed_tokens import corpus_tokenizer, prefix_of


def recorded_fingerprint(prefix: str) -> str | None:
    """The tokenizer's fingerprint in the record that `webtext tokenize` leaves beside token files; None without it."""
    try:
        record = json.loads(Path(f"{prefix_of(prefix)}.json").read_text(encoding="utf-8"))
        found = record.get("facts", record)["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def made_with(prefix: str) -> str | None:
    """The fingerprint of the tokenizer beside token files, else the recorded one; None if there is neither.

    Raises IndexedTokensError if the tokenizer is damaged.
    """
    beside = corpus_tokenizer(prefix)
    return beside.fingerprint if beside is not None else recorded_fingerprint(prefix)
