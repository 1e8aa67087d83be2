"""Token files: the bytes of the format, the way there and back, and what is said of files that are wrong."""

import hashlib
import itertools
import os
import signal
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexed_tokens import (
    IndexedTokens,
    IndexedTokensError,
    IndexedTokensWriter,
    bin_path,
    idx_path,
    prefix_of,
    smallest_dtype,
)
from indexed_tokens.checksums import check_token_files, checksum_of, joined, record_path
from indexed_tokens.reader import DTYPES, HEADER

GOLDEN = [[1, 2, 50256], [3, 50256]]
GOLDEN_BIN = bytes.fromhex("0100 0200 50c4 0300 50c4")
GOLDEN_IDX_MD5 = "84717ac691928be4ab7847ab353c4089"


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def documents_in(tokens: IndexedTokens) -> list[list[int]]:
    """The documents as lists of ids, their sequences joined."""
    rows = [sequence.tolist() for sequence in tokens]
    bounds = itertools.pairwise(tokens.document_index.tolist())
    return [list(itertools.chain.from_iterable(rows[begin:end])) for begin, end in bounds]


# The format


def test_the_bytes_are_those_of_the_format(write_tokens):
    prefix = write_tokens(GOLDEN)
    assert bin_path(prefix).read_bytes() == GOLDEN_BIN
    index = idx_path(prefix).read_bytes()
    assert (len(index), md5(index)) == (82, GOLDEN_IDX_MD5)
    assert index[:9] == bytes.fromhex("4D 4D 49 44 49 44 58 00 00")
    assert struct.unpack_from("<QBQQ", index, 9) == (1, 8, 2, 3)
    assert HEADER.size == 34


def test_an_empty_document_is_a_repeated_entry_and_no_sequence(write_tokens):
    tokens = IndexedTokens(write_tokens([[], [1, 2], [], [], [3], []]))
    assert (len(tokens), tokens.documents, tokens.total_tokens) == (2, 6, 3)
    assert tokens.document_index.tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_a_corpus_without_documents_can_be_written_and_read(write_tokens):
    tokens = IndexedTokens(write_tokens([]))
    assert (len(tokens), tokens.documents, tokens.total_tokens, list(tokens)) == (0, 0, 0, [])
    assert bin_path(tokens.prefix).read_bytes() == b""


def test_gpt2s_vocabulary_is_stored_in_two_bytes_a_token():
    assert smallest_dtype(50257) == smallest_dtype(65499) == np.uint16
    assert smallest_dtype(65500) == np.int32


@pytest.mark.parametrize("code", range(1, len(DTYPES) + 1))
def test_every_type_of_the_format_comes_back(tmp_path, code):
    dtype = DTYPES[code - 1]
    with IndexedTokensWriter(tmp_path / "corpus", dtype) as writer:
        writer.add([1, 2, 3])
        writer.add(np.array([4], dtype))
    tokens = IndexedTokens(tmp_path / "corpus")
    assert idx_path(tmp_path / "corpus").read_bytes()[17] == code
    assert tokens.dtype == dtype
    assert [row.tolist() for row in tokens] == [[1, 2, 3], [4]]
    assert tokens[0].dtype == dtype


@given(documents=st.lists(st.lists(st.integers(0, 65535), max_size=20), max_size=20))
def test_what_is_written_is_read(tmp_path_factory, documents):
    prefix = tmp_path_factory.mktemp("tokens") / "corpus"
    with IndexedTokensWriter(prefix) as writer:
        for document in documents:
            writer.add(document)
        assert writer.total_tokens == sum(map(len, documents))
    tokens = IndexedTokens(prefix)
    assert documents_in(tokens) == documents
    assert tokens.total_tokens == sum(map(len, documents))
    assert len(tokens) == sum(1 for document in documents if document)


# Reading


def test_a_pair_is_named_by_its_prefix_or_by_either_file(write_tokens):
    prefix = write_tokens(GOLDEN)
    for path in (prefix, str(prefix), bin_path(prefix), idx_path(prefix)):
        assert IndexedTokens(path).total_tokens == 5
    assert prefix_of("a/b.c_text_document").name == "b.c_text_document"


