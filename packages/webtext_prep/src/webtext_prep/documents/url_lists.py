"""URL lists: a bare URL, or a JSON object with `url` and metadata, a line; or the shards that a stage wrote of them."""

from __future__ import annotations

from collections.abc import Iterator

from webtext_prep.documents.compression import read_lines
from webtext_prep.documents.document import Document, decode_url_row
from webtext_prep.documents.formats.json_lines import JsonLines
from webtext_prep.documents.shards import format_of
from webtext_prep.documents.stores.base import Location


def read_urls(location: Location) -> Iterator[Document]:
    """The rows of a URL list, as documents without text; `#` begins a comment. Raises InputError as its format does."""
    found = format_of(location.name)
    if found is not None and not isinstance(found, JsonLines):
        for document in found.read(location):
            document.text = ""
            yield document
        return
    for line in read_lines(location):
        row = decode_url_row(line)
        if row is not None:
            yield row
