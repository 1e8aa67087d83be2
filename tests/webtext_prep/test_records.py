"""Raw files of every kind: their records are documents or named, with the line on which they begin."""

import gzip
import json
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documented import example

from webtext_prep.documents import records
from webtext_prep.documents.document import Document, decode_document, encode_document
from webtext_prep.documents.folders.raw_files import is_raw_file, kinds_of_raw_files, known_readers, reader_of
from webtext_prep.documents.formats import arrow_tables, compression
from webtext_prep.documents.formats.arrow_values import column_names
from webtext_prep.documents.records.base import Keys, SourceFile, Unreadable
from webtext_prep.errors import InputError
from webtext_prep.storage import location

KEYS = Keys(("text", "content"), ("url",))


def read(path, keys: Keys = KEYS, sidecar=None) -> list:
    """Each record of a file: (url, text, metadata), or (place, what is wrong)."""
    found = []
    for record in reader_of(path).read(SourceFile(path, path.name, sidecar), keys):
        document = record.document
        bad = isinstance(document, Unreadable)
        found.append((record.place, str(document)) if bad else (document.url, document.text, document.metadata))
    return found


@pytest.fixture
def file(tmp_path):
    def write(name: str, content: str | bytes):
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    "name",
    ["a.txt", "B.TXT", "a.md", "a.MARKDOWN", "a.json", "A.JSONL.GZ", "a.ndjson", "a.csv.zst", "a.parquet"],
)
def test_files_of_these_names_are_read(name):
    assert is_raw_file(location(name))


@pytest.mark.parametrize("name", ["txt", "a.pdf", "a.html", "a.parquet.gz", "a.jsonl.zip", "atxt", "a.gz", "a.txt.bak"])
def test_files_of_other_names_are_not_read(name):
    assert not is_raw_file(location(name))


def test_a_kind_of_file_is_added_in_one_file(plugin, file):
    """The interface is enough: a reader of which the package knows nothing is found by its suffix."""
    plugin(records, "fortunes", example("Fortunes"), known_readers)
    assert ".fortunes" in kinds_of_raw_files()
    found = read(file("a.fortunes", "one\n%\ntwo"))
    assert found == [("file:a.fortunes:1", "one", {}), ("file:a.fortunes:2", "two", {})]


# Keys


@pytest.mark.parametrize(
    ("value", "document"),
    [
        ({"url": "u", "text": "t", "n": 1}, Document("u", "t", {"n": 1})),
        ({"url": "u", "content": "c"}, Document("u", "c")),
        ({"url": "u", "content": "c", "text": "t"}, Document("u", "t", {"content": "c"})),
        ({"url": "u", "content": "c", "text": None}, Document("u", "c")),
        ({"url": "u", "text": None}, Document("u", "")),
        ({"url": "", "text": "t"}, Document("file:f:1", "t")),
        ({"text": "t"}, Document("file:f:1", "t")),
    ],
)
def test_the_first_key_with_something_under_it_counts(value, document):
    """Only one key could be named for all files of a run."""
    assert KEYS.record(value, "line 1", "file:f:1").document == document


def test_keys_may_be_nested():
    """Wikipedia-like records, with the text inside an object, could not be read at all."""
    keys = Keys(("data.text", "a.b.c"), ("meta.url",))
    value = {"data": {"text": "t", "n": 1}, "meta": {"url": "u"}, "id": 7}
    assert keys.record(value, "", "f").document == Document("u", "t", {"data": {"n": 1}, "meta": {}, "id": 7})
    assert keys.record({"a": {"b": {"c": "t"}}}, "", "f").document == Document("f", "t", {"a": {"b": {}}})
    assert keys.record({"data.text": "t"}, "", "f").document == Document("f", "t")
    assert isinstance(keys.record({"data": "text", "a": {"b": 1}}, "", "f").document, Unreadable)


