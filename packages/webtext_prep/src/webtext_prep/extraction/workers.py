"""The life of an extraction worker: a process that can be killed, so that no page can hang, fill or crash a stage.

It is a fresh interpreter that imports its extractor once and is then handed one page after the other through a pipe
(0.2 ms per page; a process for each page would cost 300 ms or more). Bounds are the kernel's own where it has them:
processor time by a timer whose signal kills, so that a busy machine changes no outcome; memory by a limit on address
space. It ends when its pipe does, thus with its parent, however that ended; on Linux the kernel kills it even where C
code keeps it from seeing that, and takes it before any other process when the machine is out of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import queue
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from webtext_prep.documents.outcomes import PageOutcome
from webtext_prep.extraction.extractors import EXTRACTORS, Extracted, nests_too_deep, plain_text, warm_up

try:
    import resource
except ImportError:  # not on this system: memory is then bounded by the size of pages alone
    resource = None  # type: ignore[assignment]

MAX_TEXT_FACTOR = 4
"""Text of more than so many times the bytes of its page (and 64 KiB) is not the page's: some parser loops."""
MAIN = "from webtext_prep.extraction.workers import work; work()"
"""What the interpreter of a worker runs."""

LENGTH = struct.Struct("<I")
"""In front of each frame in the pipes: its bytes."""
_PR_SET_PDEATHSIG = 1
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


class Parsed(msgspec.Struct):
    """What became of one page: `ok`, `empty`, `too_deep`, `extract_timeout`, `extract_memory`, `extract_crash`, or
    `extract_error`, with the extractor's exception as `detail`."""

    outcome: str
    text: str = ""
    title: str = ""
    detail: str = ""


def _read_frame(file: BinaryIO) -> bytes | None:
    header = file.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    length = LENGTH.unpack(header)[0]
    data = file.read(length)
    return data if len(data) == length else None


def _write_frame(file: BinaryIO, data: bytes) -> None:
    file.write(LENGTH.pack(len(data)) + data)
    file.flush()


def _peak_memory() -> int:
    """The most address space that the process has had, in bytes; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"VmPeak:"):
                return int(line.split()[1]) << 10
    return 0


def _limit_memory(mebibytes: int) -> None:
    """Let the process grow by so much and no further, where the system can see to it (Linux)."""
    now = _peak_memory()
    if resource is None or not now:
        return  # elsewhere there are no limits on address space that are kept: see _watch_memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _watch_memory(mebibytes: int) -> None:
    """Where address space cannot be limited: end the process once its memory has grown by so much."""
    if resource is None or sys.platform == "linux":
        return
    unit = 1 if sys.platform == "darwin" else 1024
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def watch() -> None:
        pause = threading.Event()
        while not pause.wait(0.1):
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > start + (mebibytes << 20):
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Linux: be killed when the process that started this one ends, and first when memory runs out."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that was in force
        os._exit(1)


def _set_timer(seconds: float) -> None:
    """Be killed by SIGPROF after so much more processor time; 0 stops the timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def extract_page(name: str, page: dict[str, Any]) -> Parsed:
    """Extract one page in this very process, unbounded, and say what came of it.

    Args:
        name: an extractor.
        page: `body` (bytes), `url`, `charset` (or None) and `is_html`.

    Raises MemoryError, after which the process should not be trusted.
    """
    extract = EXTRACTORS[name] if page["is_html"] else plain_text
    body = page["body"]
    try:
        found: Extracted = extract(body, page["url"], page["charset"])
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise all sorts of things at odd pages
        if nests_too_deep(body):
            return Parsed(PageOutcome.TOO_DEEP)
        return Parsed(PageOutcome.EXTRACT_ERROR, detail=f"{type(error).__name__}: {error}"[:200])
    if not found.text:
        return Parsed(PageOutcome.TOO_DEEP if page["is_html"] and nests_too_deep(body) else PageOutcome.EMPTY)
    if len(found.text) > MAX_TEXT_FACTOR * len(body) + (1 << 16):
        return Parsed(PageOutcome.EXTRACT_ERROR, detail="more text than the page holds")
    return Parsed(PageOutcome.OK, found.text, found.title)


def work() -> None:
    """A worker's life: settings, then pages from standard input; results to standard output; ends with its input."""
    # What a library prints must not get between the results.
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = _decode(_read_frame(source) or b"\x80")
    if not settings:
        return
    _end_with_parent(settings["parent"])
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        while (frame := _read_frame(source)) is not None:
            frames.put(frame)
        os._exit(0)  # even in the middle of a page: nobody waits for it any more

    logging.disable(logging.CRITICAL)
    warm_up(settings["extractor"])
    os.dup2(nothing, 2)  # until here, what it printed said why it could not start
    threading.Thread(target=listen, daemon=True).start()
    _limit_memory(settings["memory"])
    _watch_memory(settings["memory"])
    sys.setrecursionlimit(2_000)
    start = peak = _peak_memory()
    _write_frame(target, b"")
    while True:
        page = _decode(frames.get())
        _set_timer(settings["seconds"])
        data = b""
        with contextlib.suppress(MemoryError):
            parsed = extract_page(settings["extractor"], page)
            data = _encode(parsed)
            before, peak = peak, _peak_memory()
            # lxml and lexbor make nothing, or an error, of a page for which they got no memory: that is not the
            # page's fault, and the sign is that it wanted a good part of what there is.
            if parsed.outcome != PageOutcome.OK and peak > max(before, start + (settings["memory"] << 18)):
                data = b""
        _set_timer(0)
        _write_frame(target, data or _encode(Parsed(PageOutcome.EXTRACT_MEMORY)))
        if not data:
            os._exit(1)  # whatever happened in there, it cannot be trusted with another page
