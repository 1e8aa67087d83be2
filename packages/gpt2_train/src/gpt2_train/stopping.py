"""Signals that ask a run to stop after saving."""

from __future__ import annotations

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Remembers that a signal asked the run to stop; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal = 0

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1; only the main thread can."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._received)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