@pytest.mark.parametrize(("number", "url"), [(5, "page%20id:5"), (5.0, "page%20id:5"), (0, "page%20id:0")])
def test_a_number_may_stand_for_a_url(number, url):
    """A numeric `--url-key id` made every record unreadable."""
    assert Keys(("text",), ("page id",)).record({"page id": number, "text": "t"}, "", "f").document == Document(
        url, "t"
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([1], "not a JSON object (found list)"),
        ({"b": 1, "a": 2}, "none of the keys text, content (but a, b: name the right one with --text-key)"),
        ({"text": ["x"]}, "'text' is not a string (found list)"),
        ({"text": "t", "url": True}, "'url' is neither a string nor a number (found bool)"),
    ],
)
def test_what_is_not_a_document_is_named(value, problem):
    assert str(KEYS.record(value, "", "f").document) == problem


# Texts


def test_the_title_of_a_markdown_file_is_its_first_heading(file):
    """Markdown files were left out without a word."""
    text = "Before.\n\n## The *first* one ##\n\n# Another\n"
    assert read(file("a.md", text)) == [("file:a.md", text, {"title": "The *first* one"})]
    assert read(file("b.md", "no heading\n#hashtag")) == [("file:b.md", "no heading\n#hashtag", {})]
    assert read(file("c.md", "```sh\n# a comment\n~~~\n# another\n```\n# On C#"))[0][2] == {"title": "On C#"}


def test_the_title_is_found_in_linear_time(file):
    """A heading with a long run of spaces must not cost the square of its length."""
    spaces = " " * 1_000_000
    assert read(file("a.md", f"# a{spaces}b #"))[0][2] == {"title": f"a{spaces}b"}


def test_a_sidecar_wins_over_what_the_text_tells(file):
    sidecar = file("a.json", '{"title": "T", "url": "http://a.org/"}')
    assert read(file("a.md", "# Heading"), sidecar=sidecar) == [("http://a.org/", "# Heading", {"title": "T"})]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_text_is_read_in_the_encoding_that_it_declares(file, encoding):
    """Texts in UTF-16 were unreadable."""
    assert read(file("a.txt", "Ünicode".encode(encoding))) == [("file:a.txt", "Ünicode", {})]
    assert read(file("a.json", '{"text": "Ü"}'.encode(encoding))) == [("file:a.json:1", "Ü", {})]
    assert read(file("a.jsonl", '{"text": "Ü"}\n'.encode(encoding))) == [("file:a.jsonl:1", "Ü", {})]
    assert read(file("a.csv", "text,n\nÜ,1\n".encode(encoding))) == [("file:a.csv:2", "Ü", {"n": "1"})]


def test_a_text_of_no_encoding_is_unreadable_alone(file):
    assert read(file("a.txt", b"caf\xe9"))[0][1].startswith("not valid UTF-8 (")
    assert read(file("b.txt", b"\xff\xfea"))[0][1].startswith("not in the encoding that its first bytes declare (")


@pytest.mark.parametrize("name", ["https%3A%2F%2Fa.org%2Fb.txt", "https%3A%2F%2Fa.org%2Fb.TXT.gz"])
def test_a_url_may_be_the_name_of_a_text(file, name):
    assert read(file(name, gzip.compress(b"t") if name.endswith(".gz") else b"t")) == [("https://a.org/b", "t", {})]


# Tables


def test_a_table_with_quoted_newlines_and_huge_fields_is_read(file):
    """CSV files were left out without a word."""
    huge = "x" * 300_000
    path = file("a.csv", f'url,text,note\r\nhttp://a.org/,"one,\n""two""\r\nthree",n\r\n,{huge},\r\n')
    assert read(path) == [
        ("http://a.org/", 'one,\n"two"\r\nthree', {"note": "n"}),
        ("file:a.csv:5", huge, {"note": ""}),
    ]


def test_tables_may_be_separated_by_tabs_semicolons_or_bars(file):
    assert read(file("a.tsv", "text\turl\na,b\tu\n")) == [("u", "a,b", {})]
    assert read(file("a.csv", "text|url\na,b|u\n")) == [("u", "a,b", {})]
    assert read(file("a.csv", 'text;url;\n"a,b";u;1\n')) == [("u", "a,b", {"column_3": "1"})]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_first_line_that_tells_excel_the_delimiter_is_no_row(file, delimiter):
    rows = "".join(f"{delimiter.join(cells)}\r\n" for cells in (("text", "url"), ("one sep=", "u"), ("sep=", "v")))
    found = read(file("a.csv", f"\ufeffsep={delimiter}\r\n{rows}"))
    assert found == [("u", "one sep=", {}), ("v", "sep=", {})]


