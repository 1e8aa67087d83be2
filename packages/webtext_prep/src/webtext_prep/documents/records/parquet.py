"""Parquet files of any columns, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.parquet import metadata_of, read_rows
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile, Unreadable


class ParquetRecords(RecordReader):
    """Rows of a table."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    may_be_compressed: ClassVar[bool] = False

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        for number, row in enumerate(read_rows(file.location), 1):
            place, url = f"row {number}", file.url(number)
            if isinstance(row, ValueError):
                yield Record(place, Unreadable("a row that can't be read", row), url)
                continue
            record = keys.record(row, place, url)
            if isinstance(record.document, Document):
                record.document.metadata = metadata_of(record.document.metadata)
            yield record
