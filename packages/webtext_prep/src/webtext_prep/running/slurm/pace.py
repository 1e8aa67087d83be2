"""How often something is looked at while it is waited for: soon after news, and more and more seldom without."""

from __future__ import annotations

import time

SLOWER = 0.05
"""What has been waited for so long is looked at again after this share of the time,"""
COSTS = 10
"""and after so many times the time that the last look took."""


class Pace:
    """When to look again.

    Args:
        least: seconds between two looks, soon after news.
        most: seconds between two looks, at any time.
    """

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self.due = self._news = 0.0
        self.news()

    def news(self) -> None:
        """Begin again to look often."""
        self._news = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self.due

    def looked(self, begun: float) -> None:
        """Plan the next look, after one that began at that time."""
        now = time.monotonic()
        self.due = now + min(max(self._least, SLOWER * (now - self._news), COSTS * (now - begun)), self._most)
