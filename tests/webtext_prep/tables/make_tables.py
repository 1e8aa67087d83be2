"""Makes the tables beside it, each by its own writer, and for each a JSON file of what that writer shows in each column.

    python -m venv v && v/bin/pip install -r versions.txt && v/bin/python make_tables.py .

Spark needs Java 17. Nothing of this is a dependency of the project. See README.md.
"""

# ruff: noqa: E501 - a script for an environment of its own

import datetime
import decimal
import json
import shutil
import sys
import uuid
from pathlib import Path

import chdb
import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

OUT = Path(sys.argv[1])
URLS, TEXTS = [f"https://a.example/{n}" for n in range(3)], [f"Text {n}." for n in range(3)]
HUGE = decimal.Decimal("1234567890123456789012345678.0123456789")
DATES = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]

DUCKDB = {
    "tiny": "TINYINT|-128|127", "utiny": "UTINYINT|0|255", "small": "SMALLINT|-32768|32767",
    "usmall": "USMALLINT|0|65535", "int": "INTEGER|-2147483648|2147483647", "uint": "UINTEGER|0|4294967295",
    "big": "BIGINT|-9223372036854775808|9223372036854775807", "ubig": "UBIGINT|0|18446744073709551615",
    "float": "FLOAT|0.1|nan", "double": "DOUBLE|0.1|-infinity", "dec4": "DECIMAL(4,1)|-999.9|0.0",
    "dec18": "DECIMAL(18,10)|12345678.0123456789|0", "dec38": f"DECIMAL(38,10)|{HUGE}|-0.0000000001",
    "bool": "BOOLEAN|true|false", "date": "DATE|0001-01-01|9999-12-31", "fardate": "DATE|44-03-15 (BC)|12024-01-02",
    "infdate": "DATE|infinity|-infinity", "time": "TIME|03:04:05.123456|24:00:00",
    "timens": "TIME_NS|03:04:05.123456789|00:00:00", "ts": "TIMESTAMP|2024-01-02 03:04:05.123456|9999-12-31 23:59:59",
    "tss": "TIMESTAMP_S|2024-01-02 03:04:05|0001-01-01 00:00:00", "inft": "TIMESTAMP|infinity|-infinity",
    "tsms": "TIMESTAMP_MS|2024-01-02 03:04:05.123|1582-10-15 00:00:00",
    "tsns": "TIMESTAMP_NS|2024-01-02 03:04:05.123456789|1677-09-22 00:12:43.145224193",
    "tstz": "TIMESTAMPTZ|2024-07-02 03:04:05.123456+00|2024-01-01 00:00:00+00",
    "interval": "INTERVAL|1 year 2 months 3 days 04:05:06.789|9 days", "blob": "BLOB|\\x00\\xFFab|",
    "uuid": "UUID|550e8400-e29b-41d4-a716-446655440000|00000000-0000-0000-0000-000000000000",
    "json": 'JSON|{"a": [1, 2.50]}|null', "enum": "ENUM('a','b')|a|b", "list": "INTEGER[]|[1, NULL, 3]|[]",
    "struct": "STRUCT(a INTEGER, b DATE)|{'a': 1, 'b': 2024-01-02}|{'a': NULL, 'b': NULL}",
    "map": "MAP(VARCHAR, INTEGER)|{x=1, y=2}|{}", "imap": "MAP(INTEGER, DATE)|{1=2024-01-02}|{}",
    "bit": "BIT|10101|0", "varchar": "VARCHAR|\u00e9, \"x\"\n\ty|", "lts": "TIMESTAMP_NS[]|[2024-01-02 03:04:05.123456789]|[]",
    "bignum": "BIGNUM|123456789012345678901234567890123456789012345|-1",
}  # fmt: skip


def save(name: str, shown: dict[str, list[str | None]]) -> None:
    """Write what a writer shows, for the files of one table."""
    (OUT / f"{name}.shown.json").write_text(json.dumps(shown, indent=0, ensure_ascii=False) + "\n")


