"""Bodies of answers: decompressed whole or refused, in small steps, and never more in memory than there is room for."""

import asyncio
import gzip
import random
import zlib

import pytest

from webtext_prep.crawl.http import bodies
from webtext_prep.crawl.http.bodies import (
    ByteBudget,
    CutShortError,
    DamagedBodyError,
    Decompressor,
    TooLargeError,
    read_body,
)

TEXT = b"".join(b"%d words of a page. " % n for n in range(20_000))


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def unpacked(encoding: str, data: bytes, step: int) -> bytes:
    decompressor = Decompressor(encoding)
    found = b"".join(
        piece for start in range(0, len(data), step) for piece in decompressor.steps(data[start : start + step])
    )
    decompressor.finish()
    return found


class Answer:
    """A response whose body comes in the given pieces."""

    def __init__(self, pieces, encoding=""):
        self.pieces, self.headers, self.content_length = pieces, {"Content-Encoding": encoding}, None

    @property
    def content(self):
        return self

    async def iter_any(self):
        for piece in self.pieces:
            yield piece


async def no_limit(size):
    pass


@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_560, len(TEXT)])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", bare_deflate)],
)
def test_a_body_comes_out_whole_however_it_was_packed_and_cut(encoding, pack, size, step):
    """Bare deflate data lost what followed a full piece of 64 KiB: 65,560 bytes became 65,536."""
    data = TEXT[:size]
    assert unpacked(encoding, pack(data), step) == data


@pytest.mark.parametrize("step", [1, 4096, 1 << 20])
def test_members_follow_each_other_with_padding_between_and_rubbish_after(step):
    parts = [TEXT[:n] for n in (10, 0, 70_000)]
    data = gzip.compress(parts[0]) + b"\0" * 20 + gzip.compress(parts[1]) + gzip.compress(parts[2])
    assert unpacked("gzip", data, step) == b"".join(parts)
    assert unpacked("gzip", data + b"\0\0rubbish" * 2000, step) == b"".join(parts)


class CountingInflater:
    """Notes how many bytes each zlib object was handed."""

    handed = 0

    def __init__(self, *arguments):
        self._inflater = zlib.decompressobj(*arguments)

    def decompress(self, data, length):
        CountingInflater.handed += len(data)
        return self._inflater.decompress(data, length)

    def __getattr__(self, name):
        return getattr(self._inflater, name)


class CountingZlib:
    error, MAX_WBITS, decompressobj = zlib.error, zlib.MAX_WBITS, CountingInflater


def test_hundreds_of_empty_members_cost_time_in_proportion_and_thousands_are_refused(monkeypatch):
    """Each of 26,000 empty gzip members in one piece made zlib copy all that followed: half a second per piece."""
    monkeypatch.setattr(bodies, "zlib", CountingZlib)
    member = gzip.compress(b"")
    for count in (100, 1000):
        CountingInflater.handed = 0
        assert unpacked("gzip", member * count, 1 << 20) == b""
        # A window is handed over once more for each member that ends in it.
        assert CountingInflater.handed <= count * 4096
    with pytest.raises(DamagedBodyError):
        unpacked("gzip", member * 26_000, 1 << 20)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", bare_deflate)])
def test_a_compressed_body_that_breaks_off_is_not_a_whole_one(encoding, pack):
    """A gzip body without a length, whose connection broke, passed as a whole page."""
    data = pack(TEXT)
    for length in (1, len(data) // 2, len(data) - 1):
        with pytest.raises(CutShortError):
            asyncio.run(read_body(Answer([data[:length]], encoding), 1 << 30, no_limit))
    assert asyncio.run(read_body(Answer([data], encoding), 1 << 30, no_limit)) == TEXT


def test_other_requests_have_their_turn_while_a_large_body_is_unpacked():
    """All that one network read unpacked to, hundreds of megabytes at worst, was made without a pause."""
    packed = gzip.compress(bytes(16 << 20))

    async def run():
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        body = await read_body(Answer([packed], "gzip"), 1 << 30, no_limit)
        task.cancel()
        return len(body), turns

    size, turns = asyncio.run(run())
    assert turns >= size // bodies.STEP_BYTES


def test_a_cap_holds_before_the_body_is_in_memory_and_for_data_of_which_nothing_comes():
    for answer in (
        Answer([gzip.compress(bytes(10 << 20))], "gzip"),
        Answer([b"x" * 1000] * 200),
        Answer([gzip.compress(b"")[:10], *[b"\0" * 1000] * 2000], ""),
    ):
        with pytest.raises(TooLargeError):
            asyncio.run(read_body(answer, 100_000, no_limit))


def test_bodies_together_never_hold_more_than_the_budget_and_one_page_more():
    """Pages waiting for a free parser were bounded in number only: 200 of 5 MB each are a gigabyte."""
    limit, page, count = 10_000, 4000, 50
    budget = ByteBudget(limit)
    most = done = 0
    free_parsers = asyncio.Semaphore(2)

    async def visit(number):
        nonlocal most, done
        with budget.reservation() as reservation:
            for _ in range(page // 100):
                await reservation.grow(100)
                most = max(most, budget.held)
                await asyncio.sleep(0)
            async with free_parsers:
                for _ in range(random.Random(number).randrange(20)):
                    await asyncio.sleep(0)
        done += 1

    async def run():
        await asyncio.gather(*map(visit, range(count)))

    asyncio.run(run())
    assert done == count and budget.held == 0
    assert limit / 2 < most <= limit + page


def test_a_page_that_is_given_up_gives_its_bytes_to_the_others():
    async def run():
        budget = ByteBudget(100)
        with budget.reservation() as other:
            await other.grow(1)

            async def greedy():
                with budget.reservation() as reservation:
                    await reservation.grow(90)
                    await asyncio.Event().wait()

            task = asyncio.create_task(greedy())
            await asyncio.sleep(0)
            with budget.reservation() as third:
                waiting = asyncio.create_task(third.grow(50))
                await asyncio.sleep(0)
                assert not waiting.done()
                task.cancel()
                assert await asyncio.wait_for(waiting, 60) >= 0
                assert budget.held == 51

    asyncio.run(run())
