"""The pool of extraction workers, with an extractor that does what its page says: which page pays for what."""

import asyncio
import contextlib
import os
import select
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.errors import WebtextError
from webtext_prep.extraction import fork_server
from webtext_prep.extraction import pool as pool_module
from webtext_prep.extraction.frames import FrameReader, frame
from webtext_prep.extraction.pool import ExtractorPool

PRACTICE = """
import os, signal
from webtext_prep.extraction import extractors, fork_server

def practice(html, url, charset=None):
    match html:
        case b"spin":
            while True:
                pass
        case b"wait":
            signal.pause()
        case b"halt":
            os.kill(os.getpid(), signal.SIGSTOP)
        case b"die":
            os._exit(3)
        case b"memory":
            bytearray(1 << 40)
        case b"raise":
            raise ValueError("as it says")
        case b"who":
            return extractors.Extracted(f"{os.getpid()} {os.getppid()}")
        case b"stop":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
    return extractors.Extracted(html.decode())

extractors.EXTRACTORS["resiliparse"] = practice
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Make a pool that uses the practice extractor, in a server of its own."""
    fork_server._close_spare()
    monkeypatch.setattr(fork_server, "MAIN", PRACTICE + "fork_server.serve()")

    def new_pool(workers=1, seconds=0.3):
        return ExtractorPool("resiliparse", workers=workers, seconds=seconds, memory=256, folder=str(tmp_path))

    yield new_pool
    fork_server._close_spare()


async def told(pool, page):
    parsed = await pool.extract(page, "http://example.com/", None)
    return parsed.text or f"{parsed.outcome} {parsed.detail}".strip()


def run(pool, pages):
    async def all_at_once():
        async with pool:
            return await asyncio.gather(*(told(pool, page) for page in pages))

    return asyncio.run(all_at_once())


GOOD = [b"page %d" % number for number in range(12)]
TEXTS = [page.decode() for page in GOOD]


@pytest.mark.parametrize(
    ("page", "outcome"),
    [
        (b"spin", f"extract_timeout exit code -{int(signal.SIGPROF)}"),
        (b"die", "extract_crash exit code 3"),
        (b"memory", "extract_memory"),
        (b"", "empty"),
        (b"raise", "extract_error ValueError: as it says"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_page_costs_itself_alone_and_the_pages_beside_it_have_their_text(start, page, outcome, workers):
    pages = [*GOOD[:3], page, *GOOD[3:7], page, page, *GOOD[7:]]
    assert run(start(workers), pages) == [*TEXTS[:3], outcome, *TEXTS[3:7], outcome, outcome, *TEXTS[7:]]


def test_a_page_that_waits_instead_of_working_is_ended_by_the_clock(start, monkeypatch):
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", -1.0)  # and four times .3
    assert run(start(), [GOOD[0], b"wait", *GOOD[1:]]) == [TEXTS[0], "extract_timeout", *TEXTS[1:]]


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say what a process does")
def test_a_worker_that_gets_no_processor_costs_no_page(start, monkeypatch):
    """A page for which a starved worker took four times its limit by the clock became `extract_timeout`."""
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", -1.1)  # and four times .3
    monkeypatch.setattr(pool_module, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(pool_module, "TICK_SECONDS", 0.01)

    async def stopped_for_a_while():
        async with start() as pool:
            page = asyncio.create_task(told(pool, b"halt"))
            while not (pool.processes and b") T" in Path(f"/proc/{pool.processes[0]}/stat").read_bytes()):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.3)
            os.kill(pool.processes[0], signal.SIGCONT)
            return await page

    assert asyncio.run(stopped_for_a_while()) == "halt"
    assert pool_module.waiting(os.getpid()) == 0


def test_no_page_waits_behind_one_that_takes_long(start, monkeypatch):
    monkeypatch.setattr(pool_module, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(pool_module, "TICK_SECONDS", 0.01)

    async def others_first():
        async with asyncio.timeout(60), start(workers=2, seconds=600) as pool:
            endless = asyncio.create_task(told(pool, b"spin"))
            found = await asyncio.gather(*(told(pool, page) for page in GOOD))
            assert not endless.done()
            endless.cancel()
            return found

    assert asyncio.run(others_first()) == TEXTS


def test_a_worker_is_replaced_after_so_many_pages(start, monkeypatch):
    monkeypatch.setattr(pool_module, "PAGES_PER_WORKER", 3)
    assert len(set(run(start(), [b"who"] * 12))) == 4


def test_the_next_pool_uses_the_same_server(start):
    first, second = run(start(), [b"who"]), run(start(), [b"who"])
    assert first != second  # another worker,
    assert first[0].split()[1] == second[0].split()[1]  # forked by the same process


def test_when_the_server_is_killed_the_pages_go_to_another_one(start):
    async def one_after_another():
        async with start() as pool:
            _, server = (await told(pool, b"who")).split()
            os.kill(int(server), signal.SIGKILL)
            return await asyncio.gather(*(told(pool, page) for page in GOOD))

    assert asyncio.run(one_after_another()) == TEXTS


def test_a_page_that_kills_the_server_again_and_again_is_given_up(start):
    assert run(start(), [b"stop", *GOOD]) == ["extract_crash ended with the process that had started it", *TEXTS]


def test_a_caller_that_goes_away_leaves_the_others_their_results(start):
    async def leave():
        async with start() as pool:
            tasks = [asyncio.create_task(told(pool, page)) for page in GOOD]
            await tasks[0]
            for task in tasks[1::2]:
                task.cancel()
            return await asyncio.gather(*tasks[::2])

    assert asyncio.run(leave()) == TEXTS[::2]


def test_leaving_the_pool_ends_its_workers_in_the_middle_of_a_page(start):
    async def leave():
        with contextlib.ExitStack() as stack:
            async with start(workers=2, seconds=600) as pool:
                await told(pool, b"who")
                endless = [asyncio.create_task(told(pool, b"spin")) for _ in range(4)]
                await asyncio.sleep(0)
                processes = [os.pidfd_open(process) for process in pool.processes]
                for process in processes:
                    stack.callback(os.close, process)
                for task in endless:
                    task.cancel()
            return processes == select.select(processes, [], [], 0)[0]

    assert asyncio.run(leave())


def test_a_machine_without_room_for_a_process_is_a_sentence(start, monkeypatch):
    refusal = "def refuse(): raise BlockingIOError(11, 'no')\nos.fork = refuse\n"
    monkeypatch.setattr(fork_server, "MAIN", PRACTICE + refusal + "fork_server.serve()")
    with pytest.raises(WebtextError, match="can't start another process"):
        run(start(), GOOD)


@given(
    st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=700)), max_size=6),
    st.lists(st.integers(1, 400), min_size=1),
)
def test_frames_come_out_as_they_went_in_however_they_were_cut(frames, cuts):
    stream = b"".join(piece for head, body in frames for piece in frame(head, body))
    source, target = os.pipe()
    try:
        reader, found = FrameReader(source), []
        reader._buffer = bytearray(64)  # it must grow, and be moved
        for number in range(len(stream)):
            cut = cuts[number % len(cuts)]
            if not stream[:cut]:
                break
            os.write(target, stream[:cut])
            stream = stream[cut:]
            assert reader.receive()
            while (one := reader.take()) is not None:
                found.append(one)
        os.close(target)
        while (one := reader.read()) is not None:
            found.append(one)
    finally:
        os.close(source)
    assert found == frames
