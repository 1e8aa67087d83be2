"""Charts as SVG that fills the width it is given: positions across are shares of the width, text keeps its size.

Shapes that can't be given in shares (lines, areas) lie in an inner SVG that is stretched, and whose strokes are not.
Colours are classes of the page's style sheet. Each chart has a title for those who can't see it, and the numbers behind
it in a table that can be opened.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from webtext_prep.reporting.markup import Markup, join, tag
from webtext_prep.reporting.numbers import nice_steps, short

TOP, BOTTOM = 14, 26
"""Pixels above the highest line of a chart, and below its lowest."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: in the legend.
        kind: its class in the style sheet.
        points: (x, y).
    """

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


def bar(value: float, most: float, kind: str = "kept") -> Markup:
    """A bar across a table's cell: `value` of `most`."""
    return stacked([(value, kind, "")], most)


def stacked(parts: Iterable[tuple[float, str, str]], most: float) -> Markup:
    """A bar of several parts, each (value, class, what it is)."""
    shapes: list[Markup] = []
    start = 0.0
    for value, kind, name in parts:
        if value > 0 and most > 0:
            wide = max(100 * value / most, 0.15)
            title = tag("title", name) if name else None
            shapes.append(
                tag("rect", title, class_=f"fill-{kind}", x=f"{start:.2f}%", y=0, width=f"{wide:.2f}%", height="100%")
            )
            start += wide
    return tag("svg", *shapes, class_="bar", width="100%", height=10, aria_hidden="true")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Colours and what they mean, each (class, name)."""
    items = (
        tag(
            "li",
            tag(
                "svg",
                tag("rect", class_=f"fill-{kind}", width=10, height=10, rx=2),
                width=10,
                height=10,
                aria_hidden="true",
            ),
            name,
        )
        for kind, name in entries
    )
    return tag("ul", *items, class_="legend")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], summary: str = "Numbers") -> Markup:
    """The numbers behind a chart, to be opened."""
    return tag("details", tag("summary", summary), plain_table(head, rows))


def plain_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that scrolls by itself where it is too wide."""
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
            tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
    )


