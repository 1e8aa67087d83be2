"""Tables as others write them: each cell comes as its own writer shows it, or the row is refused by name."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from webtext_prep.documents.document import encode_json
from webtext_prep.documents.folders.raw_files import known_readers
from webtext_prep.documents.formats.arrow_values import json_values
from webtext_prep.documents.records.base import Keys, Record, SourceFile

TABLES = Path(__file__).parent / "tables"
KEYS = Keys(("text",), ("url",))

NOT_SCALAR: dict[str, dict[str, list[Any]]] = {
    "duckdb": {
        "fardate": ["-0043-03-15", "+12024-01-02"],  # 44 BC is the year -43 of ISO 8601
        "interval": ["P14M3DT14706.789S", "P9D"],
        "blob": ["AP9hYg==", ""],
        "list": [[1, None, 3], []],
        "struct": [{"a": 1, "b": "2024-01-02"}, {"a": None, "b": None}],
        "map": [{"x": 1, "y": 2}, {}],
        "imap": [{"1": "2024-01-02"}, {}],
        "lts": [["2024-01-02T03:04:05.123456789"], []],
    },
    "polars": {
        "dur": ["P1DT7384.123456789S", "-PT0.000000001S"],
        "durms": ["P1DT7384.123S", "-PT0.001S"],
        "bin": ["AP9hYg==", ""],
        "list": [[1, None, 3], []],
        "arr": [[0.5, 0.25], [1, 2]],
        "struct": [{"a": 1, "b": "0001-01-01"}, {"a": None, "b": None}],
        "tz": ["2024-07-02T05:04:05.123456789+02:00", "2024-01-02T04:04:05+01:00"],
    },
    "pandas": {
        "td": ["P1DT7384.123456S", "-PT0.000001S"],
        "bin": ["AP9hYg==", ""],
        "list": [[1, 2], []],
        "struct": [{"a": 1}, {"a": None}],
    },
    "fastparquet": {"td": ["26:03:04.123456", "-00:00:00.000001"]},  # which it calls a time of a day
    "datasets": {
        "dur": ["P1DT0.000001S", "-PT0.000001S"],
        "bin": ["AP8=", ""],
        "lbin": ["YWI=", ""],
        "list": [[1, None], []],
        "large": [["0001-01-01"], []],
        "fixed": [[0.5, 0.25], [1, 2]],
        "a2": [[[1, 2], [3, 4]], [[0, 0], [0, 0]]],
        "nested": [{"a": "x", "b": [{"c": 1}]}, {"a": None, "b": []}],
    },
    "clickhouse": {
        "arr": [[1, None, 3], []],
        "tup": [{"a": 1, "b": "2024-01-02"}, {"a": 0, "b": "1970-01-01"}],
        "map": [{"x": 1, "y": 2}, {}],
        # The file holds bytes and numbers, and no word of what they stand for.
        "fs": ["YWJjAA==", "YWJjZA=="],
        "i128": ["AAAAAAAAAAAAAAAAAAAAgA==", "AQAAAAAAAAAAAAAAAAAAAA=="],
        "ip4": [3232235521, 4294967295],
    },
    "spark": {
        "bin": ["YQA=", ""],
        "ym": ["P14M", "-P14M"],
        "dt": ["P3DT14706.789S", "-P3DT14706.789S"],
        "list": [[1, None, 3], []],
        "map": [{"x": 1, "y": 2}, {}],
        "struct": [{"a": 1, "b": ["2024-01-02"]}, {"a": None, "b": None}],
        "tmap": [{"1": "2024-01-02T00:00:00"}, {}],
        "lists": [[["a"], None], []],
        "structs": [[{"k": "v"}], []],
    },
}
OF_FILE: dict[str, dict[str, list[Any]]] = {
    "spark_micros.parquet": {"tmap": [{"1": "2024-01-02T00:00:00Z"}, {}]},
    # In Arrow it has no enumeration, and seconds since 1970 are a number.
    "clickhouse.arrow": {"e8": [1, -2], "dt": [1704164645, 0]},
    "clickhouse_stream.arrow": {"e8": [1, -2], "dt": [1704164645, 0]},
}


def records(path: Path) -> list[Record]:
    reader = known_readers()[path.suffix]
    return list(reader.read(SourceFile(path, path.name), KEYS))


def columns(path: Path) -> dict[str, list[Any]]:
    """Column to its cells, as a stage writes them; None where a document has nothing of that name."""
    found = [json.loads(encode_json(record.document.metadata)) for record in records(path)]  # type: ignore[union-attr]
    names = dict.fromkeys(name for row in found for name in row)
    return {name: [row.get(name) for row in found] for name in names}


def is_shown(value: Any, shown: str) -> bool:
    """Whether a value that is no list or object is what a writer shows, in whatever spelling."""
    if isinstance(value, bool):
        return str(value).lower() == shown.lower()
    if isinstance(value, int):
        return str(value) == shown
    if isinstance(value, float) or value in ("NaN", "Infinity", "-Infinity"):
        mine, its = float(value), float(shown)
        return mine == its or np.float32(mine) == np.float32(its) or (math.isnan(mine) and math.isnan(its))
    if re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", shown):
        return (
            pa.scalar(value).as_py() == shown or float(shown) == float(value) == 0 or _digits(value) == _digits(shown)
        )
    return _moment(value) == _moment(shown)


def _digits(number: str) -> str:
    sign, digits = number[:1] == "-", number.lstrip("-")
    if "E" in digits:  # 1E-10
        digits = f"{float(digits):.10f}"
    return ("-" if sign else "") + (digits.rstrip("0").rstrip(".") if "." in digits else digits)


def _moment(words: str) -> Any:
    """A time as its second in UTC and the digits after it; other words as they are."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d(?::\d\d)?)?", words)
    if found is None:
        return re.sub(r"(\.\d*?)0+$", r"\1", words.replace("T", " ")).rstrip(".")
    offset = (found[4] or "Z").replace("Z", "+00")
    minutes = int(offset[1:3]) * 60 + int(offset[4:] or 0)
    second = np.datetime64(f"{found[1]}T{found[2]}") - np.timedelta64(minutes if offset[0] == "+" else -minutes, "m")
    return second, (found[3] or "").rstrip("0")


