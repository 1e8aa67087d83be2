"""Compressed streams that can be continued: the bytes of one go, which any reader takes."""

import contextlib
import gzip
import io
import random
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from webtext_prep.documents import compressed_streams
from webtext_prep.documents.compressed_streams import GZIP_LEVEL, STREAMS, ZSTD_LEVEL, Border
from webtext_prep.documents.compression import read_chunks

every_kind = pytest.mark.parametrize("suffix", STREAMS)

WORDS = [f"word{number}" for number in range(50)]
TEXT = " ".join(random.Random(0).choices(WORDS, k=20_000)).encode()


@contextlib.contextmanager
def small_pieces(size):
    """Pieces of so many bytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compressed_streams, "PIECE_BYTES", size)
        yield


def written(suffix, parts):
    file = io.BytesIO()
    stream = STREAMS[suffix](file)
    for part in parts:
        stream.write(part)
    stream.close()
    return file.getvalue()


def decompressed(suffix, data, tmp_path):
    """What our reader finds, and what the libraries by themselves do."""
    place = tmp_path / f"file{suffix}"
    place.write_bytes(data)
    ours = b"".join(read_chunks(place))
    if suffix == ".zst":
        assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read() == ours
    elif suffix == ".gz":
        assert gzip.decompress(data) == ours
        one = zlib.decompressobj(31)
        assert one.decompress(data) == ours
        assert (one.eof, one.unused_data) == (True, b"")
    return ours


@every_kind
def test_a_stream_of_one_piece_has_the_bytes_of_its_library(suffix):
    file = io.BytesIO()
    if suffix == ".zst":
        with zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as one:
            one.write(TEXT)
    elif suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=GZIP_LEVEL) as one:
            one.write(TEXT)
    else:
        file.write(TEXT)
    assert written(suffix, [TEXT[:1000], TEXT[1000:]]) == file.getvalue()
    with small_pieces(len(TEXT)):
        assert written(suffix, [TEXT]) == file.getvalue()


@every_kind
@pytest.mark.parametrize("size", [100, 5000, 60_000])
def test_pieces_make_one_frame_of_about_the_same_size(suffix, size, tmp_path):
    text = TEXT if size > 100 else TEXT[:2000]
    whole = written(suffix, [text])
    with small_pieces(size):
        found = written(suffix, [text])
        # However it is handed over.
        assert written(suffix, [text[at : at + 3333] for at in range(0, len(text), 3333)]) == found
    assert decompressed(suffix, found, tmp_path) == text
    if size > 50_000:
        assert len(found) < 1.05 * len(whole)


def test_a_changed_byte_of_the_last_piece_is_noticed():
    with small_pieces(9000):
        data = bytearray(written(".zst", [TEXT]))
    data[-1] ^= 1
    with pytest.raises(zstandard.ZstdError, match="checksum"):
        zstandard.ZstdDecompressor().stream_reader(io.BytesIO(bytes(data))).read()


@every_kind
@settings(max_examples=15, deadline=None)
@given(
    records=st.lists(
        st.one_of(st.binary(max_size=40), st.text("ab", max_size=200).map(str.encode), st.just(TEXT[:1500])),
        max_size=30,
    ),
    size=st.integers(400, 4000),
    kills=st.sets(st.integers(0, 29)),
)
def test_a_stream_that_is_continued_has_the_bytes_of_one_go(tmp_path_factory, suffix, records, size, kills):
    """At each of `kills` the writer is gone, and with it what lies behind the last border that somebody noted."""
    content = b"".join(records)
    with small_pieces(size):
        expected = written(suffix, records)
        file = io.BytesIO()
        stream, at, noted, left = STREAMS[suffix](file), 0, None, set(kills)
        while at < len(records):
            stream.write(records[at])
            at += 1
            if stream.border is not None and (noted is None or noted[1] != stream.border):
                noted = (at - 1, stream.border)
            if at in left:
                left.discard(at)
                file.seek(0, io.SEEK_END)
                file.write(b"half a block")
                at, border = noted or (0, None)
                file.truncate(border.size if border else 0)
                file.seek(0)
                stream = STREAMS[suffix](file, border, at=sum(map(len, records[:at])))
        stream.close()
        assert file.getvalue() == expected
    assert decompressed(suffix, expected, tmp_path_factory.mktemp("file")) == content


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_is_not_what_was_noted_is_not_continued(suffix):
    with small_pieces(9000):
        file = io.BytesIO(written(suffix, [TEXT]))
        with pytest.raises(ValueError, match="does not hold"):
            STREAMS[suffix](file, Border(8999, 500))
