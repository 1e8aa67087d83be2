"""Progress of a long job: one redrawn line on a terminal, plain lines now and then elsewhere.

    clean   12,400/31,000 documents  40%  2,310/s  0:08 left

On a terminal the line is redrawn a few times a second; in a log file or a pipe a new line comes every half minute,
so that logs stay short. The time left follows from the rate since the start, without what an earlier run had done.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO


def duration(seconds: float) -> str:
    """Seconds as `0:08`, `12:30` or `3:05:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Counts units of work done and shows them.

    Args:
        label: what the line begins with, the name of the command.
        unit: what is counted, in the plural ("documents").
        total: how many units there are in all, or None where that is unknown.
        done: how many an earlier run had already done.
        stream: where to show it; standard error by default.
        every: seconds between lines; by default 0.2 on a terminal and 30 elsewhere.
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
        self._terminal = self._stream.isatty()
        self._every = every if every is not None else (0.2 if self._terminal else 30.0)
        self._first = done
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def update(self, done: int, note: str = "") -> None:
        """Set how many units are done in all, and show the line if it is time to."""
        self.done = done
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._show(self.line(now - self._start, note))

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count `units` more as done."""
        self.update(self.done + units, note)

    def line(self, seconds: float, note: str = "") -> str:
        """The line as it stands `seconds` after the start."""
        rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
        speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        if not self.total:
            return "  ".join(part for part in (self.label, f"{self.done:,} {self.unit}", speed, note) if part)
        share = f"{min(self.done / self.total, 1):.0%}"
        left = f"{duration(max(self.total - self.done, 0) / rate)} left" if rate > 0 else ""
        counted = f"{self.done:,}/{self.total:,} {self.unit}"
        return "  ".join(part for part in (self.label, counted, share, speed, left, note) if part)

    def _show(self, line: str) -> None:
        self._stream.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        self._stream.flush()
