"""Compressed files: what is whole is read; what is cut off or damaged is named, and never makes a shorter corpus."""

import bz2
import gzip
import io
import lzma
import random

import pytest
import zstandard

from webtext_prep.documents.formats import compression
from webtext_prep.documents.formats.compression import Piece, bare_name, pieces_of, read_chunks, read_piece, write_zstd
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError

COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}
LINES = [b"line %d of the file" % number for number in range(3000)]
DATA = b"\n".join(LINES) + b"\n"

every_format = pytest.mark.parametrize("suffix", COMPRESS)


@pytest.fixture
def file(tmp_path):
    def write(suffix: str, content: bytes):
        path = tmp_path / f"file.txt{suffix}"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("suffix", ["", *COMPRESS, ".GZ"])
def test_lines_come_back_whatever_the_compression(file, suffix):
    """A.JSONL.GZ was read as if it were not compressed."""
    assert list(read_lines(file(suffix, COMPRESS.get(suffix.lower(), bytes)(DATA)))) == LINES


@every_format
def test_a_file_of_several_pieces_is_read_to_its_end(file, suffix):
    """`cat a.gz b.gz > c.gz`, and what compressors of many threads write."""
    whole = COMPRESS[suffix](DATA) + COMPRESS[suffix](b"") + COMPRESS[suffix](b"more\n")
    assert list(read_lines(file(suffix, whole))) == [*LINES, b"more"]


def test_skippable_frames_and_large_windows_of_zstandard_are_read(file):
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    body = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    whole = skippable + body.compress(DATA) + body.flush() + skippable
    assert list(read_lines(file(".zst", whole))) == LINES


@every_format
@pytest.mark.parametrize("kept", [0, 3, 7, 0.5, -9, -1])
def test_a_file_that_is_cut_off_is_named(file, suffix, kept):
    whole = COMPRESS[suffix](DATA)
    path = file(suffix, whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(InputError, match="cut off in the middle of its compressed data: fetch or write it again") as e:
        list(read_lines(path))
    assert str(path) in str(e.value)


@every_format
def test_a_file_that_is_something_else_is_named(file, suffix):
    path = file(suffix, b"<html>404 not found</html>" * 9)
    with pytest.raises(InputError, match=f"is not a valid {suffix} file") as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)


def test_a_changed_byte_in_a_shard_is_noticed(tmp_path):
    """zstandard checks nothing unless the file carries a checksum: ours do."""
    path = tmp_path / "part.zst"
    noise = random.Random(0).randbytes(1000)
    with write_zstd(path) as stream:
        stream.write(noise)
    assert b"".join(read_chunks(path)) == noise
    changed = bytearray(path.read_bytes())
    changed[500] ^= 1
    path.write_bytes(changed)
    with pytest.raises(InputError, match=r"is not a valid \.zst file"):
        list(read_chunks(path))


@every_format
def test_a_second_stream_that_is_damaged_is_no_end_of_the_file(file, suffix):
    """The standard library's readers of .bz2 and .xz dropped a second stream damaged near its start, with no error."""
    noise = random.Random(0).randbytes(2000)
    second = bytearray(COMPRESS[suffix](noise))
    second[1] ^= 0xFF
    with pytest.raises(InputError, match=f"is not a valid {suffix} file"):
        list(read_chunks(file(suffix, COMPRESS[suffix](DATA) + second)))


@every_format
def test_what_follows_the_compressed_data_is_refused_unless_it_is_padding(file, suffix):
    """Data behind a .bz2 or .xz file's end was left out without an error."""
    whole = COMPRESS[suffix](DATA)
    assert list(read_lines(file(suffix, whole + bytes(100_000)))) == LINES
    assert list(read_lines(file(suffix, whole + bytes(4) + whole))) == LINES * 2
    with pytest.raises(InputError, match=f"is not a valid {suffix} file"):
        list(read_lines(file(suffix, whole + b"<html>and something else</html>")))


@every_format
def test_no_piece_is_large_however_densely_it_was_compressed(file, suffix):
    """A .zst file of 6 kB gave 200 MiB in one piece."""
    path = file(suffix, COMPRESS[suffix](bytes(20 << 20)))
    sizes = [len(piece) for piece in read_chunks(path)]
    assert sum(sizes) == 20 << 20
    assert max(sizes) <= compression.CHUNK_BYTES == 1 << 20


