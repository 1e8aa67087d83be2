"""Curves as text, for a terminal or a log: Braille characters of 2 × 4 dots, or plain letters where there are none.

10.9 ┤⢇
     │⠈⢆
 7.4 ┤  ⠑⢄⡀o
     │     ⠉⠒o⠤⣀⡀o
 3.9 ┤           ⠉⠉o⠒⠒⠤⠤o
     └────────────────────
      1               400 steps
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from command_kit.charts.numbers import Point, Scale, at_width

MARKS = ("", "o", "x", "+", "*", "#", "@", "%")
"""The mark of each curve's points; the first is a line."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a Braille character by column and row."""
NARROWEST = 24


def can_show(encoding: str | None) -> bool:
    """Whether text in `encoding` can hold the characters of these curves."""
    try:
        "⠿┤│└─".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def text_curves(
    curves: Sequence[Sequence[Point]],
    *,
    columns: int,
    rows: int = 8,
    plain: bool = False,
    show_up: Callable[[float], str],
    show_across: Callable[[float], str],
) -> list[str]:
    """Lines of text with one or more curves over common axes; none if they have fewer than two points in all.

    Args:
        curves: the points of each, in the order of x; the first is a line, the others are marked by `MARKS`.
        columns: the width of the lines, in characters.
        rows: the height of the axis.
        plain: use ASCII only.
        show_up: writes a value at the side.
        show_across: writes a value below.
    """
    points = [point for curve in curves for point in curve]
    if len(points) < 2:
        return []
    across = Scale.of(x for x, _ in points)
    up = Scale.of(y for _, y in points)
    labels = {row: show_up(up.high - (up.high - up.low) * row / (rows - 1)) for row in range(0, rows, 2)}
    gutter = max(map(len, labels.values())) + 2
    wide = max(columns - gutter, NARROWEST)
    grid = [[" "] * wide for _ in range(rows)]
    _draw_line(grid, curves[0], across, up, plain)
    for number, curve in enumerate(curves[1:], 1):
        for x, y in curve:
            grid[round((rows - 1) * (1 - up.share(y)))][round((wide - 1) * across.share(x))] = MARKS[
                number % len(MARKS)
            ]
    tick, side, corner, floor = ("|", "|", "+", "-") if plain else ("┤", "│", "└", "─")
    lines = [
        f"{labels.get(row, ''):>{gutter - 2}} {tick if row in labels else side}{''.join(cells)}".rstrip()
        for row, cells in enumerate(grid)
    ]
    left, right = show_across(across.low), show_across(across.high)
    below = f"{left}{right:>{max(wide - len(left), len(right) + 1)}}"
    return [*lines, f"{'':>{gutter - 1}}{corner}{floor * wide}", f"{'':>{gutter}}{below}"]


def _draw_line(grid: list[list[str]], points: Sequence[Point], across: Scale, up: Scale, plain: bool) -> None:
    """Draw a line through `points` into `grid`."""
    wide, high = (1, 1) if plain else (2, 4)
    columns, rows = wide * len(grid[0]), high * len(grid)
    bits: dict[tuple[int, int], int] = {}
    shown = at_width(points, columns)
    places = [((columns - 1) * across.share(x), (rows - 1) * (1 - up.share(y))) for x, y in shown]
    for column, row in _dots_of(places):
        cell = (row // high, column // wide)
        bits[cell] = bits.get(cell, 0) | _DOTS[column % wide][row % high]
    for (row, column), bit in bits.items():
        grid[row][column] = "." if plain else chr(0x2800 + bit)


def _dots_of(places: Sequence[tuple[float, float]]) -> set[tuple[int, int]]:
    """The dots (column, row) of a line through `places`: in each column all dots between where it comes and goes."""
    found = {(round(x), round(y)) for x, y in places}
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        first, last = round(x0), round(x1)
        before = round(y0)
        for column in range(first, last + 1):
            share = (column - x0) / (x1 - x0) if x1 > x0 else 1.0
            now = round(y0 + (y1 - y0) * min(max(share, 0.0), 1.0))
            rows = range(before + 1, now + 1) if now > before else range(now, before) if now < before else (now,)
            found |= {(column, row) for row in rows}
            before = now
    return found