def test_a_slice_is_a_view_that_cannot_be_written_to(write_tokens):
    tokens = IndexedTokens(write_tokens([[10, 11, 12, 13], [20]]))
    assert tokens.slice(0, 1, 2).tolist() == [11, 12]
    assert tokens.slice(0, 4).tolist() == []
    assert tokens[-1].tolist() == [20]
    assert not tokens[0].flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tokens[0][0] = 1


@pytest.mark.parametrize("where", [(2,), (-3,), (0, 5), (0, -1), (0, 1, 4), (0, 0, -1), (1, 0, 2)])
def test_tokens_outside_a_sequence_are_an_index_error(write_tokens, where):
    """Reading past the end must not give the next document's tokens."""
    tokens = IndexedTokens(write_tokens([[10, 11, 12, 13], [20]]))
    for reading in (tokens.slice, tokens.read):
        with pytest.raises(IndexError):
            reading(*where)


@given(
    documents=st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=20), min_size=1, max_size=5), at=st.data()
)
def test_read_gives_the_tokens_of_slice(tmp_path_factory, documents, at):
    prefix = tmp_path_factory.mktemp("tokens") / "corpus"
    with IndexedTokensWriter(prefix) as writer:
        for document in documents:
            writer.add(document)
    tokens = IndexedTokens(prefix)
    index = at.draw(st.integers(0, len(documents) - 1))
    offset = at.draw(st.integers(0, len(documents[index])))
    assert tokens.read(index, offset).tolist() == tokens.slice(index, offset).tolist() == documents[index][offset:]
    assert tokens.read(index, offset).dtype == tokens.dtype


def test_read_asks_the_kernel_for_just_its_bytes(write_tokens, monkeypatch):
    """A few tokens anywhere in a cold file took 2.2 ms through the mapping, which reads far around each page fault."""
    tokens = IndexedTokens(write_tokens([[10, 11, 12, 13], [20]]))
    monkeypatch.setattr(tokens, "_tokens", None)
    asked = []
    plain = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: asked.append((size, start)) or plain(file, size, start))
    assert tokens.read(0, 1, 2).tolist() == [11, 12]
    assert asked == [(4, 2)]


def test_read_puts_together_what_the_kernel_returns_in_parts(write_tokens, monkeypatch):
    """One call returns at most 2 GB."""
    tokens = IndexedTokens(write_tokens([[10, 11, 12, 13], [20]]))
    plain = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: plain(file, min(size, 3), start))
    assert tokens.read(0).tolist() == [10, 11, 12, 13]


def test_a_file_cut_off_while_in_use_is_an_error(write_tokens):
    """Tokens behind the end of a mapped file kill the process with SIGBUS."""
    tokens = IndexedTokens(write_tokens([[10, 11, 12, 13], [20]]))
    os.truncate(bin_path(tokens.prefix), 4)
    with pytest.raises(IndexedTokensError, match="cut off while in use"):
        tokens.read(0)


def test_the_fingerprint_changes_with_the_corpus(write_tokens):
    """Pitfall 20: a stale cache of the data was used after the data changed."""
    before = IndexedTokens(write_tokens(GOLDEN)).fingerprint()
    assert IndexedTokens(write_tokens([], name="other")).fingerprint() != before
    after = IndexedTokens(write_tokens([[4, 5, 6], [7, 8]])).fingerprint()
    assert after["bin_bytes"] == before["bin_bytes"]
    assert after != before


# Files that are wrong


def broken(prefix, *, idx: bytes | None = None, binary: bytes | None = None) -> str:
    """The sentence that opening says after the files were replaced."""
    if idx is not None:
        idx_path(prefix).write_bytes(idx)
    if binary is not None:
        bin_path(prefix).write_bytes(binary)
    with pytest.raises(IndexedTokensError) as caught:
        IndexedTokens(prefix)
    assert str(prefix) in str(caught.value)
    return str(caught.value)


