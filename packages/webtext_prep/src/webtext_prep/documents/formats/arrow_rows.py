"""Rows of Arrow tables as Python values, for files in Parquet and in Arrow's own formats.

Rows are taken by their size: one value that a table stores once may be that of each row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from webtext_prep.documents.formats.compression import MAX_LINE_BYTES
from webtext_prep.errors import InputError
from webtext_prep.storage.stores.base import Location

if TYPE_CHECKING:
    import pyarrow as pa


BATCH_ROWS = 256
BATCH_BYTES = 64 << 20
"""Rows that are taken together have at most so many bytes, unless one alone has more."""
TOO_LONG = f"a row of more than {MAX_LINE_BYTES >> 20} MiB"
_NUMBER_BYTES = 16
"""What counts for a value that is no text."""


@contextlib.contextmanager
def arrow_errors(location: Location, kind: str) -> Iterator[None]:
    """Raise InputError for what Arrow says in the block against a file that should be of that `kind`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # text in a footer that is not UTF-8, too
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"{location} is not a valid {kind} file ({reason}): write it again.") from error


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a batch, column name to value, or what is wrong with one (text that is not valid UTF-8)."""
    sizes = sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
    ends = np.cumsum(sizes)
    begin = 0
    while begin < batch.num_rows:
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + BATCH_BYTES, side="right")))
        end = min(end, begin + BATCH_ROWS)
        if sizes[begin] > MAX_LINE_BYTES:
            yield ValueError(TOO_LONG)
        else:
            yield from _rows(_in_microseconds(batch.slice(begin, end - begin)))
        begin = end


def _sizes(array: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each value as Python would have them, about."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if pa.types.is_dictionary(kind):
        own = np.append(_sizes(array.dictionary), 0)
        return own[array.indices.fill_null(len(own) - 1).to_numpy(zero_copy_only=False)]
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # Each of 16 bytes, the first four of which are the length.
        views = np.frombuffer(array.buffers()[1] or b"", np.int32)[::4][array.offset : array.offset + len(array)]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    ):
        return pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_struct(kind):
        return sum(map(_sizes, array.flatten()), np.zeros(len(array), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy()
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        return np.diff(np.append(0, np.cumsum(_sizes(values)))[offsets - offsets[0]])
    if pa.types.is_fixed_size_list(kind):
        return (
            _sizes(array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size))
            .reshape(len(array), -1)
            .sum(1)
        )
    return np.full(len(array), _NUMBER_BYTES, np.int64)


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
