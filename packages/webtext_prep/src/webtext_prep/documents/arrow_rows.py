"""Rows of Arrow tables as Python values, for files in Parquet and in Arrow's own formats."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


@contextlib.contextmanager
def arrow_errors(location: Location, kind: str) -> Iterator[None]:
    """Raise InputError for what Arrow says in the block against a file that should be of that `kind`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"{location} is not a valid {kind} file ({reason}): write it again.") from error


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any] | ValueError]:
    """The rows of a batch, column name to value, or what is wrong with one (text that is not valid UTF-8)."""
    return _rows(_in_microseconds(batch))


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any] | ValueError]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [ValueError(str(error).split("\n")[0])]
        return [row for at in range(batch.num_rows) for row in _rows(batch.slice(at, 1))]


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with times cut off to microseconds: Python's own types hold no more."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for number, column in enumerate(batch.schema):
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            shorter = pa.timestamp("us", kind.tz)
        elif pa.types.is_duration(kind) and kind.unit == "ns":
            shorter = pa.duration("us")
        else:
            continue
        batch = batch.set_column(number, column.name, pc.cast(batch.column(number), shorter, safe=False))
    return batch
