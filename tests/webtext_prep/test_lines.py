"""Text files as lines: UTF-8 whatever they declare, each as it is wherever the pieces end, in linear time."""

import codecs
import gzip
import itertools
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.documents.folders.raw_files import reader_of
from webtext_prep.documents.formats import compression, lines
from webtext_prep.documents.formats.lines import has_ranges, line_blocks, read_lines, read_range, read_utf8
from webtext_prep.documents.records.base import Keys, SourceFile
from webtext_prep.errors import InputError

TEXT = "http://a.org/ä\nhttp://b.org/\U0001f600\n"
ENCODED = {
    "utf-8": TEXT.encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16-le with a mark": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "utf-16-be with a mark": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "utf-32-le with a mark": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
    "utf-32-be with a mark": codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
    "utf-16-le": TEXT.encode("utf-16-le"),
    "utf-16-be": TEXT.encode("utf-16-be"),
}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_lines_are_the_same_in_every_encoding(tmp_path, monkeypatch, encoding, chunk):
    """A byte order mark became part of the first line; every line of a UTF-16 list was malformed."""
    monkeypatch.setattr(compression, "CHUNK_BYTES", chunk)
    (tmp_path / "urls.txt").write_bytes(ENCODED[encoding])
    assert list(read_lines(tmp_path / "urls.txt")) == TEXT.encode().split(b"\n")[:-1]


@pytest.mark.parametrize("data", [codecs.BOM_UTF16_LE + b"a\0b", codecs.BOM_UTF16_BE + b"\xdc\x00\xdc\x00"])
def test_a_file_that_is_not_what_its_mark_says_is_named(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.txt is not valid UTF-16, which .* declare .*save it as UTF-8"):
        list(read_lines(tmp_path / "a.txt"))


@given(data=st.binary(max_size=50))
def test_bytes_without_a_mark_are_not_touched(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"\n\n" + data)
    assert b"".join(read_utf8(path)) == b"\n\n" + data


@given(data=st.binary(max_size=200), chunk=st.integers(1, 7))
def test_lines_do_not_depend_on_where_the_pieces_end(tmp_path_factory, data, chunk):
    path = tmp_path_factory.mktemp("lines") / "file"
    data = b"\n\n" + data  # so that it can't begin with a byte order mark
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "CHUNK_BYTES", chunk)
        found = list(read_lines(path))
    expected = data.split(b"\n")
    assert found == (expected[:-1] if expected[-1] == b"" else expected)


@given(
    st.lists(st.sampled_from([b"", b" ", b"\r", b"a", b" b ", b"\n" * 100, b"\n" * 63]), max_size=30),
    st.integers(1, 90),
)
def test_lines_that_are_not_blank_keep_their_numbers(pieces, size):
    data = b"\n".join(pieces)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    expected = [(number, line) for number, line in enumerate(data.split(b"\n"), 7) if line.strip()]
    assert list(lines.numbered_lines(Path("a"), chunks, 7)) == expected


def test_millions_of_empty_lines_are_passed_over(tmp_path):
    """Each was a line of its own to be read and parsed: 3 GB of them took minutes, without a word."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"\n" * 30_000_000 + b'{"text": "b"}\n')
    begin = time.process_time()
    found = [record.place for record in reader_of(path).read(SourceFile(path, "a"), Keys(("text",), ("url",)))]
    assert found == ["line 1", "line 30000002"]
    assert time.process_time() - begin < 1


@pytest.mark.exhaustive
def test_the_lines_of_a_table_are_not_kept_once_they_are_read(tmp_path, monkeypatch):
    """All lines of a table stayed in memory as long as it was read."""
    monkeypatch.setattr(compression, "CHUNK_BYTES", 1 << 14)
    path = tmp_path / "a.csv"
    path.write_text("url,text\n" + "".join(f"http://a.org/{n},some text\n\n" for n in range(20_000)))
    tracemalloc.start()
    assert sum(1 for _ in reader_of(path).read(SourceFile(path, "a"), Keys(("text",), ("url",)))) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 2


def test_the_bytes_of_a_line_are_copied_a_fixed_number_of_times(tmp_path, monkeypatch):
    """Each piece of a long line was joined to all the pieces before it: 16 MiB took 5.6 s, four times those of 8."""

    class Counted(bytearray):
        added = 0

        def __iadd__(self, piece):
            Counted.added += len(piece)
            return super().__iadd__(piece)

    monkeypatch.setattr(compression, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(lines, "bytearray", Counted, raising=False)
    line = b"x" * (1 << 20)
    (tmp_path / "a").write_bytes(line + b"\nend\n")
    assert list(read_lines(tmp_path / "a")) == [line, b"end"]
    assert len(line) <= Counted.added <= 2 * len(line)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 3 << 20)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(5 << 20)))
    with pytest.raises(InputError, match="a line of more than 3 MiB: it is not a text file"):
        list(read_lines(path))


@given(
    text=st.lists(st.sampled_from([b"a", b"bcd", b"\n"]), max_size=40).map(b"".join), cuts=st.sets(st.integers(0, 50))
)
def test_ranges_that_meet_hold_each_line_once(tmp_path_factory, text, cuts):
    path = tmp_path_factory.mktemp("ranges") / "a.txt"
    path.write_bytes(text)
    edges = [0, *sorted(cuts - {0}), len(text) + 1]
    parts = [b"".join(read_range(path, start, stop)) for start, stop in itertools.pairwise(edges)]
    assert b"".join(parts) == text
    for number, (part, start) in enumerate(zip(parts, edges, strict=False)):
        begin = sum(map(len, parts[:number]))
        assert not part or begin >= start
        assert begin in (0, len(text)) or text[begin - 1 : begin] == b"\n"


def test_a_byte_order_mark_is_no_part_of_a_range(tmp_path):
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + b"a\nb\n")
    assert has_ranges(tmp_path / "a.txt")
    assert [b"".join(read_range(tmp_path / "a.txt", *edges)) for edges in ((0, 4), (4, 99))] == [b"a\n", b"b\n"]


@pytest.mark.parametrize("encoding", ENCODED)
def test_files_that_need_their_beginning_have_no_ranges(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(ENCODED[encoding])
    assert has_ranges(tmp_path / "a.txt") == encoding.startswith("utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(ENCODED[encoding]))
    assert not has_ranges(tmp_path / "a.txt.gz")


@given(st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"e\nf"]), max_size=30), st.integers(1, 9))
def test_blocks_end_where_lines_do(chunks, size):
    text = b"".join(chunks)
    blocks = list(line_blocks(Path("a.txt"), chunks, size))
    assert b"".join(blocks) == text + (b"\n" if text and not text.endswith(b"\n") else b"")
    assert all(block.endswith(b"\n") for block in blocks)


def test_a_block_without_an_end_is_an_error(monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    with pytest.raises(InputError, match="holds a line of more than"):
        list(line_blocks(Path("a.txt"), [b"a" * 60] * 2, 10))
