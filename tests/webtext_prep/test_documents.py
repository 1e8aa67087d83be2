"""Documents and shards: what is written is read, the bytes follow from the documents, a bad line is named."""

import errno
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webtext_audit.stages.export import write_file
from webtext_prep.documents import formats
from webtext_prep.documents.document import Document, decode_document, decode_url_row, encode_document, with_metadata_of
from webtext_prep.documents.folders.shards import (
    known_formats,
    read_chosen_documents,
    read_documents,
    write_documents,
)
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError

any_text = st.text(st.characters(exclude_categories=("Cs",)))
any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
documents = st.builds(
    Document,
    url=any_text.filter(bool),
    text=any_text,
    metadata=st.dictionaries(any_text.filter(lambda key: key not in ("url", "text")), any_value, max_size=4),
)


@given(documents)
def test_a_document_survives_the_way_through_a_line(document):
    line = encode_document(document)
    assert b"\n" not in line
    assert decode_document(line) == document
    assert json.loads(line)["url"] == document.url


@given(
    url=st.sampled_from(['http://example.com/"\u00e9', "http://example.com/@a", "x\ud800y"]) | any_text.filter(bool),
    text=any_text,
    page=st.dictionaries(st.sampled_from(["title", "domain", "final_url"]), any_text),
    listed=st.dictionaries(any_text.filter(lambda key: key not in ("url", "text")), any_value, max_size=3)
    | st.dictionaries(st.sampled_from(["title", "score", "subreddits"]), any_value),
)
@example("http://example.com/", "", {}, {})
@example("http://example.com/", "Text", {"final_url": "http://user:secret@example.com/"}, {"score": 3})
@example("http://example.com/", "Text", {"title": "of the page"}, {"title": "of the list", "score": 3})
def test_metadata_is_put_into_a_line_as_decoding_and_encoding_would(url, text, page, listed):
    line, asked = encode_document(Document(url, text, dict(page))), Document(url, "", listed)
    document = decode_document(line)
    document.metadata = {**listed, **document.metadata}
    assert with_metadata_of(asked, line, ("title", "domain", "final_url")) == encode_document(document)


FORMATS = ["jsonl.zst", "jsonl.gz", "jsonl", "parquet"]


@pytest.mark.parametrize("format_name", FORMATS)
@given(written=st.lists(documents, max_size=6), chosen=st.sets(st.integers(0, 7)))
def test_chosen_documents_are_read_with_their_numbers(tmp_path_factory, format_name, written, chosen):
    place = tmp_path_factory.mktemp("shards") / f"part-00000.{format_name}"
    with write_documents(place) as writer:
        for document in written:
            writer.write(document)
    every = list(enumerate(read_documents(place)))
    assert list(read_chosen_documents(place, chosen.__contains__)) == [row for row in every if row[0] in chosen]


def test_lines_without_a_document_have_no_number(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"url": "one"}\n\nnot read\n{"url": "three"}\n')
    found = read_chosen_documents(tmp_path / "a.jsonl", {0, 2}.__contains__)
    assert [(number, document.url) for number, document in found] == [(0, "one"), (2, "three")]
    with pytest.raises(InputError, match="line 4, is not a document"):
        list(read_chosen_documents(tmp_path / "a.jsonl", {1}.__contains__))


@pytest.mark.parametrize("format_name", FORMATS)
@given(written=st.lists(documents, max_size=5))
def test_a_shard_holds_its_documents_in_order_and_its_bytes_follow_from_them(tmp_path_factory, format_name, written):
    folder = tmp_path_factory.mktemp("shards")
    for name in ("a", "b"):
        with write_documents(folder / f"{name}.{format_name}") as writer:
            for document in written:
                writer.write(document)
        assert writer.written == len(written)
    assert list(read_documents(folder / f"a.{format_name}")) == written
    assert (folder / f"a.{format_name}").read_bytes() == (folder / f"b.{format_name}").read_bytes()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_shard_that_fails_half_way_is_not_there(tmp_path, format_name):
    with pytest.raises(KeyError), write_documents(tmp_path / f"a.{format_name}") as writer:
        writer.write(Document("http://a", "one"))
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_lone_surrogates_are_left_out_wherever_they_are():
    document = Document("http://a/\ud800", "x\udfffy", {"ti\ud800tle": ["\udc00z", {"k": "\ud800"}], "n": 1})
    clean = Document("http://a/", "xy", {"title": ["z", {"k": ""}], "n": 1})
    assert decode_document(encode_document(document)) == clean


