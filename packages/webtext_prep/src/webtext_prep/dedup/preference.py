"""An order of sources for who keeps a copy: `input=books`, `domain=example.org`, `license=cc-by`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location


def check_sources(sources: Sequence[str]) -> None:
    """Raise InputError for a source that is not `KEY=VALUE`."""
    for source in sources:
        key, equals, value = source.partition("=")
        if not (key and equals and value):
            raise InputError(
                f"--prefer {source!r} is no source: give input=PATH, domain=NAME, or KEY=VALUE of the metadata."
            )


def place_among(sources: Sequence[str], shard: Location) -> Callable[[Document], int]:
    """A function of a document of a shard: the number of the first source that it is from; of none, how many there are.

    `input` is the shard or a folder above it, `domain` the registered name of a document's host, and anything else the
    value of a key of its metadata.
    """
    place = storage.identity(shard)

    def is_input(value: str) -> bool:
        return f"{place}/".startswith(f"{storage.identity(storage.location(value))}/")

    def is_from(document: Document, key: str, value: str) -> bool:
        found = document.domain if key == "domain" else document.metadata.get(key)
        return found is not None and str(found) == value

    split = [source.partition("=")[::2] for source in sources]
    is_of_shard = [key == "input" and is_input(value) for key, value in split]

    def place_of(document: Document) -> int:
        found = (number for number, source in enumerate(split) if is_of_shard[number] or is_from(document, *source))
        return next(found, len(sources))

    return place_of
