"""Numbers as people read them."""

from __future__ import annotations

import itertools
import math


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


def size(value: float) -> str:
    """Bytes in decimal units: 1234567 -> `1.23 MB`."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * limit:
            return f"{value / limit:.3g} {unit}"
    return f"{round(value)} bytes"


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


def nice_steps(most: float, wanted: int = 3) -> list[float]:
    """Round numbers above 0 up to `most`, about `wanted` of them, for the lines of a chart."""
    if most <= 0:
        return []
    raw = most / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [step * number for number in range(1, int(most / step + 1e-9) + 1)]


def round_between(low: float, high: float, wanted: int = 3) -> list[float]:
    """Round values between two others, about so many."""
    steps = nice_steps(high - low, wanted)
    step = steps[0] if steps else 1.0
    near = 1e-6 * step
    numbers = itertools.takewhile(lambda number: step * number <= high + near, itertools.count(math.floor(low / step)))
    return [step * number for number in numbers if step * number >= low - near]