def test_a_row_of_a_url_list_is_a_document_without_text():
    assert encode_document(Document("http://a")) == b'{"url":"http://a"}'
    assert decode_document(b'{"url":"http://a","score":3}') == Document("http://a", "", {"score": 3})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "malformed"),
        (b'{"url":"http://a","text":"half', "truncated"),
        (b"[1,2]", "not a JSON object"),
        (b'{"text":"no address"}', "no url"),
        (b'{"url":"","text":"x"}', "no url"),
        (b'{"url":7,"text":"x"}', "no url"),
        (b'{"url":"http://a","text":["x"]}', "text is not a string"),
        (b'{"url":"http://a","text":"\xff\xfe"}', "can't decode byte 0xff"),
        (b'{"url":"http://a","m":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"url":"http://a"}{"url":"http://b"}', "trailing"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path, line, why):
    path = tmp_path / "part.jsonl"
    path.write_bytes(b'{"url":"http://ok","text":"x"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=why) as caught:
        list(read_documents(path))
    assert str(caught.value).startswith(f"{path}, line 3, is not a document (")


def test_empty_lines_and_windows_line_ends_are_no_bad_lines(tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_bytes(b'\n{"url":"http://a"}\r\n  \n{"url":"http://b"}')
    assert [document.url for document in read_documents(path)] == ["http://a", "http://b"]


def test_one_document_is_one_line(tmp_path):
    """Pitfall 10: a document for each line of text; here line ends in the text stay in it."""
    path = tmp_path / "part.jsonl.zst"
    with write_documents(path) as writer:
        writer.write(Document("http://a", "one\ntwo\r\n\u2028three"))
    assert len(list(read_lines(path))) == 1


def test_a_line_of_a_url_list_nested_too_deep_is_one_bad_url():
    line = b'{"url": ' + b"[" * 100_000
    assert decode_url_row(line) == Document(line.decode())


def test_parquet_has_the_columns_that_others_look_for(tmp_path):
    import pyarrow.parquet as pq

    with write_documents(tmp_path / "a.parquet") as writer:
        writer.write(Document("http://a/", "one", {"title": "A", "language": "en", "score": 3}))
        writer.write(Document("http://b/\ud800", "two", {"title": 7}))
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [
        {"url": "http://a/", "text": "one", "title": "A", "domain": None, "language": "en", "metadata": '{"score":3}'},
        {"url": "http://b/", "text": "two", "title": None, "domain": None, "language": None, "metadata": '{"title":7}'},
    ]


def test_parquet_of_others_is_read_if_it_has_url_and_text(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"text": "one", "url": "http://a/", "score": 1.5, "tags": ["x"]}, {"text": None, "url": "http://b/"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_documents(tmp_path / "a.parquet")) == [
        Document("http://a/", "one", {"score": 1.5, "tags": ["x"]}),
        Document("http://b/", ""),
    ]
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet, row 1, is not a document .*run `webtext merge` first"):
        list(read_documents(tmp_path / "b.parquet"))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(InputError, match=r"c\.parquet is not a valid Parquet file"):
        list(read_documents(tmp_path / "c.parquet"))


def test_parquet_is_written_and_read_in_groups_of_bounded_size(tmp_path, monkeypatch):
    """A shard of any size must fit into memory a group at a time."""
    import pyarrow.parquet as pq

    from webtext_prep.documents.formats import parquet

    monkeypatch.setattr(parquet, "GROUP_BYTES", 100)
    written = [Document(f"http://a/{number}", "x" * 30) for number in range(10)]
    with write_documents(tmp_path / "a.parquet") as writer:
        for document in written:
            writer.write(document)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 3
    assert list(read_documents(tmp_path / "a.parquet")) == written


def test_a_format_is_added_in_one_file(tmp_path, plugin, webtext, write_shards, read_shards):
    """Nothing but the interface: a file in the folder of formats is a value of --format, and its shards are read."""
    source = (
        "import contextlib\n"
        "from webtext_prep import storage\n"
        "from webtext_prep.documents.document import Document\n"
        "from webtext_prep.documents.formats.base import DocumentWriter, Format\n"
        "class _Writer(DocumentWriter):\n"
        "    def __init__(self, stream):\n"
        "        super().__init__()\n"
        "        self.stream = stream\n"
        "    def write(self, document):\n"
        "        self.stream.write(f'{document.url}\\t{document.text}\\n'.encode())\n"
        "        self.written += 1\n"
        "class Tabs(Format):\n"
        "    name = 'tsv'\n"
        "    def read(self, location):\n"
        "        for line in storage.read_bytes(location).decode().splitlines():\n"
        "            yield Document(*line.split('\\t'))\n"
        "    @contextlib.contextmanager\n"
        "    def write(self, stream):\n"
        "        yield _Writer(stream)\n"
    )
    plugin(formats, "tabs", source, known_formats)
    folder = write_shards([["a", "b"], ["c"]])
    first = webtext("shout", "--input", folder, "--output", tmp_path / "one", "--format", "tsv", "--workers", 1)
    assert first.code == 0, first.err
    assert (tmp_path / "one" / "part-00000.tsv").read_text() == "http://0.org/0\tA!\nhttp://0.org/1\tB!\n"
    second = webtext("shout", "--input", tmp_path / "one", "--output", tmp_path / "two", "--workers", 1, "--json")
    assert second.json["out"] == 3
    assert [document.text for document in read_shards(tmp_path / "two")] == ["A!!", "B!!", "C!!"]


def test_an_error_at_the_end_of_a_parquet_file_is_an_error(tmp_path, monkeypatch):
    """A disk that was full when the end of a Parquet file was written left a file that nobody can read."""

    close = pq.ParquetWriter.close

    def full(self):
        close(self)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "close", full)
    with pytest.raises(OSError, match="No space left"), write_documents(tmp_path / "part-00000.parquet") as writer:
        writer.write(Document("http://a.org", "text"))
    assert list(tmp_path.iterdir()) == []


def test_a_json_column_replaces_no_url_and_no_text(tmp_path):
    """A key `url` in the JSON column of a Parquet file took the place of the document's own."""
    row = {"url": "http://a.org", "text": "", "metadata": json.dumps({"url": "http://b.org", "text": "b", "n": 1})}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "part-00000.parquet")
    (document,) = read_documents(tmp_path / "part-00000.parquet")
    assert decode_document(encode_document(document)) == Document("http://a.org", "", {"n": 1})


