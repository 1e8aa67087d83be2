"""Values of Arrow's types as JSON has them, one rule for each type: what its own writer shows, in ISO 8601's words.

Python's own types hold less than Arrow's: years 1 to 9999, microseconds, no time of 24:00, floats of 64 bits alone. So
times, dates and spans are text from here on, made of the whole numbers that Arrow holds; nothing is rounded or wrapped.
The table of rules is in docs/formats.md. What has no text of its own (Parquet's VARIANT, a database's own types in
bytes that no one else knows) is refused by name.

Of Parquet, the types alone do not say everything. A column of its file is read with a mark for each of its leaves, the
columns without children: see `Mark`.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from webtext_prep.documents.document import encode_json

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class Mark(Enum):
    """What a leaf of a Parquet file is beyond its type in Arrow (pyarrow 26.0.1).

    PLAIN is as its type says. TEXT is Parquet's ENUM: UTF-8, but bytes to Arrow. INTERVAL has 12 bytes: months, days
    and milliseconds, u32 each. MONTHS and MICROSECONDS are Spark's intervals, which Parquet knows as whole numbers.
    JULIAN is a date or time of the calendar before 1582-10-15, in which Spark before 3.0, and later with its setting
    LEGACY, counts days.
    """

    PLAIN = auto()
    TEXT = auto()
    INTERVAL = auto()
    MONTHS = auto()
    MICROSECONDS = auto()
    JULIAN = auto()


Marks = Iterator[Mark]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 24 * 60 * 60
_DECODED = ("arrow.uuid", "arrow.json", "arrow.bool8")
_OPAQUE = {"arrow.opaque", "arrow.parquet.variant", "parquet.variant"}
"""Extension types whose storage is not what they mean: a writer's own bytes, or a number of periods."""