def with_duckdb() -> None:
    base = duckdb.connect()
    base.execute("set timezone='Europe/Paris'")
    base.execute(
        "create table t(url varchar, text varchar, "
        + ", ".join(f'"{k}" {v.split("|")[0]}' for k, v in DUCKDB.items())
        + ")"
    )
    casts = "".join(f", cast(? as {v.split('|')[0]})" for v in DUCKDB.values())
    for row in range(3):
        values = [[*v.split("|")[1:], None][row] for v in DUCKDB.values()]
        base.execute(f"insert into t values(?, ?{casts})", [URLS[row], TEXTS[row], *values])
    save(
        "duckdb",
        {
            k: [r[0] for r in base.execute(f'select cast("{k}" as varchar) from t order by url').fetchall()]
            for k in DUCKDB
        },
    )
    for ending, options in (("parquet", ""), ("csv", ""), ("jsonl", " (format json)")):
        base.execute(f"copy t to '{OUT}/duckdb.{ending}'{options}")
    table = base.sql("select * exclude (bignum, bit, time) from t").to_arrow_table()
    with pa.OSFile(f"{OUT}/duckdb.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def with_polars() -> None:
    whole = {"dtype": pl.Int64}
    frame = pl.DataFrame({
        "url": URLS, "text": TEXTS, "i8": pl.Series([-128, 127, None], dtype=pl.Int8),
        "u64": pl.Series([2**64 - 1, 0, None], dtype=pl.UInt64), "i64": pl.Series([-(2**63), 2**63 - 1, None], **whole),
        "f32": pl.Series([0.1, float("nan"), None], dtype=pl.Float32), "f64": [0.1, float("-inf"), None],
        "f16": pl.Series([0.5, 65504, None], dtype=pl.Float16),
        "dec": pl.Series([HUGE, decimal.Decimal("-0.0000000001"), None], dtype=pl.Decimal(38, 10)),
        "bool": [True, False, None], "date": DATES,
        "ms": pl.Series([253402300799999, -62135596800000, None], **whole).cast(pl.Datetime("ms")),
        "us": pl.Series([1704164645123456, 253402300800000000, None], **whole).cast(pl.Datetime("us")),
        "ns": pl.Series([1704164645123456789, -1, None], **whole).cast(pl.Datetime("ns")),
        "tz": pl.Series([1719889445123456789, 1704164645000000000, None], **whole).cast(pl.Datetime("ns", "Europe/Paris")),
        "time": pl.Series([11045123456789, 0, None], **whole).cast(pl.Time),
        "dur": pl.Series([93784123456789, -1, None], **whole).cast(pl.Duration("ns")),
        "durms": pl.Series([93784123, -1, None], **whole).cast(pl.Duration("ms")), "bin": [b"\0\xffab", b"", None],
        "cat": pl.Series(["a", "b", None], dtype=pl.Categorical), "enum": pl.Series(["a", "b", None], dtype=pl.Enum(["a", "b"])),
        "list": [[1, None, 3], [], None], "arr": pl.Series([[0.5, 0.25], [1, 2], None], dtype=pl.Array(pl.Float32, 2)),
        "struct": [{"a": 1, "b": DATES[0]}, {"a": None, "b": None}, None],
    })  # fmt: skip
    save("polars", {name: [_polars_cell(frame[name][row : row + 1]) for row in range(3)] for name in frame.columns[2:]})
    frame.write_parquet(OUT / "polars.parquet")
    frame.write_ipc(OUT / "polars.arrow", compression="zstd")
    frame.write_ipc(OUT / "polars_lz4.arrow", compression="lz4")
    frame.write_ipc_stream(OUT / "polars_stream.arrow")
    flat = [name for name in frame.columns if not frame[name].dtype.is_nested() and name not in ("bin", "dur", "durms")]
    frame.select(flat).write_csv(OUT / "polars.csv")
    frame.drop("bin").write_ndjson(OUT / "polars.jsonl")


def _polars_cell(one: pl.Series) -> str | None:
    """A cell as polars prints it in a table."""
    if one.null_count():
        return None
    with pl.Config(tbl_formatting="NOTHING", tbl_hide_column_names=True, tbl_hide_column_data_types=True,
                   tbl_hide_dataframe_shape=True, fmt_str_lengths=100, tbl_width_chars=200):  # fmt: skip
        return str(one.alias("c").to_frame()).strip()


def with_pandas() -> None:
    frame = pd.DataFrame({
        "url": URLS, "text": TEXTS, "Int64": pd.array([2**63 - 1, -1, None], dtype="Int64"),
        "UInt64": pd.array([2**64 - 1, 0, None], dtype="UInt64"), "f32": np.array([0.5, np.inf, np.nan], np.float32),
        "f64": [0.1, -np.inf, np.nan], "bool": pd.array([True, False, None], dtype="boolean"),
        "ns": pd.to_datetime(["2024-01-02 03:04:05.123456789", "1677-09-22", None], format="ISO8601"),
        "tz": pd.to_datetime(["2024-07-02 03:04:05.123456789", "2024-01-02", None], format="ISO8601").tz_localize("Europe/Paris"),
        "td": pd.to_timedelta(["1 days 02:03:04.123456", "-1us", None]), "cat": pd.Categorical(["a", "b", None]), "obj": ["\u00e9", "", None],
    })  # fmt: skip
    # fastparquet stores spans as times of a day, and times without their zone.
    save("fastparquet", _pandas_cells(frame))
    frame.to_parquet(OUT / "fastparquet.parquet", engine="fastparquet")
    frame.to_parquet(OUT / "fastparquet_int96.parquet", engine="fastparquet", times="int96")
    frame.to_csv(OUT / "pandas.csv", index=False)
    frame = frame.assign(
        us=pd.array(np.array(["9999-12-31T23:59:59.999999", "0001-01-01", "NaT"], "M8[us]")),
        f16=np.array([0.1, 65504, np.nan], np.float16), dec=[HUGE, decimal.Decimal("-0.0000000001"), None], date=DATES,
        time=[datetime.time(3, 4, 5, 123456), datetime.time(0), None], bin=[b"\0\xffab", b"", None],
        uuid=[uuid.UUID(int=1), uuid.UUID(int=2), None], list=[[1, 2], [], None], struct=[{"a": 1}, {"a": None}, None],
    )  # fmt: skip
    frame.drop(columns="bin").to_json(
        OUT / "pandas.jsonl", orient="records", lines=True, date_format="iso", default_handler=str
    )
    frame.to_feather(OUT / "pandas.arrow")
    frame["period"] = pd.period_range("2024-01", periods=3, freq="M")
    save("pandas", _pandas_cells(frame))
    frame.to_parquet(OUT / "pandas.parquet")
    frame.drop(columns="us").to_parquet(OUT / "pandas_int96.parquet", use_deprecated_int96_timestamps=True)


def _pandas_cells(frame: pd.DataFrame) -> dict[str, list[str | None]]:
    return {name: [None if pd.isna(cell) is True else str(cell) for cell in frame[name]] for name in frame.columns[2:]}


def with_datasets() -> None:
    value, of = datasets.Value, datasets.List
    features = datasets.Features({
        "url": value("string"), "text": value("large_string"), "label": datasets.ClassLabel(names=["neg", "pos"]),
        "i64": value("int64"), "f16": value("float16"), "f32": value("float32"), "dec": value("decimal128(38, 10)"),
        "dec256": value("decimal256(76, 10)"), "date": value("date32"), "d64": value("date64"), "t32": value("time32[ms]"),
        "t64": value("time64[ns]"), "ns": value("timestamp[ns]"), "tz": value("timestamp[us, tz=Europe/Paris]"),
        "dur": value("duration[ns]"), "bin": value("binary"), "lbin": value("large_binary"), "list": of(value("int8")),
        "large": datasets.LargeList(value("date32")), "fixed": of(value("float32"), length=2),
        "a2": datasets.Array2D((2, 2), "int32"), "nested": {"a": value("string"), "b": of({"c": value("int32")})},
    })  # fmt: skip
    utc, us = datetime.UTC, datetime.timedelta(microseconds=1)
    columns = {
        "label": [1, 0], "i64": [2**63 - 1, -(2**63)], "f16": [0.1, float("nan")], "f32": [0.5, float("inf")],
        "dec": [HUGE, decimal.Decimal("-0.0000000001")], "dec256": [HUGE * 10**12, decimal.Decimal(0)], "date": DATES[:2],
        "d64": DATES[:2], "t32": [datetime.time(3, 4, 5, 123000), datetime.time(0)],
        "t64": [datetime.time(3, 4, 5, 123456), datetime.time(23, 59, 59, 999999)],
        "ns": [datetime.datetime(2024, 1, 2, 3, 4, 5, 123456), datetime.datetime(1700, 1, 1)],
        "tz": [datetime.datetime(2024, 7, 2, 3, 4, 5, tzinfo=utc), datetime.datetime(9000, 1, 1, tzinfo=utc)],
        "dur": [datetime.timedelta(days=1) + us, -us], "bin": [b"\0\xff", b""], "lbin": [b"ab", b""], "list": [[1, None], []],
        "large": [[DATES[0]], []], "fixed": [[0.5, 0.25], [1, 2]], "a2": [[[1, 2], [3, 4]], [[0, 0], [0, 0]]],
        "nested": [{"a": "x", "b": [{"c": 1}]}, {"a": None, "b": []}],
    }  # fmt: skip
    with decimal.localcontext(decimal.Context(prec=76)):
        columns["dec256"] = [HUGE * 10**12, decimal.Decimal(0)]
    found = datasets.Dataset.from_dict({"url": URLS[:2], "text": TEXTS[:2], **columns}, features=features)
    save("datasets", {name: [str(cell) for cell in found[name]] for name in found.column_names[2:]})
    found.to_parquet(OUT / "datasets.parquet")
    found.save_to_disk(OUT / "saved")
    shutil.copy(OUT / "saved/data-00000-of-00001.arrow", OUT / "datasets.arrow")
    shutil.rmtree(OUT / "saved")


CLICKHOUSE = {
    "u8": "UInt8|0|255", "i16": "Int16|-32768|32767", "u64": "UInt64|0|18446744073709551615", "f32": "Float32|0.1|nan",
    "f64": "Float64|0.1|-inf", "dec9": "Decimal(9,2)|-1.10|0", "dec38": f"Decimal(38,10)|{HUGE}|-0.0000000001",
    "dec76": f"Decimal(76,10)|12{HUGE}|0", "bool": "Bool|true|false", "date": "Date|1970-01-01|2149-06-06",
    "date32": "Date32|1900-01-01|2299-12-31", "dt3": "DateTime64(3,'UTC')|2024-01-02 03:04:05.123|1900-01-01 00:00:00.000",
    "dt6": "DateTime64(6,'UTC')|2299-12-31 23:59:59.999999|1900-01-01 00:00:00.000000",
    "dt9": "DateTime64(9,'UTC')|2024-07-02 03:04:05.123456789|1970-01-01 00:00:00.000000000", "s": "String|\u00e9|",
    "lc": "LowCardinality(String)|a|b", "n": "Nullable(String)|a|NULL",
    "uuid": "UUID|550e8400-e29b-41d4-a716-446655440000|00000000-0000-0000-0000-000000000000",
    "arr": "Array(Nullable(Int32))|[1,NULL,3]|[]", "tup": "Tuple(a Int32, b Date)|(1,'2024-01-02')|(0,'1970-01-01')",
    "map": "Map(String,Int32)|{'x':1,'y':2}|{}", "json": 'JSON|{"a":[1,2.5]}|{}',
    # Of these the formats hold less than ClickHouse shows: bytes, a number.
    "dt": "DateTime('UTC')|2024-01-02 03:04:05|1970-01-01 00:00:00", "fs": "FixedString(4)|abc|abcd",
    "i128": "Int128|-170141183460469231731687303715884105728|1", "e8": "Enum8('a'=1,'b'=-2)|a|b", "ip4": "IPv4|192.168.0.1|255.255.255.255",
}  # fmt: skip


def with_clickhouse() -> None:
    def cell(name: str, row: int) -> str:
        kind, *values = CLICKHOUSE[name].split("|")
        if name == "map":
            return f"CAST({('map(', 'map()')[row]}" + ("'x',1,'y',2)" if row == 0 else "") + f" AS {kind}) AS map"
        text = "NULL" if values[row] == "NULL" else "'" + values[row].replace("'", "\\'") + "'"
        return f"CAST({text} AS {kind}) AS {name}"

    rows = " union all ".join(
        f"select '{URLS[row]}' as url, '{TEXTS[row]}' as text, " + ", ".join(cell(name, row) for name in CLICKHOUSE)
        for row in range(2)
    )
    shown = ", ".join(f"toString({name}) as {name}_" for name in CLICKHOUSE)
    found = json.loads(chdb.query(f"select {shown} from (select * from ({rows}) order by url)", "JSONColumns").bytes())
    save("clickhouse", {name.removesuffix("_"): cells for name, cells in found.items()})
    for kind, ending in (("Parquet", ".parquet"), ("Arrow", ".arrow"), ("ArrowStream", "_stream.arrow"), ("JSONEachRow", ".jsonl"),
                         ("JSON", ".json"), ("CSVWithNames", ".csv")):  # fmt: skip
        (OUT / f"clickhouse{ending}").write_bytes(chdb.query(f"select * from ({rows}) order by url", kind).bytes())


SPARK = {
    "tiny": "1Y|-128Y", "big": "9223372036854775807L|-1L", "float": "float(0.1)|float('Infinity')",
    "double": "double('NaN')|double('-Infinity')", "dec38": f"cast('{HUGE}' as decimal(38,10))|cast('-0.0000000001' as decimal(38,10))",
    "dec5": "cast('1.10' as decimal(5,2))|cast(0 as decimal(5,2))", "bool": "true|false", "bin": "X'6100'|X''",
    "date": "date'0001-01-01'|date'9999-12-31'", "ts": "timestamp'9999-12-31 00:00:00'|timestamp'0001-01-01 00:00:00'",
    "tsntz": "timestamp_ntz'2024-01-02 03:04:05.123456'|timestamp_ntz'0001-01-01 00:00:00'",
    "ym": "interval '1-2' year to month|interval '-1-2' year to month",
    "dt": "interval '3 04:05:06.789' day to second|interval '-3 04:05:06.789' day to second", "list": "array(1,null,3)|array()",
    "map": "map('x',1,'y',2)|map()", "struct": "named_struct('a',1,'b',array(date'2024-01-02'))|named_struct('a',null,'b',null)",
    "tmap": "map(1,timestamp'2024-01-02 00:00:00')|map()", "lists": "array(array('a'),null)|array()",
    "chr": "cast('ab' as char(4))|cast('' as char(4))", "structs": "array(named_struct('k','v'))|array()",
}  # fmt: skip


def with_spark() -> None:
    local = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.driver.bindAddress": "127.0.0.1",
             "spark.driver.host": "127.0.0.1"}  # fmt: skip
    spark = SparkSession.builder.master("local[1]").config(map=local).getOrCreate()
    variant = {**SPARK, "variant": """parse_json('{"a":[1,2.5]}')|parse_json('null')"""}

    def write(name: str, cells: dict[str, str], kind: str = "parquet", **options: str) -> None:
        for key, setting in options.items():
            spark.conf.set(f"spark.sql.parquet.{key}", setting)
        rows = [
            [f"'{URLS[n]}'", f"'{TEXTS[n]}'", *(([*c.split("|"), "null"])[n] for c in cells.values())] for n in range(3)
        ]
        frame = spark.sql(
            f"select * from values {', '.join(f'({chr(44).join(row)})' for row in rows)} as t(url,text,{','.join(cells)})"
        ).coalesce(1)
        frame.write.option("header", "true").format(kind).save(f"{OUT}/made")
        shutil.copy(next((OUT / "made").glob("part-*")), OUT / name)
        shutil.rmtree(OUT / "made")
        if name == "spark.parquet":
            shown = frame.selectExpr(*(f"cast(`{column}` as string)" for column in cells)).collect()
            save("spark", {column: [row[at] for row in shown] for at, column in enumerate(cells)})

    write("spark.parquet", SPARK)
    write("spark_variant.parquet", variant)
    write("spark.jsonl", SPARK, "json")
    write(
        "spark.csv",
        {k: v for k, v in SPARK.items() if not any(w in v for w in ("array", "map", "struct", "X'"))},
        "csv",
    )
    write("spark_micros.parquet", SPARK, outputTimestampType="TIMESTAMP_MICROS")
    write("spark_legacy.parquet", SPARK, outputTimestampType="INT96", writeLegacyFormat="true")
    write("spark_julian.parquet", SPARK, datetimeRebaseModeInWrite="LEGACY", int96RebaseModeInWrite="LEGACY")


if __name__ == "__main__":
    for make in (with_duckdb, with_polars, with_pandas, with_datasets, with_clickhouse, with_spark):
        make()
