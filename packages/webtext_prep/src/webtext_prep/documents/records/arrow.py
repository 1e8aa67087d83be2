"""Rows of Parquet files of any columns, and of Arrow files.

Arrow files are streams, as `datasets.save_to_disk` writes them, or have a footer, as data frames write them. Arrow maps
such files into memory as they are, so that a damaged one could lead outside of it: each batch is validated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats import arrow_tables
from webtext_prep.documents.formats.parquet import metadata_of
from webtext_prep.documents.records import base
from webtext_prep.documents.records.base import FilePart, Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.errors import DamagedFileError
from webtext_prep.storage.locations import Location

if TYPE_CHECKING:
    import pyarrow as pa


_WITH_FOOTER = b"ARROW1"


class ArrowRecords(RecordReader):
    """Rows of a table."""

    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc")
    may_be_compressed: ClassVar[bool] = False

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        return records_of_rows(_read_rows(file.location), file, keys)


def _read_rows(location: Location) -> Iterator[dict[str, Any] | ValueError]:
    with storage.open_for_reading(location) as stream, arrow_tables.arrow_errors(location, "Arrow"):
        for batch in _batches(stream):
            for at in range(0, batch.num_rows, arrow_tables.BATCH_ROWS):
                yield from _valid_rows(batch.slice(at, arrow_tables.BATCH_ROWS))


def _batches(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    begin = stream.read(len(_WITH_FOOTER))
    stream.seek(0)
    if begin == _WITH_FOOTER:
        with pa.ipc.open_file(stream) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
    else:
        with pa.ipc.open_stream(stream) as batches:
            yield from batches


def _valid_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | ValueError]:
    try:
        batch.validate(full=True)
    except ValueError as error:
        if batch.num_rows <= 1:
            yield ValueError(str(error).split("\n")[0])
            return
        for at in range(batch.num_rows):
            yield from _valid_rows(batch.slice(at, 1))
    else:
        yield from arrow_tables.rows_of(batch)


class ParquetRecords(RecordReader):
    """Rows of a table."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    may_be_compressed: ClassVar[bool] = False

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        rows = (file.part.begin, file.part.end) if file.part else ()
        return records_of_rows(arrow_tables.read_rows(file.location, *rows), file, keys)

    def read_around_damage(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`. A row group that is damaged anywhere is lost."""
        rows = (file.part.begin, file.part.end) if file.part else ()
        try:
            yield from records_of_rows(arrow_tables.read_rows(file.location, *rows, around_damage=True), file, keys)
        except DamagedFileError as error:  # its footer: no row was read
            yield base.lost_file(file, error)

    def parts(self, location: Location, size: int) -> list[FilePart]:
        """Ranges of rows: whole row groups together, or a large one in several."""
        edges, held, row = [0], 0, 0
        for rows, group_size in arrow_tables.row_groups(location):
            pieces = max(1, min(rows, group_size // size))
            for piece in range(1, pieces + 1):
                held += group_size // pieces
                if held >= size:
                    edges.append(row + rows * piece // pieces)
                    held = 0
            row += rows
        return [
            FilePart(begin, end) for begin, end in itertools.pairwise([*edges, *([row] if edges[-1] < row else [])])
        ]

    def count(self, location: Location, part: FilePart) -> int:
        """How many rows there are."""
        return part.end - part.begin


def records_of_rows(rows: Iterable[dict[str, Any] | ValueError], file: SourceFile, keys: Keys) -> Iterator[Record]:
    """The records of a table's rows; a ValueError stands for a row that can't be read, or `DamagedRows` for several."""
    number = (file.part.first if file.part else 1) - 1
    for row in rows:
        number += 1
        place, url = f"row {number}", file.url(number)
        if isinstance(row, arrow_tables.DamagedRows):
            place = f"rows {number:,} to {number + row.rows - 1:,}"
            yield Record(place, base.Damaged(f"{base.LOST} ({row})", row.size), url)
            number += row.rows - 1
            continue
        if isinstance(row, ValueError):
            yield Record(place, Unreadable("a row that can't be read", row), url)
            continue
        record = keys.record(row, place, url)
        if isinstance(record.document, Document):
            record.document.metadata = metadata_of(record.document.metadata)
        yield record