def json_values(array: pa.Array, marks: Marks | None = None, fine: pa.Array | None = None) -> list[Any]:
    """The values of an array as JSON has them.

    Args:
        array: of any type.
        marks: one for each of its leaves, in order; PLAIN by default.
        fine: the same array where times of 96 bits were read as nanoseconds, which wrap around in 64 bits, and not as
            microseconds.

    Raises ValueError for text that is not valid UTF-8, and for a type that has no text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    marks = itertools.repeat(Mark.PLAIN) if marks is None else marks
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in _DECODED:
        refuse_opaque(array, kind.extension_name, str(kind))
        return json_values(array.storage, marks)
    if pa.types.is_dictionary(kind):
        if pa.types.is_string_view(kind.value_type) or pa.types.is_binary_view(kind.value_type):
            # Which pyarrow 26.0.1 can't take.
            found = array.dictionary
            return [None if at is None else found[at].as_py() for at in array.indices.to_pylist()]
        return json_values(array.dictionary_decode(), marks)
    if pa.types.is_run_end_encoded(kind):
        return json_values(pc.run_end_decode(array), marks)
    if pa.types.is_union(kind):
        return [json_values(pa.repeat(scalar.value, 1))[0] if scalar.is_valid else None for scalar in array]
    if pa.types.is_struct(kind):
        if _is_variant(kind) and array.null_count < len(array):
            raise ValueError("a VARIANT is known to its writer alone: write it as text, with to_json")
        return _objects(array, marks, fine)
    if pa.types.is_map(kind):
        return _maps(array, marks, fine)
    if _has_lists(kind):
        return _lists(array, marks, fine)
    return _leaves(array, next(marks), fine)


def _is_variant(kind: pa.StructType) -> bool:
    """Whether a struct is what a VARIANT is stored in (VariantShredding.md of parquet-format 2.12; Spark, DuckDB 2)."""
    types = {field.name: field.type for field in kind}
    parts = types.keys() & {"value", "typed_value"}
    return len(parts) == len(types) - 1 > 0 and str(types.get("metadata")) == "binary"


def _has_lists(kind: pa.DataType) -> bool:
    """Whether values of a type are lists of any layout."""
    import pyarrow.types as kinds

    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(kind) for test in tests)


def refuse_opaque(array: pa.Array, name: str, words: str = "") -> None:
    """Raise ValueError where an array holds anything of an extension type that has no text."""
    if name in _OPAQUE and array.null_count < len(array):
        raise ValueError(f"{words or name} is known to its writer alone: write it as text")


def _objects(array: pa.Array, marks: Marks, fine: pa.Array | None) -> list[Any]:
    names = column_names([field.name for field in array.type])
    inner = [None] * len(names) if fine is None else fine.flatten()
    columns = [json_values(child, marks, exact) for child, exact in zip(array.flatten(), inner, strict=True)]
    rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(array))
    is_valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, is_valid, strict=True)]


def _lists(array: pa.Array, marks: Marks, fine: pa.Array | None) -> list[Any]:
    import pyarrow.compute as pc

    values = iter(json_values(array.flatten(), marks, None if fine is None else fine.flatten()))
    lengths = pc.list_value_length(array).to_pylist()
    is_valid = array.is_valid().to_pylist()
    return [
        list(itertools.islice(values, length)) if valid else None
        for length, valid in zip(lengths, is_valid, strict=True)
    ]


def _maps(array: pa.Array, marks: Marks, fine: pa.Array | None) -> list[Any]:
    offsets = array.offsets.to_numpy()
    begin, count = offsets[0], offsets[-1] - offsets[0]
    exact = (None, None) if fine is None else (part.slice(fine.offsets[0].as_py(), count) for part in _parts(fine))
    keys, items = (
        json_values(part.slice(begin, count), marks, its) for part, its in zip(_parts(array), exact, strict=True)
    )
    pairs = iter(zip(keys, items, strict=True))
    rows = [list(itertools.islice(pairs, length)) for length in np.diff(offsets).tolist()]
    return [_mapping(row) if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    return array.keys, array.items


def _mapping(pairs: list[tuple[Any, Any]]) -> Any:
    """An object, its keys as text; where a key is there twice, a list of pairs."""
    found = {key if isinstance(key, str) else encode_json(key).decode(): value for key, value in pairs}
    return found if len(found) == len(pairs) else [list(pair) for pair in pairs]


def _leaves(array: pa.Array, mark: Mark, fine: pa.Array | None) -> list[Any]:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_floating(kind):
        return _floats(array)
    words = _words_of(kind, mark)
    if words is None:
        return [str(value) if isinstance(value, uuid.UUID) else value for value in array.to_pylist()]
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):  # whole numbers of some unit
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = array.to_pylist()
    if fine is not None and pa.types.is_timestamp(kind) and fine.type.unit != kind.unit:
        words = _words_of(pa.timestamp("ns", kind.tz), mark) or str
        values = [
            None if coarse is None else coarse * 1000 + (exact - coarse * 1000) % 2**64
            for coarse, exact in zip(values, fine.view(pa.int64()).to_pylist(), strict=True)
        ]
    return [None if value is None else words(value) for value in values]


def _words_of(kind: pa.DataType, mark: Mark) -> Callable[[Any], Any] | None:
    """How a value of a type is written; None where Python's own is what JSON has."""
    import pyarrow.types as kinds

    calendar = _julian_date if mark is Mark.JULIAN else date_words
    if kinds.is_date(kind):
        per = 1 if kind.bit_width == 32 else 1000 * _DAY
        return lambda value: _endless(value, kind.bit_width) or calendar(value // per)
    if kinds.is_timestamp(kind):
        per, zone = _PER_SECOND[kind.unit], _zone(kind.tz)
        return lambda value: _endless(value, 64) or _time_words(value, per, zone, calendar)
    if kinds.is_time(kind):
        return lambda value: _clock(value, _PER_SECOND[kind.unit])
    if kinds.is_duration(kind):
        return lambda value: _seconds_words(value, _PER_SECOND[kind.unit])
    if kinds.is_interval(kind):
        return lambda value: duration_words(value.months, value.days, value.nanoseconds, 10**9)
    if kinds.is_decimal(kind):
        return lambda value: format(value, "f")
    return {
        Mark.TEXT: lambda value: value.decode(),
        Mark.INTERVAL: _interval_words,
        Mark.MONTHS: lambda value: duration_words(value, 0, 0, 1),
        Mark.MICROSECONDS: lambda value: _seconds_words(value, 10**6),
    }.get(mark)


_PERIODS: dict[str, Any] = {"Y-DEC": "Y", "min": "m"} | {unit: unit for unit in ("M", "D", "h", "s", "ms", "us", "ns")}


def _periods(array: pa.Array, frequency: str) -> list[Any]:
    """The periods of a data frame (pandas 3.1.1), stored as their number from 1970 on: 648 for 2024-01."""
    unit = _PERIODS.get(frequency)
    if unit is None:
        raise ValueError(f"periods of the frequency {frequency} are known to pandas alone: write them as text")
    return [None if value is None else str(np.datetime64(value, unit)) for value in array.to_pylist()]


def _floats(array: pa.Array) -> list[Any]:
    """Floats of 32 bits as the shortest number that stands for them (0.1), as databases show them; others exactly."""
    import pyarrow as pa

    if pa.types.is_float32(array.type):
        values = array.cast(pa.string()).cast(pa.float64()).to_pylist()
    else:
        values = array.to_pylist()
    return [value if value is None or math.isfinite(value) else non_finite(value) for value in values]


def non_finite(value: float) -> str:
    """What stands for a float that JSON can't hold.

    >>> [non_finite(value) for value in (math.nan, math.inf, -math.inf)]
    ['NaN', 'Infinity', '-Infinity']
    """
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _endless(value: int, bits: int) -> str:
    """DuckDB's and PostgreSQL's dates and times without an end: the largest number of the type, and its negative."""
    last = 2 ** (bits - 1) - 1
    return "" if abs(value) != last else "infinity" if value > 0 else "-infinity"


def date_words(days: int) -> str:
    """The date so many days from 1970-01-01, in the Gregorian calendar of all times, its year as ISO 8601 has it.

    >>> date_words(0), date_words(2_932_897), date_words(-719_529)
    ('1970-01-01', '+10000-01-01', '-0001-12-31')
    """
    year, month, day = str(np.datetime64(days, "D")).rsplit("-", 2)
    return _year_words(int(year)) + f"-{month}-{day}"


def _year_words(year: int) -> str:
    return f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"


def _julian_date(days: int) -> str:
    """As `date_words`, but dates before 1582-10-15 in the Julian calendar.

    Richards, "Calendars", in the Explanatory Supplement to the Astronomical Almanac (2013), 15.11.3.
    """
    if days >= -141_427:  # 1582-10-15
        return date_words(days)
    shifted = days + 2_440_588 + 32_082
    years = (4 * shifted + 3) // 1461
    rest = shifted - 1461 * years // 4
    month = (5 * rest + 2) // 153
    year, day = years - 4800 + month // 10, rest - (153 * month + 2) // 5 + 1
    return f"{_year_words(year)}-{month + 3 - 12 * (month // 10):02}-{day:02}"


def _fraction(rest: int, per: int) -> str:
    """Part of a second with six digits, or nine if it has more; empty if it is none."""
    nanoseconds = rest * (10**9 // per)
    if not nanoseconds:
        return ""
    return f".{nanoseconds // 1000:06}" if nanoseconds % 1000 == 0 else f".{nanoseconds:09}"


def _clock(value: int, per: int) -> str:
    """Hours, minutes and seconds; of a time beyond a day as many hours as it takes.

    Parquet's `isAdjustedToUTC` adds no `Z`: each `TIME_MICROS` counts as adjusted by its standard, and fastparquet
    (2026.9) says so of time spans.
    """
    sign, (seconds, rest) = "-" if value < 0 else "", divmod(abs(value), per)
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(rest, per)}"


def _time_words(value: int, per: int, zone: datetime.tzinfo | None, calendar: Callable[[int], str]) -> str:
    seconds, rest = divmod(value, per)
    offset = _offset(seconds, zone)
    days, of_day = divmod(seconds + (offset or 0), _DAY)
    ending = "" if offset is None else _offset_words(offset)
    return f"{calendar(days)}T{_clock(of_day * per + rest, per)}{ending}"


def _offset(seconds: int, zone: datetime.tzinfo | None) -> int | None:
    """Seconds by which a zone is ahead of UTC; 0 where these are no whole minutes, which ISO 8601 can't say."""
    if zone is None:
        return None
    try:
        moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=seconds)
        offset = moment.astimezone(zone).utcoffset()
    except OverflowError:
        return 0
    found = round(offset.total_seconds()) if offset else 0
    return 0 if found % 60 else found


