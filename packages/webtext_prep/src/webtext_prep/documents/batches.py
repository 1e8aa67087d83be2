"""Documents a batch at a time, for compiled functions that are called once for many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from webtext_prep.documents.document import Document

MOST = 256
"""Documents of a batch, at the most,"""
CHARACTERS = 4 << 20
"""or until their texts have so many characters."""


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents in order, in batches that are not empty."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if len(batch) == MOST or size >= CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
