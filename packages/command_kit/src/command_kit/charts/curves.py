"""Curves of measurements over steps or time, many points and several runs in one chart.

Runs differ in colour and in dashes, both chosen so that readers who see few colours, or print in grey, can tell them
apart (colours of Okabe and Ito 2008). A chart is drawn for any width, as a page needs it: places across are shares of
the width, and text keeps its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import Scale, short

COLOURS, DASHES = 7, 5
"""Their classes are in `styles/curves.css`. Having no common divisor, they make 35 looks."""
GUTTER, TOP, BOTTOM = 54, 8, 24
"""Pixels at the left, where the values are written, above the chart, and below it."""
STRETCHED = 1000
"""Width in which the lines of a chart for any width are given."""
MOST_DOTS = 60
COLUMNS = 400

Point = tuple[float, float]
Show = Callable[[float], str]


@dataclass(frozen=True)
class Curve:
    """One curve of a chart.

    Attributes:
        name: in the legend.
        look: its number among the looks, from 0 on.
        points: (x, y), in the order of x.
        dots: whether its points are marked, if they are few.
    """

    name: str
    look: int
    points: Sequence[Point]
    dots: bool = False


@dataclass(frozen=True)
class Axes:
    """The axes of a chart.

    Attributes:
        across, up: their scales.
        show_across, show_up: write their values.
    """

    across: Scale
    up: Scale
    show_across: Show = short
    show_up: Show = short


def classes(look: int) -> str:
    """The classes of a line of that look."""
    return f"curve r{look % COLOURS + 1} dash{look % DASHES + 1}"


def at_width(points: Sequence[Point], columns: int = COLUMNS) -> list[Point]:
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


def legend_mark(curve: Curve) -> Markup:
    """The look of a curve in its chart: a piece of its line, or a point where that is all there is."""
    if len(curve.points) == 1:
        return tag("circle", class_=f"point r{curve.look % COLOURS + 1}", r=3, cx=13, cy=6)
    return tag("line", class_=classes(curve.look), x1=0, x2=26, y1=6, y2=6)


def chart_of_any_width(curves: Sequence[Curve], axes: Axes, *, title: str, height: int) -> Markup:
    """A chart for a page, as wide as there is room."""
    area = tag(
        "svg",
        *_area(curves, axes, height),
        class_="area",
        role="img",
        aria_label=title,
        width="100%",
        height=height,
    )
    values = tag("svg", *_values(axes, height), width=GUTTER, height=height, aria_hidden="true")
    return tag("div", values, tag("div", area, class_="room"), class_="plot")


def _down(axes: Axes, height: int, value: float) -> float:
    return round(TOP + (height - TOP - BOTTOM) * (1 - axes.up.share(value)), 1)


def _ticks_up(axes: Axes, height: int) -> list[float]:
    return axes.up.ticks(max(2, round(height / 45)))


def _values(axes: Axes, height: int) -> Iterator[Markup]:
    """The labels at the left of a chart."""
    for value in _ticks_up(axes, height):
        place = _down(axes, height, value) + 4
        yield tag("text", axes.show_up(value), class_="tick", x=GUTTER - 8, y=place, text_anchor="end")


def _area(curves: Sequence[Curve], axes: Axes, height: int) -> Iterator[object]:
    for value in _ticks_up(axes, height):
        place = _down(axes, height, value)
        yield tag("line", class_="grid", x1=0, x2="100%", y1=place, y2=place)
    floor = height - BOTTOM
    yield tag("line", class_="axis", x1=0, x2="100%", y1=floor, y2=floor)
    yield from _axis(axes, height)
    lines = join(_line(curve, axes, height) for curve in curves)
    yield tag(
        "svg",
        lines,
        width="100%",
        height=height,
        viewBox=f"0 0 {STRETCHED} {height}",
        preserveAspectRatio="none",
    )
    yield from (dot for curve in curves for dot in _dots(curve, axes, height))


def _axis(axes: Axes, height: int) -> Iterator[Markup]:
    for value in axes.across.ticks(5):
        share = axes.across.share(value)
        anchor = None if share < 0.03 else "end" if share > 0.97 else "middle"
        place = f"{100 * share:.2f}%"
        yield tag("line", class_="axis", x1=place, x2=place, y1=height - BOTTOM, y2=height - BOTTOM + 4)
        yield tag("text", axes.show_across(value), class_="tick", x=place, y=height - 6, text_anchor=anchor)


def _line(curve: Curve, axes: Axes, height: int) -> Markup | None:
    points = at_width(curve.points)
    if len(points) < 2:
        return None
    places = " ".join(f"{STRETCHED * axes.across.share(x):.1f},{_down(axes, height, y)}" for x, y in points)
    return tag("polyline", class_=classes(curve.look), points=places)


def _dots(curve: Curve, axes: Axes, height: int) -> Iterator[Markup]:
    """Points of a curve that is marked, or that has only one."""
    if len(curve.points) == 1 or (curve.dots and len(curve.points) <= MOST_DOTS):
        for x, y in curve.points:
            place = f"{100 * axes.across.share(x):.2f}%"
            yield tag("circle", class_=f"point r{curve.look % COLOURS + 1}", r=3, cx=place, cy=_down(axes, height, y))


def scales_of(curves: Iterable[Curve], *, from_zero: bool = False) -> tuple[Scale, Scale]:
    """The scales that hold all points of some curves: across, and up."""
    points = [point for curve in curves for point in curve.points]
    across = Scale.of((x for x, _ in points), from_zero=True)
    return across, Scale.of((y for _, y in points), from_zero=from_zero, room=0.05)
