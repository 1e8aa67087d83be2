"""Progress of a long job: one redrawn line on a terminal, plain lines now and then elsewhere.

    clean:  40%|██████████          | 12.4k/31.0k [00:05<00:08, 2.31k documents/s]

tqdm draws the line: a few times per second on a terminal, as wide as that is; in a log file or a pipe a new line comes
every four seconds in the first half minute, and then every half minute, so that logs stay short. A thread of its own
has it drawn, also while nothing is reported, so that a job that hangs looks different from one that works. The time
left follows from the rate since the start, without what an earlier run had done. In a log nothing is said twice.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from command_kit.colours import is_terminal

if TYPE_CHECKING:
    from tqdm.std import tqdm

STALLED_SECONDS = 30.0
"""Seconds without progress after which the line says since when there has been none."""
TERMINAL_SECONDS, EARLY_SECONDS, LATE_SECONDS = 0.2, 4.0, 30.0
"""Seconds between lines: on a terminal; elsewhere in a job's first half minute, when somebody may wait; and later."""
REPORT_EVERY = 64
"""Items that pass through between two reports."""
Item = TypeVar("Item")


def duration(seconds: float) -> str:
    """Seconds as `0:08`, `12:30` or `3:05:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def spoken_duration(seconds: float) -> str:
    """Seconds as people say them, rounded up: `40 s`, `13 min`, `2.5 h`, `9 days`."""
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    if seconds < 100 * 60:
        return f"{math.ceil(seconds / 60)} min"
    if seconds < 100 * 3600:
        return f"{math.ceil(seconds / 360) / 10:g} h"
    return f"{math.ceil(seconds / 86400):,} days"


def counted(items: Iterable[Item], report: Callable[[int], object]) -> Iterator[Item]:
    """Pass `items` on, and report how many there were so far, now and then and at the end."""
    count = 0
    for count, item in enumerate(items, 1):
        yield item
        if count % REPORT_EVERY == 0:
            report(count)
    report(count)


class Progress:
    """Counts units of work done and shows them; use it in a `with` block.

    Args:
        label: what the line begins with, the name of the command.
        unit: the things counted, in the plural ("documents").
        total: how many units there are in all, or None where that is unknown.
        done: how many an earlier run had already done.
        stream: where to show it; standard error by default.
    """

    def __init__(
        self, label: str, unit: str, total: int | None = None, *, done: int = 0, stream: TextIO | None = None
    ) -> None:
        self.label, self.unit, self.total, self.done = label, unit, total, done
        self._stream = stream or sys.stderr
        self._is_terminal = is_terminal(self._stream)
        self._note, self._reported = "", time.monotonic()
        self._lock, self._ended = threading.RLock(), threading.Event()

    def __enter__(self) -> Progress:
        self._bar = self._new_bar()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join(timeout=1)
        with contextlib.suppress(OSError, ValueError):
            self._bar.close()

    def _new_bar(self) -> tqdm[Any]:
        from tqdm.std import tqdm  # takes longer to import than many a command to run

        tqdm.monitor_interval = 0  # its own thread; ours draws
        tqdm.set_lock(self._lock)  # its own would be shared with other processes
        return tqdm(
            desc=self.label,
            unit=f" {self.unit}",
            unit_scale=True,
            total=self.total,
            initial=self.done,
            smoothing=0,  # the rate since the start
            file=self._stream if self._is_terminal else _Lines(self._stream),
            ncols=None if self._is_terminal else 0,
            dynamic_ncols=self._is_terminal,
            position=0,
            delay=sys.float_info.min,  # draws nothing before it is told to
            leave=False,
        )

    def _tick(self) -> None:
        start = time.monotonic()
        every = TERMINAL_SECONDS if self._is_terminal else EARLY_SECONDS
        while not self._ended.wait(every):
            silent = time.monotonic() - self._reported
            # Nobody reads any more: that is for whoever writes next to find out.
            with contextlib.suppress(OSError, ValueError):
                if self._is_terminal or silent < every or silent >= STALLED_SECONDS:
                    self._draw()
            if not self._is_terminal and time.monotonic() - start >= LATE_SECONDS:
                every = LATE_SECONDS

    def _draw(self) -> None:
        silent = time.monotonic() - self._reported
        waiting = f"nothing new for {duration(silent)}" if silent >= STALLED_SECONDS else ""
        with self._lock:
            self._bar.n = self.done
            self._bar.set_postfix_str(", ".join(filter(None, (self._note, waiting))), refresh=False)
            self._bar.refresh(nolock=True)  # with it, an error would leave the lock taken

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Clear the line while something else is printed."""
        with self._lock:
            self._bar.clear(nolock=True)
            yield

    def update(self, done: int, note: str = "") -> None:
        """Set how many units are done in all."""
        if (done, note) != (self.done, self._note):
            self.done, self._note, self._reported = done, note, time.monotonic()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count `units` more as done."""
        self.update(self.done + units, note)

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass `items` on, counting them as done."""
        before = self.done
        return counted(items, lambda count: self.update(before + count))


class _Lines:
    """A log, which has each state of a redrawn line as a line of its own."""

    def __init__(self, log: TextIO) -> None:
        self._log, self.flush = log, log.flush

    def write(self, text: str) -> None:
        if text.strip():
            self._log.write(f"{text.strip()}\n")
