"""Arrow files: streams, as `datasets.save_to_disk` writes them, and files with a footer, as data frames do.

Arrow maps such files into memory as they are, so that a damaged one could lead outside of it: each batch is validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from webtext_prep import storage
from webtext_prep.documents.formats.arrow_rows import BATCH_ROWS, arrow_errors, rows_of
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile
from webtext_prep.documents.records.parquet import records_of_rows
from webtext_prep.storage.stores.base import Location

if TYPE_CHECKING:
    import pyarrow as pa

_WITH_FOOTER = b"ARROW1"


class ArrowRecords(RecordReader):
    """Rows of a table."""

    suffixes: ClassVar[tuple[str, ...]] = (".arrow",)
    may_be_compressed: ClassVar[bool] = False

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        return records_of_rows(_read_rows(file.location), file, keys)


def _read_rows(location: Location) -> Iterator[dict[str, Any] | ValueError]:
    with storage.open_for_reading(location) as stream, arrow_errors(location, "Arrow"):
        for batch in _batches(stream):
            for at in range(0, batch.num_rows, BATCH_ROWS):
                yield from _valid_rows(batch.slice(at, BATCH_ROWS))


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
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if batch.num_rows <= 1:
            yield ValueError(str(error).split("\n")[0])
            return
        for at in range(batch.num_rows):
            yield from _valid_rows(batch.slice(at, 1))
    else:
        yield from rows_of(batch)
