"""Parquet files of any columns, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.parquet import metadata_of, read_rows, row_groups
from webtext_prep.documents.records.base import Keys, Part, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.stores.base import Location


class ParquetRecords(RecordReader):
    """Rows of a table."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    may_be_compressed: ClassVar[bool] = False

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        groups = range(file.part.begin, file.part.end) if file.part else None
        return records_of_rows(read_rows(file.location, groups), file, keys)

    def parts(self, location: Location, size: int) -> list[Part]:
        """Ranges of row groups."""
        found, begin, held = [], 0, 0
        groups = row_groups(location)
        for number, (_, group_size) in enumerate(groups, 1):
            held += group_size
            if held >= size or number == len(groups):
                found.append(Part(begin, number))
                begin, held = number, 0
        return found

    def count(self, location: Location, part: Part) -> int:
        """How many rows the groups have."""
        return sum(rows for rows, _ in row_groups(location)[part.begin : part.end])


def records_of_rows(rows: Iterable[dict[str, Any] | ValueError], file: SourceFile, keys: Keys) -> Iterator[Record]:
    """The records of a table's rows; a ValueError stands for a row that can't be read."""
    for number, row in enumerate(rows, file.part.first if file.part else 1):
        place, url = f"row {number}", file.url(number)
        if isinstance(row, ValueError):
            yield Record(place, Unreadable("a row that can't be read", row), url)
            continue
        record = keys.record(row, place, url)
        if isinstance(record.document, Document):
            record.document.metadata = metadata_of(record.document.metadata)
        yield record