def test_a_missing_file_says_which_and_what_to_do(write_tokens, tmp_path):
    prefix = write_tokens(GOLDEN, name="corpus_text_document")
    with pytest.raises(IndexedTokensError, match=r"corpus\.idx: did you mean .*corpus_text_document\?"):
        IndexedTokens(tmp_path / "corpus")
    with pytest.raises(IndexedTokensError, match=rf"did you mean {tmp_path}/corpus_text_document\?"):
        IndexedTokens(tmp_path)  # a folder that holds them was answered with `webtext tokenize`
    for typed in ("corpsu_text_document", "corpu", "corpus_txt_document"):  # were answered with it, too
        with pytest.raises(IndexedTokensError, match=rf"{typed}\.idx: did you mean {tmp_path}/corpus_text_document\?"):
            IndexedTokens(tmp_path / typed)
    with pytest.raises(IndexedTokensError, match=r"nothing\.idx: run `webtext tokenize` first"):
        IndexedTokens(tmp_path / "nothing")
    bin_path(prefix).unlink()
    with pytest.raises(IndexedTokensError, match=r"corpus_text_document\.bin: run `webtext tokenize` first"):
        IndexedTokens(prefix)
    bin_path(prefix).mkdir()
    with pytest.raises(IndexedTokensError, match=r"corpus_text_document\.bin"):
        IndexedTokens(prefix)


@pytest.mark.parametrize("content", [b"", b"MMIDIDX", b"TNTIDX\x00\x00" + bytes(40), b"\x80\x04\x95 a pickle" * 9])
def test_a_foreign_index_is_named(write_tokens, content):
    assert "is not a token index" in broken(write_tokens(GOLDEN), idx=content)


@given(cut=st.integers(0, 81))
def test_an_index_cut_off_anywhere_is_noticed(tmp_path_factory, cut):
    prefix = tmp_path_factory.mktemp("tokens") / "corpus"
    with IndexedTokensWriter(prefix) as writer:
        for document in GOLDEN:
            writer.add(document)
    sentence = broken(prefix, idx=idx_path(prefix).read_bytes()[:cut])
    assert ("cut off" if cut >= 34 else "is not a token index") in sentence


@given(cut=st.integers(0, len(GOLDEN_BIN) - 1))
def test_tokens_cut_off_anywhere_are_noticed(tmp_path_factory, cut):
    prefix = tmp_path_factory.mktemp("tokens") / "corpus"
    with IndexedTokensWriter(prefix) as writer:
        for document in GOLDEN:
            writer.add(document)
    assert f"has {cut} bytes where corpus.idx asks for 10" in broken(prefix, binary=GOLDEN_BIN[:cut])


def patched(index: bytes, at: int, form: str, value: int) -> bytes:
    data = bytearray(index)
    struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "form", "value", "sentence"),
    [
        (9, "<Q", 2, "version 2"),
        (17, "<B", 9, "token type 9"),
        (17, "<B", 0, "token type 0"),
        (18, "<Q", 2**60, "its header asks for"),
        (26, "<Q", 0, "its header asks for"),
        (34, "<i", -3, "negative lengths"),
        (34, "<i", 10**6, "asks for 2,000,000"),
        (42, "<q", -8, "negative lengths or offsets"),
        (50, "<q", 2**63 - 2, "asks for"),
        (58, "<q", 1, "does not run from 0"),
        (66, "<q", 5, "does not run from 0"),
        (74, "<q", 7, "does not run from 0"),
    ],
)
def test_a_damaged_index_is_noticed_when_it_is_opened(write_tokens, at, form, value, sentence):
    """Pitfall 16: damaged or empty data crashed training much later."""
    prefix = write_tokens(GOLDEN)
    assert sentence in broken(prefix, idx=patched(idx_path(prefix).read_bytes(), at, form, value))


def test_an_index_without_any_entries_is_noticed(write_tokens):
    header = HEADER.pack(b"MMIDIDX\x00\x00", 1, 8, 0, 0)
    assert "does not run from 0" in broken(write_tokens([]), idx=header)


# Writing


@pytest.mark.parametrize(("dtype", "token"), [("u2", 65536), ("u2", -1), ("i4", 2**31), ("u1", 256)])
def test_an_id_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path, dtype, token):
    with pytest.raises(IndexedTokensError, match="do not fit into"), IndexedTokensWriter(tmp_path / "c", dtype) as w:
        w.add([1, token])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tokens", [[1.5], [[1, 2], [3, 4]], 7, "text", [True]])
