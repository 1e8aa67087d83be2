"""Parquet: columns `url`, `text`, `title`, `domain`, `language`, and `metadata`, a JSON object with the rest.

Rows are written in groups of some 8 MiB, zstandard-compressed, and read a group at a time: memory does not grow with
the file. Other tools' files are read if they have the columns `url` and `text`; their further columns are metadata.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import msgspec

from webtext_prep.documents import storage
from webtext_prep.documents.arrow_rows import arrow_errors, rows_of
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.documents.formats.base import DocumentWriter, Format
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.urls import clean_metadata, without_credentials
from webtext_prep.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

COLUMNS = ("title", "domain", "language")
"""Metadata with a column of its own, where it is text."""
REST = "metadata"
GROUP_BYTES = 8 << 20
"""Bytes of text after which a row group is written,"""
GROUP_ROWS = 10_000
"""or so many rows."""
BATCH_ROWS = 256
_ZSTD_LEVEL = 3


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("url", "text", *COLUMNS, REST)])


class _RowWriter(DocumentWriter):
    def __init__(self, stream: BinaryIO) -> None:
        import pyarrow.parquet as pq

        super().__init__()
        self._schema = _schema()
        self._file = pq.ParquetWriter(
            stream,
            self._schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=["domain", "language"],
            write_statistics=["url", "domain", "language"],
        )
        self._rows: list[dict[str, str | None]] = []
        self._bytes = 0

    def write(self, document: Document) -> None:
        rest = dict(document.metadata)
        row: dict[str, str | None] = {"url": document.url, "text": document.text}
        for name in COLUMNS:
            row[name] = rest.pop(name) if isinstance(rest.get(name), str) else None
        row[REST] = _encoded(rest) if rest else None
        self._rows.append(row)
        self._bytes += len(document.text)
        self.written += 1
        if self._bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        try:
            table = pa.Table.from_pylist(self._rows, self._schema)
        except UnicodeEncodeError:
            table = pa.Table.from_pylist(without_surrogates(self._rows), self._schema)
        self._file.write_table(table)
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        self._file.close()


def _encoded(values: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(values).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(without_surrogates(values)).decode()


class Parquet(Format):
    """Apache Parquet, as dataset hubs, data frames and databases read it."""

    name: ClassVar[str] = "parquet"

    def read(self, location: Location) -> Iterator[Document]:
        """See `Format`."""
        return self.read_from(location, 0)

    def read_from(self, location: Location, start: int) -> Iterator[Document]:
        """See `Format`."""
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
        writer = _RowWriter(stream)
        try:
            yield writer
            writer.flush()
        except BaseException:
            # Also of a file that is thrown away: Arrow would close it later, when the stream is gone.
            with contextlib.suppress(OSError):
                writer.close()
            raise
        writer.close()  # writes the end of the file: an error here is one of the whole file


def metadata_of(row: dict[str, Any]) -> dict[str, Any]:
    """The other columns of a row that hold something, those of the JSON column among them; no URL has credentials."""
    rest = row.pop(REST, None)
    found = {name: value for name, value in row.items() if value is not None}
    if rest is not None:
        inner = None
        with contextlib.suppress(msgspec.DecodeError, TypeError, RecursionError):
            inner = msgspec.json.decode(rest) if isinstance(rest, str) else rest
        found |= inner if isinstance(inner, dict) else {REST: rest}
    # Columns of their own, gone from the row already: what a JSON column calls so would take their place.
    return clean_metadata({name: value for name, value in found.items() if name not in ("url", "text")})


def read_rows(location: Location, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a Parquet file, column name to value, or what is wrong with one (text that is not valid UTF-8).

    Those from number `start` on, and before `stop`, counted from 0; row groups without any of them are not read.

    Raises InputError if it can't be read as a Parquet file.
    """
    with _opened(location) as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        stop = sum(sizes) if stop is None else stop
        groups = [number for number, end in enumerate(ends) if end > start and end - sizes[number] < stop]
        at = ends[groups[0]] - sizes[groups[0]] if groups else 0
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, use_threads=False):
            first, last = max(0, start - at), min(batch.num_rows, stop - at)
            at += batch.num_rows
            if first < last:
                yield from rows_of(batch.slice(first, last - first))


def row_groups(location: Location) -> list[tuple[int, int]]:
    """Rows and compressed bytes of each row group. Raises InputError if it can't be read as a Parquet file."""
    with _opened(location) as file:
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        return [
            (group.num_rows, sum(group.column(at).total_compressed_size for at in range(group.num_columns)))
            for group in groups
        ]


@contextlib.contextmanager
def _opened(location: Location) -> Iterator[pq.ParquetFile]:
    """An open Parquet file. Raises InputError, also for what the block finds, if it can't be read as one."""
    import pyarrow.parquet as pq

    with storage.open_for_reading(location) as stream, arrow_errors(location, "Parquet"):
        yield pq.ParquetFile(stream, pre_buffer=False)
