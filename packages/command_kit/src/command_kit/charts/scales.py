"""An axis: from values to places along it, in equal steps or in orders of magnitude, and the round values on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from command_kit.charts.numbers import round_between


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` along an axis.

    Attributes:
        low, high: its ends; above 0 with `log`.
        log: whether equal ratios are equal lengths, instead of equal differences.
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Iterable[float], *, log: bool = False, from_zero: bool = False, room: float = 0.0) -> Scale:
        """A scale that holds all `values`, with `room` (a share of the axis) beyond them at both ends.

        With `from_zero` it begins at 0, without room there. With `log`, values of 0 and below have no place on it.
        """
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        if not kept:
            return cls(0.1, 1.0, log) if log else cls(0.0, 1.0)
        low, high = min(kept), max(kept)
        if log:
            ratio = (high / low) ** room if high > low else 1.2
            return cls(low / ratio, high * ratio, True)
        if from_zero and low >= 0:
            return cls(0.0, high * (1 + room) or 1.0)
        space = room * (high - low) if high > low else 0.1 * (abs(high) or 1.0)
        return cls(low - space, high + space)

    def share(self, value: float) -> float:
        """Where `value` is, from 0 at the low end to 1 at the high end; what lies beyond an end is put there."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / (math.log(self.high / self.low) or 1.0)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, wanted: int = 4) -> list[float]:
        """Round values between the ends, about so many."""
        if not self.log or self.high / self.low < 8:
            return [value for value in round_between(self.low, self.high, wanted) if not self.log or value > 0]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= max(wanted - 2, 1) else (1,)
        every = max(1, (last - first) // max(wanted, 1))
        values = (factor * 10.0**power for power in range(first, last + 1, every) for factor in factors)
        return [value for value in values if self.low <= value <= self.high]