def histogram(
    columns: Sequence[tuple[float, float, float]],
    *,
    title: str,
    kind: str = "kept",
    show: Callable[[float], str] = short,
    marks: Iterable[tuple[float, str]] = (),
    log: bool = True,
    height: int = 200,
) -> Markup:
    """A chart of columns, each (from, to, count).

    Args:
        columns: without gaps; of equal ratio with `log`, else of equal width.
        title: what the chart shows.
        kind: class of the columns.
        show: writes a value of the axis below.
        marks: values to point out, each with a name.
        log: whether the axis below is one of orders of magnitude.
        height: in pixels.
    """
    at: Callable[[float], float] = math.log10 if log else float
    first, last = at(columns[0][0]), at(columns[-1][1])
    most = max(count for _, _, count in columns)
    inner = height - TOP - BOTTOM

    def across(value: float) -> float:
        return 100 * (at(value) - first) / ((last - first) or 1)

    def high(count: float) -> float:
        return inner * count / most if most else 0

    shapes = []
    for low, up, count in columns:
        left, right = across(low), across(up)
        if count:
            shapes.append(
                tag(
                    "rect",
                    tag("title", f"{show(low)} to {show(up)}: {short(count)}"),
                    class_=f"fill-{kind}",
                    x=f"{left + 0.06 * (right - left):.2f}%",
                    width=f"{0.88 * (right - left):.2f}%",
                    y=round(TOP + inner - max(high(count), 1), 1),
                    height=round(max(high(count), 1), 1),
                )
            )
    # Written where the columns are lower.
    third = -(-len(columns) // 3)
    at_end = sum(count for _, _, count in columns[-third:]) <= sum(count for _, _, count in columns[:third])
    lines = _level_lines(most, inner, high, at_end)
    axis = [
        *_ticks(((across(value), show(value)) for value in axis_values(columns[0][0], columns[-1][1], log)), height),
        tag("line", class_="axis", x1=0, x2="100%", y1=TOP + inner, y2=TOP + inner),
    ]
    pointers = []
    for value, name in marks:
        place = across(min(max(value, columns[0][0]), columns[-1][1]))
        pointers += [
            tag("line", class_="mark", x1=f"{place:.2f}%", x2=f"{place:.2f}%", y1=TOP - 4, y2=TOP + inner),
            _text(name, f"{place:.2f}%", TOP - 4, "mark-name", "end" if place > 50 else "start", 5),
        ]
    # Lines lie behind the columns, and what is written on them in front.
    behind = [part for part in lines if part.startswith("<line")]
    written = [part for part in lines if not part.startswith("<line")]
    return _chart(title, height, *behind, *shapes, *written, *axis, *pointers)


def axis_values(first: float, last: float, log: bool) -> list[float]:
    """Round values for the axis below a histogram."""
    if not log:
        return _round_between(first, last, 4)
    powers = range(math.ceil(math.log10(first) - 1e-9), math.floor(math.log10(last) + 1e-9) + 1)
    factors = (1,) if len(powers) > 2 else (1, 2, 5)
    values = (factor * 10.0**power for power in range(powers.start - 1, powers.stop) for factor in factors)
    return [value for value in values if first <= value <= last]


def lines_chart(
    lines: Sequence[Line],
    *,
    title: str,
    height: int = 240,
    from_zero: bool = False,
    show: Callable[[float], str] = short,
) -> Markup:
    """A chart of lines over a common axis. A line of a single point is a dot.

    Args:
        lines: at least one point in all.
        title: what the chart shows.
        height: in pixels.
        from_zero: whether the axis at the left begins at 0.
        show: writes a value of the axis at the left.
    """
    points = [point for line in lines for point in line.points]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = (0.0 if from_zero else min(y for _, y in points)), max(y for _, y in points)
    if low == high:
        low, high = low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1
    elif not from_zero:
        low -= 0.06 * (high - low)
    inner = height - TOP - BOTTOM
    wide = (right - left) or 1.0

    def across(x: float) -> float:
        return 100 * (x - left) / wide

    def down(y: float) -> float:
        return inner * (high - y) / (high - low)

    stretched, dots = [], []
    for line in lines:
        if len(line.points) > 1:
            path = " ".join(f"{across(x):.3f},{down(y):.2f}" for x, y in line.points)
            stretched.append(tag("polyline", class_=f"line line-{line.kind}", points=path))
        # A line of few points shows each of them.
        if len(line.points) <= 40:
            for x, y in line.points:
                spot = {"cx": f"{across(x):.2f}%", "cy": round(TOP + down(y), 1)}
                dots.append(
                    tag("circle", tag("title", f"{show(y)} at {x:,.0f}"), class_=f"dot dot-{line.kind}", r=3, **spot)
                )
    plot = tag(
        "svg",
        *stretched,
        x=0,
        y=TOP,
        width="100%",
        height=inner,
        viewBox=f"0 0 100 {inner}",
        preserveAspectRatio="none",
        overflow="visible",
    )
    levels = [low + step for step in nice_steps(high - low)] if from_zero else _round_between(low, high)
    grid: list[Markup] = []
    for value in levels:
        place = round(TOP + down(value), 1)
        grid += [
            tag("line", class_="grid", x1=0, x2="100%", y1=place, y2=place),
            _text(show(value), 0, place - 4, "tick level", "start"),
        ]
    ticks = sorted(
        {left, *(x for x in _round_between(left, right, 5) if left + 0.06 * wide < x < right - 0.06 * wide), right}
    )
    axis = [
        *_ticks(((across(x), short(x)) for x in ticks), height),
        tag("line", class_="axis", x1=0, x2="100%", y1=TOP + inner, y2=TOP + inner),
    ]
    return _chart(title, height, *grid, *axis, plot, *dots)


def thinned(points: Sequence[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """At most `most` points: means of as many neighbours as are needed for that."""
    size = -(-len(points) // most)
    if size <= 1:
        return list(points)
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _round_between(low: float, high: float, wanted: int = 3) -> list[float]:
    """Round values between two others, about so many."""
    steps = nice_steps(high - low, wanted)
    step = steps[0] if steps else 1.0
    near = 1e-6 * step
    numbers = itertools.takewhile(lambda number: step * number <= high + near, itertools.count(math.floor(low / step)))
    return [step * number for number in numbers if step * number >= low - near]


def _level_lines(most: float, inner: float, high: Callable[[float], float], at_end: bool) -> list[Markup]:
    found = []
    for value in nice_steps(most):
        place = round(TOP + inner - high(value), 1)
        found += [
            tag("line", class_="grid", x1=0, x2="100%", y1=place, y2=place),
            _text(short(value), "100%" if at_end else 0, place - 4, "tick level", "end" if at_end else "start"),
        ]
    return found


def _ticks(values: Iterable[tuple[float, str]], height: int) -> list[Markup]:
    return [
        _text(name, f"{at:.2f}%", height - 8, "tick", "start" if at < 4 else "end" if at > 96 else "middle")
        for at, name in values
    ]


def _text(text: object, x: object, y: float, kind: str, anchor: str, dx: int = 0) -> Markup:
    shift = (dx if anchor == "start" else -dx) or None
    return tag("text", text, class_=kind, x=x, y=y, dx=shift, text_anchor=None if anchor == "start" else anchor)


def _chart(title: str, height: int, *children: object) -> Markup:
    return tag("svg", tag("title", title), join(children), class_="chart", role="img", width="100%", height=height)
