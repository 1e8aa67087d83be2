"""Progress of a long job: one redrawn line on a terminal, plain lines now and then elsewhere.

    clean  12,400/31,000 documents  40%  2,310/s  0:08 left

On a terminal the line is redrawn a few times per second and fits the terminal's width; in a log file or a pipe a new
line comes every four seconds in the first half minute, and then every half minute, so that logs stay short. A thread of
its own shows the line also while nothing is reported, so that a job that hangs looks different from one that works. The
time left follows from the rate since the start, without what an earlier run had done.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from command_kit.colours import (
    BOLD,
    CLEAR,
    CYAN,
    DIM,
    GREEN,
    PLAIN,
    Paint,
    columns_of,
    cut,
    display_width,
    is_terminal,
)

STALLED_SECONDS = 30.0
"""Seconds without a report after which the line says since when there has been none."""
TERMINAL_SECONDS, EARLY_SECONDS, LATE_SECONDS = 0.2, 4.0, 30.0
"""Seconds between lines: on a terminal; elsewhere in a job's first half minute, when somebody may wait; and later."""
REPORT_EVERY = 64
"""Items that pass through between two reports."""
Item = TypeVar("Item")
COLOURS = {"label": (BOLD,), "share": (CYAN,), "left": (GREEN,), "note": (DIM,)}
"""Colours of the parts of a line, where there is colour."""


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
        every: seconds between lines; by default 0.2 on a terminal, elsewhere 4 and after half a minute 30. With 0 each
            report is shown, and nothing between them.
    """

    def __init__(
        self,
        label: str,
        unit: str,
        total: int | None = None,
        *,
        done: int = 0,
        stream: TextIO | None = None,
        every: float | None = None,
    ) -> None:
        self.label, self.unit, self.total, self.done = label, unit, total, done
        self._stream = stream or sys.stderr
        self._terminal, self._paint = is_terminal(self._stream), Paint.of(self._stream)
        self._is_log = every is None and not self._terminal
        self._every = every if every is not None else (TERMINAL_SECONDS if self._terminal else EARLY_SECONDS)
        self._first, self._note = done, ""
        self._start = self._shown = self._reported = time.monotonic()
        if self._terminal:
            self._shown -= self._every  # the first report is shown at once
        self._ticker: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> Progress:
        if self._every:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join(timeout=1)
        if self._terminal:
            self._stream.write(CLEAR)
            self._stream.flush()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Clear the line while something else is printed."""
        with self._lock:
            if self._terminal:
                self._stream.write(CLEAR)
                self._stream.flush()
            yield

    def update(self, done: int, note: str = "") -> None:
        """Set how many units are done in all, and show the line if it is time to."""
        self.done, self._note = done, note
        self._reported = time.monotonic()
        self._show_if_due()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count `units` more as done."""
        self.update(self.done + units, note)

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass `items` on, counting them as done."""
        before = self.done
        return counted(items, lambda count: self.update(before + count))

    def line(self, seconds: float, note: str = "", *, width: int | None = None) -> str:
        """The line as it stands `seconds` after the start, cut to `width` columns where that is given."""
        return self._line(PLAIN, seconds, note, width)

    def _line(self, paint: Paint, seconds: float, note: str, width: int | None) -> str:
        rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
        speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        count, share, left = f"{self.done:,} {self.unit}", "", ""
        if self.total:
            count = f"{self.done:,}/{self.total:,} {self.unit}"
            share = f"{min(self.done / self.total, 1):.0%}"
            left = f"{duration(max(self.total - self.done, 0) / rate)} left" if rate > 0 else ""
            if self.done >= self.total:
                left = "finishing"  # what is counted is done, and not yet the job
        parts = {"label": self.label, "count": count, "share": share, "speed": speed, "left": left, "note": note}
        shown = {name: part for name, part in parts.items() if part}
        for name in ("note", "speed", "label", "count"):
            if width is None or display_width("  ".join(shown.values())) <= width:
                break
            if len(shown) > 1:
                shown.pop(name, None)
        if width is not None and display_width(whole := "  ".join(shown.values())) > width:
            return cut(whole, width)
        return "  ".join(paint(part, *COLOURS.get(name, ())) for name, part in shown.items())

    def _tick(self) -> None:
        # Waking more often than lines are due keeps each from being late by up to another interval.
        while not self._ended.wait(self._every / 4):
            # Nobody reads any more: that is for whoever writes next to find out.
            with contextlib.suppress(OSError, ValueError):
                self._show_if_due()

    def _show_if_due(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._shown < self._every or self._ended.is_set():
                return
            self._shown = now
            if self._is_log and now - self._start >= LATE_SECONDS:
                self._every = LATE_SECONDS
            silent = now - self._reported
            waiting = f"nothing new for {duration(silent)}" if silent >= STALLED_SECONDS else ""
            note = "  ".join(part for part in (self._note, waiting) if part)
            if self._terminal:
                # One column less than there are: a full last column makes some terminals wrap.
                line = self._line(self._paint, now - self._start, note, max(columns_of(self._stream) - 1, 1))
                self._stream.write(f"{CLEAR}{line}")
            else:
                self._stream.write(f"{self._line(self._paint, now - self._start, note, None)}\n")
            self._stream.flush()