def test_columns_of_one_name_are_told_apart(file):
    assert read(file("a.csv", "text,n,n,\na,1,2,3\n")) == [
        ("file:a.csv:2", "a", {"n": "1", "n_3": "2", "column_4": "3"})
    ]


@pytest.mark.parametrize(
    ("header", "row", "metadata"),
    [
        ("text_4,url,text,text", "a,u,b,c", {"text_4": "a", "text_4_": "c"}),
        ("column_2,,url,text", "a,c,u,b", {"column_2": "a", "column_2_": "c"}),
        ("url,text,url_4,url", "u,b,a,c", {"url_4": "a", "url_4_": "c"}),
        ("url,text,n,n,n_4_,n_4", "u,b,1,2,3,4", {"n": "1", "n_4__": "2", "n_4_": "3", "n_4": "4"}),
    ],
)
def test_a_made_up_name_of_a_column_is_no_real_one(file, header, row, metadata):
    """The column that was called so was lost without a word."""
    assert read(file("a.csv", f"{header}\n{row}\n")) == [("u", "b", metadata)]


@given(st.lists(st.text("ab_23 ", max_size=4), max_size=12))
def test_names_of_columns_are_distinct_whatever_the_header(header):
    names = column_names(header)
    assert len(set(names)) == len(names) == len(header)
    for number, (cell, name) in enumerate(zip(header, names, strict=True), 1):
        is_first = cell.strip() and cell.strip() not in [other.strip() for other in header[: number - 1]]
        made = f"{cell.strip() or 'column'}_{number}"
        assert name == cell.strip() if is_first else name.rstrip("_") == made.rstrip("_")
        assert is_first or name not in [other.strip() for other in header]


def test_a_table_of_very_many_columns_is_read(file):
    """Naming columns took the square of their number: 1,000,000 of them hung merge."""
    started = time.process_time()
    names = "".join(f",n{number}" for number in range(60_000))
    path = file("a.csv", f"text,url{names}\na,u{',1' * 60_000}\n")
    ((_, _, metadata),) = read(path)
    assert len(metadata) == 60_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_of_one_name_in_a_table_of_arrow_are_told_apart(tmp_path, suffix):
    """Only the last one was read."""
    table = pa.table([pa.array([name]) for name in ("a", "b", "u", "c")], names=["text", "text", "url", "text_2"])
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    assert read(path) == [("u", "a", {"text_2_": "b", "text_2": "c"})]


def test_a_bad_row_is_named_and_the_rows_after_it_are_read(file):
    """A lenient reader takes a quote that is never closed, and all rows after it, for one long field."""
    path = file("a.csv", b'text,n\na,1\nb\nc,1,2\n"d"x,1\n\ncaf\xe9,1\ne,"f\n2"\n"g,1\nh,2\n')
    found = read(path)
    assert found[0] == ("file:a.csv:2", "a", {"n": "1"})
    assert found[1] == ("line 3", "a row of more or fewer cells than the header (1, not 2)")
    assert found[2] == ("line 4", "a row of more or fewer cells than the header (3, not 2)")
    assert found[3][0] == "line 5"
    assert found[3][1].startswith("not a valid row (")
    assert found[4] == ("line 7", "not valid UTF-8 (save it as UTF-8)")
    assert found[5] == ("file:a.csv:8", "e", {"n": "f\n2"})
    assert found[6] == ("line 10", "not a valid row (a quote that does not end as it should)")
    assert found[7:] == [("file:a.csv:11", "h", {"n": "2"})]


def rows_of_table(sign: str, *, count: int = 300, **changed: str) -> str:
    """A table of `count` rows, with other lines in some places: `rows_of_table(",", line7="...")`."""
    lines = [f"http://a.org/{n}{sign}text {n}\n" for n in range(2, count + 2)]
    for name, line in changed.items():
        lines[int(name.removeprefix("line")) - 2] = line + "\n"
    return f"url{sign}text\n{''.join(lines)}"


