"""Documents and shards: what is written is read, the bytes follow from the documents, a bad line is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.documents.compression import read_lines
from webtext_prep.documents.document import (
    Document,
    decode_document,
    decode_url_row,
    encode_document,
    read_documents,
    shard_name,
    write_documents,
)
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


@given(st.lists(documents, max_size=5))
def test_a_shard_holds_its_documents_in_order_and_its_bytes_follow_from_them(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("shards")
    for name in ("a", "b"):
        with write_documents(folder / f"{name}.jsonl.zst") as writer:
            for document in written:
                writer.write(document)
        assert writer.written == len(written)
    assert list(read_documents(folder / "a.jsonl.zst")) == written
    assert (folder / "a.jsonl.zst").read_bytes() == (folder / "b.jsonl.zst").read_bytes()


def test_lone_surrogates_are_left_out_wherever_they_are():
    document = Document("http://a/\ud800", "x\udfffy", {"ti\ud800tle": ["\udc00z", {"k": "\ud800"}], "n": 1})
    clean = Document("http://a/", "xy", {"title": ["z", {"k": ""}], "n": 1})
    assert decode_document(encode_document(document)) == clean


def test_shards_are_numbered():
    assert [shard_name(0), shard_name(12345)] == ["part-00000.jsonl.zst", "part-12345.jsonl.zst"]


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
    assert str(caught.value).startswith(f"{path}, line 3, holds no document (")


def test_empty_lines_and_windows_line_ends_are_no_bad_lines(tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_bytes(b'\n{"url":"http://a"}\r\n  \n{"url":"http://b"}')
    assert [document.url for document in read_documents(path)] == ["http://a", "http://b"]


def test_one_document_is_one_line(tmp_path):
    """Pitfall 10: one document a line of text; here line ends in the text stay in it."""
    path = tmp_path / "part.jsonl.zst"
    with write_documents(path) as writer:
        writer.write(Document("http://a", "one\ntwo\r\n\u2028three"))
    assert len(list(read_lines(path))) == 1


def test_a_line_of_a_url_list_nested_too_deep_is_one_bad_url():
    line = b'{"url": ' + b"[" * 100_000
    assert decode_url_row(line) == Document(line.decode())
