"""Parquet: columns `url`, `text`, `title`, `domain`, `language`, and `metadata`, a JSON object with the rest.

Rows are written in groups of some 8 MiB, zstandard-compressed and with checksums, and read a group at a time: memory
does not grow with the file. Other tools' files are read if they have the columns `url` and `text`; their further
columns are metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import msgspec

from webtext_prep.documents.document import Document, encode_json, without_surrogates
from webtext_prep.documents.formats.arrow_tables import new_parquet, read_rows
from webtext_prep.documents.formats.base import DocumentWriter, Format
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import clean_metadata, without_credentials

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

COLUMNS = ("title", "domain", "language")
"""Metadata with a column of its own, where it is text."""
REST = "metadata"
GROUP_BYTES = 8 << 20
"""Bytes of text after which a row group is written,"""
GROUP_ROWS = 10_000
"""or this many rows."""


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("url", "text", *COLUMNS, REST)])


class RowWriter(DocumentWriter):
    """Writes documents, as the rows that `row_of` makes of them, in groups to an open file."""

    def __init__(self, file: pq.ParquetWriter, row_of: Callable[[Document], dict[str, Any]]) -> None:
        super().__init__()
        self._file, self._row_of = file, row_of
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, document: Document) -> None:
        """See `DocumentWriter`."""
        self._rows.append(self._row_of(document))
        self._bytes += len(document.text)
        self.written += 1
        if self._bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows since the last group as one."""
        import pyarrow as pa

        if not self._rows:
            return
        try:
            table = pa.Table.from_pylist(self._rows, self._file.schema)
        except UnicodeEncodeError:
            table = pa.Table.from_pylist(without_surrogates(self._rows), self._file.schema)
        self._file.write_table(table)
        self._rows, self._bytes = [], 0


def _row(document: Document) -> dict[str, str | None]:
    rest = dict(document.metadata)
    row: dict[str, str | None] = {"url": document.url, "text": document.text}
    for name in COLUMNS:
        row[name] = rest.pop(name) if isinstance(rest.get(name), str) else None
    row[REST] = encode_json(rest).decode() if rest else None
    return row


class Parquet(Format):
    """Apache Parquet, as dataset hubs, data frames and databases read it."""

    name: ClassVar[str] = "parquet"

    def read(self, location: Location) -> Iterator[Document]:
        """See `Format`."""
        return self.read_from(location, 0)

    def read_from(self, location: Location, start: int) -> Iterator[Document]:
        """The documents of one file from number `start` on, counted from 0."""
        for number, row in enumerate(read_rows(location, start), start + 1):
            if isinstance(row, ValueError):
                raise InputError(f"{location}, row {number}, can't be read ({row}): write it again.") from row
            url, text = row.pop("url", None), row.pop("text", None) or ""
            if not isinstance(url, str) or not url or not isinstance(text, str):
                raise InputError(
                    f"{location}, row {number}, is not a document (no url, or text that is not a string): run "
                    "`webtext merge` first, with --text-key and --url-key if the columns have other names."
                )
            yield Document(without_credentials(url), text, metadata_of(row))

    @contextlib.contextmanager
    def write(self, stream: BinaryIO) -> Iterator[DocumentWriter]:
        """See `Format`."""
        indexed = ["domain", "language"]
        with new_parquet(stream, _schema(), use_dictionary=indexed, write_statistics=["url", *indexed]) as file:
            writer = RowWriter(file, _row)
            yield writer
            writer.flush()


def metadata_of(row: dict[str, Any]) -> dict[str, Any]:
    """The other columns of a row that hold something, also from the JSON column; no URL has credentials."""
    rest = row.pop(REST, None)
    found = {name: value for name, value in row.items() if value is not None}
    if rest is not None:
        inner = None
        with contextlib.suppress(msgspec.DecodeError, TypeError, RecursionError):
            inner = msgspec.json.decode(rest) if isinstance(rest, str) else rest
        found |= inner if isinstance(inner, dict) else {REST: rest}
    # Columns of their own, gone from the row already: what a JSON column calls so would take their place.
    return clean_metadata({name: value for name, value in found.items() if name not in ("url", "text")})
