"""Numbers as people read them, and curves of many points as people can see them.

An axis: from values to places along it, in equal steps or in orders of magnitude, and the round values on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]


def count(value: float) -> str:
    """A whole number with separators."""
    return f"{round(value):,}"


def short(value: float) -> str:
    """Three digits and a letter: 1234567 -> `1.23M`."""
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}" if value != int(value) else str(int(value))


def brief(value: float) -> str:
    """All digits of a small number, three of a large one."""
    return count(value) if value < 100_000 else short(value)


def share(part: float, whole: float) -> str:
    """Per cent with as many digits as say something; empty where there is no whole."""
    if not whole:
        return ""
    value = 100 * part / whole
    if 0 < value < 0.01:
        return "<0.01%"
    if part != whole and value > 99.9:
        return ">99.9%"
    digits = 2 if 0 < value < 1 else 1
    return f"{value:.{digits}f}%".replace(".0%", "%")


def figure(value: Any) -> str:
    """A value of a record: a number with separators, a truth as yes or no, a list with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "(none)"
    return f"{value:,}" if isinstance(value, int) else str(value) or "(none)"


def nice_steps(most: float, wanted: int = 3) -> list[float]:
    """Round numbers above 0 up to `most`, about `wanted` of them, for the lines of a chart."""
    if most <= 0:
        return []
    raw = most / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [step * number for number in range(1, int(most / step + 1e-9) + 1)]


def round_between(low: float, high: float, wanted: int = 3) -> list[float]:
    """Round values between two others, about `wanted` of them."""
    steps = nice_steps(high - low, wanted)
    step = steps[0] if steps else 1.0
    near = 1e-6 * step
    numbers = itertools.takewhile(lambda number: step * number <= high + near, itertools.count(math.floor(low / step)))
    return [step * number for number in numbers if step * number >= low - near]


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
    def of(cls, values: Iterable[float], *, from_zero: bool = False, room: float = 0.0) -> Scale:
        """A scale that holds all `values`, with `room` (a share of the axis) beyond them at both ends.

        With `from_zero` it begins at 0, without room there.
        """
        kept = list(filter(math.isfinite, values))
        if not kept:
            return cls(0.0, 1.0)
        low, high = min(kept), max(kept)
        if from_zero and low >= 0:
            return cls(0.0, high * (1 + room) or 1.0)
        space = room * (high - low) if high > low else 0.1 * (abs(high) or 1.0)
        return cls(low - space, high + space)

    def share(self, value: float) -> float:
        """The place of `value`, from 0 at the low end to 1 at the high end; what lies beyond an end is put there."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / (math.log(self.high / self.low) or 1.0)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, wanted: int = 4) -> list[float]:
        """Round values between the ends, about `wanted` of them."""
        if not self.log or self.high / self.low < 8:
            return [value for value in round_between(self.low, self.high, wanted) if not self.log or value > 0]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= max(wanted - 2, 1) else (1,)
        every = max(1, (last - first) // max(wanted, 1))
        values = (factor * 10.0**power for power in range(first, last + 1, every) for factor in factors)
        return [value for value in values if self.low <= value <= self.high]


def at_width(points: Sequence[Point], columns: int = 400) -> list[Point]:
    """The points that can be seen in a number of columns: of each its first, lowest, highest and last point.

    A line through them covers the same pixels as one through all (M4, Jugel et al. 2014): no spike gets lost.
    """
    if len(points) <= 4 * columns:
        return list(points)
    left, right = points[0][0], points[-1][0]
    wide = (right - left) / columns or 1.0
    kept: list[Point] = []
    first = 0
    for end in range(1, len(points) + 1):
        column = int((points[first][0] - left) / wide)
        if end < len(points) and int((points[end][0] - left) / wide) == column:
            continue
        places = range(first, end)
        lowest, highest = (choose(places, key=lambda place: points[place][1]) for choose in (min, max))
        kept += [points[place] for place in sorted({first, lowest, highest, end - 1})]
        first = end
    return kept


def smoothed(points: Sequence[Point], window: int) -> list[Point]:
    """The mean of `window` neighbouring values around each point; of fewer at the ends, as many at both sides."""
    if window <= 1:
        return list(points)
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    found = []
    for place, (x, _) in enumerate(points):
        half = min(window // 2, place, len(points) - 1 - place)
        found.append((x, (sums[place + half + 1] - sums[place - half]) / (2 * half + 1)))
    return found