@pytest.mark.parametrize(
    ("later", "lost"),
    [
        ("http://a.org/200,text 200", [100]),
        ('http://a.org/200,a screen of 27"', [100]),
        ('http://a.org/200,a "word" of it', [100]),
        ('http://a.org/200,and so on",', [100, 200]),
        ('http://a.org/200,"quoted as usual"', [100]),
    ],
)
def test_a_stray_quote_costs_its_row_and_no_other(file, later, lost):
    """It swallowed the rest of the file, or all up to the next quote, as one record: 40,000 of 60,000 rows."""
    found = read(file("a.csv", rows_of_table(",", line100='http://a.org/100,"once upon', line200=later)))
    assert [place for place, *rest in found if len(rest) == 1] == [f"line {line}" for line in lost]
    assert [row[0] for row in found if len(row) == 3] == [f"http://a.org/{n}" for n in range(2, 302) if n not in lost]


def test_each_stray_quote_counts(file):
    """However much of a file was lost, it was one bad record, and no file had too many."""
    lines = {f"line{n}": f'http://a.org/{n},"once upon' for n in range(5, 300, 5)}
    found = read(file("a.csv", rows_of_table(",", **lines)))
    assert (len(found), sum(len(row) == 2 for row in found)) == (300, 59)


@pytest.mark.parametrize("text", ['"once upon', '"once" upon', 'once" upon', '"', '"once\tupon"'])
@pytest.mark.parametrize("later", ["text 200", 'a screen of 27"', '"quoted as usual"'])
def test_quotes_in_a_table_of_tabs_are_text_unless_they_quote(file, text, later):
    """TSV files mostly have no quotes around fields, and a text that began with one swallowed the rows behind it."""
    tabs = text.count("\t")
    url, text = ("http://a.org/100", text) if not tabs else text.split("\t")
    data = rows_of_table("\t", line100=f"{url}\t{text}", line200=f"http://a.org/200\t{later}")
    found = read(file("a.tsv", data))
    assert (len(found), [row for row in found if len(row) == 2]) == (300, [])
    assert found[98] == (url, text, {})
    assert found[198] == (
        "http://a.org/200",
        later.removeprefix('"').removesuffix('"' if later[0] == '"' else "\0"),
        {},
    )


