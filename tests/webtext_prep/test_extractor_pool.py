"""The pool of extraction workers, with an extractor that does what its page says: which page pays for what."""

import asyncio
import contextlib
import os
import select
import signal
import sys
from pathlib import Path

import practice_extractor
import pytest

from command_kit import CommandError
from webtext_prep.extraction.processes import pool as pool_module
from webtext_prep.extraction.processes.pool import ExtractorPool
from webtext_prep.extraction.processes.workers import PageLimits


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Make a pool that uses the practice extractor."""
    monkeypatch.setattr(pool_module, "work", practice_extractor.work)

    def new_pool(workers=1, seconds=0.3):
        return ExtractorPool(PageLimits("resiliparse", (), seconds, 256, str(tmp_path)), workers)

    return new_pool


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


@pytest.mark.exhaustive
def test_the_next_pool_uses_the_same_server_and_another_one_if_that_was_killed(start):
    first, second = run(start(), [b"who"]), run(start(), [b"who"])
    assert first != second  # another worker,
    server = int(first[0].split()[1])
    assert server == int(second[0].split()[1])  # forked by the same process

    async def one_after_another():
        async with start(workers=2) as pool:
            await told(pool, b"who")
            os.kill(server, signal.SIGKILL)
            return await asyncio.gather(*(told(pool, page) for page in [b"die", *GOOD]))

    assert asyncio.run(one_after_another())[1:] == TEXTS


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
    def refuse(process):
        raise BlockingIOError(11, "no")

    monkeypatch.setattr("multiprocessing.context.ForkServerProcess.start", refuse)
    with pytest.raises(CommandError, match=r"can't start another process .*no.*: run with fewer --workers"):
        run(start(), GOOD)


def test_a_worker_whose_memory_was_overwritten_costs_its_page(start):
    assert run(start(), [GOOD[0], b"nonsense", *GOOD[1:]]) == [TEXTS[0], "extract_crash exit code -9", *TEXTS[1:]]


def test_pages_larger_than_a_pipe_go_through_it(start):
    pages = [b"x" * size for size in (3_000_000, 10, 1_048_576, 0, 1_048_575, 2_000_000)]
    assert [len(text) for text in run(start(), pages)] == [3_000_000, 10, 1_048_576, len("empty"), 1_048_575, 2_000_000]
