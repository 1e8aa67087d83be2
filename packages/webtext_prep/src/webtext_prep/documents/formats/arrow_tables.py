"""Tables in Parquet and in Arrow's own formats: rows as Python values, and Parquet files with checksums.

Rows are taken by their size: one value that a table stores once may be that of each row.

Each page of a Parquet file has a CRC-32, which readers of Parquet verify if they are asked to; the footer has none in
this format. So ours holds one of itself, among its key-value metadata: its XXH3 as it is with zeros in that place.

How much memory some rows take follows from no size in the footer: a value of 10 MB that each row repeats is stored
once. But no value is larger than its column's pages, nor one that is repeated larger than the dictionary it stands in.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep import storage
from webtext_prep.documents.formats.arrow_values import Mark, column_names, columns_as_json, marks_of, names_of_int96
from webtext_prep.documents.formats.compression import MAX_LINE_BYTES, check_ratio
from webtext_prep.errors import DamagedFileError, InputError
from webtext_prep.storage.locations import Location

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


BATCH_ROWS = 256
BATCH_BYTES = 64 << 20
"""Bytes of rows that are taken together, at most, unless one alone has more."""
TOO_LONG = f"a row of more than {MAX_LINE_BYTES >> 20} MiB"


@contextlib.contextmanager
def arrow_errors(location: Location, kind: str, named: type[InputError] = DamagedFileError) -> Iterator[None]:
    """Raise an error `named` so for what Arrow says in the block against a file that should be of that `kind`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # text in a footer that is not UTF-8, too
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).split("\n")[0].rstrip(".")
        if isinstance(error, pa.ArrowNotImplementedError):
            raise named(
                f"{location} holds what can't be read here ({reason}): write it without that, or as text."
            ) from error
        raise named(f"{location} is not a valid {kind} file ({reason}): write it again.") from error


