"""Files between two phases: each bucket's lines come back in order, in memory that does not grow with the buckets."""

import errno
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.documents.folders.partitions import (
    load_array,
    read_partition,
    read_partitions,
    save_array,
    write_partitions,
)
from webtext_prep.errors import WebtextError

BUCKETS = 5
line = st.binary(max_size=20).map(lambda text: text.replace(b"\n", b"|"))
added = st.tuples(st.integers(0, BUCKETS - 1), line)


def lines_of(paths, bucket):
    """The lines of a bucket, without their newlines."""
    return [line for lines in read_partitions(paths, bucket) for line in lines[:-1].split(b"\n")]


def write(path: Path, lines: list[tuple[int, bytes]], **options: int) -> Path:
    with write_partitions(path, BUCKETS, **options) as writer:
        for bucket, text in lines:
            writer.add(bucket, text)
    return path


@given(files=st.lists(st.lists(added, max_size=30), max_size=3), run_bytes=st.sampled_from([1, 50, 1 << 20]))
def test_each_buckets_lines_come_back_in_order(tmp_path_factory, files, run_bytes):
    folder = tmp_path_factory.mktemp("partitions")
    paths = [write(folder / str(number), lines, run_bytes=run_bytes) for number, lines in enumerate(files)]
    for bucket in range(BUCKETS):
        expected = [text for lines in files for where, text in lines if where == bucket]
        assert list(lines_of(paths, bucket)) == expected
        assert b"".join(read_partitions(paths, bucket)) == b"".join(text + b"\n" for text in expected)


def test_an_array_that_the_disk_does_not_take_says_why(tmp_path):
    """numpy's own writing says how many bytes were written, and has no `errno`. A limit stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            save_array(tmp_path / "x.npy", np.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
    array = np.arange(5_000_000, dtype=np.uint32).reshape(-1, 5)
    save_array(tmp_path / "y.npy", array)
    np.save(tmp_path / "z.npy", array)
    assert (tmp_path / "y.npy").read_bytes() == (tmp_path / "z.npy").read_bytes()
    np.testing.assert_array_equal(load_array(tmp_path / "y.npy"), array)


def test_small_parts_share_a_frame_and_large_ones_have_their_own(tmp_path):
    lines = [(bucket, bytes([65 + bucket]) * size) for bucket, size in enumerate([10, 20, 100_000, 70_000, 5])]
    path = write(tmp_path / "lines", lines)
    assert [list(lines_of([path], bucket)) for bucket in range(BUCKETS)] == [[text] for _, text in lines]
    assert path.read_bytes().count(b"\x28\xb5\x2f\xfd") == 4  # how a frame of zstandard begins


def test_memory_does_not_grow_with_the_number_of_buckets(tmp_path):
    """A compressor for each bucket took 3.5 GB for 4,096 of them."""
    peaks = []
    for buckets in (16, 4096):
        tracemalloc.start()
        with write_partitions(tmp_path / str(buckets), buckets, run_bytes=1 << 20) as writer:
            for number in range(50_000):
                writer.add(number % buckets, b"http://example.org/%d/" % number + b"x" * 50)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] + (1 << 20)


def test_the_same_lines_make_the_same_file(tmp_path):
    lines = [(number * 7 % BUCKETS, b"%d" % number) for number in range(1000)]
    first, second = (write(tmp_path / name, lines, run_bytes=500) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_file_is_known_by_its_content(tmp_path):
    digests = []
    for contents in ([b"a", b"b"], [b"a", b"b"], [b"ab", b""], [b"b", b"a"]):
        with write_partitions(tmp_path / "parts", 2) as writer:
            for bucket, content in enumerate(contents):
                writer.add_bytes(bucket, content)
        digests.append(writer.digest)
        assert [read_partition(tmp_path / "parts", bucket) for bucket in range(2)] == contents
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_writer_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), write_partitions(tmp_path / "lines", BUCKETS) as writer:
        writer.add(0, b"a")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:3], lambda data: b"\0" * 9 + data[9:]])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = write(tmp_path / "lines", [(0, b"a" * 100)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(WebtextError, match=r"lines, a file between two phases, is damaged .*--restart"):
        list(read_partitions([path], 0))
