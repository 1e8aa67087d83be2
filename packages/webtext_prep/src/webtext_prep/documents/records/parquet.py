"""Parquet files of any columns, a batch of rows at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.parquet import metadata_of
from webtext_prep.documents.formats.parquet_files import read_rows, row_groups
from webtext_prep.documents.records.base import Keys, Part, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.storage.stores.base import Location


class ParquetRecords(RecordReader):
    """Rows of a table."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    may_be_compressed: ClassVar[bool] = False

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        rows = (file.part.begin, file.part.end) if file.part else ()
        return records_of_rows(read_rows(file.location, *rows), file, keys)

    def parts(self, location: Location, size: int) -> list[Part]:
        """Ranges of rows: whole row groups together, or a large one in several."""
        edges, held, row = [0], 0, 0
        for rows, group_size in row_groups(location):
            pieces = max(1, min(rows, group_size // size))
            for piece in range(1, pieces + 1):
                held += group_size // pieces
                if held >= size:
                    edges.append(row + rows * piece // pieces)
                    held = 0
            row += rows
        return [Part(begin, end) for begin, end in itertools.pairwise([*edges, *([row] if edges[-1] < row else [])])]

    def count(self, location: Location, part: Part) -> int:
        """How many rows there are."""
        return part.end - part.begin


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