def test_what_becomes_very_much_larger_than_it_is_is_refused(tmp_path, monkeypatch):
    """A file of 100 kB with 3 GB of newlines kept a command at work for minutes."""
    monkeypatch.setattr(compression, "RATIO_BYTES", 8 << 20)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(b"\n" * (64 << 20)))
    read = 0
    with pytest.raises(
        InputError, match=r"a\.jsonl\.zst is more than 10,000 times as large once it is decompressed, as no"
    ):
        for chunk in read_chunks(path):
            read += len(chunk)
    assert read <= 21 << 20
    page = random.Random(1).randbytes(100_000)
    path.write_bytes(zstandard.compress(page * 300))
    assert sum(map(len, read_chunks(path))) == 30_000_000


def test_a_missing_file_or_a_folder_is_named(tmp_path):
    for path in (tmp_path / "absent.gz", tmp_path):
        with pytest.raises(InputError, match="can't read"):
            list(read_chunks(path))


def test_what_is_written_appears_when_it_is_complete_and_any_zstandard_reads_it(tmp_path):
    path = tmp_path / "part.zst"
    with write_zstd(path) as stream:
        stream.write(DATA)
        assert not path.exists()
    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read() == DATA


@pytest.mark.parametrize(
    ("name", "bare"),
    [("a.jsonl.zst", "a.jsonl"), ("A.JSONL.GZ", "A.JSONL"), ("a.txt", "a.txt"), ("a.tar.gz", "a.tar"), ("a", "a")],
)
def test_a_name_without_its_compression(tmp_path, name, bare):
    assert bare_name(tmp_path / name) == bare


# Damage


PIECES = [b"".join(line + b"\n" for line in LINES[at : at + 5]) for at in (0, 100, 200)]


def packed(suffix: str, data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data) if suffix == ".zst" else COMPRESS[suffix](data)


@every_format
def test_a_flipped_bit_anywhere_costs_its_stream_and_no_other(file, suffix):
    streams = [packed(suffix, piece) for piece in PIECES]
    whole = b"".join(streams)
    assert pieces_of(file(suffix, whole)) == [Piece(0, len(whole), is_whole=True)]
    begin, end = len(streams[0]), len(streams[0]) + len(streams[1])
    lost = 0
    for at in range(begin, end):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path = file(suffix, bytes(changed))
        pieces = pieces_of(path)
        read = [b"".join(read_piece(path, piece)) for piece in pieces if piece.is_whole]
        if len(pieces) == 1:  # a flag or a time that says nothing of the content
            assert read == [b"".join(PIECES)] == [b"".join(read_chunks(path))]
        else:
            lost += 1
            assert pieces == [
                Piece(0, begin, is_whole=True), Piece(begin, end, is_whole=False), Piece(end, len(whole), is_whole=True)
            ]  # fmt: skip
            assert read == [PIECES[0], PIECES[2]]
    assert lost > (end - begin) * 0.8


@every_format
def test_damage_may_be_anywhere_and_padding_is_none(file, suffix):
    one, two, three = (packed(suffix, piece) for piece in PIECES)
    cut, begun = three[: len(three) // 2], b"x" + one[8:]
    size = len(begun) + len(two) + len(cut)
    pieces = pieces_of(file(suffix, begun + two + cut))
    assert [(piece.end - piece.begin, piece.is_whole) for piece in pieces] == [
        (len(begun), False), (len(two), True), (len(cut), False)
    ]  # fmt: skip
    assert pieces[0].begin == 0 and pieces[-1].end == size
    padded = bytes(70_000)
    assert pieces_of(file(suffix, one + padded + two + padded)) == [
        Piece(0, len(one) + len(padded) + len(two), is_whole=True)
    ]
    assert pieces_of(file(suffix, b"")) == []
    assert pieces_of(file(suffix, b"<html>")) == [Piece(0, 6, is_whole=False)]


def test_what_looks_like_streams_and_holds_none_costs_little(file, monkeypatch):
    monkeypatch.setattr(compression, "MAX_TRIALS", 50)
    path = file(".gz", b"\x1f\x8b\x08\0" * 10_000 + packed(".gz", DATA))
    asked = []
    monkeypatch.setattr(compression, "end_of_stream", lambda *place: asked.append(place))
    assert pieces_of(path) == [Piece(0, path.stat().st_size, is_whole=False)]
    assert len(asked) == 50
