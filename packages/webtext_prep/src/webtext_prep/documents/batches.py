"""Items in batches that are bounded in number and in size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from webtext_prep.documents.document import Document

Item = TypeVar("Item")

MOST = 256
"""The largest number of documents in a batch."""
CHARACTERS = 4 << 20
"""Characters of text with which a batch is full."""


def in_batches(items: Iterable[Item], most: int, size: int, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in order, in batches that end with the item that makes them `most` or as large as `size`; none is empty."""
    batch: list[Item] = []
    held = 0
    for item in items:
        batch.append(item)
        held += size_of(item)
        if len(batch) == most or held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents in order, in batches that are not empty."""
    return in_batches(documents, MOST, CHARACTERS, lambda document: len(document.text))
