"""The life of an extraction worker: a process that can be killed, so that no page can hang, fill or crash a stage.

It is forked by a process that has imported its extractor (`preloading`) and is then handed one page after the other
through a pipe, in which the next ones wait. Bounds are the kernel's own where it has them: processor time by a timer
whose signal kills, so that a busy machine changes no outcome; memory by a limit on address space. Linux takes it before
any other process when the machine is out of memory.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import resource
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from webtext_prep.extraction.extractors import Extracted, extractor_of, nests_too_deep, plain_text, warm_up
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.text.decoding import is_text

if TYPE_CHECKING:
    from webtext_prep.extraction.html.markup import Markup

MAX_TEXT_FACTOR = 4
"""Text that is this factor larger than its page (and 64 KiB) is not the page's: some parser loops."""
BUFFER_BYTES = 1 << 16
"""Bytes of pages that are read at once, if they are small, and of a result that are written at once."""
EXTRACTOR = "WEBTEXT_EXTRACTOR"
"""Environment variable with the extractor that the server which forks workers imports."""


@dataclass(frozen=True)
class PageLimits:
    """What a worker may use.

    Attributes:
        extractor: which of `extractors.EXTRACTORS`.
        kinds: of pages that are kept; () keeps all.
        seconds: processor time for a page.
        memory: MiB that it may grow by.
        folder: where libraries may put temporary files.
        markup: how the text is written.
    """

    extractor: str
    kinds: tuple[str, ...]
    seconds: float
    memory: int
    folder: str
    markup: Markup = "plain"


class PageHead(msgspec.Struct, array_like=True, frozen=True):
    """What comes with the bytes of a page."""

    url: str
    charset: str | None = None
    is_html: bool = True


class Parsed(msgspec.Struct, array_like=True, frozen=True):
    """What became of one page: `ok`, `not_html`, `empty`, `other_kind`, `too_deep`, `extract_timeout`,
    `extract_memory`, `extract_crash`, or `extract_error`, with the extractor's exception as `detail`."""

    outcome: str
    text: str = ""
    title: str = ""
    kind: str = ""
    detail: str = ""
    kind_probability: float | None = None
    text_share: float | None = None


PAGE = struct.Struct("<QQ")
"""What stands before a page in the pipe: the bytes of its head and of its body."""
RESULT = struct.Struct("<Q")
"""What stands before a result: its bytes."""
_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(PageHead).decode


def _peak_reader() -> Callable[[], int]:
    """A function that says the most address space that this process has had, in bytes; 0 where nobody knows."""
    try:
        status = os.open("/proc/self/status", os.O_RDONLY)
    except OSError:
        return lambda: 0

    def peak() -> int:
        _, _, rest = os.pread(status, 8192, 0).partition(b"VmPeak:")
        return int(rest.split(None, 1)[0]) << 10 if rest else 0

    return peak


def _limit_memory(now: int, mebibytes: int) -> None:
    """Let the process grow from `now` bytes by so much and no further, where the system can see to it (Linux)."""
    if not now:
        return  # elsewhere there are no limits on address space that are kept: see _watch_memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _watch_memory(mebibytes: int) -> None:
    """Where address space cannot be limited: end the process once its memory has grown by so much."""
    if sys.platform == "linux":
        return
    unit = 1 if sys.platform == "darwin" else 1024
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def watch() -> None:
        pause = threading.Event()
        while not pause.wait(0.1):
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > start + (mebibytes << 20):
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def extract_page(
    name: str, head: PageHead, body: bytes, kinds: tuple[str, ...] = (), markup: Markup = "plain"
) -> Parsed:
    """Extract one page in this very process, unbounded, and say what came of it; of `kinds` of pages, if any.

    Raises MemoryError, after which the process should not be trusted.
    """
    if not is_text(body, head.charset):
        return Parsed(PageOutcome.NOT_HTML)
    extract = extractor_of(name, markup) if head.is_html else plain_text
    try:
        found: Extracted = extract(body, head.url, head.charset)
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise all sorts of things at odd pages
        if nests_too_deep(body):
            return Parsed(PageOutcome.TOO_DEEP)
        return Parsed(PageOutcome.EXTRACT_ERROR, detail=f"{type(error).__name__}: {error}"[:200])
    if not found.text:
        is_deep = head.is_html and nests_too_deep(body)
        return Parsed(PageOutcome.TOO_DEEP if is_deep else PageOutcome.EMPTY, title=found.title)
    if len(found.text) > MAX_TEXT_FACTOR * len(body) + (1 << 16):
        return Parsed(PageOutcome.EXTRACT_ERROR, detail="more text than the page holds")
    if kinds and found.kind not in kinds:
        outcome, share = PageOutcome.OTHER_KIND, None
    else:
        outcome, share = PageOutcome.OK, found.text_share
    return Parsed(
        outcome, found.text, found.title, found.kind, kind_probability=found.kind_probability, text_share=share
    )


def _read(stream: BinaryIO, size: int) -> bytes:
    """So many bytes. Raises EOFError where there are no more."""
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def work(pages: Connection, results: Connection, limits: PageLimits) -> None:
    """A worker's life: pages from one pipe, head and body, and results to another, in the same order.

    The first result is a sentence that says why it can't work, or empty. Each result is written before the next page
    is begun, so that the page of which a worker died is known: the first one without a result.

    Args:
        pages: to read from; it ends with this.
        results: to write to.
        limits: what it may use.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # what a library prints must not get anywhere
        os.dup2(nothing, stream)
    with contextlib.suppress(OSError):  # the first to go where memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.environ["TMPDIR"], tempfile.tempdir = limits.folder, None
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(2_000)
    try:
        warm_up(limits.extractor)
    except Exception as error:
        results.send_bytes(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return
    results.send_bytes(b"")
    gc.freeze()  # the memory of what has been imported stays shared
    peak_memory = _peak_reader()
    start = peak = peak_memory()
    _limit_memory(start, limits.memory)
    _watch_memory(limits.memory)
    source = io.BufferedReader(io.FileIO(pages.fileno(), closefd=False), BUFFER_BYTES)
    sink = io.BufferedWriter(io.FileIO(results.fileno(), "w", closefd=False), BUFFER_BYTES)
    while True:
        data = b""
        with contextlib.suppress(MemoryError):
            head_size, body_size = PAGE.unpack(_read(source, PAGE.size))
            head, body = _decode_head(_read(source, head_size)), _read(source, body_size)
            signal.setitimer(signal.ITIMER_PROF, limits.seconds)  # after so much processor time it is killed
            parsed = extract_page(limits.extractor, head, body, limits.kinds, limits.markup)
            data = _encode(parsed)
            before, peak = peak, peak_memory()
            # lxml and lexbor make nothing, or an error, of a page for which they got no memory: that is not the
            # page's fault, and the sign is that it wanted a good part of what there is.
            if parsed.outcome != PageOutcome.OK and peak > max(before, start + (limits.memory << 18)):
                data = b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        result = data or _encode(Parsed(PageOutcome.EXTRACT_MEMORY))
        sink.write(RESULT.pack(len(result)) + result)
        sink.flush()
        if not data:
            os._exit(1)  # whatever happened in there, it cannot be trusted with another page