@pytest.mark.parametrize(("name", "sign"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_quoted_field_may_still_have_lines(file, name, sign):
    poem = "\n".join(f"line {n}, of one comma" for n in range(90)) + '\n\nand ""quotes""'
    found = read(file(name, rows_of_table(sign, line100=f'http://a.org/100{sign}"{poem}"')))
    assert (len(found), found[98]) == (300, ("http://a.org/100", poem.replace('""', '"'), {}))


def test_an_empty_table_holds_no_records(file):
    assert read(file("a.csv", "")) == read(file("b.csv", "text,url\n")) == []


# Parquet


READ_ALL = """
import pathlib, resource, sys
from webtext_prep.documents.folders.raw_files import reader_of
from webtext_prep.documents.records.base import Keys, SourceFile
import pyarrow.parquet
place = pathlib.Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = reader_of(place).read(SourceFile(place, place.name), Keys(("text",), ("url",)))
print(sum(len(record.document.text) for record in read))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("suffix", "column"), [("parquet", "text"), ("parquet", "nested"), ("arrow", "other")])
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in KiB on Linux alone")
def test_memory_is_bounded_where_each_row_repeats_a_long_value(tmp_path, suffix, column):
    """Rows were taken 256 at a time whatever their size: a file of 2 kB took 2.6 GB."""
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["x" * 8_000_000]))
    columns = {"text": long} if column == "text" else {"text": ["t"] * 100, "other": long}
    if column == "nested":
        columns["other"] = pa.StructArray.from_arrays([long], ["inner"])
    place, table = tmp_path / f"a.{suffix}", pa.table(columns)
    if suffix == "parquet":
        pq.write_table(table, place, compression="zstd", dictionary_pagesize_limit=1 << 30)
        assert place.stat().st_size < 4096
    else:
        with pa.ipc.new_file(place, table.schema) as writer:
            writer.write_table(table)
    done = subprocess.run([sys.executable, "-c", READ_ALL, place], capture_output=True, text=True, check=True)
    characters, kib = map(int, done.stdout.split())
    assert characters == (800_000_000 if column == "text" else 100)
    assert kib < 400 << 10


def test_a_row_of_a_table_may_be_as_long_as_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_tables, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(arrow_tables, "BATCH_BYTES", 500)
    monkeypatch.setattr(arrow_tables, "MAX_LINE_BYTES", 1000)
    table = pa.table({"text": ["a", "b" * 1001, "c"], "tags": [["t"], [], ["t" * 400, "u" * 700]]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for suffix in ("parquet", "arrow"):
        first, *others = read(tmp_path / f"a.{suffix}")
        assert first == (f"file:a.{suffix}:1", "a", {"tags": ["t"]})
        too_long = "a row that can't be read (a row of more than 256 MiB)"
        assert others == [("row 2", too_long), ("row 3", too_long)]
    # Where the footer tells, the row is not even decompressed.
    pq.write_table(pa.table({"text": ["x" * 1500]}), tmp_path / "b.parquet", use_dictionary=False, compression="none")
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    assert read(tmp_path / "b.parquet") == [("row 1", too_long)]


def test_a_parquet_file_that_claims_to_be_far_larger_than_it_is_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "RATIO_BYTES", 1_000_000)
    zeros = pa.ListArray.from_arrays(pa.array([0, 2_000_000], pa.int32()), pa.array([0] * 2_000_000, pa.int8()))
    pq.write_table(pa.table({"text": ["a"], "numbers": zeros}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["a" * 2_000_000]}), tmp_path / "b.parquet", compression="zstd")
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    for name in ("a", "b"):
        with pytest.raises(
            InputError, match=rf"{name}\.parquet is more than 10,000 times as large .*, as no text is: leave"
        ):
            read(tmp_path / f"{name}.parquet")


def test_rows_are_taken_by_their_size_in_every_kind_of_column(monkeypatch):
    monkeypatch.setattr(arrow_tables, "BATCH_BYTES", 1)
    kinds = {
        "text": pa.array(["ab", None, "c"]),
        "large": pa.array([b"ab", None, b"c"], pa.large_binary()),
        "view": pa.array(["ab", None, "c" * 100], pa.string_view()),
        "list": pa.array([["a"], None, ["b", "cd"]]),
        "map": pa.array([[("k", "vv")], None, []], pa.map_(pa.string(), pa.string())),
        "fixed": pa.array([["a", "b"], ["c", "d"], None], pa.list_(pa.string(), 2)),
        "struct": pa.array([{"x": "ab", "y": 1}, None, {"x": None, "y": 2}]),
        "dictionary": pa.array(["ab", None, "ab"]).dictionary_encode(),
        "number": pa.array([1, None, 3]),
        "nothing": pa.nulls(3),
    }
    first, *others = pa.table(kinds).to_pylist()
    expected = [{**first, "map": {"k": "vv"}}, others[0], {**others[1], "map": {}}]
    batch = pa.record_batch(kinds)
    assert list(arrow_tables.rows_of(batch)) == expected
    assert list(arrow_tables.rows_of(batch.slice(1))) == expected[1:]


def test_a_parquet_file_of_any_columns_is_read(tmp_path):
    """Parquet files were left out, with the advice to rename them."""
    rows = [
        {"content": "one", "id": 1, "meta": {"lang": "en"}, "title": None},
        {"content": None, "id": 2, "meta": None, "title": "T"},
        {"content": "three", "id": 3, "meta": None, "title": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    assert read(tmp_path / "a.parquet", Keys(("text", "content"), ("id",))) == [
        ("id:1", "one", {"meta": {"lang": "en"}}),
        ("id:2", "", {"title": "T"}),
        ("id:3", "three", {}),
    ]
    assert read(tmp_path / "a.parquet", Keys(("meta.lang",), ("url",)))[0] == (
        "file:a.parquet:1",
        "en",
        {"content": "one", "id": 1, "meta": {}},
    )


def test_a_row_that_cannot_be_read_is_unreadable_alone(tmp_path):
    """Text that is not valid UTF-8 in one row of a Parquet file stopped a whole merge."""
    text = pa.array([b"one", b"\xff\xfe", b"three"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    first, (place, problem), last = read(tmp_path / "a.parquet")
    assert (first[1], last[1]) == ("one", "three")
    assert place == "row 2"
    assert problem.startswith("a row that can't be read ('utf-8' codec")


def test_times_in_nanoseconds_keep_them(tmp_path):
    """They were cut off to microseconds, which is all that Python's own types hold."""
    columns = {
        "text": ["a", "b"],
        "when": pa.array([1_700_000_000_000_001_001, None], pa.timestamp("ns", "UTC")),
        "took": pa.array([1_001, None], pa.duration("ns")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (_, _, metadata), (_, _, none) = read(tmp_path / "a.parquet")
    assert metadata == {"when": "2023-11-14T22:13:20.000001001Z", "took": "PT0.000001001S"}
    assert none == {}


# JSON


def test_a_url_of_half_characters_is_no_url(file):
    """A URL that is nothing but lone surrogates became an empty one, and the merge stopped at its own piece."""
    path = file("a.json", '[{"url": "\\ud800", "text": "a"}, {"url": "http://b/\\ud800", "text": "b"}]')
    assert read(path) == [("file:a.json:1", "a", {}), ("http://b/", "b", {})]


def a_list(how: str, count: int = 6) -> bytes:
    """A list of records with others inside them, and with signs in their texts by which a list goes on."""
    values = [
        {
            "url": f"u{n}",
            "text": f'{n} "a", {{"b": 1}}, {{"c"}}\n\u00fc',
            "in": [{"text": "inner"}, {"text": "x", "n": n}],
        }
        for n in range(count)
    ]
    if how == "lines":
        return ("[\n" + ",\n".join(map(json.dumps, values)) + "\n]").encode()
    return json.dumps(values, indent=1 if how == "indented" else None, ensure_ascii=False).encode()


@pytest.mark.parametrize("how", ["compact", "indented", "lines"])
def test_a_flipped_bit_in_a_list_costs_two_records_at_most(file, how):
    """It cost all of a list on one line, named once."""
    data = a_list(how)
    for at in range(0, len(data), 2):
        changed = data[:at] + bytes([data[at] ^ (1 << at % 7)]) + data[at + 1 :]
        found = read(file("a.json", changed))
        bad = [entry for entry in found if len(entry) == 2]
        assert 4 <= len(found) - len(bad) <= 6
        assert len(found) - len(bad) == 6 or len(bad) == 1
        assert not [entry for entry in found if len(entry) == 3 and entry[1] in ("inner", "x")]


def test_what_is_lost_of_a_list_is_named(file):
    rows = [json.dumps({"text": str(number)}) for number in range(5)]
    good = [(f"file:a.json:{number + 1}", str(number), {}) for number in range(5)]

    def entries(rows, end="]"):
        return read(file("a.json", "[" + ", ".join(rows) + end))

    assert entries([rows[0], '{"text": 1x}', *rows[2:]]) == [
        good[0], ("entry 2", "not valid JSON (14 characters are lost from character 16 on)"), *good[2:]
    ]  # fmt: skip
    assert entries(rows, "") == [*good, ("entry 6", "not valid JSON (a list without an end: it may be cut off)")]
    lost = "not valid JSON (14 characters are lost from character 76 on)"
    assert entries([*rows, '{"text": "cut']) == [*good, ("entry 6", lost)]
    assert entries(rows, "}") == good
    invalid = b'[{"text": "a\xff"}, {"text": "b"}]'
    assert read(file("b.json", invalid)) == [
        ("entry 1", "not valid UTF-8 (in an entry of 14 characters)"), ("file:b.json:2", "b", {})
    ]  # fmt: skip


def test_a_list_that_is_damaged_everywhere_costs_little(file):
    started = time.process_time()
    for piece in ('},{"', '{"a": }, ', '{"text": "x}, {', '}, {"a": [{"b": 1}]', '},{"a":"'):
        assert len(read(file("a.json", "[" + piece * 5_000 + "]"))) <= 5_001
    assert time.process_time() - started < 10


def test_records_joined_in_a_line_are_several_and_a_bad_rest_is_named(file):
    path = file("a.jsonl", json.dumps({"text": "a"}) * 2 + '{"text": \n' + json.dumps({"text": "b"}))
    found = read(path)
    assert found[:2] == [("file:a.jsonl:1", "a", {}), ("file:a.jsonl:1:2", "a", {})]
    assert found[2][0] == "line 1"
    assert found[2][1].startswith("not valid JSON (")
    assert found[3] == ("file:a.jsonl:2", "b", {})


# Anything


PIECES = [b"{", b"}", b"[", b'"', b'"text"', b":", b",", b";", b"\t", b"\n", b"\r", b"\r\n", b"1e999", b"null", b"NaN"]
PIECES += [b'{"text": "a"}', b'{"url": 1, "text": "b"}', b"text,url\n", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\0"]
PIECES += [b"\\ud800", b"PAR1", b"# ", b"```", b"\xed\xa0\x80", b"9" * 5000, b'{"text": "\\ud800"}']


@given(pieces=st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=12))
def test_whatever_a_file_holds_its_records_are_documents_or_named(tmp_path_factory, pieces):
    folder = tmp_path_factory.mktemp("any")
    for suffix, reader in known_readers().items():
        if suffix not in reader.suffixes:
            continue
        path = folder / f"a{suffix}"
        path.write_bytes(b"".join(pieces))
        try:
            found = list(reader.read(SourceFile(path, path.name), KEYS))
        except InputError as error:
            assert str(path) in str(error)
            continue
        for record in found:
            if isinstance(record.document, Document):
                assert decode_document(encode_document(record.document)).url
            else:
                assert str(record.document)


# Front matter


@pytest.mark.parametrize(
    ("matter", "metadata"),
    [
        (
            "---\ntitle: My post\ntags: [a, b]\ndate: 2024-01-02\n---\n\n",
            {"title": "My post", "tags": ["a", "b"], "date": "2024-01-02"},
        ),
        ('+++\ntitle = "T"\ndate = 2024-01-02T03:04:05Z\n+++\n', {"title": "T", "date": "2024-01-02T03:04:05Z"}),
        ("---\r\ndraft: no\r\n...\r\n", {"title": "Heading", "draft": False}),
        ("---\nurl: /posts/1/\n1: one\n---\n", {"title": "Heading", "1": "one"}),
    ],
)
def test_front_matter_is_metadata(file, matter, metadata):
    """The front matter of a blog's posts became part of their texts."""
    assert read(file("a.md", f"{matter}# Heading\n\nBody.\n")) == [("file:a.md", "# Heading\n\nBody.\n", metadata)]


def test_a_whole_url_in_the_front_matter_is_the_documents(file):
    sidecar = file("b.json", '{"url": "http://sidecar.org/"}')
    text = "---\nurl: https://me:secret@blog.org/1\n---\nBody."
    assert read(file("a.md", text)) == [("https://blog.org/1", "Body.", {})]
    assert read(file("b.md", text), sidecar=sidecar) == [("http://sidecar.org/", "Body.", {})]


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nA text after a rule.\n\n---\n\nMore.\n",
        "---\ntitle: never closed\n\nText.\n",
        "---\na: [\n---\nText.\n",
        "+++\nno toml\n+++\nText.\n",
        "---\n- a\n- list\n---\nText.\n",
        "---\na: &x [1, 1]\nb: [*x, *x]\n---\nText.\n",
        "---\na: !!python/object/apply:os.system [ls]\n---\nText.\n",
        "---\nn: " + "9" * 5000 + "\n---\nText.\n",
        "---\na: " + "[" * 30000 + "\n---\nText.\n",
        "---\n" + "- " * 30000 + "\n---\nText.\n",
        "---\n? [a, b]\n: c\n---\nText.\n",
        "----\na: b\n----\nText.\n",
    ],
)
def test_what_only_looks_like_front_matter_stays_text(file, text):
    assert read(file("a.md", text)) == [("file:a.md", text, {})]