def _offset_words(offset: int) -> str:
    if not offset:
        return "Z"
    return f"{'-' if offset < 0 else '+'}{abs(offset) // 3600:02}:{abs(offset) // 60 % 60:02}"


def _zone(name: str | None) -> datetime.tzinfo | None:
    """A zone by its name; UTC where this machine knows none of that name."""
    import pyarrow.lib

    if name is None:
        return None
    try:
        found: datetime.tzinfo = pyarrow.lib.string_to_tzinfo(name)
    except (ValueError, KeyError, OSError):
        return datetime.UTC
    return found


def _interval_words(value: bytes) -> str:
    months, days, milliseconds = struct.unpack("<III", value)
    return duration_words(months, days, milliseconds, 1000)


def _seconds_words(value: int, per: int) -> str:
    """A number of seconds, in days of 24 hours."""
    days, rest = divmod(abs(value), _DAY * per)
    return duration_words(0, days, rest, per) if value >= 0 else duration_words(0, -days, -rest, per)


def duration_words(months: int, days: int, value: int, per: int) -> str:
    """A span of time as ISO 8601 has it; where all parts are negative, so is the whole.

    >>> duration_words(14, 3, 14_706_789, 1000), duration_words(0, 0, -1, 10**9), duration_words(0, 0, 0, 1)
    ('P14M3DT14706.789S', '-PT0.000000001S', 'P0D')
    """
    sign = "-" if max(months, days, value) <= 0 and min(months, days, value) < 0 else ""
    if sign:
        months, days, value = -months, -days, -value
    seconds, rest = divmod(abs(value), per)
    number = f"{'-' if value < 0 else ''}{seconds}" + (f"{rest / per:.9f}"[1:].rstrip("0") if rest else "")
    time = f"T{number}S" if value else ""
    found = (f"{months}M" if months else "") + (f"{days}D" if days else "") + time
    return f"{sign}P{found or '0D'}"


