"""URL lists: lines that hold a bare URL or a JSON object with `url`; a table; or the shards of URLs of a stage.

A table (.csv, .tsv) has a header with a column `url`, and its other columns are metadata. Without such a header a .csv
file is a list of bare URLs, which may hold commas, and of a .tsv file the first column counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from webtext_prep.documents.compression import bare_name
from webtext_prep.documents.document import Document, decode_url_row
from webtext_prep.documents.formats.json_lines import JsonLines
from webtext_prep.documents.lines import read_lines
from webtext_prep.documents.records.base import Unreadable
from webtext_prep.documents.records.tables import Row, read_rows
from webtext_prep.documents.shards import format_of
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.urls import clean_metadata, without_any_credentials

_COLUMN = "url"
_DELIMITERS = {".csv": (",", ";"), ".tsv": ("\t",)}


def read_urls(location: Location) -> Iterator[Document]:
    """The rows of a URL list, as documents without text; `#` begins a comment.

    User names and passwords are taken out of URLs here, so that nothing behind knows them. What is not a URL is given
    back as it is, for the caller to find that out.

    Raises InputError as its format does.
    """
    for row in _rows(location):
        yield _as_url(row)


def read_url(line: bytes) -> Document | None:
    """The row in one line of a list of lines, as `read_urls` gives it."""
    row = decode_url_row(line)
    return None if row is None else _as_url(row)


def is_list_of_lines(location: Location) -> bool:
    """Whether each line of the file is a row by itself, by the name: neither a table nor Parquet."""
    found = format_of(location.name)
    return (found is None or isinstance(found, JsonLines)) and _suffix(location) not in _DELIMITERS


def _as_url(row: Document) -> Document:
    row.url, row.text = without_any_credentials(row.url), ""
    return row


def _suffix(location: Location) -> str:
    return bare_name(location)[-4:].lower()


def _rows(location: Location) -> Iterator[Document]:
    found = format_of(location.name)
    if found is not None and not isinstance(found, JsonLines):
        yield from found.read(location)
        return
    suffix = _suffix(location)
    if suffix in _DELIMITERS:
        rows = read_rows(location, _DELIMITERS[suffix])
        header = next(rows, None)
        names = [name.strip().lower() for name in header.cells] if header and isinstance(header.cells, list) else []
        if _COLUMN in names:
            yield from _table(rows, names)
            return
        if suffix == ".tsv" and header is not None:
            yield from _table(itertools.chain([header], rows), [_COLUMN])
            return
    for line in read_lines(location):
        row = decode_url_row(line)
        if row is not None:
            yield row


def _table(rows: Iterator[Row], names: list[str]) -> Iterator[Document]:
    for row in rows:
        if isinstance(row.cells, Unreadable):
            yield Document(f"line {row.line}: {row.cells}")
            continue
        values = dict(zip(names, row.cells, strict=False))
        url = values.pop(_COLUMN, "").strip()
        if url and not url.startswith("#"):
            metadata = {name: value for name, value in values.items() if name and value}
            yield Document(url, "", clean_metadata(metadata))
