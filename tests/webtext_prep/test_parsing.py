"""Extraction in workers: whatever the page, it ends in text or in an outcome, and the next page is served."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import practice_extractor
import pytest

from webtext_prep.errors import WebtextError
from webtext_prep.extraction.extractors import EXTRACTORS
from webtext_prep.extraction.processes import pool
from webtext_prep.extraction.processes.pool import ExtractorPool
from webtext_prep.extraction.processes.workers import PageLimits

GOOD = (
    b"<html><title>T</title><body><article><p>" + b"A plain sentence of words. " * 20 + b"</p></article></body></html>"
)
EMPTY_DIVS = b"<html><body>" + b"<div></div>" * (20_000_000 // 11)
NESTED = b"<html><body>" + b"<div>" * 50_000 + b"<p>deep inside</p>" + b"</div>" * 50_000


def outcomes(name, pages, tmp_path, *, seconds=0.5, memory=1024):
    async def run():
        async with ExtractorPool(PageLimits(name, (), seconds, memory, str(tmp_path)), 1) as pool:
            return [await pool.extract(page, "http://example.com/", None) for page in pages]

    return asyncio.run(run())


@pytest.mark.parametrize("name", EXTRACTORS)
def test_twenty_megabytes_of_empty_divs_and_deep_nesting_end_in_an_outcome_and_the_next_page_in_text(name, tmp_path):
    """Pitfall 9: nothing bounded a page."""
    divs, nested, good = outcomes(name, [EMPTY_DIVS, NESTED, GOOD], tmp_path)
    assert divs.outcome in ("extract_timeout", "extract_memory", "empty")
    assert nested.outcome in ("too_deep", "extract_timeout") or "deep inside" in nested.text
    assert (good.outcome, good.title) == ("ok", "T")
    assert "A plain sentence" in good.text


@pytest.mark.parametrize("name", EXTRACTORS)
def test_a_page_that_wants_too_much_memory_is_named_so(name, tmp_path):
    page = b"<html><body>" + b"<p>some words here</p>" * 400_000
    big, good = outcomes(name, [page, GOOD], tmp_path, seconds=20, memory=64)
    assert big.outcome in ("extract_memory", "extract_crash")
    assert good.outcome == "ok"


def test_a_page_without_text_is_empty_and_plain_text_is_taken_whole(tmp_path):
    async def run():
        async with ExtractorPool(PageLimits("resiliparse", (), 5, 1024, str(tmp_path)), 1) as pool:
            empty = await pool.extract(b"<html><body></body></html>", "http://example.com/", None)
            plain = await pool.extract(b"a < b\r\n\x00c", "http://example.com/", None, is_html=False)
            return empty, plain

    empty, plain = asyncio.run(run())
    assert (empty.outcome, empty.text) == ("empty", "")
    assert (plain.outcome, plain.text) == ("ok", "a < b\nc")


def test_a_worker_that_crashes_is_replaced(tmp_path):
    async def run():
        async with ExtractorPool(PageLimits("resiliparse", (), 60, 1024, str(tmp_path)), 1) as pool:
            await pool.extract(GOOD, "http://example.com/", None)
            (process,) = pool.processes
            lost = asyncio.create_task(pool.extract(EMPTY_DIVS, "http://example.com/", None))
            await asyncio.sleep(0)
            os.kill(process, signal.SIGSEGV)
            return await lost, await pool.extract(GOOD, "http://example.com/", None)

    lost, good = asyncio.run(run())
    assert lost.outcome == "extract_crash"
    assert good.outcome == "ok"


PARENT = """
import asyncio, sys
from webtext_prep.extraction.processes.pool import ExtractorPool
from webtext_prep.extraction.processes.workers import PageLimits

async def run():
    async with ExtractorPool(PageLimits("resiliparse", (), 600, 4096, sys.argv[1]), 1) as pool:
        await pool.extract(b"<p>warm</p>", "http://example.com/", None)
        busy = asyncio.create_task(pool.extract(b"<div>" * 200_000, "http://example.com/", None))
        await asyncio.sleep(0)
        print(*pool.processes, flush=True)
        await busy

asyncio.run(run())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_worker_that_hears_nothing_ends_with_its_parent_and_is_first_to_go_without_memory(tmp_path):
    """A worker that was blocked inside C code never saw that its parent was gone, and ran forever."""
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        worker = os.pidfd_open(pid)
        first_to_go = Path(f"/proc/{pid}/oom_score_adj").read_text()
        os.kill(pid, signal.SIGSTOP)  # it can't read from its pipe any more
        parent.kill()
    has_ended = bool(select.select([worker], [], [], 30)[0])
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    os.close(worker)
    assert has_ended, "the worker outlived its parent"
    assert int(first_to_go) == 1000


def test_an_extractor_that_cannot_start_is_a_sentence_with_what_it_said(tmp_path, monkeypatch):
    """It read "internal error: IncompleteReadError", and what the process had printed was thrown away."""
    monkeypatch.setattr(pool, "work", practice_extractor.work_without_library)
    with pytest.raises(WebtextError, match=r"the extractor resiliparse did not start: ModuleNotFoundError: .*quince"):
        outcomes("resiliparse", [GOOD], tmp_path)
    monkeypatch.setattr(pool, "work", practice_extractor.end_at_once)
    with pytest.raises(WebtextError, match="did not start: exit code 7"):
        outcomes("resiliparse", [GOOD], tmp_path)