def exact_number(digits: str) -> float | str:
    """The number that digits of JSON say; the digits where a float would lose some of them.

    That takes more than 17 digits, as of a decimal of a database, and no float may be written so.

    >>> exact_number("0.10000000000000001"), exact_number("1234567890123456789012345678.5")
    (0.1, '1234567890123456789012345678.5')
    """
    value = float(digits)
    if len(digits) <= 17 and math.isfinite(value):
        return value
    exact = Decimal(digits)
    is_kept = len(exact.normalize().as_tuple().digits) <= 17 and (value != 0) == (exact != 0)
    return value if math.isfinite(value) and (is_kept or exact == Decimal(value)) else digits


def columns_as_json(
    batch: pa.RecordBatch, marks: Sequence[Sequence[Mark]] | None, fine: dict[str, pa.Array]
) -> list[list[Any]]:
    """The columns of a batch, as `json_values` has each. Raises ValueError, which names the column."""
    found = []
    for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        try:
            known = field.metadata or {}
            refuse_opaque(column, name := (known.get(b"ARROW:extension:name") or b"").decode())
            if name == "pandas.period":
                found.append(_periods(column, msgspec.json.decode(known[b"ARROW:extension:metadata"])["freq"]))
                continue
            found.append(json_values(column, iter(marks[number]) if marks else None, fine.get(field.name)))
        except (ValueError, OverflowError) as error:
            words = str(error).split("\n")[0]
            raise ValueError(words if isinstance(error, UnicodeError) else f"column {field.name!r}: {words}") from error
    return found