def rows_of(
    batch: pa.RecordBatch, marks: Sequence[Sequence[Mark]] | None = None, fine: pa.RecordBatch | None = None
) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a batch, column name to value as `json_values` has it, or what is wrong with one.

    `marks` are those of each column's leaves; `fine` is the same rows of columns with times of 96 bits, in nanoseconds.
    """
    names = batch.schema.names
    if len(set(names)) < len(names):
        batch = batch.rename_columns(column_names(names))
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
            yield from _rows(batch.slice(begin, end - begin), marks, fine and fine.slice(begin, end - begin))
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
        # Of 64 bits: a full dictionary (128 values for int8) has no index left for null.
        return own[array.indices.cast(pa.int64()).fill_null(len(own) - 1).to_numpy(zero_copy_only=False)]
    if pa.types.is_run_end_encoded(kind):
        places = np.arange(array.offset, array.offset + len(array))
        return _sizes(array.values)[np.searchsorted(array.run_ends.to_numpy(), places, side="right")]
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # Each of 16 bytes, the first four of which are the length.
        views = np.frombuffer(array.buffers()[1] or b"", np.int32)[::4][array.offset : array.offset + len(array)]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_struct(kind):
        return sum(map(_sizes, array.flatten()), np.zeros(len(array), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy()
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        return np.diff(np.append(0, np.cumsum(_sizes(values)))[offsets - offsets[0]])
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        ends = np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy())
        return np.diff(np.append(0, np.cumsum(_sizes(array.flatten())))[np.append(0, ends)])
    if pa.types.is_fixed_size_list(kind):
        return (
            _sizes(array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size))
            .reshape(len(array), -1)
            .sum(1)
        )
    return np.full(len(array), 16, np.int64)  # what counts for a value that is no text


def _rows(
    batch: pa.RecordBatch, marks: Sequence[Sequence[Mark]] | None, fine: pa.RecordBatch | None
) -> list[dict[str, Any] | ValueError]:
    try:
        columns = columns_as_json(batch, marks, dict(zip(fine.schema.names, fine.columns, strict=True)) if fine else {})
    except ValueError as error:
        if batch.num_rows == 1:
            return [error]
        single = (_rows(batch.slice(at, 1), marks, fine and fine.slice(at, 1)) for at in range(batch.num_rows))
        return list(itertools.chain.from_iterable(single))
    rows = zip(*columns, strict=True) if columns else itertools.repeat((), batch.num_rows)
    return [dict(zip(batch.schema.names, row, strict=True)) for row in rows]


_SEAL = b"webtext.footer_xxh3"
_UNSEALED = b"0" * 16
_TAIL = 8
"""Bytes after a footer: its length, and a mark."""


class _Stream:
    """What Arrow writes to; the end of the file is held back until its checksum is in it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._held = stream, None  # type: BinaryIO, bytearray | None
        self.closed = False

    def write(self, data: Any) -> None:
        if self._held is None:
            self._stream.write(data)
        else:
            self._held += bytes(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def hold(self) -> None:
        """Hold back rows written from now on."""
        self._held = bytearray()

    def release(self) -> None:
        """Write what was held back, with the footer's checksum."""
        held, self._held = self._held, None
        assert held is not None
        length = int.from_bytes(held[-_TAIL:-4], "little")
        at = held.index(_UNSEALED, held.rindex(_SEAL))
        held[at : at + len(_UNSEALED)] = _checksum(bytes(held[-_TAIL - length : -_TAIL]))
        self._stream.write(held)


def _checksum(unsealed: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(unsealed).encode()


@contextlib.contextmanager
def new_parquet(stream: BinaryIO, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """A writer of a Parquet file with checksums, compressed with zstandard; it is whole when the block ends well.

    `options` are for Arrow's writer.
    """
    import pyarrow.parquet as pq

    target = _Stream(stream)
    file = pq.ParquetWriter(
        target, schema, compression="zstd", compression_level=3, write_page_checksum=True, **options
    )
    try:
        yield file
        file.add_key_value_metadata({_SEAL: _UNSEALED})
        target.hold()
    except BaseException:
        # Also of a file that is thrown away: Arrow would close it later, when the stream is gone.
        with contextlib.suppress(OSError):
            file.close()
        raise
    file.close()  # writes the end of the file: an error here is one of the whole file
    target.release()


_SIGNATURE = 28
"""Bytes behind a footer in the clear whose file has encrypted columns: a nonce and a tag of AES GCM."""
_ENCRYPTED = "is encrypted, or columns of it are: decrypt it first, with the keys and the program that wrote it."
_OPTIONS: dict[str, Any] = {"pre_buffer": False, "page_checksum_verification": True}


@contextlib.contextmanager
def open_parquet(location: Location) -> Iterator[tuple[pq.ParquetFile, BinaryIO]]:
    """An open Parquet file, and its stream. Pages that have a checksum are verified when they are read.

    Raises, also for what the block finds, DamagedFileError if it can't be read as one, or is damaged; InputError if it
    is encrypted, or one of ours, by the checksum of its footer: nothing of such a file is to be taken.
    """
    import pyarrow.parquet as pq

    with storage.open_for_reading(location) as stream, arrow_errors(location, "Parquet"):
        stream.seek(max(0, stream.seek(0, 2) - _TAIL - _SIGNATURE - 1))
        tail = stream.read()
        if tail.endswith(b"PARE"):
            raise InputError(f"{location} {_ENCRYPTED}")
        file = pq.ParquetFile(stream, **_OPTIONS, coerce_int96_timestamp_unit="us")
        # The footer of a file with encrypted columns ends, as each does, with a zero, and is signed. What is said of
        # such a column must not be asked for: pyarrow 26.0.1 ends the process then. To read a row is safe, and tells.
        if tail[0] == 0 and file.metadata.num_row_groups:
            try:
                next(file.iter_batches(batch_size=1, row_groups=[0]), None)
            except OSError as error:
                if "decrypt" in str(error):
                    raise InputError(f"{location} {_ENCRYPTED}") from None
        known = file.metadata.metadata or {}
        if _SEAL in known:
            stream.seek(-_TAIL, 2)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(-_TAIL - length, 2)
            found = stream.read(length)
            if _checksum(found.replace(known[_SEAL], _UNSEALED, 1)) != known[_SEAL]:
                raise InputError(f"{location} is damaged (its footer has another checksum): write it again.")
        with arrow_errors(location, "Parquet", InputError if _SEAL in known else DamagedFileError):
            yield file, stream


def row_groups(location: Location) -> list[tuple[int, int]]:
    """Rows and compressed bytes of each row group. Raises InputError if it can't be read as a Parquet file."""
    with open_parquet(location) as (file, _):
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        return [(group.num_rows, sum(column.total_compressed_size for column in _columns(group))) for group in groups]


class DamagedRows(ValueError):
    """Rows of one row group that can't be read.

    Attributes:
        rows: how many.
        size: about how many bytes of the file they are.
    """

    def __init__(self, reason: str, rows: int, size: int) -> None:
        super().__init__(reason)
        self.rows, self.size = rows, size


def read_rows(
    location: Location, start: int = 0, stop: int | None = None, *, around_damage: bool = False
) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a Parquet file, column name to value, or what is wrong with one (text that is not valid UTF-8).

    Rows from number `start` on, and before `stop`, counted from 0; row groups without any of them are not read.
    `around_damage` gives `DamagedRows` in the place of those of a row group that is not whole, which is decoded for
    that before any of its rows is given.

    Raises InputError as `open_parquet` does, and if the file claims to be very much larger once it is decompressed.
    """
    with open_parquet(location) as (file, stream):
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        stop = sum(sizes) if stop is None else stop
        groups = [number for number, end in enumerate(ends) if end > start and end - sizes[number] < stop]
        at = ends[groups[0]] - sizes[groups[0]] if groups else 0
        marks = marks_of(file)
        for number in groups:
            count = _rows_at_once(file, stream, number, location)
            wanted = range(max(start, at), min(ends[number], stop))
            if not count:
                yield from (ValueError(TOO_LONG) for _ in wanted)
            elif around_damage and (reason := _damage_of(file, number, count, location)):
                share = len(wanted) / sizes[number]
                size = sum(column.total_compressed_size for column in _columns(file.metadata.row_group(number)))
                yield DamagedRows(reason, len(wanted), int(share * size))
            else:
                for batch, fine in zip(_batches(file, number, count), _fine(file, stream, number, count), strict=False):
                    first, last = max(0, start - at), min(batch.num_rows, stop - at)
                    at += batch.num_rows
                    if first < last:
                        rows = last - first
                        yield from rows_of(batch.slice(first, rows), marks, fine and fine.slice(first, rows))
            at = ends[number]


def _batches(file: pq.ParquetFile, number: int, count: int) -> Iterator[pa.RecordBatch]:
    """A row group, so many rows at a time. Raises ValueError or Arrow's own errors if it is not whole."""
    left = file.metadata.row_group(number).num_rows
    for batch in file.iter_batches(count, row_groups=[number], use_threads=False):
        left -= batch.num_rows
        yield batch
    if left:
        # Readers pass over pages of a kind that they do not know: a flipped bit makes any page one of these.
        raise ValueError(f"pages of its row group {number} are missing")


def _fine(file: pq.ParquetFile, stream: BinaryIO, number: int, count: int) -> Iterator[pa.RecordBatch | None]:
    """The columns of a row group that hold times of 96 bits once more, in nanoseconds; None where there are none.

    Hive and Impala write nanoseconds there, Spark years from 1 to 9999, and 64 bits hold either: pyarrow 26.0.1 wraps
    around without a word. Both together are exact.
    """
    import pyarrow.parquet as pq

    if names := names_of_int96(file):
        again = pq.ParquetFile(stream, **_OPTIONS)
        yield from again.iter_batches(count, row_groups=[number], columns=names, use_threads=False)
    yield from itertools.repeat(None)


def _damage_of(file: pq.ParquetFile, number: int, count: int, location: Location) -> str:
    """Why a row group can't be read; empty if it can. Files of ours are not looked at."""
    if _SEAL not in (file.metadata.metadata or {}):
        try:
            with arrow_errors(location, "Parquet"):
                collections.deque(_batches(file, number, count), 0)
        except DamagedFileError as error:
            return str(error.__cause__).split("\n")[0].rstrip(".")
    return ""


def _columns(group: Any) -> list[Any]:
    return [group.column(number) for number in range(group.num_columns)]


def _rows_at_once(file: pq.ParquetFile, stream: BinaryIO, number: int, location: Location) -> int:
    """How many rows of a row group may be decoded together; 0 if they are longer than a row may be.

    Raises InputError for a row group that claims to be very much larger than it is.
    """
    group = file.metadata.row_group(number)
    if not group.num_rows:
        return BATCH_ROWS
    size = sum(
        column.total_uncompressed_size + 8 * max(0, column.num_values - group.num_rows) for column in _columns(group)
    )
    check_ratio(location, size, sum(column.total_compressed_size for column in _columns(group)))
    if size > group.num_rows * MAX_LINE_BYTES:
        return 0
    values = sum(
        column.num_values * _largest_repeated(column, stream)
        for column in _columns(group)
        if any("DICTIONARY" in encoding for encoding in column.encodings)
    )
    return max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, size + values)))


def _largest_repeated(column: Any, stream: BinaryIO) -> int:
    """Bytes that no value of a column with a dictionary is larger than: the size of the dictionary."""
    whole = int(column.total_uncompressed_size)
    if whole <= BATCH_BYTES // BATCH_ROWS // 4:
        return whole
    stream.seek(min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0))
    header = stream.read(32)  # more than the fields take that are read here
    # Thrift's compact protocol: field 1, the kind of page (2 is a dictionary), and field 2, its size.
    kind, at = _number(header, 1)
    size, _ = _number(header, at + 1)
    is_known = header[:1] == b"\x15" == header[at : at + 1]
    return size if is_known and kind == 2 else whole


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The zigzag varint at a place, and the place after it."""
    found = shift = 0
    while at < len(data):
        found |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return found >> 1, at