def test_what_is_no_row_of_ids_is_refused(tmp_path, tokens):
    with pytest.raises(IndexedTokensError), IndexedTokensWriter(tmp_path / "corpus") as writer:
        writer.add(tokens)


def test_a_type_that_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(IndexedTokensError, match="use uint16 or int32"):
        IndexedTokensWriter(tmp_path / "corpus", "u4")


def test_an_error_leaves_nothing_where_nothing_was(tmp_path):
    with pytest.raises(KeyboardInterrupt), IndexedTokensWriter(tmp_path / "corpus") as writer:
        writer.add([1] * 100_000)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_the_old_pair(write_tokens, tmp_path):
    """Pitfall 27, for data: nothing is written in place."""
    prefix = write_tokens(GOLDEN)
    with pytest.raises(ValueError, match="stop"), IndexedTokensWriter(prefix) as writer:
        writer.add([9] * 100_000)
        raise ValueError("stop")
    assert documents_in(IndexedTokens(prefix)) == GOLDEN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.idx"]


@pytest.mark.parametrize("full", [bin_path, idx_path])
@pytest.mark.parametrize("tokens", [1, 1_000_000])
def test_a_full_disk_leaves_the_old_pair(write_tokens, tmp_path, full, tokens, disk_full_for):
    prefix = write_tokens(GOLDEN)
    disk_full_for(full(prefix).name)
    with pytest.raises(OSError, match="No space left"), IndexedTokensWriter(prefix) as writer:
        writer.add(np.ones(tokens, np.uint16))
    assert documents_in(IndexedTokens(prefix)) == GOLDEN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.idx"]


def test_a_kill_leaves_the_old_pair_and_the_next_writer_goes_on(write_tokens, tmp_path):
    prefix = write_tokens(GOLDEN)
    script = (
        "import sys, indexed_tokens\n"
        "with indexed_tokens.IndexedTokensWriter(sys.argv[1]) as writer:\n"
        "    writer.add([1] * 100_000)\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert documents_in(IndexedTokens(prefix)) == GOLDEN
    assert documents_in(IndexedTokens(write_tokens([[5]]))) == [[5]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.idx"]


def test_an_open_reader_keeps_its_corpus_while_a_new_one_is_written(write_tokens):
    tokens = IndexedTokens(write_tokens(GOLDEN))
    write_tokens([[9, 9, 9], [9, 9]])
    assert documents_in(tokens) == GOLDEN


@pytest.mark.parametrize(
    "record",
    [
        "[" * 100_000,
        "{",
        '{"facts": {"checksums": 5}}',
        '{"facts": {"checksums": {"bin": {"bytes": 1, "crc32": 2}}}}',
        '{"facts": {"checksums": {"bin": {"bytes": "1", "crc32": 2}, "idx": {"bytes": 1, "crc32": 2}}}}',
        '{"facts": {"checksums": {"bin": 5, "idx": 6}}}',
    ],
    ids=lambda record: record[:60],
)
def test_a_record_that_cannot_be_read_is_a_sentence(write_tokens, record):
    """The record next to token files may be damaged, or hold anything."""
    prefix = write_tokens([[1, 2], [3]])
    record_path(prefix).write_text(record)
    with pytest.raises(IndexedTokensError, match=r"\.json.* copy it again"):
        check_token_files(prefix)


@pytest.mark.parametrize("record", [None, "[]", "{}", '{"facts": 5}', '{"facts": {"tokens": 3}}'])
def test_token_files_without_recorded_checksums_are_taken_as_they_are(write_tokens, record):
    prefix = write_tokens([[1, 2], [3]])
    if record is not None:
        record_path(prefix).write_text(record)
    assert not check_token_files(prefix, whole=True)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_the_checksum_of_parts_is_that_of_the_whole(parts):
    assert joined(map(checksum_of, parts)) == (sum(map(len, parts)), zlib.crc32(b"".join(parts)))
