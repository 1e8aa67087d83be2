"""Documents that are read with their texts in one piece are those that are read one by one, whatever the lines."""

import codecs
import json
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from webtext_prep.documents import line_kernels
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.folders.shards import read_chosen_documents, read_documents, read_packed_documents
from webtext_prep.documents.formats import json_lines
from webtext_prep.errors import InputError

TEXT = st.text(st.characters() | st.sampled_from('\n\t"\\\\/\x00\x1f\x7fé\u0800\ud7ff\ue000\uffff😀a '), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.just("ftp://a:b@c/"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.just("text"), inner, max_size=3),
    max_leaves=5,
)
URLS = st.sampled_from(["http://a.org/", "http://a.org/é", "u", "", "http://user:secret@a.org/"])
DOCUMENTS = st.builds(
    Document, URLS, TEXT, st.dictionaries(TEXT | st.sampled_from(["domain", "text"]), VALUES, max_size=3)
)
ODD = [
    *("", " ", "null", "[]", "{}", '{"url":"u"}', '{"url":"u","text":""}', '{"text":"t","url":"u"}', "\ufeff"),
    *(
        '{"url":"u","text":1}',
        '{"url":1,"text":"t"}',
        '{"url":"u","text":"t","text":"s"}',
        '{"url":"u","url":"v","text":"t"}',
    ),
    *(
        '{"url":"u","a":{"b":1,"text":"x"},"text":"t"}',
        '{"url":"u","a":",\\"text\\":\\"","text":"t"}',
        '{"url":"u","text":"t"} ',
    ),
    *(
        '{"url":"u","a":NaN,"text":"t"}',
        '{"url":"u","a":1e999,"text":"t"}',
        '{"url":"u","a":1.0,"text":"t"}',
        '{"url":"u","a":1E2,"text":"t"}',
    ),
    *('{"url":"u","text":"t","a":1}', '{"url":"u","text":"t"', '{"url":"u","text":"t', '{"url":"u","text":"t"}\r'),
    *(
        f'{{"url":"u","text":"{escape}"}}'
        for escape in (r"\/", r"\u0041", r"\ud83d\ude00", r"\ud800", r"\u001F", r"\u001f", r"\u000a", r"\u000b")
    ),
    *(
        f'{{"url":"u","text":"{escape}"}}'
        for escape in (r"\x", "\\", "\t", "\x1f", r"\u00", r"\u0020", "\x7f", "\u2028")
    ),
]
LINES = (
    DOCUMENTS.map(encode_document)
    | DOCUMENTS.map(lambda found: json.dumps({"url": found.url, "text": found.text}).encode())
    | st.sampled_from(ODD).map(str.encode)
    | st.binary(max_size=6).map(lambda some: b'{"url":"u","text":"abc' + some + b'def"}')
)


def read_one_by_one(path: Path) -> list[Document] | str:
    try:
        return list(read_documents(path))
    except InputError as error:
        return str(error)


def read_packed(path: Path) -> tuple[list[Document] | str, bool]:
    found, are_copies = [], True
    try:
        for batch in read_packed_documents(path):
            start = 0
            for document, end, length in zip(batch.documents, batch.texts.ends, batch.texts.lengths, strict=True):
                text = batch.texts.data[start:end].tobytes().decode()
                assert len(text) == length
                found.append(Document(document.url, text, document.metadata))
                start = end
            are_copies &= batch.may_be_copied
    except InputError as error:
        return str(error), False
    return found, are_copies


@given(st.lists(LINES, max_size=4), st.sampled_from([b"", b"\n"]), st.sampled_from([1, 60, 1 << 20]))
@example([b'{"url":"u","text":"' + b"x" * 100 + b'"}'] * 5, b"\n", 150)
def test_packed_documents_are_those_that_are_read_one_by_one(lines, end, size):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part-00000.jsonl"
        path.write_bytes(b"\n".join(lines) + end)
        expected = read_one_by_one(path)
        json_lines.BLOCK_BYTES, before = size, json_lines.BLOCK_BYTES
        try:
            found, may_be_copied = read_packed(path)
            if isinstance(expected, list):
                chosen = read_chosen_documents(path, lambda number: number % 2)
                assert list(chosen) == list(enumerate(expected))[1::2]
        finally:
            json_lines.BLOCK_BYTES = before
    assert found == expected
    if isinstance(expected, list) and may_be_copied:
        written = b"\n".join(lines).removeprefix(codecs.BOM_UTF8).removesuffix(b"\n")
        assert b"\n".join(map(encode_document, expected)) == written


def test_what_is_written_is_found_to_be_so(tmp_path):
    """The fast road is taken, and all its lines may be copied."""
    path = tmp_path / "part-00000.jsonl"
    documents = [
        Document("http://a.org/", 'x\n"\\\x0b\x1fé😀' * (number + 1), {"n": number, "a": ["b"]}) for number in range(99)
    ]
    path.write_bytes(b"".join(encode_document(document) + b"\n" for document in documents))
    assert json_lines._taken_apart(path.read_bytes()) is not None
    assert read_packed(path) == (documents, True)


def test_there_is_room_for_the_shortest_lines(tmp_path):
    """The shortest that is taken apart has a URL without an end: no JSON, which is noticed only then."""
    line = b'{"url":","text":"x"}\n'
    assert len(line) == line_kernels.SHORTEST
    assert json_lines._taken_apart(line * 9999) is None
