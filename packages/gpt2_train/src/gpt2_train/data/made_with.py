"""Which tokenizer token files were made with, as far as the files beside them tell."""

from __future__ import annotations

from indexed_tokens import corpus_tokenizer
from indexed_tokens.checksums import recorded_facts


def recorded_fingerprint(prefix: str) -> str | None:
    """The tokenizer's fingerprint in the record that `webtext tokenize` leaves beside token files; None without it."""
    found = recorded_facts(prefix).get("tokenizer")
    return found if isinstance(found, str) else None


def made_with(prefix: str) -> str | None:
    """The fingerprint of the tokenizer beside token files, else the recorded one; None if there is neither.

    Raises IndexedTokensError if the tokenizer is damaged.
    """
    beside = corpus_tokenizer(prefix)
    return beside.fingerprint if beside is not None else recorded_fingerprint(prefix)