def test_a_parquet_row_that_python_cannot_hold_is_named(tmp_path):
    """Text that is not valid UTF-8 in a Parquet file was an internal error."""
    text = pa.array([b"good", b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"url": ["http://a", "http://b"], "text": text}), tmp_path / "part-00000.parquet")
    with pytest.raises(InputError, match=r"part-00000.parquet, row 2, can't be read \('utf-8' codec"):
        list(read_documents(tmp_path / "part-00000.parquet"))


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("is_export", [False, True])
def test_a_flipped_bit_in_a_parquet_file_is_an_error_or_changes_nothing(tmp_path, is_export, every):
    """Of 150 flipped bits 91 were read as other text, without an error."""
    place = tmp_path / "part-00000.parquet"
    written = [
        Document(f"http://a.org/{n}", f"one text {n} " * 9, {"title": "T", "n": n} if n else {}) for n in range(3)
    ]
    if is_export:
        with write_file(place, [], "parquet") as write:
            for document in written:
                write(document)
    else:
        with write_documents(place) as writer:
            for document in written:
                writer.write(document)
    expected, whole = list(read_documents(place)), place.read_bytes()
    errors = 0
    for at in range(0, len(whole), every):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert list(read_documents(place)) == expected, at
        except InputError as error:
            assert str(error).startswith(str(place))
            errors += 1
    assert errors > 0.9 * len(whole) / every


def test_a_flipped_bit_in_a_parquet_file_of_others_is_found_where_it_has_checksums(tmp_path):
    place = tmp_path / "a.parquet"
    pq.write_table(pa.table({"url": ["u"], "text": ["as it was"]}), place, write_page_checksum=True, compression="none")
    place.write_bytes(place.read_bytes().replace(b"as it was", b"as is was"))
    with pytest.raises(
        InputError, match=r"a\.parquet is not a valid Parquet file \(.* CRC checksum verification failed"
    ):
        list(read_documents(place))


@pytest.mark.parametrize("format_name", ["jsonl", "parquet"])
def test_metadata_survives_every_format(tmp_path, format_name):
    document = Document(
        "http://a.org/",
        "",
        {"n": 2**70, "low": -(2**63) - 1, "deep": {"list": [1, [None, {"a": "b"}]]}, "title": "", "metadata": {"x": 1}},
    )
    path = tmp_path / f"part-00000.{format_name}"
    with write_documents(path) as writer:
        writer.write(document)
    assert list(read_documents(path)) == [document]