def marks_of(file: pq.ParquetFile) -> list[list[Mark]]:
    """The marks of the leaves of each column of a Parquet file, from its own types and what Spark adds to them."""
    known = file.metadata.metadata or {}
    columns: dict[int, list[Mark]] = {}
    spark = _spark_types(known)
    julian = _julian_types(known)
    for number, (field, own) in enumerate(_leaves_of(file)):
        count = len(own)
        of_spark = spark.get(field.name)
        columns[number] = [_MARKS.get(leaf.converted_type, Mark.PLAIN) for leaf in own]
        if julian:
            columns[number] = [
                Mark.JULIAN if _calendar_type(leaf) in julian else mark
                for leaf, mark in zip(own, columns[number], strict=True)
            ]
        if of_spark is not None and len(of_spark) == count:
            columns[number] = [
                mark if mark is not Mark.PLAIN else its for mark, its in zip(columns[number], of_spark, strict=True)
            ]
    return list(columns.values())


def names_of_int96(file: pq.ParquetFile) -> list[str]:
    """The columns of a Parquet file that hold times of 96 bits, maybe inside of lists and objects."""
    return [field.name for field, own in _leaves_of(file) if any(leaf.physical_type == "INT96" for leaf in own)]


def _leaves_of(file: pq.ParquetFile) -> Iterator[tuple[pa.Field, list[Any]]]:
    """Each column of a Parquet file, with its leaves in Parquet."""
    leaves = iter([file.schema.column(number) for number in range(len(file.schema))])
    for field in file.schema_arrow:
        yield field, list(itertools.islice(leaves, _count_leaves(field.type)))


_MARKS = {"ENUM": Mark.TEXT, "INTERVAL": Mark.INTERVAL}


def _julian_types(known: dict[bytes, bytes]) -> set[str]:
    """The types whose days Spark counted in the calendar of their time, as its DataSourceUtils (4.3.0) has it."""
    if known.get(b"org.apache.spark.version", b"3") < b"3":
        return {"DATE", "TIMESTAMP", "INT96"}
    dates = {"DATE", "TIMESTAMP"} if b"org.apache.spark.legacyDateTime" in known else set()
    return dates | ({"INT96"} if b"org.apache.spark.legacyINT96" in known else set())


def _calendar_type(leaf: Any) -> str:
    """DATE, INT96, TIMESTAMP where it is a moment, or nothing of these; Spark's TIMESTAMP_NTZ is never rebased."""
    kind = leaf.logical_type
    if leaf.physical_type == "INT96":
        return "INT96"
    if kind.type == "TIMESTAMP" and not msgspec.json.decode(kind.to_json())["isAdjustedToUTC"]:
        return ""
    return str(kind.type)


def _count_leaves(kind: pa.DataType) -> int:
    return sum(_count_leaves(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 1


def _spark_types(known: dict[bytes, bytes]) -> dict[str, list[Mark]]:
    """The marks that Spark's own schema gives the leaves of its columns, by name."""
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError, AttributeError, RecursionError):
        schema = msgspec.json.decode(known[b"org.apache.spark.sql.parquet.row.metadata"])
        return {field["name"]: _spark_marks(field["type"]) for field in schema["fields"]}
    return {}


def _spark_marks(kind: Any) -> list[Mark]:
    if isinstance(kind, dict):
        inner = [kind[key] for key in ("elementType", "keyType", "valueType") if key in kind]
        inner += [field["type"] for field in kind.get("fields", ())]
        return [mark for each in inner for mark in _spark_marks(each)]
    if kind == "variant":
        return [Mark.PLAIN] * 2
    is_months = kind.endswith(("year", "month"))
    return [Mark.PLAIN if not kind.startswith("interval ") else Mark.MONTHS if is_months else Mark.MICROSECONDS]


def column_names(header: Sequence[str]) -> list[str]:
    """The names that a header gives, without the space around them; a column without a name, or with that of an
    earlier one, is called by its number, in a way in which no other is called. The time is linear.

    >>> column_names(["text", "", "text", "text_3"])
    ['text', 'column_2', 'text_3_', 'text_3']
    """
    own = [cell.strip() for cell in header]
    real, names = set(own), dict[str, None]()
    for number, name in enumerate(own, 1):
        if not name or name in names:
            name = f"{name or 'column'}_{number}"
            while name in real:
                name += "_"
        names[name] = None
    return list(names)