READ = sorted({*TABLES.glob("*.parquet"), *TABLES.glob("*.arrow")} - {TABLES / "spark_variant.parquet"})


@pytest.mark.parametrize("path", READ, ids=lambda path: path.name)
def test_a_cell_of_a_table_is_what_its_writer_shows(path):
    """Times before 1678 and after 2262 in 96 bits came as others, 24:00 and years of five digits cost their rows.

    Also NaN was null, a span of Spark or DuckDB a number or bytes, a name of an enumeration bytes.
    """
    writer = re.split(r"[_.]", path.name)[0]
    shown = json.loads((TABLES / f"{writer}.shown.json").read_text(encoding="utf-8"))
    found = columns(path)
    known = {**NOT_SCALAR[writer], **OF_FILE.get(path.name, {})}
    assert len(found) > 9
    wrong = []
    for name, cells in found.items():
        for value, words, its in zip(cells, shown[name], [*known.get(name, [None] * 3), None], strict=False):
            right = (
                value == its
                if name in known
                else (value is None) == (words is None) and (words is None or is_shown(value, words))
            )
            if not right:
                wrong.append((name, value, its or words))
    assert wrong == []


def test_what_its_writer_alone_knows_is_refused_by_name():
    """A VARIANT of Spark came as two strings of Base64."""
    first, *_ = records(TABLES / "spark_variant.parquet")
    assert "column 'variant': a VARIANT is known to its writer alone: write it as text" in str(first.document)


@pytest.mark.parametrize("parts", [["value"], ["value", "typed_value"]])
def test_variants_of_any_writer_are_refused_by_name(tmp_path, parts):
    """DuckDB (2.0.1) names the type in Parquet's schema alone, and shreds numbers into a part of their own."""
    kind = pa.struct([pa.field("metadata", pa.binary(), nullable=False), *((name, pa.binary()) for name in parts)])
    rows = [None, [dict.fromkeys(["metadata", *parts], b"\x01\x00\x00")]]
    table = pa.table(
        {"url": ["http://a.org/1", "http://a.org/2"], "text": ["a", "b"], "v": pa.array(rows, pa.list_(kind))}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = records(tmp_path / "a.parquet")
    assert first.document.url == "http://a.org/1"
    assert "column 'v': a VARIANT is known to its writer alone: write it as text" in str(second.document)


def test_a_time_of_96_bits_has_its_nanoseconds_in_any_year():
    """As Hive writes them; pyarrow 26.0.1 reads them as nanoseconds, which wrap around, or without the last digits."""
    microseconds = [253_402_300_799_999_999, -62_135_596_800_000_000, 0, None]
    coarse = pa.array([[moment] for moment in microseconds], pa.list_(pa.timestamp("us")))
    wrapped = [None if moment is None else _wrap(moment * 1000 + 789) for moment in microseconds]
    fine = pa.array([[moment] for moment in wrapped], pa.list_(pa.timestamp("ns")))
    assert [cell[0] for cell in json_values(coarse, None, fine)] == [
        "9999-12-31T23:59:59.999999789",
        "0001-01-01T00:00:00.000000789",
        "1970-01-01T00:00:00.000000789",
        None,
    ]


def _wrap(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("values", [128, 256])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_dictionary_may_be_full(tmp_path, values, suffix):
    """A dictionary of int8 with 128 values, which is valid, has no index left: the whole file was refused."""
    kind = pa.int8() if values == 128 else pa.uint8()
    words = pa.DictionaryArray.from_arrays(
        pa.array([0, None, values - 1], kind), pa.array(list(map(str, range(values))))
    )
    table, path = pa.table({"text": ["a", "b", "c"], "word": words}), tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    assert columns(path) == {"word": ["0", None, str(values - 1)]}


def test_every_layout_of_arrow_is_read(tmp_path):
    """Lists as views, runs, unions, dictionaries of views, maps with one key twice, names of fields that are equal."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", None]))
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1], pa.int8()), [pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"])]
    )
    arrays = {
        "runs": runs,
        "union": union,
        "view": pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int8())),
        "views": pa.DictionaryArray.from_arrays(pa.array([0, None, 0, 1]), pa.array(["x", "y" * 20], pa.string_view())),
        "map": pa.array([[("a", 1), ("a", 2)], None, [], [("b", 3)]], pa.map_(pa.string(), pa.int8())),
        "twice": pa.StructArray.from_arrays([pa.array([1] * 4), pa.array([2] * 4)], ["n", "n"]),
        "interval": pa.array([(14, 3, -1), None, (0, 0, 0), (-1, 0, 0)], pa.month_day_nano_interval()),
    }
    table = pa.table({"text": list("abcd"), **arrays})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table.slice(1))
    assert columns(tmp_path / "a.arrow") == {
        "runs": ["a", None, None],
        "union": ["b", 3, "d"],
        "view": [None, [], [2, 3]],
        "views": [None, "x", "y" * 20],
        "map": [None, {}, {"b": 3}],
        "twice": [{"n": 1, "n_2": 2}] * 3,
        "interval": [None, "P0D", "-P1M"],
    }
    assert json_values(arrays["map"])[0] == [["a", 1], ["a", 2]]
    assert json_values(arrays["interval"])[0] == "P14M3DT-0.000000001S"


def test_a_column_of_bytes_may_be_the_text(tmp_path):
    """Hive and older ClickHouse do not say that their strings are UTF-8."""
    pq.write_table(
        pa.table({"text": ["\u00e9".encode(), b"\xff"], "url": [b"http://a.org/", b"http://b.org/"]}),
        tmp_path / "a.parquet",
    )
    first, second = records(tmp_path / "a.parquet")
    assert (first.document.text, first.document.url) == ("\u00e9", "http://a.org/")  # type: ignore[union-attr]
    assert str(second.document) == "'text' is not valid UTF-8 (save it as text)"


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_numbers_that_a_float_cannot_hold_keep_their_digits(tmp_path, ending):
    """DuckDB and Spark write decimals as numbers of JSON; Python and pandas write NaN."""
    (tmp_path / f"a.{ending}").write_text(
        '{"text": "a", "n": 1234567890123456789012345678.01, "f": 0.10000000000000001, "i": 18446744073709551616}'
        "\n"
        '{"text": "b", "n": NaN, "f": -Infinity, "i": 1.0000000000000000000000000}\n'
    )
    assert columns(tmp_path / f"a.{ending}") == {
        "n": ["1234567890123456789012345678.01", "NaN"],
        "f": [0.1, "-Infinity"],
        "i": [18446744073709551616, 1.0],
    }


def test_records_in_a_list_inside_of_an_object_are_read(tmp_path):
    """`{"data": [...]}` was refused with the advice to name a key of the text."""
    shown = json.loads((TABLES / "clickhouse.shown.json").read_text(encoding="utf-8"))
    found = columns(TABLES / "clickhouse.json")
    assert (found["u64"], found["uuid"]) == ([0, 2**64 - 1], shown["uuid"])
    (tmp_path / "a.json").write_text('{"data": [{"text": "a"}], "more": [{"text": "b"}]}')
    (record,) = records(tmp_path / "a.json")
    assert "no key text" in str(record.document)


@pytest.mark.parametrize("name", ["duckdb", "polars", "pandas", "clickhouse", "spark"])
def test_cells_of_csv_are_text_as_its_writer_wrote_it(name):
    """Nothing is guessed: a cell is its characters. Where there is nothing a cell is empty, also as `\\N`."""
    shown = json.loads((TABLES / f"{name}.shown.json").read_text(encoding="utf-8"))
    found = columns(TABLES / f"{name}.csv")
    for column in (
        {"big", "u64", "i64", "UInt64", "date", "uuid", "varchar", "cat", "lc", "n"} & found.keys() & shown.keys()
    ):
        assert [cell or None for cell in found[column]] == [cell or None for cell in shown[column]][
            : len(found[column])
        ]


@pytest.mark.parametrize("footer", ["encrypted", "signed"])
def test_an_encrypted_file_is_refused_before_anything_is_asked_of_its_columns(tmp_path, webtext, monkeypatch, footer):
    """What pyarrow 26.0.1 says of an encrypted column ends the process: none of these files has one."""
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"url": ["https://a.org/1"], "text": ["A text."]}), file)
    if footer == "encrypted":
        file.write_bytes(b"PARE" + bytes(64) + b"PARE")
    else:
        # As with a signature behind the footer, which readers pass over: read as any file while its rows can be.
        data = file.read_bytes()
        length = int.from_bytes(data[-8:-4], "little") + 28
        file.write_bytes(data[:-8] + bytes(range(1, 29)) + length.to_bytes(4, "little") + b"PAR1")
        assert webtext("merge", "--input", file, "--output", tmp_path / "read").code == 0

        def iter_batches(*arguments, **options):
            raise OSError("Cannot decrypt ColumnMetadata. FileDecryption is not setup correctly")

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    refused = webtext("merge", "--input", file, "--output", tmp_path / "out")
    assert (refused.code, refused.sentence) == (
        2,
        f"webtext: error: {file} is encrypted, or columns of it are: decrypt it first, with the keys and the program "
        "that wrote it.",
    )
